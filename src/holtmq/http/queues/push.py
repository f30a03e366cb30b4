"""``POST /api/v1/push``: from request bytes to stored messages.

Owns: reading push items (also those inside transactions and stream cycles) and the error texts. Must not
touch: how they are stored.
"""

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart, transact
from holtmq.broker.partitioned.commands.looking_up import looking_up
from holtmq.broker.partitioned.commands.pushing import DEFAULT_PARTITION
from holtmq.broker.partitioned.log.bodies import ID_MAX, Body
from holtmq.broker.partitioned.requests import PushItem, PushResult
from holtmq.broker.work.timed_leases import WorkPush
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import EMPTY_BODY, Refusal, invalid_json
from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.uuid_pool import new_uuid
from holtmq.http.engine.waiting_requests import in_turn_or_as_task
from holtmq.http.engine.wire import is_uuid
from holtmq.http.queues.delayed_push import DelayedPushes, delay_of
from holtmq.http.queues.rendering import buffered_elements, buffered_results, push_elements, push_results
from holtmq.http.queues.request_bounds import (
    DELAYED_ITEMS,
    NEW_QUEUES,
    WORK_ITEMS,
    check_queues,
    check_size,
)
from holtmq.http.queues.single_pushes import SinglePushes
from holtmq.http.queues.work import WorkApi

_NULL: Final = msgspec.Raw(b"null")
_item: Final = partial(tuple.__new__, PushItem)  # a third of the time of the class itself
_AT_ONCE: Final = 2_000  # items of one push: about 8 ms
NAME_MAX: Final = 1024  # characters of a queue's, partition's or group's name


class PushItemIn(msgspec.Struct, rename="camel", gc=False):
    """One item as it comes. A ``producerSub`` in it is a stranger and ignored, always.

    ``data`` stands for a ``payload`` that is not there.
    """

    queue: str
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    data: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)
    delay_seconds: float | None = None

    @property
    def content(self) -> bytes:
        """The message's payload, from ``payload`` or ``data``."""
        return bytes(self.data if self.payload is _NULL else self.payload)


class PushIn(msgspec.Struct):
    items: list[PushItemIn]


_decode: Final = msgspec.json.Decoder(PushIn).decode
_TYPED: Final = (
    ("queue", "Queue must be a string"),
    ("partition", "Partition must be a string"),
    ("transactionId", "TransactionId must be a string"),
    ("traceId", "TraceId must be a string"),
)


