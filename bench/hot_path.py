"""What a message costs in the sans-IO core: bytes in on one connection, deliveries and acks on another.

Owns: the figures of the AMQP hot path without sockets and disks, in CPU time, and a hash over every delivered
byte, so that two versions can be compared in both. Must not touch: the real servers.
"""

from __future__ import annotations

import gc
import hashlib
from dataclasses import replace
from time import process_time

import click

from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError
from holtmq.amqp.handshake import Settings
from holtmq.amqp.methods import BasicConsume, BasicQos, ChannelOpen, ConfirmSelect
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.journal import MemoryJournal
from holtmq.load import frames
from holtmq.load.blobs import Blob
from holtmq.load.delivery_stream import AckWriter
from holtmq.load.link import CHANNEL
from holtmq.load.varied_blob import VariedBlob, Variety, binding_key
from holtmq.load.workloads import WORKLOADS, Workload

_READ = 256 * 1024
_PREFETCH = 20000
_EXCHANGE = "holt-load"
_CORPORA = (
    "varied-sizes",
    "mixed-keys",
    "mixed-keys-durable",
    "mixed-keys-20",
    "manual-ack",
    "priority-10",
    "topic-1000",
)


class Peer:
    """A connection without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.connection = Connection(broker, Settings("HoltMQ", "0"), self, from_loopback=True)
        self.connection.opened(broker.vhost("/"), "guest", broker.users.access("guest", "/"))
        self.say(frames.method(CHANNEL, ChannelOpen()))

    def say(self, data: bytes) -> None:
        self.connection.receive(data)

    def has_output(self) -> None: ...
    def check_secret(self, secret: str) -> None:
        """No client here has a token."""
        raise AssertionError("no client here has a token")

    def check_password(self, name: str, password: str) -> None: ...
    def certified_name(self) -> str | None: ...
    def certified_user(self) -> str | None: ...
    def opened(self) -> None: ...
    def channel_failed(self, number: int, error: AmqpError) -> None:
        raise error

    def failed(self, error: AmqpError) -> None:
        raise error

    def ended(self) -> None: ...

    def is_time_up(self) -> bool:
        return False

    def unstall_soon(self) -> None: ...


def _measure(workload: Workload, messages: int) -> tuple[float, str]:
    """CPU in µs a message, and the hash of what was delivered."""
    broker = Broker(MemoryJournal())
    broker.put_vhost("/")
    broker.access.put_user(User("guest", "unused"))
    broker.access.set_permissions("guest", "/", FULL_ACCESS)
    broker.flow.now_ms = 1_700_000_000_000
    vhost = broker.vhost("/")
    exchange = _EXCHANGE if workload.exchange_kind else ""
    if exchange:
        broker.exchanges.declare(vhost, exchange, workload.exchange_kind, durable=False, arguments={})
    consumers = []
    for number in range(workload.queues):
        name = f"q{number}"
        broker.declare_queue(vhost, name, durable=workload.durable, arguments=workload.queue_arguments)
        if exchange:
            broker.bind(
                vhost, exchange, name, binding_key(number) if workload.distinct else "load.*.used", {}
            )
        peer = Peer(broker)
        peer.say(frames.method(CHANNEL, BasicQos(prefetch_count=_PREFETCH)))
        peer.say(frames.method(CHANNEL, BasicConsume(name, "consumer")))
        consumers.append((peer, AckWriter(CHANNEL)))
    for number in range(workload.other_bindings):
        first = "load" if number % 2 else f"other-{number}"
        broker.bind(vhost, exchange, "q0", f"{first}.*.unused-{number}", {})
    publisher = Peer(broker)
    if workload.window:
        publisher.say(frames.method(CHANNEL, ConfirmSelect()))
    if workload.distinct:
        varied = VariedBlob(Variety.of(replace(workload, distinct=messages)), exchange, 131072)
        data, count = varied.data, messages
    else:
        blob = Blob(workload, exchange, "q0", 131072)
        data, count = (
            bytes(blob.data) * (messages // blob.messages),
            messages // blob.messages * blob.messages,
        )
    reads = [data[at : at + _READ] for at in range(0, len(data), _READ)]
    digest = hashlib.sha256()
    acked = [0] * len(consumers)
    for peer, _ in consumers:
        peer.connection.outbox.take()
    spent = 0.0
    gc.collect()
    while sum(acked) < count:
        begun = process_time()
        if reads:
            publisher.say(reads.pop(0))
        broker.flow.turn()
        publisher.connection.outbox.take()
        outputs = [peer.connection.outbox.take() for peer, _ in consumers]
        spent += process_time() - begun
        for number, (peer, acks) in enumerate(consumers):
            digest.update(outputs[number])
            last = peer.connection.channels[CHANNEL].ledger.last
            if last > acked[number]:
                answer = acks.each(acked[number], last)
                acked[number] = last
                begun = process_time()
                peer.say(answer)
                spent += process_time() - begun
    return spent / count * 1e6, digest.hexdigest()[:16]


@click.command()
@click.option("--messages", default=60_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.argument("names", nargs=-1, type=click.Choice(_CORPORA))
def main(messages: int, rounds: int, names: tuple[str, ...]) -> None:
    """Print CPU µs a message (the least of the rounds) and the hash of all delivered bytes."""
    for name in names or _CORPORA:
        seen = [_measure(WORKLOADS[name], messages) for _ in range(rounds)]
        assert len({digest for _, digest in seen}) == 1
        click.echo(f"{name:20} {min(cost for cost, _ in seen):6.2f} µs  {seen[0][1]}")


if __name__ == "__main__":
    main()
