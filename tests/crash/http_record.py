"""What the world outside knows of messages pushed over HTTP: promised, in doubt, held, settled.

Owns: the judgement of every delivery and of what is left at the end. Must not touch: sockets, the broker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Move:
    """One try to settle a message; with copies if it was a transaction that passed it on."""

    copies: frozenset[tuple[str, str]] = frozenset()  # queue, id
    answered: bool = False


@dataclass
class Message:
    """A message of a source queue. Its place is the partition, or the work queue itself."""

    id: str
    place: str
    number: int
    promised: bool = False  # its push was answered
    holder: str = ""  # who has it now, as far as the answers say
    last: Move | None = None  # the latest try to settle it, since it was last delivered
    tried: list[Move] = field(default_factory=list)  # earlier ones: delivered again, so they did not happen


class Record:
    """All messages that were pushed, and what is known of each."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.answered: Counter[str] = Counter()  # what kinds of call were answered
        self.doubts = 0  # calls without an answer
        self._places: dict[str, list[Message]] = {}
        self._copies = 0

    def sends(self, place: str) -> str:
        """The id of one more message that is about to be pushed to a place."""
        there = self._places.setdefault(place, [])
        message = Message(f"{place}-{len(there) + 1}", place, len(there) + 1)
        there.append(message)
        self.messages[message.id] = message
        return message.id

    def pushed(self, names: list[str]) -> None:
        """The push was answered."""
        for name in names:
            self.messages[name].promised = True

    def delivered(self, names: list[str], holder: str, *, ordered: bool) -> None:
        """A pop returned these. They must be in order and not leased to another client."""
        for name in names:
            message = self.messages[name]
            assert not message.holder, f"{name} is with {message.holder} and was given to {holder}"
            message.promised = True  # seen is as good as answered: it must not get lost any more
            if message.last is not None:
                assert not message.last.answered, f"{name} was settled, and is delivered again"
                message.tried.append(message.last)
                message.last = None
        if ordered:
            self._check_order([self.messages[name] for name in names])
        for name in names:
            self.messages[name].holder = holder

    def _check_order(self, batch: list[Message]) -> None:
        place, numbers = batch[0].place, [message.number for message in batch]
        assert all(message.place == place for message in batch)
        assert numbers == sorted(numbers), f"{place} came as {numbers}"
        for other in self._places[place]:
            if other.number not in numbers:
                if other.number > numbers[0]:
                    settled = other.last is not None and other.last.answered
                    assert not settled, f"{other.id} was settled, and {batch[0].id} before it is delivered"
                    assert not other.holder, f"two leases on {place}: {other.holder} has {other.id}"
                if other.number < numbers[-1] and other.promised:
                    assert other.last is not None, f"{other.id} was skipped for {batch[-1].id}"

    def copy_names(self, queues: list[str], worker: str) -> list[tuple[str, str]]:
        """Queue and id of copies that a transaction is about to make; ids tell the worker and their order."""
        self._copies += 1
        return [(queue, f"{worker}.{self._copies}") for queue in queues]

    def settles(self, names: list[str], copies: list[tuple[str, str]]) -> list[Move]:
        """A call that settles these is about to be sent."""
        moves = [Move(frozenset(copies)) for _ in names]
        for name, move in zip(names, moves, strict=True):
            self.messages[name].last = move
        return moves

    def settled(self, names: list[str], moves: list[Move]) -> None:
        """It was answered."""
        for name, move in zip(names, moves, strict=True):
            move.answered = True
            self.messages[name].holder = ""

    def given_back(self, names: list[str]) -> None:
        """A nack is about to be sent: from here on anybody may have them."""
        for name in names:
            self.messages[name].holder = ""

    def killed(self) -> None:
        """No lease survives; what was under way is in doubt."""
        for message in self.messages.values():
            message.holder = ""

    def compare(self, left: dict[str, list[str]], copies: dict[str, list[str]]) -> None:
        """Everything that is still there: sources by place, copies by queue, each in its order."""
        where = {(queue, name) for queue, names in copies.items() for name in names}
        for queue, names in [*left.items(), *copies.items()]:
            assert len(names) == len(set(names)), f"{queue} has a message twice"
        for place, names in left.items():
            numbers = [self.messages[name].number for name in names]
            assert numbers == sorted(numbers), f"{place} is left as {numbers}"
        for queue, names in copies.items():
            last: dict[str, int] = {}
            for worker, number in (name.split(".") for name in names):
                assert int(number) > last.get(worker, 0), f"{queue} has copies of {worker} out of order"
                last[worker] = int(number)
        known: set[tuple[str, str]] = set()
        for message in self.messages.values():
            known |= self._judge(message, message.id in left.get(message.place, ()), where)
        assert where <= known, f"unexpected copies: {sorted(where - known)[:5]}"

    @staticmethod
    def _judge(message: Message, is_left: bool, where: set[tuple[str, str]]) -> set[tuple[str, str]]:
        for attempt in message.tried:
            assert not attempt.copies & where, f"{message.id} was delivered again, and its copies are there"
        move = message.last
        if move is None:
            assert is_left or not message.promised, f"{message.id} was promised and is gone"
            return set()
        there = move.copies & where
        assert there in (move.copies, frozenset()), f"half of a transaction with {message.id}"
        if move.answered:
            assert not is_left, f"{message.id} was settled, and is there again"
            assert there == move.copies, f"{message.id} was passed on, and its copies are gone"
        elif move.copies:
            assert is_left != bool(there), f"{message.id} and its copies are both there, or both gone"
        return set(move.copies)
