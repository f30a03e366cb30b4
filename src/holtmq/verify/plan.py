"""When each round ends, and how small its journal segments are, all derived from the seed.

Owns: the list of moments at which to kill. Must not touch: processes, disks.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from holtmq.verify.watched_disk import What

LONGEST_ROUND: Final = 3.0
_SMALL_SEGMENT: Final = 32 << 10
_CHECKPOINT: Final = ".ckpt"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Right after the ``count``-th such event on the disk, on a file whose name contains ``on``."""

    what: What
    on: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How one round ends. It ends after ``seconds`` in any case."""

    seconds: float
    boundary: Boundary | None = None
    promises: int = 0  # right after this many confirms and responses have reached their clients


# The last number is the maximum of a random count. The rare events occur with new segments, with checkpoints
# (a separate file) and with compaction (a segment replaced by rename, or deleted).
_BOUNDARIES: Final = (
    Boundary(What.WRITING, "", 200),
    Boundary(What.WRITTEN, "", 200),
    Boundary(What.SYNCED, "", 200),
    Boundary(What.REPLACED, "", 2),
    Boundary(What.CREATED, "", 2),
    Boundary(What.WRITING, _CHECKPOINT, 3),
    Boundary(What.RENAMED, "", 2),
    Boundary(What.REMOVED, "", 2),
    Boundary(What.SYNCED, _CHECKPOINT, 2),
    Boundary(What.RENAMED, _CHECKPOINT, 2),
    Boundary(What.NAMES_SYNCED, "", 2),
)
_OPENING: Final = (What.CREATED, What.WRITING, What.WRITTEN, What.SYNCED, What.NAMES_SYNCED)
_PROMISES_MAX: Final = 300


def ending_of(number: int, mean_seconds: float, random: Random) -> Ending:
    """Every fourth round after a promise, every second at a boundary (in turn), the others at any moment."""
    if number % 4 == 2:
        return Ending(LONGEST_ROUND, promises=random.randint(1, _PROMISES_MAX))
    if number % 2:
        chosen = _BOUNDARIES[(number // 2) % len(_BOUNDARIES)]
        return Ending(LONGEST_ROUND, Boundary(chosen.what, chosen.on, random.randint(1, chosen.count)))
    return Ending(min(LONGEST_ROUND, random.expovariate(1 / mean_seconds) + 0.02))


def opening_boundary(random: Random) -> Boundary:
    """A boundary during recovery."""
    return Boundary(random.choice(_OPENING), "", 1 + int(random.random() < 0.3))


def segment_bytes_of(number: int, usual: int) -> int:
    """Small segments in two rounds of three, to force new segments, checkpoints and compaction."""
    return usual if number % 3 == 0 else min(usual, _SMALL_SEGMENT)
