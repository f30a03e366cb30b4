"""Sync calls as the kernel gets them, traced from outside the broker's process, by ``strace`` if it works.

Owns: starting the broker under strace, and the calls seen and not yet asked about. Must not touch: what the
broker reports; it is compared here with what the broker did.

``strace`` writes a call when it has returned and before the process continues. So a sync that the broker
reports and that is missing here was never made.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

_CALLS: Final = "fdatasync,fsync,getppid"  # the last one only for the probe
# ``-D``: the broker stays the direct child, so that the kill hits it and not strace. The seccomp filter
# stops the broker only at these calls.
_OPTIONS: Final = (
    "-D",
    "-f",
    "-qq",
    "-y",
    "--seccomp-bpf",
    "-e",
    "signal=none",
    "-e",
    f"trace={_CALLS}",
    "-o",
)
_WHOLE: Final = re.compile(rb"\d+ +f(?:data)?sync\(\d+<(.*)>(?:\(deleted\))?\) += 0")
_BEGUN: Final = re.compile(rb"(\d+) +f(?:data)?sync\(\d+<(.*)>(?:\(deleted\))? <unfinished")
_RESUMED: Final = re.compile(rb"(\d+) +<\.\.\. f(?:data)?sync resumed>\) += 0")
_PROBE: Final = (
    "import os, tempfile; file = tempfile.TemporaryFile(); os.fdatasync(file.fileno()); os.getppid()"
)
_PATIENCE: Final = 10.0  # for lines that are already in the pipe


@dataclass(frozen=True, slots=True)
class Strace:
    """The strace program; ``why_not`` when it cannot be used."""

    path: str = ""
    why_not: str = ""

    @classmethod
    def find(cls) -> "Strace":
        """Look for it, and try it: a container may have it and forbid it."""
        path = shutil.which("strace")
        if path is None:
            return cls(why_not="strace is not installed")
        read_end, write_end = os.pipe()
        try:
            command = [*cls(path).prefix(write_end), sys.executable, "-c", _PROBE]
            done = subprocess.run(
                command, pass_fds=(write_end,), capture_output=True, check=False, timeout=60
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(read_end)
            return cls(why_not=f"strace could not be run: {error}")
        finally:
            os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            seen = pipe.read()
        # A library that is loaded ahead of libc (libeatmydata) may keep the sync from the kernel. Then strace
        # sees the other call only, and no sync of the broker either, which is the finding.
        if _WHOLE.search(seen) or (b"getppid(" in seen and b"sync(" not in seen):
            return cls(path)
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return cls(why_not=f"strace cannot trace here{': ' + said if said else ''}")

    def prefix(self, output: int) -> list[str]:
        """The command line before the broker's command; the trace goes to this descriptor."""
        return [self.path, *_OPTIONS, f"/dev/fd/{output}"]


class KernelWatch:
    """The sync calls of one run of the broker, by the last part of the path."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._seen: Counter[str] = Counter()
        self._is_over = False
        self._begun: dict[bytes, bytes] = {}  # thread -> path of a call that has not returned

    def read(self, pipe: int) -> None:
        """Read until the broker and strace have ended."""
        with os.fdopen(pipe, "rb") as lines:
            for line in lines:
                path = self._returned(line)
                if path is not None:
                    with self._news:
                        self._seen[os.fsdecode(path).rpartition("/")[2]] += 1
                        self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _returned(self, line: bytes) -> bytes | None:
        if whole := _WHOLE.match(line):
            return whole[1]
        if begun := _BEGUN.match(line):
            self._begun[begun[1]] = begun[2]
        elif resumed := _RESUMED.match(line):
            return self._begun.pop(resumed[1], None)
        return None

    def confirms(self, name: str) -> bool:
        """Whether the kernel was asked to sync this file or folder. Each call answers one query."""
        with self._news:
            self._news.wait_for(lambda: self._seen[name] > 0 or self._is_over, _PATIENCE)
            if self._seen[name] > 0:
                self._seen[name] -= 1
                return True
            self._is_over = True  # the broker's reports are false: do not wait for each of them
            return False
