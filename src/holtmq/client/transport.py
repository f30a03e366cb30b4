"""Sends a request and returns its response, over as many attempts, connections and brokers as needed.

Owns: the pools, the credentials, retries and failover. Must not touch: what requests mean. Every request
passed in may be sent twice; its caller must have made it idempotent.
"""

import asyncio
import base64
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holtmq.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionFailed,
    HungUp,
    Overloaded,
    Refused,
    TimedOut,
    is_passing,
    refusal,
)
from holtmq.client.http1 import Address, Answer, HangUp
from holtmq.client.pool import Pool
from holtmq.client.retrying import Backoff, Rotation, read_retry_after

log = logging.getLogger(__name__)

Token = str | Callable[[], str]
_USER_AGENT: Final = "holtmq-client"


@dataclass(frozen=True, slots=True)
class Request:
    """One call. With ``tries`` None it is retried until it is cancelled or answered."""

    method: str
    path: str
    body: bytes | None = None
    seconds: float | None = None  # None: the client's timeout
    tries: int | None = 0  # 0: the number set by the client's backoff
    waits: bool = False  # a long poll: not counted against the connection limit


@dataclass(slots=True)
class Attempts:
    """What happened before the response arrived."""

    unclear: bool = False  # an attempt ended without a response: the broker may have executed the request


class Transport:
    """Retries, failover and credentials over one connection pool per broker."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: Token | None,
        login: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None,
        timeout: float,
        connect_timeout: float,
        backoff: Backoff,
        max_connections: int,
    ) -> None:
        addresses = [Address.parse(url) for url in urls]
        if tls is None and any(address.secure for address in addresses):
            tls = ssl.create_default_context()
        self._pools = [Pool(address, tls, connect_timeout) for address in addresses]
        self._rotation = Rotation(len(addresses))
        if token is not None and login is not None:
            raise ValueError("give a token, or user and password, not both")
        self._token = token
        self._basic = ""
        if login is not None:
            self._basic = base64.b64encode(":".join(login).encode()).decode()
        self._timeout = timeout
        self._backoff = backoff
        # Long polls do not count: a hundred waiting workers must not block the first ack.
        self._slots = asyncio.Semaphore(max_connections)
        self._closed = False

    @property
    def url(self) -> str:
        """The broker in use."""
        address = self._pools[self._rotation.current].address
        return f"{'https' if address.secure else 'http'}://{address.authority}{address.prefix}"

    async def call(
        self, request: Request, hang_up: HangUp | None = None, attempts: Attempts | None = None
    ) -> Answer:
        """Return a response with a status below 400, or raise the last error."""
        tries = self._backoff.tries if request.tries == 0 else request.tries
        failures, failed = 0, set[int]()
        while True:
            if self._closed:
                raise ClientClosed("this client is closed")
            if hang_up is not None and hang_up.asked.is_set():
                raise HungUp("the request was taken back")
            index = self._rotation.pick(time.monotonic())
            try:
                answer = await self._once(self._pools[index], request, hang_up, attempts)
            except ClientError as error:
                if not is_passing(error):
                    raise
                # Do not leave a broker that is only busy: another one would not have the same leases.
                if not isinstance(error, Overloaded):
                    self._rotation.failed(index, time.monotonic())
                    failed.add(index)
                    if len(failed) < len(self._pools):
                        continue  # try the next broker at once
                failed.clear()
                failures += 1
                if tries is not None and failures >= tries:
                    raise
                retry_after = error.retry_after if isinstance(error, Refused) else None
                delay = self._backoff.delay(failures, random.random(), retry_after)
                log.debug("trying again", extra={"path": request.path, "reason": str(error), "delay": delay})
                await _pause(delay, hang_up)
            else:
                self._rotation.worked(index)
                return answer

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(pool.close() for pool in self._pools))

    async def _once(
        self, pool: Pool, request: Request, hang_up: HangUp | None, attempts: Attempts | None
    ) -> Answer:
        if request.waits:
            answer = await self._exchange(pool, request, hang_up, attempts)
        else:
            async with self._slots:
                answer = await self._exchange(pool, request, hang_up, attempts)
        if answer.status < 400:
            return answer
        after = read_retry_after(answer.retry_after, time.time()) if answer.retry_after else None
        raise refusal(answer.status, answer.body, after)

    async def _exchange(
        self, pool: Pool, request: Request, hang_up: HangUp | None, attempts: Attempts | None
    ) -> Answer:
        raw = self._raw(pool.address, request)
        seconds = self._timeout if request.seconds is None else request.seconds
        while True:
            connection, used = await pool.take()
            try:
                return await connection.exchange(raw, seconds, hang_up)
            except ConnectionFailed as error:
                if attempts is not None:
                    attempts.unclear = True
                # A broker closes idle connections, and the close may cross with our request. That is no
                # failure of the broker: try the next connection, until a fresh one fails.
                if not used or connection.answering or isinstance(error, TimedOut):
                    raise
            finally:
                pool.give_back(connection)

    def _raw(self, address: Address, request: Request) -> bytes:
        lines = [
            f"{request.method} {address.prefix}{request.path} HTTP/1.1",
            f"Host: {address.authority}",
            f"User-Agent: {_USER_AGENT}",
            "Accept: application/json",
        ]
        token = self._token() if callable(self._token) else self._token
        if token:
            if not token.isprintable():
                raise ValueError("a token has no line ends in it")
            lines.append(f"Authorization: Bearer {token}")
        elif self._basic:
            lines.append(f"Authorization: Basic {self._basic}")
        body = request.body
        if body is not None:
            lines.append("Content-Type: application/json")
        if body is not None or request.method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head + body if body else head


async def _pause(seconds: float, hang_up: HangUp | None) -> None:
    """Sleep, unless the request is cancelled meanwhile."""
    if hang_up is None:
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await hang_up.asked.wait()
    except TimeoutError:
        return
