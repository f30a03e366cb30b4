"""What of a folder would survive a power cut, and the cut itself.

Owns: per file, the stretches written since its last sync; the renames since the names were last synced.
Must not touch: the process that wrote. It is judged by what it was heard to sync, not by what it says.

Simplified in the broker's favour, where the in-memory disk of the simulation is stricter: a removed file
stays removed, a shortened one stays short, and a rename over an existing file is not undone.
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


@dataclass(slots=True)
class _FileState:
    unsynced: list[tuple[int, int]] = field(default_factory=list)

    def wrote(self, start: int, stop: int) -> None:
        if self.unsynced and self.unsynced[-1][0] <= start <= self.unsynced[-1][1]:
            first, last = self.unsynced[-1]
            self.unsynced[-1] = first, max(last, stop)
        else:
            self.unsynced.append((start, stop))


class DurableImage:
    """Fed with the news of a ``WatchedDisk``, of one process after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_number: dict[int, _FileState] = {}
        self._by_name: dict[str, _FileState] = {}
        self._renamed: list[tuple[str, str]] = []
        self.syncs = 0

    def note(self, event: Event) -> None:
        """Take one piece of news in."""
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
            case What.WRITING:
                self._by_number[event.file].wrote(event.start, event.stop)
            case What.WRITTEN:
                pass
            case What.SYNCED:
                self.syncs += 1
                self._by_number[event.file].unsynced.clear()
            case What.NAMES_SYNCED:
                self.syncs += 1
                self._renamed.clear()

    @property
    def unsynced_bytes(self) -> int:
        """How much a power cut could take now."""
        with self._lock:
            return sum(stop - start for state in self._by_name.values() for start, stop in state.unsynced)

    def cut(self, folder: Path, random: Random | None) -> int:
        """Do to the folder what a power cut may do; how many bytes it took.

        Without ``random`` everything that was not synced is lost; with it, each sector and each name by the
        dice. Nobody may have the folder open.
        """
        with self._lock:
            lost = 0
            for name, state in self._by_name.items():
                if state.unsynced and (folder / name).exists():
                    lost += _take_back(folder / name, state.unsynced, random)
                state.unsynced.clear()
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
    """Zero what was never synced: the journal appends into space that was zero, so zero is what was there."""
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
