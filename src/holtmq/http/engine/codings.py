"""Decompression of request bodies.

Owns: which codings are accepted, and the limit on the decompressed size. Must not touch: sockets, what a body
means.
"""

import zlib
from typing import Final

from holtmq.http.engine.errors import Refusal

ACCEPTED: Final = "gzip, deflate"  # also sent as a header, so that a client can retry with one of them
_TAKEN: Final = ("gzip", "x-gzip", "deflate")
_EITHER: Final = 32 + zlib.MAX_WBITS  # zlib tells the two apart by their first bytes
# Magic bytes of Queen's binary push and transaction bodies, which its newer clients can be set to send.
_QUEEN_BINARY: Final = (b"QPB1", b"QTB1")


def coding_of(header: str | None) -> str:
    """The coding that a header names; empty for none. Raises 415 for one that is not accepted."""
    coding = (header or "").strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in _TAKEN:
        text = f"a body with content-encoding {coding[:64]!r} cannot be read; {ACCEPTED} can, or none"
        raise Refusal(415, text)
    return coding


def plain_body(body: bytes, header: str | None, most: int) -> bytes:
    """The body, decompressed as its header says; raises 400, 413 or 415."""
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
    while body:  # a gzip body may have several members
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
