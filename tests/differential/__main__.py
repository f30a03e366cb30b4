"""``PYTHONPATH=tests python -m differential``: random sequences on RabbitMQ and HoltMQ, side by side.

Owns: the command line, the two brokers, shortening a sequence that shows a difference. Must not touch: what a
sequence is (``steps``), what is compared (``player``).
"""

import base64
import json
import logging
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from differential import Player, Seen, Step, management_fields, sequence
from differential.expiry_steps import expiry_sequence
from differential.management_fields import RABBITMQ_AWAITED, fields_of
from differential.stream_steps import stream_sequence
from holtmq.config import load
from holtmq.testing import TestBroker
from rabbitmq import started

_SETTLE_SECONDS: Final = 0.012
_numbers = count(1)

Play = Callable[[list[Step]], list[Seen]]


def on_broker(
    amqp_port: int,
    http_url: str,
    settle: Callable[[], None],
    then: Callable[[], None] = lambda: None,
    let_time_pass: Callable[[], None] = lambda: None,
) -> Play:
    """Plays a sequence in a vhost of its own; ``then`` is called after each step, the other for a wait."""

    def call(method: str, path: str, body: bytes = b"{}") -> None:
        login = base64.b64encode(b"guest:guest").decode()
        headers = {"authorization": f"Basic {login}", "content-type": "application/json"}
        request = urllib.request.Request(http_url + "/api" + path, body, headers, method=method)
        urllib.request.urlopen(request, timeout=60).close()

    def play(steps: list[Step]) -> list[Seen]:
        vhost = f"differential-{next(_numbers)}"
        call("PUT", f"/vhosts/{quote(vhost)}")
        call("PUT", f"/permissions/{quote(vhost)}/guest", b'{"configure":".*","write":".*","read":".*"}')
        player = Player(amqp_port, vhost, settle, let_time_pass)
        try:
            seen: list[Seen] = []
            for step in steps:
                seen.append(json.loads(json.dumps(player.play(step))))  # as a recorded one
                then()
            return seen
        finally:
            player.close()
            call("DELETE", f"/vhosts/{quote(vhost)}")

    return play


def on_holt(broker: TestBroker) -> Play:
    """Plays on HoltMQ, where a step takes 20 ms: messages with a time to live of 0 must expire."""
    return on_broker(
        broker.amqp_port,
        broker.http_url,
        partial(_until_readers_have_all, broker),
        lambda: broker.clock.advance(milliseconds=20),
        lambda: broker.clock.advance(milliseconds=500),
    )


def on_rabbitmq(amqp_port: int, http_url: str, settle_seconds: float) -> Play:
    """Plays on RabbitMQ, whose clock is the real one."""
    wait = partial(time.sleep, 0.3 + settle_seconds * 5)
    return on_broker(amqp_port, http_url, partial(time.sleep, settle_seconds), let_time_pass=wait)


def _until_readers_have_all(broker: TestBroker) -> None:
    """Readers of a stream get a message once the journal has it, in the turn after that."""
    while broker.call(lambda node: node.journal.backlog):
        pass
    broker.call(lambda node: None)


def recorded_file(about: str) -> Path:
    """Sequences of this kind with RabbitMQ's replies."""
    return Path(__file__).with_name(f"recorded-{about}.json")


ABOUT: Final = {"queues": sequence, "streams": stream_sequence, "expiry": expiry_sequence}


def first_difference(theirs: list[Seen], ours: list[Seen]) -> int | None:
    """The number of the first step whose outcome differs."""
    return next((at for at, (one, other) in enumerate(zip(theirs, ours, strict=True)) if one != other), None)


def shortened(steps: list[Step], differs: Callable[[list[Step]], bool]) -> list[Step]:
    """Leave out steps as long as the difference stays."""
    at = len(steps) - 2
    while at >= 0:
        fewer = steps[:at] + steps[at + 1 :]
        if differs(fewer):
            steps = fewer
        at -= 1
    return steps


@click.command()
@click.option("--first", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=100, show_default=True, help="How many.")
@click.option("--about", type=click.Choice(list(ABOUT)), default="queues", show_default=True)
@click.option("--length", default=40, show_default=True, help="Steps of a sequence.")
@click.option("--shorten", default=5, show_default=True, help="How many differences to shorten.")
@click.option("--running", nargs=2, type=int, help="AMQP and HTTP port of a RabbitMQ on this machine.")
@click.option(
    "--record",
    is_flag=True,
    help="Record RabbitMQ's replies and fields for the tests.",
)
def main(
    first: int,
    seeds: int,
    about: str,
    length: int,
    shorten: int,
    running: tuple[int, int] | None,
    record: bool,
) -> None:
    """Compare; every difference is shown with the shortest sequence that shows it, and the status is 1."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # RabbitMQ is a process of its own: end it, too
    found, kept = 0, []
    with tempfile.TemporaryDirectory() as folder:
        other = None
        if running is None:
            other = started(Path(folder) / "rabbitmq")
            running = other.amqp_port, other.http_port
        amqp_port, http_port = running
        http_url = f"http://127.0.0.1:{http_port}"
        try:
            if record:
                amqp_url = f"amqp://guest:guest@127.0.0.1:{amqp_port}/%2F"
                management_fields.record(
                    fields_of(amqp_url, http_url, lambda: time.sleep(0.2), RABBITMQ_AWAITED)
                )
            with TestBroker(config=load({"HOLT_PROFILE": "rabbitmq"}).config) as broker:
                ours = on_holt(broker)
                settle = _SETTLE_SECONDS * (4 if about == "streams" else 1)  # readers of a stream poll
                theirs = on_rabbitmq(amqp_port, http_url, settle)
                slowly = on_rabbitmq(amqp_port, http_url, settle * 6)

                def differs(steps: list[Step]) -> bool:
                    return first_difference(slowly(steps), ours(steps)) is not None

                for seed in range(first, first + seeds):
                    steps = ABOUT[about](seed, length)
                    seen, at = theirs(steps), None
                    at = first_difference(seen, ours(steps))
                    if at is not None and differs(steps := steps[: at + 1]):
                        found += 1
                        steps = shortened(steps, differs) if found <= shorten else steps
                        _show(seed, steps, slowly(steps), ours(steps))
                    elif at is None:
                        kept.append({"seed": seed, "steps": steps, "seen": seen})
        finally:
            if other is not None:
                other.stop()
    if record:
        recorded_file(about).write_text("[\n" + ",\n".join(json.dumps(one) for one in kept) + "\n]\n")
    click.echo(f"{seeds} sequences about {about} of {length} steps from seed {first}: {found} differ")
    sys.exit(1 if found else 0)


def _show(seed: int, steps: list[Step], theirs: list[Seen], ours: list[Seen]) -> None:
    click.echo(f"\nseed {seed}:")
    for step in steps:
        click.echo(f"  {json.dumps(step)}")
    click.echo(f"  RabbitMQ: {json.dumps(theirs[-1])}\n  HoltMQ:   {json.dumps(ours[-1])}")


if __name__ == "__main__":
    main()
