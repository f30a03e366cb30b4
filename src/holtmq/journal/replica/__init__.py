"""The journal's bytes as rows in PostgreSQL, which decides what is durable and which node owns the log."""
