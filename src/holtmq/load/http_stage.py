"""A workload's queue on a broker with the HTTP interface, and its connections.

Owns: creating the queue and deleting it again. Must not touch: the measuring.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from holtmq.load.errors import LoadError
from holtmq.load.http_connections import LoadConnection, LoadEngine
from holtmq.load.http_dialect import QUEUE, HeldMessage, HttpDialect
from holtmq.load.http_wire import HttpAddress, HttpAnswer, HttpWire, product
from holtmq.load.http_workers import Flow, Popper, Pusher
from holtmq.load.http_workloads import HttpWorkload
from holtmq.load.processes import listener_pid

_FILL_CONNECTIONS: Final = 8
_FILL_BATCH: Final = 100

HttpLoadConnection = LoadConnection[bytes, HttpAnswer]


class HttpStage:
    """One round's queue, with its pushers and poppers."""

    def __init__(self, address: HttpAddress, workload: HttpWorkload) -> None:
        self.flow = Flow(workload)
        self._address = address
        self._workload = workload
        self._control = HttpWire(address)
        try:
            self._control.delete_queue(QUEUE)  # left over from an interrupted round
            self._dialect = HttpDialect(address, workload)
        except BaseException:
            self._control.close()
            raise

    def fill(self, messages: int) -> None:
        filler = replace(self._workload, pushers=_FILL_CONNECTIONS, push_batch=_FILL_BATCH, own_ids=True)
        flow = Flow(filler)
        dialect = HttpDialect(self._address, filler)
        numbers = range(_FILL_CONNECTIONS)
        engine = LoadEngine([_pusher(self._address, dialect, flow, number) for number in numbers])
        try:
            engine.run(lambda: flow.offered >= messages)
            flow.closed = True
            engine.run(lambda: flow.pushed == flow.offered)
        finally:
            engine.close()
        self.flow.offered = self.flow.pushed = flow.pushed

    def pushers(self) -> list[HttpLoadConnection]:
        numbers = range(self._workload.pushers)
        return [_pusher(self._address, self._dialect, self.flow, number) for number in numbers]

    def poppers(self) -> list[HttpLoadConnection]:
        return [
            LoadConnection(
                HttpWire(self._address),
                Popper[bytes, HttpAnswer, list[HeldMessage]](self._dialect, self.flow, number, group),
            )
            for group in range(self._workload.lines)
            for number in range(self._workload.poppers)
        ]

    def close(self) -> None:
        with suppress(LoadError):  # the broker is gone; the next round deletes first
            self._control.delete_queue(QUEUE)
        self._control.close()


def _pusher(address: HttpAddress, dialect: HttpDialect, flow: Flow, number: int) -> HttpLoadConnection:
    worker = Pusher[bytes, HttpAnswer, list[HeldMessage]](dialect, flow, number)
    return LoadConnection(HttpWire(address), worker)


def _check_login(address: HttpAddress) -> None:
    """Fail before the first round, not in each of them."""
    wire = HttpWire(address)
    try:
        answer = wire.call(address.get(f"/api/v1/resources/queues/{QUEUE}"))
    finally:
        wire.close()
    if answer.status in (401, 403):
        raise LoadError(
            f"{address} refused ({answer.status}): name a user who may read and write in the address "
            "(http://user:password@host), or give --token"
        )


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A broker with the HTTP interface."""

    label: str
    address: HttpAddress
    pid: int | None

    @classmethod
    def at(cls, url: str, pid: int | None = None, token: str = "", tls_ca: str = "") -> HttpTarget:
        """Connect once, to check that the broker is up and to learn its name."""
        address = HttpAddress.parse(url, token, tls_ca)
        label = product(address)
        _check_login(address)
        return cls(label, address, pid if pid is not None else listener_pid(address.socket_address))

    def runs(self, workload: HttpWorkload) -> bool:
        return True

    def stage(self, workload: HttpWorkload) -> HttpStage:
        return HttpStage(self.address, workload)
