"""The dead letters of one partitioned queue, by number, newest last.

Owns: adding, finding and removing them. A letter keeps its own journal position, so it outlives the
message's retention. Must not touch: bodies, wire names, clocks.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that one group gave up on."""

    number: int
    group: str
    partition: int
    position: int
    offset: int
    journal_position: int
    created_us: int
    failed_us: int
    retry_count: int
    error: str


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """A filter on dead letters; None means any. Times are failure times, both ends inclusive."""

    group: str | None = None
    partition: int | None = None
    from_us: int | None = None
    to_us: int | None = None

    def matches(self, letter: DeadLetter) -> bool:
        return (
            (self.group is None or letter.group == self.group)
            and (self.partition is None or letter.partition == self.partition)
            and (self.from_us is None or letter.failed_us >= self.from_us)
            and (self.to_us is None or letter.failed_us <= self.to_us)
        )


class DeadLetterStore:
    """Dead letters in the order they were added."""

    __slots__ = ("_by_offset", "_letters", "next_number")

    def __init__(self) -> None:
        self.next_number = 1
        self._letters: dict[int, DeadLetter] = {}
        self._by_offset: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self._letters.values())

    def numbers(self) -> Container[int]:
        return self._letters.keys()

    def newest_first(self) -> list[DeadLetter]:
        """All dead letters there are now; the list does not change with the store."""
        return list(reversed(self._letters.values()))

    def file(self, letter: DeadLetter) -> None:
        self._letters[letter.number] = letter
        self._by_offset.setdefault(letter.offset, []).append(letter.number)
        self.next_number = max(self.next_number, letter.number + 1)

    def get(self, number: int) -> DeadLetter | None:
        return self._letters.get(number)

    def of_message(self, offset: int) -> list[DeadLetter]:
        """The dead letters of one message, over all groups."""
        return [self._letters[number] for number in self._by_offset.get(offset, ())]

    def count(self, wanted: LetterFilter) -> int:
        return sum(1 for letter in self._letters.values() if wanted.matches(letter))

    def since(self, from_us: int, most: int) -> tuple[int, int | None]:
        """How many were added from this time on, ``most`` at most, and when the first of them failed."""
        count, first = 0, None
        for letter in reversed(self._letters.values()):
            if letter.failed_us < from_us or count == most:
                break
            count, first = count + 1, letter.failed_us
        return count, first

    def remove(self, numbers: Iterable[int]) -> list[int]:
        """Remove dead letters; return the offsets of their messages."""
        offsets: list[int] = []
        for number in numbers:
            letter = self._letters.pop(number, None)
            if letter is not None:
                offsets.append(letter.offset)
                siblings = self._by_offset[letter.offset]
                siblings.remove(number)
                if not siblings:
                    del self._by_offset[letter.offset]
        return offsets
