"""``GET /api/v1/pop…``: deliver messages now, or hold the request until there are some.

Owns: the parameters of a pop, and waiting. Must not touch: claiming rules; the service's ``line`` wakes a
waiting pop, nothing polls.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.groups.subscriptions import StartRequest, read_start
from holtmq.broker.partitioned.requests import AckRequest, Popped, PopRequest, Waiter
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.uuid_pool import new_uuid
from holtmq.http.engine.wire import Query, segment
from holtmq.http.queues.push import NAME_MAX
from holtmq.http.queues.rendering import popped_messages
from holtmq.http.queues.work import WorkApi

QUEUE_PREFIX: Final = b"/api/v1/pop/queue/"
AT_ONCE: Final = 5_000  # most messages in one answer, which may take 40 ms; the client pops again
_AUTOPILOT_BATCH: Final = 200
_MOST_PARTITIONS: Final = 64
_DEFAULT_WAIT_MS: Final = 30_000
_ANSWER_EARLY: Final = 0.05  # seconds: the client's own time-out started before its request arrived
_REMEMBERED_BYTES: Final = 2 << 20  # of cached paths and their parameters
_REMEMBERED_PATH: Final = 1_024  # bytes; longer paths are not cached
_PARAMETERS_BYTES: Final = 600


class Parameters(NamedTuple):
    """The parsed path and query of a pop. Cached, because workers repeat the same request."""

    queue: str
    partition: str
    namespace: str
    task: str
    group: str
    limit: int
    most_partitions: int
    lease_seconds: float | None
    auto_ack: bool
    conflates: bool | None  # None: not specified, the group's own policy applies
    start: StartRequest
    wait_seconds: float
    autopilot: bool


class PopApi:
    """The handler for pops, with a cache of parsed parameters."""

    def __init__(self, context: Context, work: WorkApi) -> None:
        self._service = context.service
        self._work = work
        self._journal = context.journal
        self._clock = context.clock
        self._max_batch = context.config.http.max_batch
        self._max_wait_ms = context.config.http.max_wait_ms
        self._remembered: dict[tuple[bytes, bytes], Parameters] = {}
        self._remembered_bytes = 0
        self._stopping = False

    def _remember(self, key: tuple[bytes, bytes], asked: Parameters) -> None:
        size = len(key[0]) + len(key[1])
        if size > _REMEMBERED_PATH:
            return
        self._remembered_bytes += 2 * size + _PARAMETERS_BYTES
        if self._remembered_bytes > _REMEMBERED_BYTES:
            self._remembered.clear()
            self._remembered_bytes = 0
        self._remembered[key] = asked

    def pop(self, request: HttpRequest) -> None:
        key = (request.path, request.query)
        asked = self._remembered.get(key)
        if asked is None:
            asked = self._read(request.path, request.query)
            self._remember(key, asked)
        sender = request.identity
        if asked.queue and asked.queue not in sender.reads:
            sender.require(Action.READ, asked.queue)
        if asked.queue not in self._service.store.queues and asked.queue:
            work = self._work.find(asked.queue)
            if work is not None:
                self._work.pop(request, asked, work)
                return
        pop_request = PopRequest(
            new_uuid(),
            asked.queue,
            asked.partition,
            asked.namespace,
            asked.task,
            asked.group,
            asked.limit,
            asked.most_partitions,
            asked.lease_seconds,
            asked.auto_ack,
            bool(asked.conflates),
            asked.start,
            *(() if asked.queue or sender.reads_everything else (sender.name, _filter_of(request))),
        )
        self._pop(request, asked, pop_request)

    def _pop(
        self, request: HttpRequest, asked: Parameters, pop_request: PopRequest, recorded: bool = False
    ) -> None:
        now = self._clock()
        before = self._journal.end
        popped = self._service.pop(pop_request, now, recorded)
        recorded = recorded or self._journal.end != before  # perhaps the group's start, which must be durable
        if popped is not None and popped.runs:
            self._deliver(request, asked, popped, durable=popped.waits)
        elif popped is not None and not self._stopping:
            self._look_on(request, asked, pop_request, recorded)
        elif asked.wait_seconds > 0 and not self._stopping:
            self._wait(request, asked, pop_request, now, recorded)
        else:
            self._empty(request, asked, durable=recorded)

    def _look_on(
        self, request: HttpRequest, asked: Parameters, pop_request: PopRequest, recorded: bool
    ) -> None:
        """Very many partitions or queues are to be looked at: go on after other work."""

        def look_on() -> None:
            request.on_lost = None
            try:
                self._pop(request, asked, pop_request, recorded)
            except Exception as error:
                request.fail(error)

        request.on_lost = asyncio.get_running_loop().call_soon(look_on).cancel

    def stop(self) -> None:
        """Answer all waiting pops, and let no pop wait from now on."""
        self._stopping = True
        self._service.line.drain()

    def _wait(
        self, request: HttpRequest, asked: Parameters, pop_request: PopRequest, now: float, recorded: bool
    ) -> None:
        service, loop = self._service, asyncio.get_running_loop()
        lasting = request.connection.engine.lasting
        request.connection.free_body(request)

        def ended() -> None:
            timer.cancel()
            request.on_lost = None
            lasting.end(request)

        def deliver(popped: Popped) -> None:
            ended()
            self._deliver(request, asked, popped, durable=recorded or popped.waits)

        def give_up() -> None:
            ended()
            service.withdraw(waiter)
            self._empty(request, asked, durable=recorded)

        def lost() -> None:
            ended()
            service.withdraw(waiter)

        def check(sender: Identity) -> None:
            if asked.queue:
                sender.require(Action.READ, asked.queue)
            elif pop_request.may_read is None and not sender.reads_everything:
                give_up()  # the next pop asks for each queue

        def refuse(error: Exception) -> None:
            ended()
            service.withdraw(waiter)
            request.fail(error)

        waiter = Waiter(pop_request, deliver, give_up)
        timer = loop.call_later(asked.wait_seconds, give_up)
        request.on_lost = lost
        lasting.begin(request, check, refuse)
        service.wait(waiter, now)

    def _deliver(self, request: HttpRequest, asked: Parameters, popped: Popped, *, durable: bool) -> None:
        extra = ""
        if asked.conflates is not None:
            groups = [run.queue.groups[asked.group] for run in popped.runs]
            extra = _policy(asked.conflates, any(group.conflates for group in groups))
        if asked.autopilot:
            extra += (
                f',"autopilot":{{"partitions":{asked.most_partitions},"batch":{asked.limit},"waitMs":50}}'
            )
        body = popped_messages(popped, extra)
        if not asked.auto_ack:
            request.on_dropped = lambda: self._give_back(popped)
        if durable:
            request.answer_when_durable(self._journal, 200, body)
        else:
            request.answer(200, body)

    def _give_back(self, popped: Popped) -> None:
        """Release messages whose client left before the answer: others need not wait for the lease to end."""
        pop_request = popped.request
        heads = [
            AckRequest(
                run.queue.number,
                run.delivery.partition,
                pop_request.group,
                run.bodies[0].transaction_id,
                AckStatus.RETRY,
                pop_request.lease_id,
            )
            for run in popped.runs
        ]
        self._service.ack(heads, self._clock())

    def _empty(self, request: HttpRequest, asked: Parameters, *, durable: bool = False) -> None:
        if asked.queue in self._service.store.queues:  # counters of unknown names would never be deleted
            self._service.counters.of(asked.queue).pop_empty += 1
        said = self._policy_of(asked)
        status, body = (200, f'{{"success":true{said},"messages":[]}}'.encode()) if said else (204, b"")
        if durable:
            request.answer_when_durable(self._journal, status, body)
        elif status == 204:
            request.answer_empty()
        else:
            request.answer(status, body)

    def _policy_of(self, asked: Parameters) -> str:
        """The conflation fields of an empty answer: without them clients assume a server that lacks it."""
        if asked.conflates is None:
            return ""
        queue = self._service.store.queues.get(asked.queue)
        group = queue.groups.get(asked.group) if queue is not None else None
        return _policy(asked.conflates, asked.conflates if group is None else group.conflates)

    def _read(self, path: bytes, raw_query: bytes) -> Parameters:
        query = Query(raw_query)
        queue, partition = _names_in(path)
        autopilot = query.flag("autopilot")
        group = query.text("consumerGroup", QUEUE_MODE)
        conflates = query.flag("conflation") if query.has("conflation") else None
        auto_ack = query.flag("autoAck")
        if conflates and (group == QUEUE_MODE or auto_ack):
            raise Refusal(400, "conflation needs a consumerGroup and no autoAck")
        if max(map(len, (queue, partition, group))) > NAME_MAX:
            raise Refusal(400, f"a name is longer than {NAME_MAX} characters")
        try:
            start = read_start(
                query.optional("subscriptionMode"),
                query.optional("subscriptionFrom"),
                self._service.settings.default_mode,
            )
        except Conflict as error:
            raise Refusal(400, f"subscriptionFrom: {error}") from None
        wait_ms = (
            query.number("timeout", _DEFAULT_WAIT_MS, high=self._max_wait_ms) if query.flag("wait") else 0
        )
        most = 1 if partition else query.number("partitions", 1, 1, _MOST_PARTITIONS)
        lease = query.number("leaseSeconds", 0, 0, 86_400)
        return Parameters(
            queue,
            partition,
            "" if queue else query.text("namespace"),
            "" if queue else query.text("task"),
            group,
            min(query.number("batch", _AUTOPILOT_BATCH if autopilot else 1, 1, self._max_batch), AT_ONCE),
            most,
            float(lease) if lease else None,
            auto_ack,
            conflates,
            start,
            max(0.001, wait_ms / 1000 - _ANSWER_EARLY) if wait_ms > 0 else 0.0,
            autopilot,
        )


def _filter_of(request: HttpRequest) -> Callable[[str], bool]:
    def may_read(queue: str) -> bool:
        return request.identity.may(Action.READ, queue)  # which may change while the request waits

    return may_read


def _policy(declared: bool, stored: bool) -> str:
    """The conflation fields: the group's policy applies, and a pop that declares another is told so."""
    said = ',"conflation":true' if stored else ""
    return said if stored == declared else f'{said},"conflationConflict":true'


def _names_in(path: bytes) -> tuple[str, str]:
    """Queue and partition; blank where the path names none."""
    if not path.startswith(QUEUE_PREFIX):
        return "", ""
    pieces = path[len(QUEUE_PREFIX) :].decode("latin-1").split("/")
    queue = segment(pieces[0])
    partition = segment(pieces[2]) if len(pieces) == 3 else ""
    return queue, partition


def is_pop(path: bytes) -> bool:
    """Whether a path is one of the three forms of a pop."""
    if path == b"/api/v1/pop":
        return True
    if not path.startswith(QUEUE_PREFIX):
        return False
    pieces = path[len(QUEUE_PREFIX) :].split(b"/")
    return bool(pieces[0]) and (
        len(pieces) == 1 or (len(pieces) == 3 and pieces[1] == b"partition" and bool(pieces[2]))
    )
