"""Failover under judgement: two nodes, a PostgreSQL, faults at random moments."""
