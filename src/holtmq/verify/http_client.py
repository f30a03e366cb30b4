"""A small HTTP client for the judge: one keep-alive connection, one request at a time.

Owns: encoding requests, decoding responses. Must not touch: what is pushed and why.
Written here so that a response counts as soon as it arrives, and nothing is retried unknown to the judge.
"""

import asyncio

import msgspec

from holtmq.verify.workload import Gone


class HttpClient:
    """One connection, made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> "HttpClient":
        """Open the connection."""
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))
        except OSError as error:
            raise Gone(str(error)) from None

    async def get(self, path: str, accept: str = "*/*") -> tuple[int, bytes]:
        """Status and body."""
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n"
        return await self._request(head.encode())

    async def post(self, path: str, content: object) -> tuple[int, bytes]:
        """Status and body."""
        body = msgspec.json.encode(content)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self._request(head.encode() + body)

    async def put(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body."""
        head = f"PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self._request(head.encode() + body)

    async def delete(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        return await self._request(f"DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

    def close(self) -> None:
        """Close the socket."""
        self._writer.transport.abort()

    async def _request(self, request: bytes) -> tuple[int, bytes]:
        if self._writer.is_closing():
            raise Gone("the connection is lost")
        self._writer.write(request)
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            size = _content_length(head)
            body = await self._reader.readexactly(size) if size else b""
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone(str(error)) from None
        return int(head.split(" ", 2)[1]), body


def _content_length(head: str) -> int:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0
