"""Sampling in steps: what happens between two of them is counted once."""

from holtmq.broker.figures.client_counts import ClientCounts
from holtmq.broker.figures.sampling import Sampler
from holtmq.broker.partitioned.counters import QueueCounters
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import QueueOptions
from holtmq.broker.work.work_queue import WorkQueue


def queue(number: int) -> WorkQueue:
    made = WorkQueue(f"q{number}", "/", number, QueueOptions())
    made.figures.acked = made.figures.delivered = 10
    return made


def sampled(sampler: Sampler, second: int, used: set[Queue]) -> int:
    return sum(1 for _ in sampler.sample(second, used, QueueCounters(), ClientCounts()))


def test_each_queue_is_a_step_of_its_own() -> None:
    assert sampled(Sampler(0), 1, set(map(queue, range(5)))) == 5


def test_what_is_sampled_is_not_kept() -> None:
    """A hundred thousand deleted queues would be freed at one moment."""
    used: set[Queue] = set(map(queue, range(5)))

    left = [len(used) for _ in Sampler(0).sample(1, used, QueueCounters(), ClientCounts())]

    assert left == [4, 3, 2, 1, 0]


def test_a_queue_that_is_deleted_before_its_step_is_counted_once() -> None:
    sampler, used = Sampler(0), set[Queue]([queue(1), queue(2)])
    steps = sampler.sample(1, used, QueueCounters(), ClientCounts())
    next(steps)
    (other,) = used
    other.deleted = True  # its deletion makes it a used queue of the next second, too
    for _ in steps:
        pass

    sampled(sampler, 2, {other})

    assert sampler.work == [20, 20, 20]
