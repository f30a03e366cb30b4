"""The messages of a migration: one shovel per queue or stream in the new broker, progress, and the account.

Owns: which shovels there are, when a queue has been moved, the figures. Must not touch: how messages move;
the broker does that, also while this command does not run. A global parameter says what was begun: the
command can be ended and started again at any time.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import quote

import click
import msgspec

from holtmq.cli.broker_api import BrokerApi, NoAnswer
from holtmq.cli.migrate.old_broker import Depth, OldBroker
from holtmq.cli.migrate.plan import QueueRef
from holtmq.cli.migrate.stream_ends import StreamEnds
from holtmq.cli.target import Target
from holtmq.shovel.link import LinkLost
from holtmq.shovel.stream_source import OFFSET

T = TypeVar("T")

STATE: Final = "migration"  # the global parameter
_PREFIX: Final = "migrate."
_LONGEST_NAME: Final = 255
_PREFETCH: Final = 500
_RECONNECT_SECONDS: Final = 1
_POLL_SECONDS: Final = 0.5


class Begun(msgspec.Struct):
    """What is stored about a migration."""

    source: str
    queues: list[tuple[str, str, int]]  # vhost, name, ready messages when it began
    streams: list[tuple[str, str, int]] = []  # likewise; their messages are copied

    @property
    def queue_refs(self) -> list[QueueRef]:
        """The queues."""
        return [QueueRef(vhost, name) for vhost, name, _ in self.queues]

    @property
    def stream_refs(self) -> list[QueueRef]:
        """The streams."""
        return [QueueRef(vhost, name) for vhost, name, _ in self.streams]


class GlobalRow(msgspec.Struct):
    name: str
    value: object


class ShovelRow(msgspec.Struct, frozen=True):
    """The state of a shovel."""

    vhost: str
    name: str
    state: str
    forwarded: int = 0
    pending: int = 0
    redelivered: int = 0
    skipped: int = 0
    last_error: str | None = None
    first_offset: int | None = None
    last_offset: int | None = None


class QueueRow(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    messages: int = 0


class Line(msgspec.Struct, frozen=True):
    """One queue in the account."""

    vhost: str
    queue: str
    at_start: int
    moved: int
    maybe_twice: int  # of the moved ones
    left: int | None  # in the old broker; None: the queue is gone there
    here: int
    state: str
    last_error: str | None
    first_offset: int | None = None  # in the old broker, of the first message that was copied from a stream


class Moving:
    """The shovels of one migration."""

    def __init__(self, target: Target, old: OldBroker, patience: float) -> None:
        self._target = target
        self._old = old
        self._patience = patience
        self._api: BrokerApi | None = None

    def begun(self) -> Begun | None:
        """The migration that was begun and not finished. Not patient: a wrong address is found out here."""
        for row in self._broker().get(list[GlobalRow], "global-parameters"):
            if row.name == STATE:
                return msgspec.convert(row.value, Begun)
        return None

    def begin(self, queues: list[QueueRef], streams: list[QueueRef]) -> Begun:
        """Store what is to be moved, then start the shovels."""
        depths = self._patiently(lambda: self._old.depths(queues))
        ends = self._patiently(lambda: self._old.stream_ends(streams))
        begun = Begun(
            self._old.shown,
            [(q.vhost, q.name, depth.ready) for q, depth in depths.items() if depth is not None],
            [(q.vhost, q.name, end.messages) for q, end in ends.items() if end is not None],
        )
        self._send("PUT", "global-parameters", STATE, body={"value": begun})
        self.start(begun)
        return begun

    def start(self, begun: Begun) -> None:
        """Start the shovels that are missing."""
        running = {(row.vhost, row.name) for row in self._shovels()}
        # Consumers that still read at the old broker come first.
        arguments: dict[QueueRef, dict[str, object]] = {ref: {"x-priority": -1} for ref in begun.queue_refs}
        arguments |= {ref: {OFFSET: "first"} for ref in begun.stream_refs}
        for ref, consumer_arguments in arguments.items():
            if (ref.vhost, shovel_name(ref.name)) not in running:
                body = {"value": self._definition(ref, consumer_arguments)}
                self._send("PUT", "parameters", "shovel", ref.vhost, shovel_name(ref.name), body=body)

    def _definition(self, queue: QueueRef, consumer_arguments: dict[str, object]) -> dict[str, object]:
        return {
            "src-uri": self._old.uri(queue.vhost),
            "src-queue": queue.name,
            "src-predeclared": True,
            "src-prefetch-count": _PREFETCH,
            "src-consumer-args": consumer_arguments,
            "dest-uri": f"amqp:///{quote(queue.vhost, safe='')}",
            "dest-queue": queue.name,
            "dest-predeclared": True,
            "dest-keep-address": True,
            "ack-mode": "on-confirm",
            "reconnect-delay": _RECONNECT_SECONDS,
        }

    def wait(
        self, begun: Begun, *, alone: bool, on_progress: Callable[[list[Line], int], None]
    ) -> list[Line]:
        """Wait until every old queue is empty; with ``alone`` also until no other consumer reads there."""
        while True:
            lines, others = self.account(begun)
            on_progress(lines, others)
            busy = [line for line in lines if line.left or line.state not in ("running", "gone")]
            if not busy and not self._pending() and not (alone and others):
                lines, others = self.account(begun)  # again: what was on the way has arrived since
                on_progress(lines, others)
                return lines
            time.sleep(_POLL_SECONDS)

    def account(self, begun: Begun) -> tuple[list[Line], int]:
        """The figures of each queue, and how many other consumers read at the old broker."""
        # The shovels first: none can have copied more of a stream than is found there afterwards.
        shovels = {(row.vhost, row.name): row for row in self._shovels()}
        depths = self._patiently(lambda: self._old.depths(begun.queue_refs))
        ends = self._patiently(lambda: self._old.stream_ends(begun.stream_refs))
        here = self._messages_here()
        others = 0
        lines: list[Line] = []
        for vhost, name, at_start in begun.queues:
            depth, shovel = depths[QueueRef(vhost, name)], shovels.get((vhost, shovel_name(name)))
            running = shovel is not None and shovel.state == "running"
            if depth is not None:
                others += max(0, depth.consumers - int(running))
            lines.append(
                Line(
                    vhost,
                    name,
                    at_start,
                    shovel.forwarded if shovel else 0,
                    shovel.redelivered if shovel else 0,
                    depth.ready if depth is not None else None,
                    here.get((vhost, name), 0),
                    "gone" if depth is None else shovel.state if shovel is not None else "missing",
                    shovel.last_error if shovel else None,
                )
            )
        for vhost, name, at_start in begun.streams:
            ref, shovel = QueueRef(vhost, name), shovels.get((vhost, shovel_name(name)))
            lines.append(_stream_line(ref, at_start, ends[ref], shovel, here.get((vhost, name), 0)))
        return lines, others

    def _messages_here(self) -> dict[tuple[str, str], int]:
        query = "columns=vhost,name,messages"
        rows = self._patiently(lambda: self._broker().get(list[QueueRow], "queues", query=query))
        return {(row.vhost, row.name): row.messages for row in rows}

    def finish(self, begun: Begun) -> dict[QueueRef, Depth | None]:
        """Delete the shovels and what was stored; return what is left in the old broker."""
        shovels = {(row.vhost, row.name): row for row in self._shovels()}
        for ref in (*begun.queue_refs, *begun.stream_refs):
            if (ref.vhost, shovel_name(ref.name)) in shovels:
                self._send("DELETE", "parameters", "shovel", ref.vhost, shovel_name(ref.name))
        # The shovels' connections return what they held when they close.
        depths = self._patiently(lambda: self._old.depths(begun.queue_refs))
        for ref, end in self._patiently(lambda: self._old.stream_ends(begun.stream_refs)).items():
            # A message that was copied after the look at the shovels counts, too: then nothing is missing.
            shovel = shovels.get((ref.vhost, shovel_name(ref.name)))
            depths[ref] = None if end is None else Depth(_not_copied(end, shovel), 0)
        self._send("DELETE", "global-parameters", STATE)
        return depths

    def _pending(self) -> int:
        return sum(row.pending for row in self._shovels())

    def _shovels(self) -> list[ShovelRow]:
        rows = self._patiently(lambda: self._broker().get(list[ShovelRow], "shovels"))
        return [row for row in rows if row.name.startswith(_PREFIX)]

    def _send(self, method: str, *path: str, body: object = None) -> None:
        self._patiently(lambda: self._broker().send(method, *path, body=body))

    def _broker(self) -> BrokerApi:
        if self._api is None:
            self._api = self._target.api()
        return self._api

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while a broker is down: it may be restarting."""
        deadline, is_told = time.monotonic() + self._patience, False
        while True:
            try:
                return ask()
            except (NoAnswer, LinkLost) as error:
                self._api = None
                if time.monotonic() > deadline:
                    raise click.ClickException(f"{error}; the shovels go on, so start again later") from None
                if not is_told:
                    click.echo(f"{error}. Trying again for {self._patience:g} s (--patience).", err=True)
                    is_told = True
            time.sleep(_POLL_SECONDS)


