"""Request bodies that come compressed.

Owns: which codings are taken, and that a small body cannot become a huge one. Must not touch: sockets, what
a body means.
"""

import zlib
from typing import Final

from holtmq.http.engine.errors import Refusal

ACCEPTED: Final = "gzip, deflate"  # also as a header: a client that reads it can try again
_TAKEN: Final = ("gzip", "x-gzip", "deflate")
_EITHER: Final = 32 + zlib.MAX_WBITS  # zlib tells the two apart by their first bytes
# Queen's own form of a push and of a transaction, which its newer clients can be told to use.
_QUEEN_BINARY: Final = (b"QPB1", b"QTB1")


def coding_of(header: str | None) -> str:
    """The coding that a header names; empty for a body as it is. Raises 415 for one that is not taken."""
    coding = (header or "").strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in _TAKEN:
        text = f"a body with content-encoding {coding[:64]!r} cannot be read; {ACCEPTED} can, or none"
        raise Refusal(415, text)
    return coding


def plain_body(body: bytes, header: str | None, most: int) -> bytes:
    """The body as it was before the coding that its header names; raises 400, 413 or 415."""
    coding = coding_of(header)
    if coding:
        return _unpacked(body, coding, most) if body else body
    if body[:4] in _QUEEN_BINARY:
        raise Refusal(
            415, f"{body[:4].decode()} bodies cannot be read: send JSON, with content-type application/json"
        )
    return body


def _unpacked(body: bytes, coding: str, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while body:  # gzip may come in several members
        unpacker = zlib.decompressobj(_EITHER)
        try:
            part = unpacker.decompress(body, most + 1 - size)
        except zlib.error as error:
            raise Refusal(400, f"the body is not {coding}: {error}") from None
        parts.append(part)
        size += len(part)
        if size > most:
            raise Refusal(413, f"The request body is larger than {most} bytes once unpacked")
        if not unpacker.eof:
            raise Refusal(400, f"the body is not {coding}: it ends too early")
        body = unpacker.unused_data
    return b"".join(parts)
