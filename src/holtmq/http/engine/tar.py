"""A tar archive that is sent while it is made.

Owns: the headers and the padding. Must not touch: what the files contain.
"""

import tarfile
from typing import Final

TAR_END: Final = bytes(2 * tarfile.BLOCKSIZE)


def tar_header(name: str, size: int, seconds: int) -> bytes:
    """The header of a file that only its owner may read; names and sizes of any length."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, seconds, 0o600
    return member.tobuf(tarfile.PAX_FORMAT)


def tar_padding(size: int) -> bytes:
    """What follows the bytes of a file, up to the next block."""
    return bytes(-size % tarfile.BLOCKSIZE)
