"""How much a deep queue costs: memory at depth, disk, a restart, and the way out again.

Owns: one run of fill, restart and drain through a real broker process over raw sockets, and its figures.
Must not touch: the broker's insides. The order of every single message is checked on the way out.

    python -m bench.deep_queue [--messages 5000000] [--body 100] [--kill]
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

import click

from holtmq.load import frames
from holtmq.load.link import CHANNEL, Address, Link

QUEUE: Final = "deep"
TAG: Final = "c"
DIGITS: Final = 12
BLOCK: Final = 2_000  # messages built and sent at once
AHEAD: Final = 100_000  # published and not yet confirmed
PREFETCH: Final = 5_000
RSS_LIMIT_MB: Final = 400
_ACK: Final = struct.Struct(">BHIIQB")


class Broker:
    """``holt serve`` on a folder; the time it took until it was ready."""

    def __init__(self, folder: Path) -> None:
        settings = {"HOLT_AMQP_PORT": "0", "HOLT_HTTP_PORT": "0", "HOLT_LOG_FORMAT": "json"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
        began = perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holtmq", "serve", "--data-dir", str(folder)],
            env=inherited | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = 0
        for line in self._process.stdout:
            entry = json.loads(line) if line.startswith("{") else {}
            if "amqp_port" in entry:
                self.port = int(entry["amqp_port"])
                break
        if not self.port:
            raise click.ClickException("the broker did not start")
        self.start_seconds = perf_counter() - began
        threading.Thread(target=self._process.stdout.read, name="broker log", daemon=True).start()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def rss_mb(self, field: str = "VmRSS") -> float:
        """Resident memory now, or the most there was (``VmHWM``)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024

    def end(self, number: signal.Signals) -> float:
        """Stop it; the seconds until it was gone."""
        began = perf_counter()
        self._process.send_signal(number)
        self._process.wait(timeout=120)
        return perf_counter() - began


