"""Cases against a broker: what must never happen whatever is sent.

Owns: the connection, the judgement, and putting back what cases take away. A finding names its seed.
"""

import re
import socket
from collections.abc import Iterable

from http_cases import Case, make_case

from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.config import Config, Http, Limits
from holtmq.first_start import GUEST_HASH
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

_EVERY = 100  # cases between two times of putting back what they may have taken away
_ENDLESS = b"text/event-stream"
_ALLOWED = frozenset({501, 503})  # not installed; publishers blocked or maintenance


def config() -> Config:
    """Nothing waits long, nothing takes much."""
    return Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(max_wait_ms=20, max_body_bytes=1 << 20, max_long_body_bytes=1 << 20),
    )


def put_back(node: FaultyNode) -> None:
    """Users, vhost and switches as they were, and a few things to find."""
    broker = node.broker
    if "/" not in broker.vhosts:
        broker.put_vhost("/")
    for name in ("fuzz", "guest"):
        broker.access.put_user(User(name, GUEST_HASH, ("administrator",)))
        broker.access.set_permissions(name, "/", FULL_ACCESS)
    node.amqp.authenticator.remember("fuzz", "fuzz", GUEST_HASH)
    node.partitioned.spool.switch(pushes_spooled=False)
    node.partitioned.spool.switch(pops_paused=False)
    if "work" not in broker.vhosts["/"].queues:
        broker.declare_queue(broker.vhosts["/"], "work", durable=True)
    node.scheduler.wake()


class Client:
    """A keep-alive connection that is opened again when the broker has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire: socket.socket | None = None

    def ask(self, request: bytes) -> bytes:
        """The answer, as far as it came before the broker was silent or gone."""
        if self._wire is None:
            self._wire = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        is_head = request.startswith(b"HEAD ")
        try:
            self._wire.sendall(request)
            answer = self._read(is_head)
            while answer.startswith(b"HTTP/1.1 100"):
                answer = answer.partition(b"\r\n\r\n")[2] or self._read(is_head)
        except ConnectionError:
            answer = b""
        head = answer.partition(b"\r\n\r\n")[0].lower()
        if not answer or b"connection: close" in head or _ENDLESS in head:
            self.close()
        return answer

    def _read(self, is_head: bool) -> bytes:
        assert self._wire is not None
        data = b""
        while not _is_whole(data, is_head):
            more = self._wire.recv(1 << 16)
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Hang up."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def _is_whole(data: bytes, is_head: bool) -> bool:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return False
    lowered = head.lower()
    if _ENDLESS in lowered or is_head or b" 204 " in head[:16] or b" 100 " in head[:16]:
        return True
    if b"transfer-encoding: chunked" in lowered:
        return rest.endswith(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", lowered)
    return length is not None and len(rest) >= int(length[1])


def run(broker: TestBroker, seeds: Iterable[int]) -> dict[int, int]:
    """How often each status came; AssertionError with the seed when something is wrong."""
    client = Client(broker.http_port)
    counts: dict[int, int] = {}
    for number, seed in enumerate(seeds):
        if number % _EVERY == 0:
            broker.call(put_back)
        case = make_case(seed)
        status = judged(case, client.ask(case.request))
        counts[status] = counts.get(status, 0) + 1
    client.close()
    return counts


def judged(case: Case, answer: bytes) -> int:
    """The status of an acceptable answer."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    told = f"seed {case.seed}, {case.what}: {case.request[:2000]!r} -> {answer[:500]!r}"
    assert found is not None, told
    status = int(found[1])
    assert status < 500 or status in _ALLOWED, told
    return status
