"""Partitioned queues: one log each, consumer groups with cursors, leases that expire. See service.py."""
