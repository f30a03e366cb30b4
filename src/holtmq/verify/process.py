"""The broker's process, from outside: starting it, the events of its disk, killing it.

Owns: the process, its pipes and the thread that reads the events. Must not touch: the broker's internals.
What was synced is known from the pipe, never by asking the broker.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from holtmq.verify.durable_image import DurableImage
from holtmq.verify.kernel_watch import KernelWatch, Strace
from holtmq.verify.plan import Boundary
from holtmq.verify.watched_disk import Event, What, decode_event
from holtmq.verify.workload import Ports

_START_SECONDS: Final = 120.0
_PIPE_BYTES: Final = 1 << 20


@dataclass(slots=True)
class News:
    """The events the broker's disk reported, over all its runs, and whether the reports are true."""

    image: DurableImage = field(default_factory=DurableImage)
    syncs: int = 0  # reported
    unseen_syncs: list[str] = field(default_factory=list)  # reported, but never requested of the kernel
    _names: dict[int, str] = field(default_factory=dict)  # current names of open files
    batch_bytes: list[float] = field(default_factory=list)
    checkpoints: int = 0
    compactions: int = 0
    removed_segments: int = 0

    def read(self, pipe: int, folder: str, kernel: KernelWatch | None) -> None:
        """Read until the last write end is closed, which is when the broker is dead."""
        with os.fdopen(pipe, "rb") as news:
            for line in news:
                event = decode_event(line)
                if event.what in (What.SYNCED, What.NAMES_SYNCED):
                    self.syncs += 1
                    name = self._names.get(event.file, folder)
                    if kernel is not None and not kernel.confirms(name):
                        self.unseen_syncs.append(name)
                        continue
                self._note_name(event)
                self.image.note(event)
                match event.what:
                    case What.WRITING:
                        self.batch_bytes.append(event.stop - event.start)
                    case What.RENAMED if event.new_name.endswith(".ckpt"):
                        self.checkpoints += 1
                    case What.REPLACED if event.new_name.endswith(".seg"):
                        self.compactions += 1
                    case What.REMOVED if event.name.endswith(".seg"):
                        self.removed_segments += 1

    def _note_name(self, event: Event) -> None:
        match event.what:
            case What.STARTED:
                self._names.clear()
            case What.CREATED | What.OPENED:
                self._names[event.file] = event.name
            case What.RENAMED | What.REPLACED:
                for number, name in self._names.items():
                    if name == event.name:
                        self._names[number] = event.new_name


class Subject:
    """One run of the broker."""

    def __init__(
        self, process: subprocess.Popen[bytes], readers: Sequence[threading.Thread], errors: IO[bytes]
    ) -> None:
        self._process = process
        self._readers = readers
        self._errors = errors
        self.ports = Ports(0, 0)
        self.recovery_seconds = 0.0
        self.refusal = ""

    async def ready(self) -> bool:
        """Wait until it listens; False when it died or exited before that, or needs too long."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                line = (await asyncio.to_thread(self._process.stdout.readline)).decode()
        except TimeoutError:
            self.refusal = f"not ready after {_START_SECONDS:.0f} s"
            return False
        if line.startswith("ready"):
            _, amqp, http, seconds, _ = line.split()
            self.ports, self.recovery_seconds = Ports(int(amqp), int(http)), float(seconds)
            return True
        self.refusal = line.removeprefix("refused ").strip()
        if not self.refusal:
            await asyncio.to_thread(self._process.wait)
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            self.refusal = f"status {self._process.returncode} {last}".strip()
        return False

    def die_at(self, boundary: Boundary) -> None:
        """Make it kill itself at a boundary."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"die {' '.join(boundary_arguments(boundary))}\n".encode())
            self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    async def is_dead(self) -> None:
        """Wait until it has ended and its last events were read."""
        await asyncio.to_thread(self._process.wait)
        for reader in self._readers:
            await asyncio.to_thread(reader.join)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def boundary_arguments(boundary: Boundary) -> list[str]:
    """The boundary as the subject's command line and standard input expect it."""
    return [boundary.what.value, str(boundary.count), boundary.on or "*"]


@contextlib.asynccontextmanager
async def life(
    command: Sequence[str],
    arguments: Sequence[str],
    news: News,
    boundary: Boundary | None = None,
    strace: Strace | None = None,
) -> AsyncIterator[Subject]:
    """Start a broker; it is dead when the block ends. ``arguments`` follow folder and pipe."""
    read_end, write_end = _pipe()
    inherited = [write_end]
    kernel = None if strace is None else KernelWatch()
    folder, *others = arguments
    more = boundary_arguments(boundary) if boundary is not None else []
    line = [*command, folder, str(write_end), *others, *more]
    readers = [_reader("verify-news", news.read, read_end, os.path.basename(folder), kernel)]
    if strace is not None and kernel is not None:
        calls_read_end, calls_write_end = _pipe()
        inherited.append(calls_write_end)
        line = [*strace.prefix(calls_write_end), *line]
        readers.append(_reader("verify-calls", kernel.read, calls_read_end))
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, pass_fds=inherited
        )
        for end in inherited:
            os.close(end)
        for reader in readers:
            reader.start()
        subject = Subject(process, readers, errors)
        try:
            yield subject
        finally:
            subject.kill()
            await subject.is_dead()


def _pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    with contextlib.suppress(OSError):  # a larger pipe, so that the broker never waits for the judge
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read_end, write_end


def _reader(name: str, read: Callable[..., None], *arguments: object) -> threading.Thread:
    return threading.Thread(target=read, args=arguments, name=name, daemon=True)
