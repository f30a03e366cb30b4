"""The wheel against a sorted list."""

import gc
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holtmq.broker.timer_wheel import Timer, TimerRun, TimerWheel

# Deadlines around the edges of a millisecond, where a bucket must be split and not rounded.
TIMES = st.one_of(
    st.integers(0, 60).map(lambda tenth: tenth / 10_000),
    st.sampled_from([0.001, 0.0010000000000000002, 0.0009999999999999998, 0.29, 0.3, 1.1, 1e9 + 0.1, -0.5]),
)


class WheelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wheel: TimerWheel[int] = TimerWheel()
        self.model: dict[int, Timer[int]] = {}  # waiting, in scheduling order
        self.all: list[Timer[int]] = []

    @rule(at=TIMES, count=st.integers(1, 12))
    def schedule(self, at: float, count: int) -> None:
        for _ in range(count):
            number = len(self.all)
            timer = self.wheel.schedule(at, number)
            self.all.append(timer)
            self.model[number] = timer

    @rule(times=st.lists(TIMES, max_size=30))
    def a_run_is_made_ahead_and_started(self, times: list[float]) -> None:
        run = TimerRun(self.wheel)
        timers = [run.add(at, len(self.all) + place) for place, at in enumerate(times)]
        assert len(self.wheel) == len(self.model)
        run.start()
        for timer in timers:
            self.all.append(timer)
            self.model[timer.payload] = timer

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        for number in data.draw(st.lists(st.integers(0, max(len(self.all) - 1, 0)), max_size=20)):
            if number < len(self.all):
                was_waiting = self.model.pop(number, None) is not None
                assert self.all[number].cancel() is was_waiting

    @rule(count=st.integers(1, 6))
    def cancel_the_earliest_and_ask_for_the_next(self, count: int) -> None:
        # The usual life of a message's timer: the oldest is acked, the next deadline is asked for.
        for number in sorted(self.model, key=lambda number: (self.model[number].at, number))[:count]:
            assert self.model.pop(number).cancel()
        self.ask_for_the_next()

    @rule(now=TIMES)
    def advance(self, now: float) -> None:
        expected = sorted(
            (number for number, timer in self.model.items() if timer.at <= now),
            key=lambda number: (self.model[number].at, number),
        )
        assert [timer.payload for timer in self.wheel.advance(now)] == expected
        for number in expected:
            del self.model[number]

    @rule()
    def ask_for_the_next(self) -> None:
        assert self.wheel.next_due() == min((timer.at for timer in self.model.values()), default=None)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.wheel) == len(self.model)


TestWheel = WheelMachine.TestCase
TestWheel.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


def test_a_timer_is_due_at_its_deadline_and_not_a_moment_before() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    wheel.schedule(0.0015, "late")
    wheel.schedule(0.0012, "early")

    assert [timer.payload for timer in wheel.advance(0.0012)] == ["early"]
    assert wheel.next_due() == 0.0015
    assert [timer.payload for timer in wheel.advance(0.0015)] == ["late"]


def test_a_due_timer_can_still_be_marked_by_the_work_before_it() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    wheel.schedule(1.0, "first")
    second = wheel.schedule(1.0, "second")

    due = wheel.advance(1.0)

    assert not second.cancel()
    assert [timer.payload for timer in due if not timer.cancelled] == ["first"]


def test_a_timer_scheduled_in_the_past_is_due_at_once() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    wheel.advance(100.0)

    wheel.schedule(5.0, "old")

    assert wheel.next_due() == 5.0
    assert [timer.payload for timer in wheel.advance(100.0)] == ["old"]


def wheel_past_a_cancelled_head(*deadlines: float) -> tuple[TimerWheel[float], list[Timer[float]]]:
    """One bucket whose first timer is cancelled, and which knows it because it was asked."""
    wheel: TimerWheel[float] = TimerWheel()
    timers = [wheel.schedule(at, at) for at in deadlines]
    timers[0].cancel()
    assert wheel.next_due() == deadlines[1]
    return wheel, timers


def test_a_late_arrival_with_an_earlier_deadline_is_the_next() -> None:
    wheel, _ = wheel_past_a_cancelled_head(1.0002, 1.0004)

    wheel.schedule(1.0001, 1.0001)

    assert wheel.next_due() == 1.0001


def test_a_bucket_that_was_taken_in_part_goes_on_with_the_rest() -> None:
    wheel, _ = wheel_past_a_cancelled_head(1.0002, 1.0004, 1.0006)

    assert [timer.payload for timer in wheel.advance(1.0005)] == [1.0004]

    assert wheel.next_due() == 1.0006
    assert [timer.payload for timer in wheel.advance(2)] == [1.0006]


def test_sweeping_a_bucket_forgets_none_that_waits() -> None:
    deadlines = [1 + at / 100_000 for at in range(20)]
    wheel, timers = wheel_past_a_cancelled_head(*deadlines)

    for timer in timers[8:]:
        timer.cancel()

    assert wheel.next_due() == deadlines[1]
    assert [timer.payload for timer in wheel.advance(2)] == deadlines[1:8]


def test_sweeping_dead_milliseconds_keeps_the_order_of_the_living() -> None:
    wheel: TimerWheel[int] = TimerWheel()
    for at in (9, 5, 7, 3):
        wheel.schedule(float(at), at)

    for at in range(100):
        wheel.schedule(100.0 + at, at).cancel()

    assert wheel.next_due() == 3.0
    assert [timer.payload for timer in wheel.advance(10)] == [3, 5, 7, 9]


class Payload:
    pass


@pytest.mark.parametrize("survivors", [0, 1])
def test_cancelled_timers_let_go_of_their_payload_long_before_the_deadline(survivors: int) -> None:
    wheel: TimerWheel[Payload] = TimerWheel()
    timers = [wheel.schedule(1e6, Payload()) for _ in range(1000)]
    alive = [weakref.ref(timer.payload) for timer in timers]
    gc.disable()  # by reference counts alone: a collector's pause per million timers would be felt
    try:
        for timer in timers[survivors:]:
            timer.cancel()
        timers.clear()
        del timer

        assert sum(ref() is not None for ref in alive) <= survivors + 8
    finally:
        gc.enable()


def test_dead_milliseconds_do_not_pile_up() -> None:
    wheel: TimerWheel[int] = TimerWheel()
    keeper = wheel.schedule(1e6, -1)

    for at in range(10_000):
        wheel.schedule(1000 + at / 1000, at).cancel()

    assert len(wheel._ticks) < 20
    assert wheel.next_due() == keeper.at
