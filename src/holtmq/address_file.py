"""The address of a running broker, in a file of its data folder: verbs on the same machine find it there.

Owns: the file. Must not touch: listeners, connections. After a crash the file stays, and the broker that it
names does not answer.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "address"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def url_of(scheme: str, host: str, port: int) -> str:
    """An address as this machine reaches it."""
    host = _EVERYWHERE.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def write(folder: Path, listening: Iterable[tuple[str, str, int]]) -> None:
    """Note the best of these (scheme, host, port): without TLS, and by loopback, if there is such a one."""
    web = [one for one in listening if one[0] in ("http", "https")]
    web.sort(key=lambda one: (one[0] != "http", _EVERYWHERE.get(one[1], one[1]) not in _LOOPBACK, one[1]))
    if web:
        with suppress(OSError):  # a convenience: the broker works without it
            (folder / NAME).write_text(url_of(*web[0]) + "\n", encoding="utf-8")


def remove(folder: Path) -> None:
    """The broker stops."""
    with suppress(OSError):
        (folder / NAME).unlink()


def read(folder: Path) -> str | None:
    """The address of the broker that uses this folder, or used it when it crashed."""
    try:
        return (folder / NAME).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