def check_text(body: bytes) -> None:
    """Refuse a body that is not UTF-8. msgspec does not check raw payloads, and they would be stored."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise invalid_json(error) from None


def read_item(item: PushItemIn, subject: str | None) -> PushItem:
    """An item for the service, with ``subject`` as its producer. The caller checks the right to write."""
    queue, partition = item.queue, item.partition or DEFAULT_PARTITION
    if not queue:
        raise Refusal(400, "queue is required")
    if len(queue) > NAME_MAX or len(partition) > NAME_MAX:
        raise Refusal(400, f"a name is longer than {NAME_MAX} characters")
    transaction_id = item.transaction_id or new_uuid()
    if len(transaction_id) > ID_MAX >> 2 and len(transaction_id.encode()) > ID_MAX:
        raise Refusal(400, f"transactionId is longer than {ID_MAX} bytes")
    trace_id = item.trace_id
    if trace_id is not None and not is_uuid(trace_id):
        trace_id = None
    return PushItem(queue, partition, Body(transaction_id, item.content, trace_id, subject))


def read_items(incoming: Sequence[PushItemIn], sender: Identity) -> list[PushItem]:
    """Read many items; names and the right to write are checked once for consecutive items of a queue."""
    items: list[PushItem] = []
    queue, subject, allowed = "", sender.subject, sender.writes
    for item in incoming:
        id_ = item.transaction_id
        if not id_:
            id_ = item.transaction_id = new_uuid()
        partition = item.partition or DEFAULT_PARTITION
        named = item.queue
        if (
            item.trace_id is None
            and item.data is _NULL
            and 0 < len(named) <= NAME_MAX
            and len(partition) <= NAME_MAX
            and len(id_) < 256
        ):
            items.append(_item((named, partition, Body(id_, bytes(item.payload), None, subject))))
        else:
            items.append(read_item(item, subject))
        if named != queue:
            queue = named
            if queue not in allowed:
                sender.require(Action.WRITE, queue)
    return items


def explain_items(items: object) -> Refusal | None:
    """What is wrong with push items that could not be decoded; None when their shape is right."""
    if not isinstance(items, list):
        return Refusal(400, "items array is required")
    for item in items:
        if not isinstance(item, dict):
            return Refusal(400, "Each item must be an object")
        if "queue" not in item:
            return Refusal(400, "queue is required")
        for name, text in _TYPED:
            value = item.get(name)
            if not isinstance(value, str) and (value is not None or name == "queue"):
                return Refusal(400, text)
        delay = item.get("delaySeconds")
        if delay is not None and (isinstance(delay, bool) or not isinstance(delay, int | float)):
            return Refusal(400, "DelaySeconds must be a number")
    return None


def _explain(body: bytes, error: Exception) -> Refusal:
    if not body.strip():
        return Refusal(400, EMPTY_BODY)
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as damage:
        return invalid_json(damage)
    if not isinstance(document, dict):
        return Refusal(400, "items array is required")
    return explain_items(document.get("items")) or invalid_json(error)


class PushApi:
    """The handler for pushes."""

    def __init__(self, context: Context, work: WorkApi) -> None:
        self._service = context.service
        self._work = work
        self._journal = context.journal
        self._clock = context.clock
        self._max_batch = context.config.http.max_batch
        self._check_alarm = context.check_alarm
        self._single = SinglePushes(context.service, context.journal, context.clock)

    def push(self, request: HttpRequest) -> None:
        body = request.body
        try:
            incoming = _decode(body).items
        except msgspec.MsgspecError as error:
            raise _explain(body, error) from None
        if not body.isascii():
            check_text(body)
        if not incoming:
            request.answer(201, b"[]")
            return
        if len(incoming) > self._max_batch:
            raise Refusal(413, f"more than {self._max_batch} items in one push", "batch_too_large")
        self._check_alarm()
        if len(incoming) > _AT_ONCE:
            in_turn_or_as_task(request, "push in steps", self._push_in_steps(request, incoming))
            return
        items = self._read(request, incoming)
        known = self._service.store.queues
        if len(items) == 1 and items[0][0] in known and not incoming[0].delay_seconds:
            self._single.add(request, items[0])  # the most frequent request
            return
        if len(items) > NEW_QUEUES:
            check_queues({item.queue for item in items}, self._work.exists)
        if not self._push_elsewhere(request, incoming, items):
            self._single.store()  # they arrived earlier
            self._answer(request, items, self._service.push(items, self._clock()))

    def _push_in_steps(self, request: HttpRequest, incoming: list[PushItemIn]) -> Generator[None, None, None]:
        """A push of very many items: they are looked up in steps, stored together, and then answered."""
        yield
        items = self._read(request, incoming)
        yield
        check_queues({item.queue for item in items}, self._work.exists)
        known = self._service.store.queues
        by_queue: dict[str, list[tuple[str, str]]] = {}
        for item in items:
            by_queue.setdefault(item.queue, []).append((item.partition, item.body.transaction_id))
        with looking_up() as look_up:
            for name, mine in by_queue.items():
                if (queue := known.get(name)) is not None:
                    yield from look_up.pushed_before(queue, mine)
            if self._push_elsewhere(request, incoming, items):
                return
            self._single.store()
            results = self._service.push(items, self._clock())
        yield
        self._answer(request, items, results)

    def _push_elsewhere(
        self, request: HttpRequest, incoming: list[PushItemIn], items: list[PushItem]
    ) -> bool:
        """Push if items are delayed, or for work queues, or single; False if none is."""
        known = self._service.store.queues
        if any(item.delay_seconds for item in incoming):
            self._push_delayed(request, items, [delay_of(item.delay_seconds) for item in incoming])
            return True
        if items[0].queue not in known or not all(item[0] in known for item in items):
            found = {name: self._work.find(name) for name in {item.queue for item in items}}
            work = {name: queue for name, queue in found.items() if queue is not None}
            if work:
                self._push_to_work(request, items, work)
                return True
        if len(items) == 1:
            self._single.add(request, items[0])
            return True
        return False

    def _answer(self, request: HttpRequest, items: list[PushItem], results: list[PushResult] | None) -> None:
        if results is None:
            answer = buffered_results(items)
        else:
            answer = push_results(items, results, self._service.store.by_number)
        request.answer_when_durable(self._journal, 201, answer)

    def _read(self, request: HttpRequest, incoming: list[PushItemIn]) -> list[PushItem]:
        return read_items(incoming, request.identity)

    def _push_delayed(self, request: HttpRequest, items: list[PushItem], delays: list[float]) -> None:
        """Some items are delayed. All are stored in one record, or a full queue refuses all."""
        now = self._clock()
        check_size(sum(map(bool, delays)), DELAYED_ITEMS, "delayed items")
        delayed = DelayedPushes(self._service, now)
        found = {name: self._work.find(name) for name in {item.queue for item in items}}
        to_work = sum(found[item.queue] is not None for item in items)
        check_size(to_work, WORK_ITEMS, "items for work queues")
        elements: dict[int, bytes] = {}
        pushes: list[WorkPush] = []
        others: list[int] = []
        for place, (item, seconds) in enumerate(zip(items, delays, strict=True)):
            queue = found[item.queue]
            if queue is not None:
                pushes.append(self._work.later(queue, item, seconds))
                elements[place] = self._work.element(place, queue, item)
            elif seconds:
                elements[place] = delayed.element(place, item, seconds)
            else:
                others.append(place)
        part = PartitionedPart([items[place] for place in others], (), now, delayed.records, is_push=True)
        if pushes:
            self._work.transact(part, pushes, ())
        else:
            transact(self._service, part)
        self._service.plan_timed()
        if part.results is None:
            answers = buffered_elements(others, part.items)
        else:
            answers = push_elements(others, part.items, part.results, self._service.store.by_number)
        elements.update(zip(others, answers, strict=True))
        answer = b"[%b]" % b",".join([elements[place] for place in range(len(items))])
        request.answer_when_durable(self._journal, 201, answer)

    def _push_to_work(
        self, request: HttpRequest, items: list[PushItem], work: Mapping[str, WorkQueue]
    ) -> None:
        """Some of the names are work queues. Each kind stores its own items; the answer keeps the order."""
        others = [place for place, item in enumerate(items) if item.queue not in work]
        check_size(len(items) - len(others), WORK_ITEMS, "items for work queues")
        if others:
            results = self._push_to_both(others, items, work)
        else:
            by_queue: dict[str, list[tuple[int, PushItem]]] = {name: [] for name in work}
            for place, item in enumerate(items):
                by_queue[item.queue].append((place, item))
            results = []
            for name, mine in by_queue.items():
                results += self._work.push(work[name], mine)
        answer = b"[%b]" % b",".join([element for _, element in sorted(results)])
        request.answer_when_durable(self._journal, 201, answer)

    def _push_to_both(
        self, others: Sequence[int], items: Sequence[PushItem], work: Mapping[str, WorkQueue]
    ) -> list[tuple[int, bytes]]:
        """Items for both kinds of queues. All are stored in one record, or a full queue refuses all."""
        part = PartitionedPart([items[place] for place in others], (), self._clock(), is_push=True)
        mine = [(place, item, work[item.queue]) for place, item in enumerate(items) if item.queue in work]
        results = self._work.push_to_both(part, mine)
        if part.results is None:
            elements = buffered_elements(others, part.items)
        else:
            elements = push_elements(others, part.items, part.results, self._service.store.by_number)
        return [*results, *zip(others, elements, strict=True)]
