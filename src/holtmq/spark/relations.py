"""What can be read of a queue: its messages, its dead letters, its deliveries.

Owns: the suffixes and parsing a name with one. Must not touch: columns, the broker.
"""

from enum import Enum


class Relation(Enum):
    """The value is the suffix after ``$``, empty for the messages themselves."""

    MESSAGES = ""
    DEAD_LETTERS = "dlq"
    DELIVERIES = "deliveries"


def split_relation(name: str) -> tuple[str, Relation]:
    """``orders$dlq`` means the dead letters of ``orders``; an unknown suffix belongs to the queue's name."""
    queue, dollar, suffix = name.rpartition("$")
    if dollar and queue:
        for relation in (Relation.DEAD_LETTERS, Relation.DELIVERIES):
            if suffix == relation.value:
                return queue, relation
    return name, Relation.MESSAGES
