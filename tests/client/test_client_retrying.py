"""When to try again and where: arithmetic, without clocks or sockets."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.client import Backoff
from holtmq.client.retrying import Rotation, default_backoff, read_retry_after
from holtmq.config import Config

DICE = st.floats(0, 1)


@given(failures=st.integers(1, 5000), dice=DICE)
def test_waits_double_up_to_the_longest_and_half_of_each_is_chance(failures: int, dice: float) -> None:
    backoff = Backoff(first=0.1, longest=5.0)

    delay = backoff.delay(failures, dice)

    step = 5.0 if failures > 6 else min(5.0, 0.1 * 2 ** (failures - 1))
    assert step / 2 <= delay <= step
    assert backoff.delay(failures, 0.0) == pytest.approx(step / 2)
    assert backoff.delay(failures, 1.0) == pytest.approx(step)


@given(asked=st.floats(0, 300), failures=st.integers(1, 20), dice=DICE)
def test_what_the_broker_asks_for_is_never_cut_short(asked: float, failures: int, dice: float) -> None:
    assert Backoff().delay(failures, dice, asked) >= asked


def test_a_client_that_knows_two_brokers_outlasts_a_takeover() -> None:
    backoff = default_backoff(2)

    shortest = sum(backoff.delay(failures, 0.0) for failures in range(1, backoff.tries))

    assert shortest > 3 * (Config().journal.takeover_after + 1)  # three times: machines are busy


def test_a_broker_cannot_silence_a_client_for_longer_than_five_minutes() -> None:
    assert Backoff().delay(1, 0.5, 1e9) < 301


@pytest.mark.parametrize("broken", [{"tries": 0}, {"first": 0.0}, {"first": 2.0, "longest": 1.0}])
def test_a_backoff_that_cannot_be_is_refused(broken: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="backoff"):
        Backoff(**broken)  # type: ignore[arg-type]


def test_retry_after_is_a_number_or_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    later = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)

    assert read_retry_after("3", now.timestamp()) == 3.0
    assert read_retry_after("-3", now.timestamp()) == 0.0
    assert read_retry_after(format_datetime(later, usegmt=True), now.timestamp()) == 7.0
    assert read_retry_after(format_datetime(now, usegmt=True), later.timestamp()) == 0.0
    assert read_retry_after("soon", now.timestamp()) is None


def test_a_rotation_stays_with_the_one_that_works() -> None:
    rotation = Rotation(3, seconds=5)
    assert rotation.pick(0) == 0

    rotation.failed(0, now=0)

    assert rotation.pick(0) == 1
    rotation.worked(1)
    assert rotation.pick(100) == 1  # also when the first is well again


def test_when_all_failed_the_one_that_failed_first_is_tried_first() -> None:
    rotation = Rotation(2, seconds=5)
    rotation.failed(0, now=1)
    rotation.failed(1, now=2)

    assert rotation.pick(3) == 0


@given(
    count=st.integers(1, 4),
    steps=st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=40),
)
def test_a_shunned_broker_is_picked_only_when_no_other_is_well(
    count: int, steps: list[tuple[float, bool]]
) -> None:
    rotation = Rotation(count, seconds=5)
    banned_until = [0.0] * count
    now = 0.0
    for passed, works in steps:
        now += passed
        index = rotation.pick(now)
        assert banned_until[index] <= now or all(until > now for until in banned_until)
        if works:
            rotation.worked(index)
            banned_until[index] = 0.0
        else:
            banned_until[index] = now + 5
            rotation.failed(index, now)
