"""Events as bytes: every kind comes back equal, and damage is named instead of guessed at."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.partitioned.events import (
    Acked,
    DeadLettersRemoved,
    Event,
    Filed,
    GroupDeleted,
    GroupStarted,
    Pushed,
    QueueConfigured,
    QueueDeleted,
    Sought,
    Subscribed,
    SubscriptionMoved,
    SubscriptionsForgotten,
    Trimmed,
    UnreadableEvent,
    decode_all,
    encode,
)
from holtmq.broker.partitioned.extras.traces import Traced
from holtmq.broker.partitioned.log.snapshot import restore
from holtmq.broker.partitioned.queue_config import QueueConfig

BIG = (1 << 64) - 2
EVENTS: list[Event] = [
    QueueConfigured("orders", "n", "t", QueueConfig(retry_delay_ms=5, dead_letter_queue=False), 1),
    QueueDeleted(),
    Pushed(7, 1_800_000_000_000_000, array("I", [0, 1, 0]), array("Q", [1, BIG, 3]), ("é", "b")),
    Pushed(BIG, 1, array("I", [4]), array("Q", [9])),
    Acked(1, 2, 3, 4, 5, 6, True, (Filed(3, 1, "boom"), Filed(4, 1, ""))),
    Acked(1, 2, BIG, 0, 5),
    Trimmed(array("I", [1, 2]), array("Q", [10, BIG])),
    GroupStarted("g", 3, 4, None, True),
    GroupStarted("g", 3, 4, "p"),
    GroupDeleted(3),
    Sought(3, 99, None),
    Sought(3, 99, 4),
    DeadLettersRemoved((1, 2)),
    Subscribed("g", "q", "", "n", "", "new", 5, 6),
    SubscriptionMoved("g", 7),
    SubscriptionsForgotten("g", ""),
    Traced(1, 2, 3, "t", "g", "info", ("x", "y"), b'{"a":1}', 9),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_as_it_was(event: Event) -> None:
    assert decode_all(encode(5, event)) == [(5, event)]


def test_a_record_of_several_events_keeps_their_order() -> None:
    record = b"".join(encode(number, event) for number, event in enumerate(EVENTS))

    assert decode_all(record) == list(enumerate(EVENTS))


def test_a_record_cut_anywhere_inside_an_event_is_unreadable() -> None:
    for event in EVENTS:
        whole = encode(1, event)
        for cut in range(1, len(whole)):
            with pytest.raises(UnreadableEvent):
                decode_all(whole[:cut])


@given(st.binary(min_size=1, max_size=80))
def test_garbage_is_unreadable_or_an_event_and_nothing_else(data: bytes) -> None:
    try:
        decode_all(data)
    except UnreadableEvent:
        return


@given(st.binary(max_size=80))
def test_garbage_is_no_snapshot(data: bytes) -> None:
    with pytest.raises(UnreadableEvent):
        restore(data, lambda offset, position: None)


def test_a_push_of_a_hundred_takes_about_twelve_bytes_a_message() -> None:
    event = Pushed(1, 2, array("I", range(100)), array("Q", range(100)))

    assert len(encode(1, event)) < 1240
