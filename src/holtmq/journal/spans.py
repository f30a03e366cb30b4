"""Finds the payloads in runs of records, with numpy over all records at once.

Owns: parsing frames in bulk. Must not touch: files, the contents of payloads. It needs numpy, which comes
with ``holtmq[arrow]``; import it only where numpy is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .interface import FIRST_FREE_KIND, Framed, JournalCorrupt, Run
from .records import FRAME_SIZE, PREFIX_SIZE

Ints = npt.NDArray[np.int64]


def spans(runs: Sequence[Run]) -> tuple[bytes, Ints, Ints]:
    """One buffer, and the start and end of each payload in it, in order."""
    parts: list[bytes] = []
    starts: list[Ints] = []
    ends: list[Ints] = []
    before = 0
    for run in runs:
        if isinstance(run, Framed):
            data = run.data
            start, end = _framed(run)
        else:
            data = b"".join(run.payloads)
            sizes = np.fromiter(map(len, run.payloads), np.int64, len(run.payloads))
            end = np.cumsum(sizes)
            start = end - sizes
        parts.append(data)
        starts.append(start + before)
        ends.append(end + before)
        before += len(data)
    if len(parts) == 1:
        return parts[0], starts[0], ends[0]
    return b"".join(parts), np.concatenate(starts), np.concatenate(ends)


def numbers_at(data: bytes, kind: str, at: Ints) -> Ints:
    """The numbers of type ``kind`` at these offsets, which need not be aligned."""
    size = np.dtype(kind).itemsize
    # A view with an element starting at every byte: each number is one lookup, not one per byte.
    every: npt.NDArray[np.generic] = np.ndarray((max(0, len(data) - size + 1),), kind, data, strides=(1,))
    return every[at].astype(np.int64)


def _framed(run: Framed) -> tuple[Ints, Ints]:
    raw = np.frombuffer(run.data, np.uint8)
    at = (np.frombuffer(run.positions, np.uint64) - np.uint64(run.base)).astype(np.int64)
    end = at + PREFIX_SIZE + numbers_at(run.data, "<u4", at)
    if (raw[at + PREFIX_SIZE] < FIRST_FREE_KIND).any() or (end > len(raw)).any():
        raise JournalCorrupt(f"no record that was appended starts where one was asked for, near {run.base}")
    return at + FRAME_SIZE, end
