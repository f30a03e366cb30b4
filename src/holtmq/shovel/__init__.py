"""Shovels: move messages from a queue of one broker to a queue or exchange of another."""
