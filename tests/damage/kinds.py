"""The kinds of damage that a data folder meets: of the disk, of a file system, of a restore that went wrong.

Owns: changing the files of one folder. Must not touch: what becomes of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Donors:
    """Folders from which wrong files come."""

    older: Path  # a backup of the same folder, made while its broker ran
    foreign: Path  # another broker's, with the same names, the same sizes and other messages


def flip_bit(folder: Path, random: Random, _: Donors) -> str:
    return _change(folder, random, 1, lambda old: bytes([old[0] ^ 1 << random.randrange(8)]))


def change_bytes(folder: Path, random: Random, _: Donors) -> str:
    return _change(folder, random, random.randrange(2, 200), lambda old: random.randbytes(len(old)))


def zero_page(folder: Path, random: Random, _: Donors) -> str:
    file = _used_file(folder, random)
    page = random.randrange(max(_used(file) // _PAGE, 1))
    _zero(file, page * _PAGE, (page + 1) * _PAGE)
    return f"{file.name} page {page}"


def punch_holes(folder: Path, random: Random, _donors: Donors) -> str:
    """As after a restore that skipped blocks, in several files."""
    said = []
    for _ in range(random.randint(2, 4)):
        file = _used_file(folder, random)
        first = random.randrange(max(_used(file) // _PAGE, 1)) * _PAGE
        stop = first + random.randint(1, 6) * _PAGE
        _zero(file, first, stop)
        said.append(f"{file.name} {first} to {stop}")
    return ", ".join(said)


def truncate(folder: Path, random: Random, _: Donors) -> str:
    file = _used_file(folder, random)
    size = random.randrange(_used(file))
    with file.open("r+b") as opened:
        opened.truncate(size)
    return f"{file.name} to {size}"


def stale_tail(folder: Path, random: Random, _: Donors) -> str:
    """The end of a file is zeros, or what its blocks held before: parts of another file.

    Not from the same offset: if records of the same size stand exactly where others were, nothing shows it
    (docs/decisions/0405).
    """
    file = _used_file(folder, random)
    data = bytearray(file.read_bytes())
    at = random.randrange(_used(file))
    if random.random() < 0.4:
        data[at:] = bytes(len(data) - at)
        file.write_bytes(data)
        return f"{file.name} zeros from {at}"
    other = random.choice(sorted(folder.glob("*.seg")))
    piece = other.read_bytes()[random.randrange(_PAGE) | 1 :] or b"stale"
    stale = (piece * (len(data) // len(piece) + 1))[: len(data) - at]
    data[at : at + len(stale)] = stale
    file.write_bytes(data)
    return f"{file.name} from {at} as {other.name}"


def delete(folder: Path, random: Random, _: Donors) -> str:
    file = _any_file(folder, random)
    file.unlink()
    return file.name


def swap(folder: Path, random: Random, _: Donors) -> str:
    suffix = random.choice((".seg", ".ckpt"))
    one, other = random.sample(sorted(folder.glob(f"*{suffix}")), 2)
    one_data, other_data = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_data)
    other.write_bytes(one_data)
    return f"{one.name} and {other.name}"


def rename(folder: Path, random: Random, _: Donors) -> str:
    file = _any_file(folder, random)
    to = random.choice((f"{file.name}.bak", f"{int(random.random() * (1 << 20)):016x}{file.suffix}"))
    file.rename(folder / to)
    return f"{file.name} to {to}"


def duplicate(folder: Path, random: Random, _: Donors) -> str:
    """A copy beside the file, under the name of another place in the log."""
    file = random.choice(sorted([*folder.glob("*.seg"), *folder.glob("*.ckpt")]))
    at = int(file.stem, 16) + random.choice((-1, 1, 64, 1 << 20))
    to = folder / f"{max(at, 1):016x}{file.suffix}"
    shutil.copyfile(file, to)
    return f"{file.name} also as {to.name}"


def replace_by_folder(folder: Path, random: Random, _: Donors) -> str:
    """A name that cannot be opened as a file."""
    file = _any_file(folder, random)
    file.unlink()
    if random.random() < 0.5:
        file.mkdir()
        return f"{file.name} is a folder"
    file.symlink_to(folder / "nowhere")
    return f"{file.name} is a link to nothing"


def old_checkpoint(folder: Path, random: Random, _: Donors) -> str:
    """As after a restore of some files from an older copy."""
    older, newest = sorted(folder.glob("*.ckpt"))
    match random.randrange(3):
        case 0:
            newest.write_bytes(older.read_bytes())
            return "the older one under the newest one's name"
        case 1:
            newest.unlink()
            return "only the older one is left"
        case _:
            older.unlink()
            hurt = bytearray(newest.read_bytes())
            hurt[random.randrange(len(hurt))] ^= 4
            newest.write_bytes(hurt)
            return "the older one is gone, the newest is damaged"


def restore_older_files(folder: Path, random: Random, donors: Donors) -> str:
    """Some files come from a backup, beside newer ones."""
    files = sorted(path for path in donors.older.iterdir() if path.name != "lock")
    some = random.sample(files, min(random.choice((1, 1, 2, len(files) - 1)), len(files)))
    for file in some:
        shutil.copyfile(file, folder / file.name)
    return "older " + ", ".join(sorted(file.name for file in some))


def restore_foreign_file(folder: Path, random: Random, donors: Donors) -> str:
    """A file of another broker, under its own name or in place of one of this folder."""
    file = random.choice(sorted(path for path in donors.foreign.iterdir() if path.name != "lock"))
    to = file.name
    alike = sorted(folder.glob(f"*{file.suffix}")) if file.suffix else []
    if alike and random.random() < 0.5:
        to = random.choice(alike).name
    shutil.copyfile(file, folder / to)
    return f"foreign {file.name} as {to}"


def several(folder: Path, random: Random, donors: Donors) -> str:
    """Two or three of the above."""
    chosen = [random.choice(_SINGLE) for _ in range(random.randint(2, 3))]
    return "; ".join(damage(folder, random, donors) for damage in chosen)


Damage = Callable[[Path, Random, Donors], str]

_SINGLE: Final[tuple[Damage, ...]] = (flip_bit, change_bytes, zero_page, truncate, stale_tail)
KINDS: Final[dict[str, Damage]] = {
    "bit": flip_bit,
    "bytes": change_bytes,
    "zeroed page": zero_page,
    "holes": punch_holes,
    "truncation": truncate,
    "stale tail": stale_tail,
    "deleted file": delete,
    "swapped files": swap,
    "renamed file": rename,
    "file twice": duplicate,
    "no file": replace_by_folder,
    "old checkpoint": old_checkpoint,
    "older files": restore_older_files,
    "foreign file": restore_foreign_file,
    "several": several,
}
IN_PLACE: Final = ("bit", "bytes", "zeroed page", "holes")  # files keep their names and sizes
WEIGHTS: Final = {"bit": 4, "bytes": 2, "zeroed page": 2, "truncation": 2, "older files": 2, "several": 2}


def _change(folder: Path, random: Random, size: int, change: Callable[[bytes], bytes]) -> str:
    file = _used_file(folder, random)
    data = bytearray(file.read_bytes())
    at = random.randrange(_used(file))
    data[at : at + size] = change(bytes(data[at : at + size]))
    file.write_bytes(data)
    return f"{file.name} offset {at}, {size} bytes"


def _zero(file: Path, first: int, stop: int) -> None:
    data = bytearray(file.read_bytes())
    piece = data[first:stop]
    data[first:stop] = bytes(len(piece))
    file.write_bytes(data)


def _any_file(folder: Path, random: Random) -> Path:
    return random.choice(sorted(path for path in folder.iterdir() if path.name != "lock"))


def _used_file(folder: Path, random: Random) -> Path:
    """Segments most of the time: that is where most bytes are."""
    files = sorted(folder.glob("*.seg")) if random.random() < 0.7 else [_any_file(folder, random)]
    return random.choice(files)


def _used(file: Path) -> int:
    """Up to the last byte that was written: what lies behind it in a preallocated segment means nothing."""
    return max(len(file.read_bytes().rstrip(b"\0")), 1)
