"""How much one request may do at once: it is one record, and holds the event loop until that is made.

Owns: the limits beside ``http.max_batch``. Must not touch: what is done. Each of them takes about 40 ms.
"""

from collections.abc import Callable, Collection
from typing import Final

from holtmq.http.engine.errors import Refusal

QUEUES: Final = 1_000  # of one push or transaction
NEW_QUEUES: Final = 400  # of these, queues that the push creates
OPERATIONS: Final = 2_500  # of one transaction
PARTITION_ACKS: Final = 5_000  # of one partition; a lease has no more messages
WORK_ITEMS: Final = 3_000  # of one push, for work queues
DELAYED_ITEMS: Final = 2_500  # of one push, with a delay
STATE_OPERATIONS: Final = 25_000  # of one cycle of a stream processor


def check_queues(names: Collection[str], exists: Callable[[str], bool]) -> None:
    """Refuse a push to very many queues."""
    if len(names) > QUEUES:
        raise too_large(f"{len(names):,} queues in one request: at most {QUEUES:,}")
    if len(names) > NEW_QUEUES and (new := sum(not exists(name) for name in names)) > NEW_QUEUES:
        raise too_large(f"{new:,} new queues in one request: at most {NEW_QUEUES:,}")


def check_size(count: int, most: int, what: str) -> None:
    """Refuse more than ``most``."""
    if count > most:
        raise too_large(f"{count:,} {what} in one request: at most {most:,}")


def too_large(text: str) -> Refusal:
    return Refusal(413, text, "batch_too_large")
