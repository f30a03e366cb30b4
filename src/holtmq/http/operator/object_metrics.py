"""The part of ``/metrics/per-object`` with a row for every queue and group.

Owns: those families, and writing them as text in steps: with 20,000 queues there are 80,000 lines, which the
client library would write in one piece while every client waits. Must not touch: counting.
"""

from collections.abc import AsyncGenerator
from typing import Final

from holtmq.auth.users import DEFAULT_VHOST
from holtmq.http.dashboard.api import dashboard_of
from holtmq.http.dashboard.holders import held_since_ms
from holtmq.http.dashboard.queue_columns import WorkColumns, is_shown
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

_QUEUE: Final = ("vhost", "queue")
_GROUP: Final = ("queue", "group")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_AT_ONCE: Final = 2_500  # lines sent at a time
_LOOK_EVERY: Final = 32  # queues between two looks at the clock


class RowFamily:
    """One gauge with a line for each queue or group."""

    type = "gauge"

    def __init__(self, name: str, documentation: str, labels: tuple[str, str]) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.lines = [f"# HELP {name} {documentation}\n# TYPE {name} gauge\n"]


def place(labels: tuple[str, str], first: str, second: str) -> str:
    """The labels of a line, escaped, and the space before its value."""
    return f'{{{labels[0]}="{_escaped(first)}",{labels[1]}="{_escaped(second)}"}} '


def _escaped(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:  # few names; ``translate`` takes ten times as long
        return value.translate(_ESCAPES)
    return value


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
            "holtmq_consumer_oldest_unacked_age_seconds", "The longest a message was held unacked", _QUEUE
        )

    def all(self) -> list[RowFamily]:
        """Every family."""
        return list(vars(self).values())


async def row_text(context: Context, now: float) -> AsyncGenerator[bytes, None]:
    """The lines of all families, as pieces of text."""
    families, stepwise = RowFamilies(), Stepwise()
    await _read_work_queues(context, now, families, stepwise)
    await _read_streams(context, now, families, stepwise)
    for family in families.all():
        for start in range(0, len(family.lines), _AT_ONCE):
            await stepwise.rest()
            yield "".join(family.lines[start : start + _AT_ONCE]).encode("utf-8", "replace")


async def _read_work_queues(context: Context, now: float, families: RowFamilies, stepwise: Stepwise) -> None:
    ready_name, ready = families.ready.name, families.ready.lines.append
    unacked_name, unacked = families.unacked.name, families.unacked.lines.append
    consumers_name, consumers = families.consumers.name, families.consumers.lines.append
    oldest_name, oldest = families.oldest.name, families.oldest.lines.append
    held_name, held = families.held.name, families.held.lines.append
    arrived_ms, now_ms = WorkColumns(context, now).arrived_ms, int(now * 1000)
    others = context.broker.other_holders
    for vhost in list(context.broker.vhosts.values()):
        in_vhost = f'{{vhost="{_escaped(vhost.name)}",queue="'
        for number, queue in enumerate(list(vhost.queues.values())):
            if not number % _LOOK_EVERY:
                await stepwise.between()
            where = f'{in_vhost}{_escaped(queue.name)}"}} '
            if queue.unacked and (since := await held_since_ms(queue, others, stepwise)) is not None:
                held(f"{held_name}{where}{max(0, now_ms - since) / 1000}\n")
            if not is_shown(queue):  # among others a partitioned queue, see below
                continue
            waiting = len(queue.store)
            ready(f"{ready_name}{where}{waiting}\n")
            unacked(f"{unacked_name}{where}{queue.unacked}\n")
            consumers(f"{consumers_name}{where}{len(queue.consumers)}\n")
            if not waiting:
                oldest(f"{oldest_name}{where}0.0\n")
            elif (since := arrived_ms(queue)) is not None:
                oldest(f"{oldest_name}{where}{max(0, now_ms - since) / 1000}\n")


async def _read_streams(context: Context, now: float, families: RowFamilies, stepwise: Stepwise) -> None:
    watch = dashboard_of(context).watch
    columns = watch.stream_columns(now)
    for stream in list(context.service.store.queues.values()):
        where = place(_QUEUE, DEFAULT_VHOST, stream.name)
        families.ready.lines.append(f"{families.ready.name}{where}{stream.log.live}\n")
        families.consumers.lines.append(f"{families.consumers.name}{where}{columns.consumers(stream)}\n")
        if not stream.log.live:  # otherwise by group, below
            families.oldest.lines.append(f"{families.oldest.name}{where}0.0\n")
        families.letters.lines.append(f"{families.letters.name}{where}{len(stream.dead_letters)}\n")
        await stepwise.between()
    for lag in list((await watch.refreshed_lags()).values()):
        where = place(_GROUP, lag.queue, lag.group)
        families.lag.lines.append(f"{families.lag.name}{where}{lag.messages}\n")
        families.behind.lines.append(f"{families.behind.name}{where}{lag.seconds}\n")
        await stepwise.between()
