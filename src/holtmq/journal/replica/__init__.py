"""The journal's bytes, row by row, in a PostgreSQL that decides what is durable and who owns the log."""
