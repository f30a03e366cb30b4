"""When a round ends, and in how small pieces the journal is written in it: all of it from the seed.

Owns: the list of moments worth dying at. Must not touch: processes, disks.
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
    """How one round ends. Whatever is awaited, it ends after ``seconds``."""

    seconds: float
    boundary: Boundary | None = None
    promises: int = 0  # right after so many confirms and answers have reached their clients


# The last number: up to the how-many-th such event. The rare ones come with new segments, with checkpoints
# (a file of its own) and with compaction (a segment renamed over its old self, or removed).
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
    """Where to die while still recovering."""
    return Boundary(random.choice(_OPENING), "", 1 + int(random.random() < 0.3))


def segment_bytes_of(number: int, usual: int) -> int:
    """Small segments in two rounds of three: new ones, checkpoints and compaction all the time."""
    return usual if number % 3 == 0 else min(usual, _SMALL_SEGMENT)