class Confirms:
    """Reads confirms in a thread of its own, so that sending may block."""

    def __init__(self, link: Link) -> None:
        self._sock = link.sock
        self._changed = threading.Condition()
        self.upto = 0
        self._problem = ""
        threading.Thread(target=self._read, name="confirms", daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while data := self._receive():
            rest += data
            whole = len(rest) - len(rest) % frames.ACK_BYTES
            for at in range(0, whole, frames.ACK_BYTES):
                _, _, _, method, tag, _ = _ACK.unpack_from(rest, at)
                if method != frames.BASIC_ACK:
                    self._problem = f"the broker sent {method:#x} instead of a confirm"
                self.upto = tag
            rest = rest[whole:]
            with self._changed:
                self._changed.notify_all()
            if self._problem:
                return

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(65_536)
        except OSError:
            return b""  # the run is over and the connection closed

    def wait_for(self, tag: int) -> None:
        """Until this publish and all before are confirmed."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.upto >= tag or bool(self._problem), timeout=120)
        if not done or self._problem:
            raise click.ClickException(self._problem or f"no confirm of {tag} in 120 s")


@dataclass(frozen=True)
class Figures:
    """One run."""

    messages: int
    body_bytes: int
    publish_per_second: float
    rss_at_depth_mb: float
    rss_peak_filling_mb: float
    journal_mb: float
    stop_seconds: float
    restart_seconds: float
    rss_after_restart_mb: float
    rss_peak_restart_mb: float
    drain_per_second: float
    rss_peak_draining_mb: float


def body_of(number: int, size: int) -> bytes:
    """A body that bears its number; never shorter than that."""
    return b"%0*d" % (DIGITS, number) + b"." * (size - DIGITS)


def fill(broker: Broker, messages: int, size: int) -> float:
    """Publish with confirms, pipelined; messages per second."""
    link = Link(broker.address)
    link.declare_queue(QUEUE, durable=True, arguments={})
    link.confirm()
    link.sock.settimeout(None)
    confirms = Confirms(link)
    props = frames.properties(persistent=True, priority=None)
    sample = frames.publish(CHANNEL, "", QUEUE, props, body_of(0, size), link.frame_max)
    at = sample.index(body_of(0, size))
    before, after = sample[:at], sample[at + DIGITS :]
    began = perf_counter()
    for start in range(0, messages, BLOCK):
        numbers = range(start, min(start + BLOCK, messages))
        link.sock.sendall(b"".join([b"%b%0*d%b" % (before, DIGITS, number, after) for number in numbers]))
        if start > AHEAD:
            confirms.wait_for(start - AHEAD)
    confirms.wait_for(messages)
    rate = messages / (perf_counter() - began)
    link.close()
    return rate


def drain(broker: Broker, messages: int, size: int) -> float:
    """Consume with acks and check each number; messages per second."""
    link = Link(broker.address)
    link.qos(PREFETCH)
    began = perf_counter()
    rest = link.consume(QUEUE, TAG, no_ack=False)
    link.sock.settimeout(120)
    while b"." * (size - DIGITS) + b"\xce" not in rest:
        rest += link.sock.recv(1 << 16)
    first = rest.index(body_of(0, size))
    length = first + size + 1  # all deliveries are equally long
    expected = 0
    while True:
        count = len(rest) // length
        for at in range(first, count * length, length):
            if int(rest[at : at + DIGITS]) != expected:
                raise click.ClickException(
                    f"message {rest[at : at + DIGITS]!r} came where {expected} was due"
                )
            expected += 1
        if count:
            link.sock.sendall(frames.ack(CHANNEL, expected, multiple=True))
        rest = rest[count * length :]
        if expected == messages:
            break
        rest += link.sock.recv(1 << 20)
    rate = messages / (perf_counter() - began)
    link.close()
    return rate


def run(folder: Path, messages: int, size: int, how: signal.Signals) -> Figures:
    """Fill, restart, drain."""
    broker = Broker(folder)
    try:
        published = fill(broker, messages, size)
        at_depth, peak_filling = broker.rss_mb(), broker.rss_mb("VmHWM")
    finally:
        stop_seconds = broker.end(how)
    journal = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()) / (1 << 20)
    broker = Broker(folder)
    try:
        after, peak_restart = broker.rss_mb(), broker.rss_mb("VmHWM")
        drained = drain(broker, messages, size)
        peak_draining = broker.rss_mb("VmHWM")
    finally:
        broker.end(signal.SIGTERM)
    return Figures(
        messages,
        size,
        published,
        at_depth,
        peak_filling,
        journal,
        stop_seconds,
        broker.start_seconds,
        after,
        peak_restart,
        drained,
        peak_draining,
    )


@click.command()
@click.option("--messages", default=5_000_000, show_default=True)
@click.option("--body", default=100, show_default=True, type=click.IntRange(DIGITS), help="Bytes of a body.")
@click.option("--kill", is_flag=True, help="End the first broker with SIGKILL instead of SIGTERM.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where the journal goes; else a temporary one."
)
def main(messages: int, body: int, kill: bool, folder: Path | None) -> None:
    """One durable queue, deep: memory, disk, restart and order."""
    with tempfile.TemporaryDirectory(prefix="holt-deep-", dir=folder) as place:
        how = signal.SIGKILL if kill else signal.SIGTERM
        figures = run(Path(place), messages, body, how)
    for label, value in (
        ("messages waiting", f"{figures.messages:,} of {figures.body_bytes} bytes"),
        ("published, with confirms", f"{figures.publish_per_second:,.0f}/s"),
        ("RSS at depth", f"{figures.rss_at_depth_mb:,.0f} MB (peak {figures.rss_peak_filling_mb:,.0f})"),
        ("journal on disk", f"{figures.journal_mb:,.0f} MB"),
        ("killed" if kill else "stopped in", "with SIGKILL" if kill else f"{figures.stop_seconds:.1f} s"),
        ("restart to ready", f"{figures.restart_seconds:.1f} s"),
        (
            "RSS after restart",
            f"{figures.rss_after_restart_mb:,.0f} MB (peak {figures.rss_peak_restart_mb:,.0f})",
        ),
        ("drained in order, with acks", f"{figures.drain_per_second:,.0f}/s"),
        ("RSS peak while draining", f"{figures.rss_peak_draining_mb:,.0f} MB"),
    ):
        click.echo(f"{label:28} {value}")
    worst = max(figures.rss_peak_filling_mb, figures.rss_peak_restart_mb, figures.rss_peak_draining_mb)
    verdict = "under" if worst < RSS_LIMIT_MB else "OVER"
    click.echo(f"{'peak RSS of all':28} {worst:,.0f} MB, {verdict} the limit of {RSS_LIMIT_MB} MB")
    raise SystemExit(0 if worst < RSS_LIMIT_MB else 1)


if __name__ == "__main__":
    main()
