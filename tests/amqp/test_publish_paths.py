"""The fast path of publishing and the general path: publishers and consumers cannot tell them apart."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from publish_world import BROKEN, CHANGES, FAULTS, METHODS, POOL, Publish, Step, data_of, play

from holtmq.amqp.methods import QueueDelete

WHOLE = [1 << 20]
EXAMPLES = int(os.environ.get("HOLT_TEST_PATH_EXAMPLES", "300"))
sizes = st.lists(st.integers(1, 400) | st.just(1 << 20), min_size=1, max_size=4)
publishes = st.sampled_from(POOL)
others = st.one_of(
    st.tuples(st.sampled_from(METHODS), st.sampled_from([1, 1, 2, 3])),
    st.sampled_from(sorted(CHANGES)),
    st.sampled_from(FAULTS),
    st.sampled_from(BROKEN),
)
runs = st.lists(publishes | publishes | publishes | publishes | others, max_size=15)
repeats = st.builds(lambda run, times: run * times, st.lists(publishes, max_size=3), st.integers(1, 4))


def scenario(run: list[Step], repeated: list[Step], change: list[Step]) -> list[Step]:
    """What repeats is known to the fast path, and comes again after a change."""
    return [*run, *repeated, *change, *repeated]


@settings(max_examples=EXAMPLES)
@given(st.builds(scenario, runs, repeats, st.lists(others, max_size=3)), sizes, st.integers(-9, 3))
def test_the_two_paths_cannot_be_told_apart(steps: list[Step], sizes: list[int], fails_at: int) -> None:
    assert play(steps, sizes, True, fails_at=fails_at) == play(steps, sizes, False, fails_at=fails_at)


@settings(max_examples=100)
@given(st.lists(publishes, min_size=1, max_size=4), st.data())
def test_broken_bytes_are_refused_alike(messages: list[Publish], data: st.DataObject) -> None:
    stream = bytearray(b"".join(map(data_of, messages)))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))

    assert play([bytes(stream)], WHOLE, True) == play([bytes(stream)], WHOLE, False)


def test_two_publishes_cut_at_every_byte_are_the_same_on_both_paths() -> None:
    stream = data_of(Publish(1, "topic", "a", True, "persistent", b"012345", 2, 2))

    for cut in range(1, len(stream)):
        assert play([stream], [cut, 1 << 20], True) == play([stream], [cut, 1 << 20], False)


def test_a_publish_behind_a_run_goes_its_own_way_and_not_that_of_one_before_the_run() -> None:
    def one(exchange: str, properties: str, times: int = 1) -> Publish:
        return Publish(1, exchange, "plain", False, properties, b"", 1, times)

    steps: list[Step] = [one("", "id"), one("", "none", 3), one("", "id"), one("behind", "none")]

    for count in range(1, 6):
        assert play(steps * count, WHOLE, True) == play(steps * count, WHOLE, False)


@pytest.mark.parametrize("queue", ["plain", "durable", "stream2"])
def test_a_queue_that_is_being_deleted_gets_no_more_messages_on_either_path(queue: str) -> None:
    # Persistent and mandatory: the journal shows the queues of each message, and a return that it has none.
    keys = (("topic", "x.y"), ("topic", "a.x"), ("fan", ""), ("direct", "k"), ("streams", "a.b"))
    publishes: list[Step] = [Publish(1, *key, True, "persistent", b"x", 1, 2) for key in keys]

    steps: list[Step] = [*publishes, (QueueDelete(queue), 1), *publishes]

    assert play(steps, WHOLE, True) == play(steps, WHOLE, False)


def test_a_policy_that_the_journal_refuses_is_in_force_on_neither_path() -> None:
    messages: list[Step] = [Publish(1, "empty", "a.b.c", False, "none", b"x", 1, 5)]
    steps: list[Step] = [*messages, "a policy sets an alternate", *messages]

    assert play(steps, WHOLE, True, fails_at=0) == play(steps, WHOLE, False, fails_at=0)
