"""Mistakes with messages that enter several queues in steps; the simulation finds each of them."""

from collections.abc import Mapping
from typing import Any

import pytest

from holtmq.broker.publish.delays import Delays
from holtmq.broker.publish.due_message import Origin
from holtmq.broker.publish.placings import Placings
from simulation.planted import find

pytestmark = pytest.mark.timeout(3600)  # by their number, not by the clock: a busy machine is slow


def test_a_step_that_forgets_the_queues_that_are_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_only(placings: Placings, placing: Any, queues: Any, left: list[int]) -> int:
        place(placings, placing, queues, [])
        return 0

    place = Placings.place
    monkeypatch.setattr(Placings, "place", first_only)

    find("neither waiting nor leased: ['died-", "lost=['died-")


def test_messages_that_go_on_in_another_order_after_a_restart_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reversed_numbers(delays: Delays, due_ms: Mapping[int, int]) -> None:
        for position, due in sorted(due_ms.items(), reverse=True):
            resume(delays, {position: due})

    resume = Delays.resume
    monkeypatch.setattr(Delays, "resume", reversed_numbers)

    find("disordered=['died-", "disordered=['wide-")


def test_messages_of_a_transaction_that_go_on_beside_new_clients_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_late(delays: Delays) -> None:
        for position in delays._unfinished:
            delays._go_on(position)

    monkeypatch.setattr(Delays, "finish_transactions", too_late)

    find("disordered=['in-", first=40_000_000)


def test_a_message_of_a_transaction_that_is_not_kept_until_it_is_placed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fleeting(delays: Delays, message: Any, where: Any, origin: Origin, is_kept: bool) -> Any:
        return accept(delays, message, where, origin, is_kept and origin is Origin.LETTER)

    accept = Delays.accept
    monkeypatch.setattr(Delays, "accept", fleeting)

    find("torn=['")
