"""The schedule of a simulated history: whose turn it is, when time passes, when the machine dies.

Owns: the dice, and how a failing seed is repeated. Must not touch: threads, sockets, clocks, files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holtmq.journal.fake_disk import Keep, PowerCut
from simulation.partitioned import PartitionedQueues
from simulation.promises import Action, BrokenPromise, BrokenRule, SimulatedClients
from simulation.work_queues import WorkQueues
from simulation.world import World

STEPS: Final = 150
# Histories in which everything happens equally often are alike. So each has its own habits: some things never
# happen in it, others all the time, and what needs many of a kind in a row is met.
_HABITS: Final = (0, 1, 1, 4)
_DIES_AT_CHECKPOINTS: Final = (0.0, 0.0, 0.25)  # in a history, how likely a broker dies with its checkpoint


@dataclass(frozen=True, slots=True)
class History:
    """What one seed did. Two runs of a seed have the same digest."""

    seed: int
    steps: int
    crashes: int
    power_cuts: int  # of the crashes, those that took what was not synced, or some of it
    checkpoints: int
    compactions: int
    deletions: int  # of whole segments
    confirmed: int
    read_back: (
        int  # messages read from the disk and compared: new ones, and all after each change to the files
    )
    digest: str


class Simulation:
    """One world, and clients of both kinds that come and go."""

    def __init__(self, seed: int, trace: Callable[[str], None] = lambda line: None) -> None:
        self._seed = seed
        self._world = World(seed, trace)
        self._random = self._world.random
        self._crashes = self._power_cuts = 0
        self._dies_at_checkpoints = self._random.choice(_DIES_AT_CHECKPOINTS)
        self._clients: tuple[SimulatedClients, ...] = (
            WorkQueues(self._world),
            PartitionedQueues(self._world),
        )
        chosen: dict[Action, int] = {
            self._time_passes: 12,
            self._checkpoints: 4,
            self._disk_fails: 2,
            self._crashes_now: 3,
            self._restarts: 1,
        }
        for clients in self._clients:
            chosen.update(clients.actions)
        self._actions = list(chosen)
        self._weights = [often * self._random.choice(_HABITS) for often in chosen.values()]
        self._open()

    def run(self, steps: int = STEPS) -> History:
        """Live through a history; BrokenPromise at its first wrong turn."""
        world = self._world
        try:
            for _ in range(steps):
                world.step += 1
                self._step()
            self._crash(self._random.choice(list(Keep)))
        except BrokenPromise:
            raise
        except BrokenRule as broken:
            raise BrokenPromise(self._seed, world.step, str(broken)) from broken
        except Exception as error:
            raise BrokenPromise(self._seed, world.step, f"{type(error).__name__}: {error}") from error
        finally:
            world.die(Keep.NOTHING)
        return History(
            self._seed,
            world.step,
            self._crashes,
            self._power_cuts,
            world.done.checkpoints,
            world.done.compactions,
            world.done.deletions,
            sum(clients.confirmed for clients in self._clients),
            world.reads.count,
            world.digest.hexdigest(),
        )

    def _step(self) -> None:
        action = self._random.choices(self._actions, self._weights)[0]
        self._world.say(action.__name__)
        try:
            self._act(action)
        except PowerCut:  # the machine is off, and with it the reader
            self._crash(self._random.choice(list(Keep)))

    def _act(self, action: Action) -> None:
        action()
        if self._random.random() < 0.8:
            self._turn()
        if self._random.random() < 0.5:
            self._flush()
        if self._world.checkpoint_is_due:
            self._checkpoints()
        if self._world.failed:
            if self._random.random() < 0.3:
                self._crash(self._random.choice(list(Keep)))
            return
        with self._world.disk.spared():
            for clients in self._clients:
                if not self._world.broker.flow.dirty:
                    clients.check()
                clients.read_all_back()

    def _time_passes(self) -> None:
        self._world.let_time_pass(self._random.choice((1, 10, 300, 999, 1_000, 2_500)))
        self._turn()

    def _checkpoints(self) -> None:
        if not self._world.failed:
            self._turn()
            self._world.checkpoint()
            if self._random.random() < self._dies_at_checkpoints:  # and the next start has nothing newer
                self._crash(self._random.choice(list(Keep)))

    def _disk_fails(self) -> None:
        disk, choice = self._world.disk, self._random.random()
        if choice < 0.4:
            disk.fail_sync(self._random.randint(1, 3))
        elif choice < 0.8:
            disk.fail_write(self._random.randint(1, 3), partial=self._random.randint(0, 400))
        else:
            disk.cut_power_after(self._random.randint(0, 6))

    def _crashes_now(self) -> None:
        self._crash(self._random.choice(list(Keep)))

    def _restarts(self) -> None:
        if not self._world.failed:
            self._turn()
            self._flush()
            self._world.stop()
            self._come_back("a restart")

    def _turn(self) -> None:
        self._world.turn()
        for clients in self._clients:
            clients.turned()

    def _flush(self) -> None:
        """The disk's turn: one write, one sync, and every waiting caller is notified."""
        turned = not self._world.broker.flow.dirty
        self._world.journal.flush()
        if not self._world.failed and turned:
            for clients in self._clients:
                clients.flushed()
        self._turn()

    def _crash(self, keep: Keep) -> None:
        self._world.say(f"crash {keep.value}")
        self._crashes += 1
        self._power_cuts += keep is not Keep.EVERYTHING
        self._world.die(keep)
        if self._random.random() < 0.2:
            self._world.disk.cut_power_after(self._random.randint(0, 12))
        self._come_back(f"a crash ({keep.value})")

    def _come_back(self, after: str) -> None:
        for clients in self._clients:
            clients.died()
        self._open()
        for clients in self._clients:
            wrong = clients.recovered()
            if wrong:
                raise BrokenRule(f"after {after}: {wrong}")
        self._turn()
        self._flush()

    def _open(self) -> None:
        while not self._world.opens(self._prepare):
            self._world.say("dies while opening")
            self._world.disk.crash(self._random.choice(list(Keep)))

    def _prepare(self) -> None:
        for clients in self._clients:
            clients.prepare()


def simulate(seed: int, steps: int = STEPS, trace: Callable[[str], None] = lambda line: None) -> History:
    """One history; BrokenPromise names the seed."""
    return Simulation(seed, trace).run(steps)
