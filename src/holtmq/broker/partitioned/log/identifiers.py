"""The ids of messages, partitions and dead letters that clients see: computed, not stored.

Owns: the mapping between those strings and internal numbers, both ways. Must not touch: state.
"""

from typing import Final

_PARTITION_BITS: Final = 32
_LETTER_BITS: Final = 40
_OFFSET_MASK: Final = (1 << 48) - 1


def message_id(queue: int, offset: int, created_us: int) -> str:
    """A UUIDv7. As strings, the ids of one queue sort in offset order, which stream clients rely on.

    Creation times rise strictly within a queue, so the leading time fields decide the order.
    """
    ms, us = divmod(created_us, 1000)
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031  # f-strings are slower for hex runs
        ms >> 16 & 0xFFFF_FFFF,
        ms & 0xFFFF,
        us,
        0x8000 | queue & 0x3FFF,
        offset & _OFFSET_MASK,
    )


def promised_id(due_us: int, random: int) -> str:
    """The id of a message that will be pushed at ``due_us`` or later; it sorts by its due time."""
    return message_id(random >> 48, random, due_us)


def offset_of(message: str) -> int | None:
    """The offset inside a message id; None when the text is not such an id."""
    head, dash, tail = message.rpartition("-")
    return _hex(tail) if dash and len(tail) == 12 and len(head) == 23 else None


def partition_id(queue: int, index: int) -> str:
    """A decimal string, as clients of this API expect it."""
    return str(queue << _PARTITION_BITS | index)


def partition_of(text: str) -> tuple[int, int] | None:
    """(queue, partition index) of a partition id; None when the text is not one."""
    number = _decimal(text)
    return None if number is None else (number >> _PARTITION_BITS, number & ((1 << _PARTITION_BITS) - 1))


def dead_letter_id(queue: int, number: int) -> str:
    return str(queue << _LETTER_BITS | number)


def dead_letter_of(text: str) -> tuple[int, int] | None:
    """(queue, dead letter number) of a dead letter id; None when the text is not one."""
    number = _decimal(text)
    return None if number is None else (number >> _LETTER_BITS, number & ((1 << _LETTER_BITS) - 1))


def _decimal(text: str) -> int | None:
    # Bounded before int(), whose cost is quadratic: a client may send a megabyte of digits.
    return int(text) if 0 < len(text) <= 24 and text.isascii() and text.isdigit() else None


def _hex(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
