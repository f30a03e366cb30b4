"""Random identifiers for messages and leases that have none.

Owns: version 4 UUIDs, made from 4 KiB of ``urandom`` at a time; one system call for each was the largest cost
of a push without ids (3.5 of 9.7 µs a message). Must not touch: what they name.
"""

from collections.abc import Iterator
from os import urandom
from typing import Final

_AT_ONCE: Final = 256


def _uuids() -> Iterator[str]:
    while True:
        digits = urandom(16 * _AT_ONCE).hex()
        for at in range(0, 32 * _AT_ONCE, 32):
            one = digits[at : at + 32]
            # The variant digit is always 8, so 120 of the usual 122 bits are random.
            yield f"{one[:8]}-{one[8:12]}-4{one[13:16]}-8{one[17:20]}-{one[20:]}"


new_uuid: Final = _uuids().__next__
