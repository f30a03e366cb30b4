"""The outside record: what the broker has promised, kept by the judge and compared with what it stored.

Owns: the state of every message ever sent, and the verdict. Must not touch: the broker and its folder.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from zlib import crc32


class Fate(Enum):
    """What is known about a message."""

    SENT = auto()  # not confirmed: it may be there or not
    KEPT = auto()  # confirmed, or seen after a recovery: it must be there
    LEAVING = auto()  # its ack was sent and is not known to be durable: it may be there or not
    REPEATED = auto()  # sent again, after an ack that may have been durable: it may be there or not
    GONE = auto()  # it must never be seen again


@dataclass(slots=True)
class Entry:
    """One message."""

    queue: str
    publisher: str
    number: int
    fate: Fate = Fate.SENT
    known: bool = False  # it has been durable: confirmed, seen after a recovery, or durably acked
    settled: bool = False  # at least an ack was sent
    behind_fence: bool = False  # sent to an owner that was replaced


@dataclass(slots=True)
class Findings:
    """The findings of a comparison. All must be empty."""

    lost: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Add the findings of another comparison."""
        self.lost += other.lost
        self.undone += other.undone
        self.disordered += other.disordered
        self.damaged += other.damaged
        self.torn += other.torn

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.undone or self.disordered or self.damaged or self.torn)


class Record:
    """Every message by its name, with which its body begins."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        # The one unanswered transaction: what it acks, and what it publishes.
        self._transaction: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        self._numbers: dict[str, int] = {}
        self.fenced = False  # the owner that the clients use was replaced
        self.confirmed_behind_fence: list[str] = []
        self.confirmed = 0
        self.acked = 0
        self.committed = 0

    def next_name(self, queue: str, publisher: str) -> str:
        """Record that a message is about to be sent; return its name."""
        number = self._numbers[publisher] = self._numbers.get(publisher, 0) + 1
        name = f"{publisher}.{number}"
        self._entries[name] = Entry(queue, publisher, number, behind_fence=self.fenced)
        return name

    def confirm(self, name: str) -> None:
        """Record the broker's confirm."""
        entry = self._entries[name]
        entry.known = True
        if entry.behind_fence and self.fenced:
            self.confirmed_behind_fence.append(name)
        if entry.fate is Fate.SENT:  # the consumer may have received it before the confirm
            entry.fate = Fate.KEPT
        self.confirmed += 1

    def send_again(self, name: str) -> None:
        """Record that an unanswered message is about to be sent again, under the same name."""
        entry = self._entries[name]
        if not entry.known:
            entry.fate = Fate.REPEATED if entry.settled else Fate.SENT

    def sent_again(self, name: str, *, stored: bool | None) -> None:
        """Record the response: stored now, or already stored before; None: one of the two.

        A message stored twice will be found twice, or after its ack; one not stored will be missing.
        """
        entry = self._entries[name]
        if stored is None and entry.fate is Fate.REPEATED:
            return
        if entry.fate is Fate.SENT or (entry.fate is Fate.REPEATED and stored):
            entry.fate = Fate.KEPT
        elif entry.fate is Fate.REPEATED:
            entry.fate = Fate.GONE  # the push and its ack had both survived
        entry.known = True
        self.confirmed += 1

    def leave(self, name: str) -> None:
        """Record that an ack is about to be sent."""
        entry = self._entries[name]
        entry.fate, entry.settled = Fate.LEAVING, True

    def ack_is_durable(self, names: Iterable[str]) -> None:
        """Record that a later promise of the broker proves these acks durable."""
        for name in names:
            entry = self._entries[name]
            entry.fate, entry.known = Fate.GONE, True
            self.acked += 1

    def move(self, sources: Sequence[str], queues: Sequence[str]) -> list[tuple[str, str]]:
        """Record that a transaction is about to commit that acks ``sources`` and copies each to every queue.

        Returns queue and name of each copy, in order.
        """
        copies: list[tuple[str, str]] = []
        for source in sources:
            entry = self._entries[source]
            entry.fate, entry.settled = Fate.LEAVING, True
            for queue in queues:
                name = f"{source}>{queue}"
                self._entries[name] = Entry(queue, entry.publisher, entry.number)
                copies.append((queue, name))
        self._transaction = tuple(sources), tuple(name for _, name in copies)
        return copies

    def moved(self) -> None:
        """Record the broker's response that the transaction is committed."""
        sources, copies = self._transaction
        for source in sources:
            entry = self._entries[source]
            entry.fate, entry.known = Fate.GONE, True
        for name in copies:
            self._entries[name].fate = Fate.KEPT
        self._transaction = (), ()
        self.committed += 1

    def purged(self, queue: str) -> int:
        """Record the broker's response that the queue is empty."""
        gone = [entry for entry in self._entries.values() if entry.queue == queue and entry.fate is Fate.KEPT]
        for entry in gone:
            entry.fate = Fate.GONE
        return len(gone)

    def purged_names(self, names: Iterable[str]) -> None:
        """Record the broker's response that these are settled."""
        for name in names:
            self._entries[name].fate = Fate.GONE

    def must_be_there(self) -> set[str]:
        """Names of all messages that must be there."""
        return {name for name, entry in self._entries.items() if entry.fate is Fate.KEPT}

    def compare(self, found: dict[str, list[bytes]]) -> Findings:
        """Compare with all messages found after a recovery; then take those as the new expected state."""
        findings = Findings()
        seen: set[str] = set()
        for queue, bodies in found.items():
            self._look_at_queue(queue, bodies, seen, findings)
        sources, copies = self._transaction
        done = {name in seen for name in copies}
        # A source that was delivered before it was durable may be missing for that reason alone.
        done |= {s not in seen for s in sources if s in seen or self._entries[s].known}
        if len(done) > 1:  # the transaction was applied in part
            findings.torn.append(sources[0])
        self._transaction = (), ()
        for name, entry in self._entries.items():
            if entry.queue not in found:
                continue
            if name in seen:
                # Recovery makes durable what it restores, so what is seen now must stay.
                entry.fate, entry.known = Fate.KEPT, True
            else:
                if entry.fate is Fate.KEPT:
                    findings.lost.append(name)
                entry.fate = Fate.GONE
        return findings

    def _look_at_queue(self, queue: str, bodies: list[bytes], seen: set[str], findings: Findings) -> None:
        last: dict[str, int] = {}
        for body in bodies:
            name = name_of(body)
            entry = self._entries.get(name) if name is not None else None
            if name is None or entry is None or entry.queue != queue or name in seen:
                findings.damaged.append(name or repr(body[:40]))
                continue
            seen.add(name)
            if entry.fate is Fate.GONE:
                findings.undone.append(name)
            if entry.number < last.get(entry.publisher, 0):
                findings.disordered.append(name)
            last[entry.publisher] = entry.number


def make_body(name: str, padding: int) -> bytes:
    """A body that contains its name and shows whether it is intact."""
    text = f"{name}|{'.' * padding}|".encode()
    return text + b"%08x" % crc32(text)


def name_of(body: bytes) -> str | None:
    """The name in a body; None when it is damaged."""
    text, checksum = body[:-8], body[-8:]
    if b"%08x" % crc32(text) != checksum:
        return None
    return text.partition(b"|")[0].decode()


def publisher_and_number(body: bytes) -> tuple[str, int]:
    """Sort key for bodies whose order has no meaning."""
    publisher, _, number = (name_of(body) or ".0").rpartition(".")
    return publisher, int(number)