def _stream_line(
    ref: QueueRef, at_start: int, end: StreamEnds | None, shovel: ShovelRow | None, here: int
) -> Line:
    copied = None if shovel is None else shovel.last_offset
    if end is not None and end.last is not None and copied is not None and copied > end.last:
        raise click.ClickException(
            f"stream '{ref.name}' in vhost '{ref.vhost}' of the old broker ends at offset {end.last}, but "
            f"was copied up to {copied}: it was deleted and created again. To copy the new one, delete the "
            "stream in the new broker and declare it again"
        )
    return Line(
        ref.vhost,
        ref.name,
        at_start,
        0 if shovel is None else shovel.forwarded,
        0,  # the offset is stored with the messages
        None if end is None else _not_copied(end, shovel),
        here,
        "gone" if end is None else "missing" if shovel is None else shovel.state,
        None if shovel is None else shovel.last_error,
        None if shovel is None else shovel.first_offset,
    )


def _not_copied(end: StreamEnds, shovel: ShovelRow | None) -> int:
    """How many messages of a stream are not here yet."""
    if shovel is None or shovel.last_offset is None or end.last is None:
        return end.messages
    return max(0, end.last - shovel.last_offset)


def shovel_name(queue: str) -> str:
    """The name of the shovel for a queue."""
    name = _PREFIX + queue
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return _PREFIX + hashlib.blake2b(queue.encode(), digest_size=16).hexdigest()
