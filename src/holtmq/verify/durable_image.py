"""Which part of a folder would survive a power cut, and the simulated cut itself.

Owns: per file, the ranges written since its last sync; the renames since the folder was last synced.
Must not touch: the writing process. It is judged by the syncs it was seen to make, not by its claims.

Simplified in the broker's favour; the in-memory disk of the simulation is stricter. A deleted file stays
deleted, a truncated one stays short, a rename over an existing file is not undone, and neither are writes
over synced bytes: recovery rewrites the tail of the log unchanged.
"""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from holtmq.verify.watched_disk import Event, What

SECTOR: Final = 512
_ODDS: Final = 0.5


_Stretches = list[tuple[int, int]]


@dataclass(slots=True)
class _FileState:
    unsynced: _Stretches = field(default_factory=list)
    synced: _Stretches = field(default_factory=list)  # without zeros, which are there to be overwritten
    _on_the_way: _Stretches = field(default_factory=list)  # the unsynced ranges that are not zeros

    def wrote(self, start: int, stop: int, *, zeros: bool) -> None:
        _add(self.unsynced, start, stop)
        if not zeros:
            _add(self._on_the_way, start, stop)

    def was_synced(self) -> None:
        for start, stop in self._on_the_way:
            _add(self.synced, start, stop)
        self.forget_unsynced()

    def forget_unsynced(self) -> None:
        self.unsynced.clear()
        self._on_the_way.clear()

    def at_risk(self) -> _Stretches:
        """What a power cut may lose: written since the last sync, and not over bytes synced before."""
        left = self.unsynced
        for first, last in self.synced:
            left = [
                piece
                for start, stop in left
                for piece in ((start, min(stop, first)), (max(start, last), stop))
                if piece[0] < piece[1]
            ]
        return left


def _add(stretches: _Stretches, start: int, stop: int) -> None:
    if stretches and stretches[-1][0] <= start <= stretches[-1][1]:
        first, last = stretches[-1]
        stretches[-1] = first, max(last, stop)
    else:
        stretches.append((start, stop))


class DurableImage:
    """Built from the events of a ``WatchedDisk``, of one process after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_number: dict[int, _FileState] = {}
        self._by_name: dict[str, _FileState] = {}
        self._renamed: list[tuple[str, str]] = []
        self.syncs = 0

    def note(self, event: Event) -> None:
        """Apply one event."""
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event.what:
            case What.STARTED:
                # The names stay: bytes that the last process left unsynced are still unsynced.
                self._by_number.clear()
            case What.CREATED:
                self._by_number[event.file] = self._by_name[event.name] = _FileState()
            case What.OPENED:
                self._by_number[event.file] = self._by_name.setdefault(event.name, _FileState())
            case What.RENAMED | What.REPLACED:
                self._by_name[event.new_name] = self._by_name.pop(event.name, _FileState())
                if event.what is What.RENAMED:
                    self._renamed.append((event.name, event.new_name))
            case What.REMOVED:
                self._by_name.pop(event.name, None)
            case What.WRITING | What.ZEROING:
                zeros = event.what is What.ZEROING
                self._by_number[event.file].wrote(event.start, event.stop, zeros=zeros)
            case What.WRITTEN:
                pass
            case What.SYNCED:
                self.syncs += 1
                self._by_number[event.file].was_synced()
            case What.NAMES_SYNCED:
                self.syncs += 1
                self._renamed.clear()

    @property
    def unsynced_bytes(self) -> int:
        """How many bytes a power cut could lose now."""
        with self._lock:
            return sum(stop - start for state in self._by_name.values() for start, stop in state.at_risk())

    def cut(self, folder: Path, random: Random | None) -> int:
        """Do to the folder what a power cut may do; return how many bytes were lost.

        Without ``random`` everything that was not synced is lost; with it, each sector and each name is lost
        or kept at random. No process may have the folder open.
        """
        with self._lock:
            lost = 0
            for name, state in self._by_name.items():
                if state.unsynced and (folder / name).exists():
                    lost += _take_back(folder / name, state.at_risk(), random)
                state.forget_unsynced()
            for old, new in reversed(self._renamed):
                if (
                    (random is None or random.random() < _ODDS)
                    and (folder / new).exists()
                    and not (folder / old).exists()
                ):
                    os.rename(folder / new, folder / old)
            self._renamed.clear()
            return lost


def _take_back(path: Path, stretches: list[tuple[int, int]], random: Random | None) -> int:
    """Zero what was never synced: the journal appends into zeroed space, so zeros are what was there."""
    lost = 0
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for start, stop in stretches:
            at = start
            while at < min(stop, size):
                end = min(stop, size, (at // SECTOR + 1) * SECTOR)
                if random is None or random.random() < _ODDS:
                    os.pwrite(file.fileno(), bytes(end - at), at)
                    lost += end - at
                at = end
    return lost
