"""The program's version as a number that fits into a file header.

Owns: the number and its conversion to text. Must not touch: files.
"""

from __future__ import annotations

import re
from typing import Final

from holtmq import __version__


def version_code(version: str) -> int:
    """1.2.3 as 0x01_02_0003."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        raise ValueError(f"{version!r} is not a version")
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major << 24 | minor << 16 | patch


def version_name(code: int) -> str:
    """The inverse of ``version_code``. 0 means 0.1.0, which did not write its version."""
    if code == 0:
        return "0.1.0"
    return f"{code >> 24}.{code >> 16 & 0xFF}.{code & 0xFFFF}"


WRITER: Final = version_code(__version__)
PROGRAM: Final = __version__
