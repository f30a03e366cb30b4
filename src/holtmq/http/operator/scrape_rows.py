"""The part of ``/metrics/per-object`` with a row for every queue and group.

Owns: those families, and writing them as text in steps: with 20,000 queues there are 80,000 lines, which the
client library would write in one piece while every client waits. Must not touch: counting.
"""

from typing import Final

from holtmq.http.dashboard.api import dashboard_of
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

_QUEUE: Final = ("vhost", "queue")
_GROUP: Final = ("queue", "group")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_AT_ONCE: Final = 5_000  # lines joined at a time


class RowFamily:
    """One gauge with a line for each queue or group."""

    type = "gauge"

    def __init__(self, name: str, documentation: str, labels: tuple[str, str]) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.lines = [f"# HELP {name} {documentation}\n# TYPE {name} gauge\n"]

    def add(self, where: str, value: float) -> None:
        """A line; ``where`` is made by ``place``."""
        self.lines.append(f"{self.name}{where} {value}\n")


def place(labels: tuple[str, str], values: tuple[str, str]) -> str:
    """The labels of a line, escaped."""
    first, second = (value.translate(_ESCAPES) for value in values)
    return f'{{{labels[0]}="{first}",{labels[1]}="{second}"}}'


class RowFamilies:
    """All of them."""

    def __init__(self) -> None:
        self.ready = RowFamily(
            "rabbitmq_detailed_queue_messages_ready", "Messages that wait; of a stream, stored", _QUEUE
        )
        self.unacked = RowFamily(
            "rabbitmq_detailed_queue_messages_unacked", "Out with consumers; not of streams", _QUEUE
        )
        self.consumers = RowFamily("rabbitmq_detailed_queue_consumers", "AMQP consumers", _QUEUE)
        self.oldest = RowFamily(
            "holtmq_queue_oldest_message_age_seconds", "Age of the oldest waiting message", _QUEUE
        )
        self.letters = RowFamily("holtmq_queue_dead_letters", "Dead letters kept", _QUEUE)
        self.lag = RowFamily("holtmq_group_lag_messages", "Messages behind", _GROUP)
        self.behind = RowFamily("holtmq_group_lag_seconds", "Age of the oldest unread", _GROUP)
        self.held = RowFamily(
            "holtmq_consumer_oldest_unacked_age_seconds", "The longest a consumer has held a message", _QUEUE
        )

    def all(self) -> list[RowFamily]:
        """Every family."""
        return list(vars(self).values())


async def row_text(context: Context, now: float) -> list[bytes]:
    """The lines of all families, as pieces of text."""
    families, stepwise = RowFamilies(), Stepwise()
    dashboard = dashboard_of(context)
    for row in (await dashboard.queue_tables.queues()).rows:
        where = place(_QUEUE, (row.vhost, row.name))
        families.ready.add(where, row.ready)
        families.consumers.add(where, row.consumers)
        if row.unacked is not None:
            families.unacked.add(where, row.unacked)
        if not row.ready or (row.oldest is not None and row.kind != "stream"):  # a stream's: by group, below
            families.oldest.add(where, row.oldest or 0.0)
        if row.dead_letters is not None:
            families.letters.add(where, row.dead_letters)
        await stepwise.between()
    for one in list((await dashboard.watch.refreshed_lags()).values()):
        where = place(_GROUP, (one.queue, one.group))
        families.lag.add(where, one.messages)
        families.behind.add(where, one.seconds)
        await stepwise.between()
    now_ms = int(now * 1000)
    for names, holders in (await dashboard.watch.holders(now)).items():
        families.held.add(place(_QUEUE, names), max((now_ms - one.since) / 1000 for one in holders))
        await stepwise.between()
    pieces = []
    for family in families.all():
        for start in range(0, len(family.lines), _AT_ONCE):
            pieces.append("".join(family.lines[start : start + _AT_ONCE]).encode("utf-8", "replace"))
            await stepwise.between()
    return pieces
