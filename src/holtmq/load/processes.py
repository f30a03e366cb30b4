"""What a broker on this machine costs: CPU time and memory of its processes, from ``/proc``.

Owns: finding the processes behind a port. Without ``/proc``, or when the broker runs elsewhere, the figures
are omitted. Must not touch: the broker itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holtmq.load.link import Address

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds (user and system) since the start, and resident bytes now."""

    cpu_seconds: float
    resident_bytes: int


def listener_pid(address: Address) -> int | None:
    """The process that listens at ``address``; None when it is not on this machine."""
    if not _is_loopback(address.host):
        return None
    inodes = set(_listening_inodes(address.port))
    if not inodes:
        return None
    for entry in _processes():
        try:
            for descriptor in (entry / "fd").iterdir():
                if os.readlink(descriptor) in inodes:
                    return int(entry.name)
        except OSError:
            continue  # the process has ended, or belongs to another user
    return None


def usage(pid: int) -> Usage:
    """CPU time and memory of the process and its descendants."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    pages: dict[int, int] = {}
    for entry in _processes():
        try:
            # The name in parentheses may contain blanks and parentheses: count from its end.
            fields = (entry / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        number = int(entry.name)
        parents[number] = int(fields[1])
        ticks[number] = int(fields[11]) + int(fields[12])
        pages[number] = int(fields[21])
    family = [number for number in parents if _descends(number, pid, parents)]
    return Usage(
        sum(ticks[number] for number in family) / os.sysconf("SC_CLK_TCK"),
        sum(pages[number] for number in family) * os.sysconf("SC_PAGE_SIZE"),
    )


def _descends(number: int, ancestor: int, parents: dict[int, int]) -> bool:
    while number and number != ancestor:
        number = parents.get(number, 0)
    return number == ancestor


def _processes() -> Iterator[Path]:
    if _PROC.is_dir():
        yield from (entry for entry in _PROC.iterdir() if entry.name.isdigit())


def _listening_inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(str(entry[4][0]).startswith("127.") or entry[4][0] == "::1" for entry in found)
