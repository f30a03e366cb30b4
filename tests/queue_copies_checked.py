"""Every broker that a test runs in its own process copies its queues all the time, as a checkpoint does
before its moment. The copies must be up to date, whatever the test did meanwhile.

Nothing but this holds the code to it that each change of a queue marks the queue for the turn. A change that
does not would lose messages, or bring some back, after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from holtmq.broker import broker as broker_module
from holtmq.broker.broker import Broker
from holtmq.broker.flow import Flow
from holtmq.broker.records.queue_copies import QueueCopies

_MOST_QUEUES: Final = 200  # to compare more would make the tests slow
_EVERY: Final = 7  # turns


def differences(broker: Broker, queues: QueueCopies) -> Iterator[str]:
    """In what these copies differ from copies that are made now."""
    now = QueueCopies(broker)
    now.complete()
    was, wanted = set(queues.states()), set(now.states())
    for state in was ^ wanted:
        yield f"{state!r} {'only before' if state in was else 'only now'}"
    places = [sorted(at for run in copies.live() for at in run) for copies in (queues, now)]
    if places[0] != places[1]:
        yield f"positions {places[0]}, not {places[1]}"


_found: Final[list[str]] = []


class _CheckedFlow(Flow):
    """Copies the queues behind some turns, and compares behind later ones."""

    __slots__ = ("broker", "copies", "turns")

    broker: Broker | None
    copies: QueueCopies | None
    turns: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.broker = self.copies = None
        self.turns = 0

    def turn(self) -> None:
        super().turn()
        broker = self.broker
        if broker is None:
            return
        self.turns += 1
        if self.copies is None:
            if self.turns % _EVERY == 0 and 1 < len(broker.queues_by_id) <= _MOST_QUEUES:
                self.copies = QueueCopies(broker)
                while not self.copies.copy_some(1):
                    pass
        elif self.turns % _EVERY == 0:
            copies, self.copies = self.copies, None
            copies.complete()
            _found.extend(differences(broker, copies))


def pytest_configure() -> None:
    """Check each broker from now on."""
    make = Broker.__init__

    def make_checked(broker: Broker, *args: Any, **kwargs: Any) -> None:
        make(broker, *args, **kwargs)
        assert isinstance(broker.flow, _CheckedFlow)
        broker.flow.broker = broker

    setattr(broker_module, "Flow", _CheckedFlow)  # noqa: B010
    setattr(Broker, "__init__", make_checked)  # noqa: B010


@pytest.fixture(autouse=True)
def _copies_of_queues_are_up_to_date() -> Iterator[None]:
    _found.clear()
    yield
    assert not _found, f"copies of queues are not up to date: {_found[:4]}"
