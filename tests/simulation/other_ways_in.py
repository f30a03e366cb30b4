"""How messages get into partitioned queues without a push: batches, maintenance, timers, replayed letters.

Owns: what outside writers, operators and timers do in a simulated history, and what each command should
answer. Must not touch: the rules (the model's), what was promised (``PartitionedPromises``), workers.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.commands.admin import purge, replay
from holtmq.broker.partitioned.commands.staging_records import Committed, StagedRow, Winner
from holtmq.broker.partitioned.extras.timers import Timed, TimedChange
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.dead_letter_store import LetterFilter
from simulation.partitioned_model import Row, Timer
from simulation.partitioned_promises import PartitionedPromises
from simulation.partitioned_view import WRITERS, payload_of
from simulation.promises import Action, BrokenRule
from simulation.world import World

_KEYS: Final = ("reminder", "timeout")
_LATE_US: Final = 1_100_000  # a timer that was held up is tried again after a second


@dataclass(slots=True)
class _Commit:
    """A commit that goes on in steps, with others' commands between them."""

    writer: str
    batch: int
    winners: dict[tuple[int, int], int]  # (task, attempt) -> rows
    steps: Generator[None, None, Committed]
    now_us: int  # when it was begun
    parts: int  # staged in this history when it was begun


class OtherWaysIn:
    """Writers other than ``push``; ``PartitionedQueues`` runs them."""

    def __init__(self, world: World, promises: PartitionedPromises, partitions: tuple[str, ...]) -> None:
        self._world = world
        self._promises = promises
        self._partitions = partitions
        self._batches = dict.fromkeys(WRITERS, 0)  # the number that each writer stages for
        self._parts = 0
        self._commit: _Commit | None = None
        self._numbers = 0
        self._held_until_us = 0  # no timer could fire before this moment

    @property
    def actions(self) -> Mapping[Action, int]:
        """What may happen next, and how often."""
        return {
            self._stages: 26,
            self._commits: 12,
            self._commits_again: 1,
            self._aborts: 4,
            self._switches_maintenance: 6,
            self._drains_the_spool: 12,
            self._sets_a_timer: 8,
            self._cancels_a_timer: 2,
            self._replays_a_letter: 5,
            self._purges_letters: 1,
        }

    def _stages(self) -> None:
        """Several tasks stage a part each, one after the other; sometimes a task is tried twice."""
        dice = self._world.random
        writer = dice.choice(WRITERS)
        batch = self._batches[writer]
        for task in dice.sample(range(3), dice.randint(1, 3)):
            self._parts += 1
            part = dice.choice((self._parts, self._parts, 0))
            self._stage(writer, batch, task, int(dice.random() < 0.2), part)

    def _stage(self, writer: str, batch: int, task: int, attempt: int, part: int) -> None:
        rows = tuple(self._some_row() for _ in range(self._world.random.randint(1, 4)))
        staged = [
            StagedRow(queue, partition, Body(one, payload_of(one), producer="spark"))
            for queue, partition, one in rows
        ]
        after = self._promises.state.copy()
        after.staged[writer, batch, task, attempt, part] = rows
        wanted = sum(
            len(more) for key, more in after.staged.items() if key[:4] == (writer, batch, task, attempt)
        )
        staging = self._world.partitioned.staging
        found = self._promises.command(
            lambda: staging.stage(writer, batch, task, attempt, part, staged, self._world.now)
        )
        if found is not None:
            if found != wanted:
                raise BrokenRule(f"{writer} staged {wanted} rows for batch {batch}, the broker says {found}")
            self._promises.becomes(after)

    def _commits(self) -> None:
        """Begin to commit, or go on with a commit that was begun."""
        if self._world.failed:
            return
        dice = self._world.random
        if self._commit is None:
            writer = dice.choice(WRITERS)
            batch = self._batches[writer]
            rows: dict[tuple[int, int], int] = {}
            for key, part in self._promises.state.staged.items():
                if key[:2] == (writer, batch):
                    rows[key[2], key[3]] = rows.get((key[2], key[3]), 0) + len(part)
            chosen = {task: dice.choice([a for t, a in rows if t == task]) for task, _ in rows}
            winners = {(task, attempt): rows[task, attempt] for task, attempt in sorted(chosen.items())}
            named = [Winner(task, attempt, count) for (task, attempt), count in winners.items()]
            steps = self._world.partitioned.staging.commit(writer, batch, named, self._world.now)
            self._commit = _Commit(writer, batch, winners, steps, self._now_us, self._parts)
        for _ in range(dice.choice((1, 3, 100))):
            if self._commit is not None:
                self._go_on(self._commit)

    def _go_on(self, commit: _Commit) -> None:
        after, before = self._promises.state.copy(), self._promises.observed()
        aborted = (commit.writer, commit.batch) in self._promises.aborted
        stored, duplicates = after.commit(commit.writer, commit.batch, commit.winners, commit.now_us)
        try:
            next(commit.steps)
            return
        except StopIteration as end:
            done: Committed = end.value
        except Conflict as refusal:
            self._commit = None
            if not (aborted or self._parts > commit.parts or self._promises.spool_holds):
                raise BrokenRule(f"{commit.writer} could not commit {commit.batch}: {refusal}") from None
            self._promises.is_unchanged(before, "a refused commit")
            return
        self._commit = None
        if done != Committed(stored, duplicates, False):
            # Ids may have left the dedup window since the commit began, and pushes have removed them.
            after = self._promises.state.copy()
            stored, duplicates = after.commit(
                commit.writer, commit.batch, commit.winners, commit.now_us, window_end_us=self._now_us
            )
        if aborted or done != Committed(stored, duplicates, False):
            raise BrokenRule(f"{done} of batch {commit.batch}, expected {stored} rows, {duplicates} known")
        self._batches[commit.writer] += 1
        self._promises.becomes(after)

    def _commits_again(self) -> None:
        """A writer that did not hear the answer asks once more."""
        writer = self._world.random.choice(WRITERS)
        last = self._promises.state.committed.get(writer)
        if last is None or self._world.failed:
            return
        steps = self._world.partitioned.staging.commit(writer, last, [Winner(0, 0, 99)], self._world.now)
        try:
            next(steps)
        except StopIteration as end:
            if end.value == Committed(0, 0, True):
                return
        raise BrokenRule(f"batch {last} of {writer} was committed a second time")

    def _aborts(self) -> None:
        writer = self._world.random.choice(WRITERS)
        batch = self._batches[writer]
        self._world.partitioned.staging.abort(writer, batch)
        self._promises.aborted.add((writer, batch))
        self._batches[writer] += 1

    def _switches_maintenance(self) -> None:
        """It is on for a while and off most of the time."""
        after = self._promises.state.copy()
        if not after.spooling and self._world.random.random() < 0.8:
            return
        after.spooling = not after.spooling

        def switch() -> bool:
            self._world.partitioned.spool.switch(pushes_spooled=after.spooling)
            return True

        if self._promises.command(switch):
            self._promises.becomes(after)

    def _drains_the_spool(self) -> None:
        """As the node does it every few seconds."""
        if self._world.failed or self._promises.state.spooling:
            return
        after = self._promises.state.copy()
        after.drain(self._now_us)
        if self._world.partitioned.drain_spool(self._world.now):
            raise BrokenRule("the spool was not emptied at once")
        if self._promises.state.spool:
            self._promises.becomes(after)

    def _sets_a_timer(self) -> None:
        """A new one, or one that is moved."""
        dice = self._world.random
        queue, partition, one = self._some_row()
        key, due_us = dice.choice(_KEYS), self._now_us + dice.choice((0, 300_000, 2_000_000))
        timer = Timer(partition, one, due_us, f"01900000-0000-7000-8000-{self._numbers:012x}")
        put = Timed(queue, key, partition, one, payload_of(one), due_us, timer.message_id)
        self._change_timers(TimedChange([put]), {**self._promises.state.timers, (queue, key): timer})

    def _cancels_a_timer(self) -> None:
        if self._promises.state.timers:
            key = self._world.random.choice(list(self._promises.state.timers))
            timers = {other: timer for other, timer in self._promises.state.timers.items() if other != key}
            self._change_timers(TimedChange([], [key]), timers)

    def _change_timers(self, change: TimedChange, timers: dict[tuple[str, str], Timer]) -> None:
        service = self._world.partitioned
        after = self._promises.state.copy()
        after.timers = timers
        done = self._promises.command(lambda: service.store.commit_state(service.timed.record(change)))
        if done is not None:
            service.plan_timed()
            self._promises.becomes(after)

    def turned(self) -> None:
        """What the broker has fired is due, and what is due was fired."""
        state, timed = self._promises.state, self._world.partitioned.timed
        fired = [key for key in state.timers if timed.get(*key) is None]
        early = [state.timers[key] for key in fired if state.timers[key].due_us > self._now_us]
        if early:
            raise BrokenRule(f"timers fired before their time: {early}")
        if fired:
            after = state.copy()
            after.fire(fired, self._now_us)
            self._promises.becomes(after)
        if self._world.failed or self._promises.spool_holds:
            self._held_until_us = self._now_us
        for key, timer in self._promises.state.timers.items():
            if max(timer.due_us, self._held_until_us) < self._now_us - _LATE_US:
                raise BrokenRule(f"the timer {key} should have fired: {timer}")

    def _replays_a_letter(self) -> None:
        """At home; over HTTP this is refused under maintenance."""
        state, dice = self._promises.state, self._world.random
        queues = [name for name, queue in state.queues.items() if queue.letters]
        if not queues or self._promises.spool_holds:
            return
        name = dice.choice(queues)
        place = dice.randrange(len(state.queues[name].letters))
        _, partition, position, *_ = state.queues[name].letters[place]
        original = state.queues[name].partitions[partition].ids[position]
        queue = self._world.partitioned.store.queues[name]
        number = [letter.number for letter in queue.dead_letters][place]
        done = self._promises.command(lambda: replay(self._world.partitioned, queue, number, self._world.now))
        if done is None:
            return
        one = done.body.transaction_id
        self._promises.originals[one] = self._promises.originals.get(original, original)
        after = state.copy()
        if after.replay(name, place, one, self._now_us) != done.result.duplicate:
            raise BrokenRule(f"replay of letter {number}: {done.result}")
        self._promises.becomes(after)

    def _purges_letters(self) -> None:
        name = self._world.random.choice(list(self._promises.state.queues))
        after = self._promises.state.copy()
        after.queues[name].letters = ()
        queue = self._world.partitioned.store.queues[name]
        gone = self._promises.command(lambda: list(purge(self._world.partitioned, queue, LetterFilter())))
        if gone:
            self._promises.becomes(after)

    def died(self) -> None:
        """A commit that was going on is over, and timers have to be planned again."""
        self._commit = None
        self._held_until_us = self._now_us

    @property
    def _now_us(self) -> int:
        return micros(self._world.now)

    def _some_row(self) -> Row:
        """New, or with an id that was used a moment ago."""
        dice = self._world.random
        if not self._numbers or dice.random() < 0.9:
            self._numbers += 1
        return (
            dice.choice(list(self._promises.state.queues)),
            dice.choice(self._partitions),
            f"r{self._numbers}",
        )
