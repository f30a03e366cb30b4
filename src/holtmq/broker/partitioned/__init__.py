"""Partitioned queues: one log each, consumer groups with cursors, leases with a clock. See service.py."""
