"""While the journal is folded: the positions of bodies whose record, which follows them, is not read yet.

Owns: these, and which of them a repair gave up. Must not touch: bodies, and the records that claim them.
"""


class LooseBodies:
    """Positions, in order. A record takes all that lie before it."""

    __slots__ = ("_lost", "_positions")

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._lost: list[int] = []  # indexes of those that are lost

    def add(self, position: int) -> None:
        """A body lies here."""
        self._positions.append(position)

    def add_lost(self, position: int) -> None:
        """From here on records of the current batch are lost, perhaps bodies."""
        self._lost.append(len(self._positions))
        self._positions.append(position)

    def forget(self, lost: int | None) -> None:
        """Earlier bodies belong to no later record. ``lost``: where the head of a batch may be lost."""
        self._positions, self._lost = ([], []) if lost is None else ([lost], [0])

    @property
    def last(self) -> int | None:
        """The last position; None when there is none."""
        return self._positions[-1] if self._positions else None

    def take(self, wanted: int | None = None) -> list[int]:
        """Remove and return all; any number but ``wanted`` is an error."""
        found, self._positions = self._positions, []
        if self._lost:
            found, self._lost = _around_lost(found, self._lost, wanted), []
        if wanted is not None and len(found) != wanted:
            raise ValueError(f"{len(found)} bodies lie before a record that has {wanted} messages")
        return found

    def take_some(self, wanted: int) -> tuple[list[int], int]:
        """The same, and how many of them a repair gave up."""
        readable = len(self._positions) - len(self._lost)
        return self.take(wanted), max(0, wanted - readable)


def _around_lost(loose: list[int], lost: list[int], wanted: int | None) -> list[int]:
    """Body positions of a damaged batch, one per message; lost bodies get an unreadable position.

    Bodies before the first loss and after the last one belong to known messages. Between them the
    assignment is unknown, so those messages count as lost too.
    """
    kept = [position for at, position in enumerate(loose) if at not in lost]
    if wanted is None or len(kept) == wanted:  # no lost record was a body
        return kept
    before, behind = loose[: lost[0]], loose[lost[-1] + 1 :]
    missing = wanted - len(before) - len(behind)
    if missing <= 0:
        return kept
    return [*before, *range(loose[lost[0]], loose[lost[0]] + missing), *behind]
