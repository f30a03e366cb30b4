"""What a checkpoint copies of a partitioned queue, at its moment."""

import gc

from partitioned_support import Node

from holtmq.broker.partitioned.log.snapshot import CapturedQueue
from holtmq.heap import uncollected


def test_a_captured_queue_has_few_objects_for_the_garbage_collector() -> None:
    node = Node()
    queue = node.create()
    node.push("p", "a", "b", "c")
    wanted = list(CapturedQueue(queue).records())

    with uncollected():
        before = len(gc.get_objects())
        more = [CapturedQueue(queue) for _ in range(100)]
        made = len(gc.get_objects()) - before

    assert made <= 8 * len(more)  # all are looked at in the turn of the checkpoint
    assert list(more[0].records()) == wanted
