"""Several names in one option: separated by commas, ``\\,`` is a comma of a name.

Owns: reading and writing such a list. Must not touch: what the names mean.
"""

import re
from collections.abc import Iterable
from typing import Final

_SEPARATOR: Final = re.compile(r"(?<!\\),")


def split_names(text: str) -> tuple[str, ...]:
    """The names of a list, each once, in its order."""
    parts = (part.strip().replace("\\,", ",") for part in _SEPARATOR.split(text))
    return tuple(dict.fromkeys(part for part in parts if part))


def join_names(names: Iterable[str]) -> str:
    """The list of these names."""
    return ",".join(name.replace(",", "\\,") for name in names)
