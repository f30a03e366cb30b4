"""One job of an operator: move, copy or remove messages, or bring dead letters back.

Owns: what was asked for, how far it has come, and its form in the journal. Must not touch: queues, clocks.
"""

from typing import Final

import msgspec

MOVE: Final = "move"
COPY: Final = "copy"
PURGE: Final = "purge"
REDRIVE: Final = "redrive"
DISCARD: Final = "discard"

RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"  # the broker was restarted meanwhile


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where messages go: a queue, or an exchange."""

    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None  # None: each message keeps its own
    vhost: str | None = None  # None: that of the source


class Source(msgspec.Struct, frozen=True):
    """A queue whose messages the job reads."""

    vhost: str
    queue: str
    partitioned: bool = False  # its dead letters


class Chosen(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which dead letters are meant; None or empty: any."""

    died_in: str | None = None
    group: str | None = None
    reason: str | None = None
    signature: str | None = None
    ids: frozenset[str] = frozenset()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; never changes."""

    verb: str
    sources: tuple[Source, ...]
    to: Target | None = None
    filter: tuple[str, ...] = ()
    count: int | None = None
    rate: float | None = None
    dry_run: bool = False
    by: str = ""
    letters: Chosen | None = None  # only dead letters, and only these


class Progress(msgspec.Struct):
    """How far a job has come. A batch and the progress it makes are one record."""

    state: str = RUNNING
    total: int = 0  # messages in the sources at the start
    scanned: int = 0
    matched: int = 0
    done: int = 0
    unrouted: int = 0
    started: int = 0
    ended: int | None = None
    error: str | None = None
    # The place: which source, which priority level of it, the message there, and the last one that counts.
    source: int = 0
    level: int | None = None
    after: tuple[int, int] = (0, 0)
    upto: int = 0


class Job(msgspec.Struct):
    """A job by its number."""

    id: int
    request: Request
    progress: Progress

    @property
    def is_running(self) -> bool:
        return self.progress.state == RUNNING

    @property
    def left(self) -> int | None:
        """How many messages may still be taken; None: any number."""
        count = self.request.count
        return None if count is None else max(0, count - self.progress.matched + self.progress.unrouted)


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Job)


def encode_job(job: Job) -> bytes:
    """A job as bytes, for the journal."""
    return _encode(job)


def decode_job(data: bytes) -> Job:
    """Decode what ``encode_job`` wrote; a job that was running then is interrupted."""
    job = _decoder.decode(data)
    if job.is_running:
        job.progress.state = INTERRUPTED
    return job
