"""Which small files to merge, and merging them.

Owns: the choice of groups and rewriting one group. Must not touch: which files are live.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holtmq.spark.lake.model import DataFile
from holtmq.spark.lake.writing import Layout, aligned, join_rows, read_file


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of one folder to be merged into one. ``folder`` is the address where the result goes."""

    root: str
    folder: str
    files: tuple[DataFile, ...]


def small_groups(files: Iterable[DataFile], target_bytes: int, at_least: int) -> list[list[DataFile]]:
    """Groups worth merging: ``at_least`` small files of one folder, each group up to the target size."""
    folders: dict[tuple[str, int], list[DataFile]] = {}
    for file in files:
        if file.size < target_bytes // 2:
            # A recreated queue starts at offset 0: files of its different incarnations are not merged.
            life = file.bounds.get("queue_id", (0, 0))[0]
            folders.setdefault((posixpath.dirname(file.path), life), []).append(file)
    groups: list[list[DataFile]] = []
    for _, small in sorted(folders.items()):
        if len(small) < max(2, at_least):
            continue
        group: list[DataFile] = []
        size = 0
        for file in sorted(small, key=_order):
            if group and size + file.size > target_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def _order(file: DataFile) -> tuple[int, str]:
    """Oldest offsets first, so that a merged file is as sorted as its parts were."""
    return file.bounds.get("offset", (0, 0))[0], file.path


def rewrite(item: Rewrite, layout: Layout) -> DataFile:
    """Write the group as one file; its path is relative to the item's folder."""
    return join_rows(
        _rows(item.root, item.files, layout.stored), layout, item.folder, item.files[0].partition
    )


def _rows(root: str, files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        with read_file(posixpath.join(root, file.path)) as opened:
            for batch in opened.iter_batches():
                yield aligned(batch, schema)
