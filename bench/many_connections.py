"""10,000 connections that publish different keys: the broker's memory, all of them together.

Owns: one run against a broker of ours in a process of its own. Must not touch: anything that is measured
elsewhere.
"""

from __future__ import annotations

import resource

import click
from bench.amqp import holt

from holtmq.load import frames
from holtmq.load.link import CHANNEL, Address, Link
from holtmq.load.processes import usage
from holtmq.wire.properties import Properties, encode_properties

_EXCHANGE = "holt-load"
_QUEUE = "holt-load-0"
_GOAL_MB = 300


def _publishes(connection: int, keys: int) -> bytes:
    out = []
    for number in range(keys):
        properties = encode_properties(Properties(message_id=f"{connection}-{number}", headers={"n": number}))
        key = f"device.{connection}.reading.{number}"
        out.append(frames.publish(CHANNEL, _EXCHANGE, key, properties, b"x" * 100, 131072))
    return b"".join(out)


def run(connections: int, keys: int, times: int) -> tuple[float, float]:
    """Resident megabytes of the broker before the connections, and with all of them after their publishes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with holt("--amqp-max-connections", str(connections + 10)) as broker:
        address = Address.parse(broker.url)
        control = Link(address)
        control.declare_exchange(_EXCHANGE, "topic")
        control.declare_queue(_QUEUE, durable=False, arguments={"x-max-length": 1000})
        control.bind(_QUEUE, _EXCHANGE, "device.*.other")
        before = usage(broker.pid).resident_bytes / 1e6
        links = [Link(address) for _ in range(connections)]
        for number, link in enumerate(links):
            data = _publishes(number, keys)
            for _ in range(times):
                link.sock.sendall(data)
        for link in links:  # answered behind the publishes: they are done
            link.confirm()
        after = usage(broker.pid).resident_bytes / 1e6
        for link in links:
            link.close()
    return before, after


@click.command()
@click.option("--connections", default=10_000, show_default=True)
@click.option("--keys", default=20, show_default=True, help="Of each connection, all different.")
@click.option("--times", default=3, show_default=True, help="How often each key is published.")
def main(connections: int, keys: int, times: int) -> None:
    """Print the broker's memory; fail when the goal is missed."""
    before, after = run(connections, keys, times)
    click.echo(
        f"{connections} connections, {keys} keys each: {before:.0f} MB before, {after:.0f} MB with them"
    )
    if after - before > _GOAL_MB:
        raise SystemExit(f"more than {_GOAL_MB} MB")


if __name__ == "__main__":
    main()
