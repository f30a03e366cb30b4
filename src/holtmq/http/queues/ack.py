"""Acknowledgments and lease renewal over HTTP.

Owns: reading these requests and the error texts. Must not touch: the rules; a refused ack is an answer (200,
``success: false``), not an error.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.partitioned.commands.clean_acks import CleanRun
from holtmq.broker.partitioned.commands.looking_up import looking_up
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.identifiers import partition_of
from holtmq.broker.partitioned.queue import Extension
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import EMPTY_BODY, Refusal, invalid_json
from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.waiting_requests import in_turn_or_as_task
from holtmq.http.engine.wire import iso_seconds, quoted, quoted_or_null, segment
from holtmq.http.queues.rendering import ack_answers, clean_answers
from holtmq.http.queues.request_bounds import PARTITION_ACKS, check_size
from holtmq.http.queues.work import WorkApi

LEASE_PREFIX: Final = b"/api/v1/lease/"
LEASE_SUFFIX: Final = b"/extend"
NOWHERE: Final = (0, 0)  # no queue has number 0
Answering = Generator[None, None, list[str]]  # makes the answers in steps

_PARTITIONS_AT_ONCE: Final = 1_000  # about 25 ms
_ACKS_AT_ONCE: Final = 2_000  # with other results than "completed", in one record: about 25 ms
_WORK_AT_ONCE: Final = 200  # messages of work queues
_MOST_LEASE: Final = 86_400.0
_COMPLETED: Final = AckStatus.COMPLETED


class AckIn(msgspec.Struct, rename="camel", gc=False):
    """One acknowledgment as it comes."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class BatchIn(msgspec.Struct, rename="camel"):
    acknowledgments: list[AckIn]
    consumer_group: str | None = None


class ExtendIn(msgspec.Struct):
    seconds: float | None = None


_read_ack: Final = msgspec.json.Decoder(AckIn).decode
_read_batch: Final = msgspec.json.Decoder(BatchIn).decode
_read_extend: Final = msgspec.json.Decoder(ExtendIn).decode


class AckApi:
    """Handlers for single acks, batches of acks and lease renewal."""

    def __init__(self, context: Context, work: WorkApi) -> None:
        self._service = context.service
        self._work = work
        self._journal = context.journal
        self._clock = context.clock
        self._max_batch = context.config.http.max_batch

    def ack(self, request: HttpRequest) -> None:
        body = request.body
        try:
            incoming = _read_ack(body)
        except msgspec.MsgspecError as error:
            raise _explain_ack(body, error) from None
        if not incoming.transaction_id:
            raise Refusal(400, NEEDS_TRANSACTION)
        if not incoming.partition_id:
            raise Refusal(400, NEEDS_PARTITION)
        self._settle(request, [incoming], None)

    def ack_batch(self, request: HttpRequest) -> None:
        body = request.body
        try:
            batch = _read_batch(body)
        except msgspec.MsgspecError as error:
            raise _explain_batch(body, error) from None
        if len(batch.acknowledgments) > self._max_batch:
            raise Refusal(413, f"more than {self._max_batch} acknowledgments", "batch_too_large")
        self._settle(request, batch.acknowledgments, batch.consumer_group)

    def _settle(self, request: HttpRequest, incoming: list[AckIn], group: str | None) -> None:
        if not incoming:
            request.answer(200, b"[]")
            return
        if not request.identity.reads_everything:
            self._check_rights(request.identity, {ack.partition_id for ack in incoming})
        if len(incoming) <= _PARTITIONS_AT_ONCE and self._settle_clean(request, incoming, group):
            return
        in_turn_or_as_task(request, "ack in steps", self._settling_all(request, incoming, group))

    def _settling_all(
        self, request: HttpRequest, incoming: list[AckIn], group: str | None
    ) -> Generator[None, None, None]:
        """Settle some at a time (their places in the request), then answer."""
        steps: Iterable[Sequence[int]] = (range(len(incoming)),)
        if len(incoming) > _PARTITIONS_AT_ONCE:
            by_partition: dict[str, list[int]] = {}
            for place, ack in enumerate(incoming):
                by_partition.setdefault(ack.partition_id, []).append(place)
            if len(by_partition) <= _PARTITIONS_AT_ONCE and self._settle_clean(request, incoming, group):
                return
            for partition_id, places in by_partition.items():
                if not self._work.owns(partition_id):
                    check_size(len(places), PARTITION_ACKS, "acknowledgments of one partition")
            steps = _steps(by_partition.values())
        answers = [""] * len(incoming)
        for some in steps:
            yield
            found = yield from self._settling(some, [incoming[place] for place in some], group)
            for place, answer in zip(some, found, strict=True):
                answers[place] = answer
        yield
        request.answer_when_durable(self._journal, 200, f"[{','.join(answers)}]".encode())

    def _settling(self, places: Sequence[int], incoming: Sequence[AckIn], group: str | None) -> Answering:
        """Settle messages of queues of either kind; ``places`` are their indexes in the request."""
        if any(map(self._work.owns, [ack.partition_id for ack in incoming])):
            return self._settling_both(places, incoming, group)
        return self._settling_partitioned(places, incoming, group)

    def _check_rights(self, sender: Identity, partition_ids: Iterable[str]) -> None:
        """Raise 403 unless the sender may read every queue whose messages it settles."""
        for partition_id in partition_ids:
            name = self._work.queue_name(partition_id)
            if name is not None and name not in sender.reads:
                sender.require(Action.READ, name)

    def _settling_partitioned(
        self, places: Sequence[int], incoming: Sequence[AckIn], group: str | None
    ) -> Answering:
        """Settle messages of partitioned queues; ``places`` are their indexes in the request."""
        known: dict[str, tuple[int, int]] = {}
        together: list[Ack] = []
        home: tuple[int, str] | None = None
        answers: list[str] = []
        status_of = AckStatus.named
        for ack in incoming:
            where = known.get(ack.partition_id)
            if where is None:
                where = known[ack.partition_id] = partition_of(ack.partition_id) or NOWHERE
            named = group or ack.consumer_group or QUEUE_MODE
            if home is None or where[0] != home[0] or named != home[1]:
                if home is not None:  # another queue or group: settle the run collected so far
                    answers += yield from self._settling_run(places, len(answers), home, together)
                    together = []
                home = (where[0], named)
            status = ack.status
            together.append(
                Ack(
                    where[1],
                    ack.transaction_id,
                    _COMPLETED if status == "completed" else status_of(status or "completed"),
                    ack.lease_id or "",
                    ack.error,
                )
            )
        assert home is not None
        answers += yield from self._settling_run(places, len(answers), home, together)
        return answers

    def _settle_clean(self, request: HttpRequest, incoming: list[AckIn], group: str | None) -> bool:
        """Fast path: all acks are ``completed``, for one queue and group. Needs no object per message.

        False when the request is not like that; then nothing has happened.
        """
        first = incoming[0]
        own_group, text, lease_id = first.consumer_group, "", None
        runs: list[CleanRun] = []
        ids: list[str] = []
        number = -1
        for ack in incoming:
            if not runs or ack.partition_id != text or ack.lease_id != lease_id:
                text, lease_id, ids = ack.partition_id, ack.lease_id, []
                where = partition_of(text)
                if where is None or not lease_id or number not in (-1, where[0]):
                    return False
                number = where[0]
                runs.append(CleanRun(where[1], lease_id, ids))
            status = ack.status
            if (status != "completed" and status is not None) or ack.consumer_group != own_group:
                return False
            ids.append(ack.transaction_id)
        named = group or own_group or QUEUE_MODE
        settled = self._service.settle_clean(number, named, runs, self._clock())
        if settled is None:
            return False
        request.answer_when_durable(self._journal, 200, clean_answers(runs, *settled))
        return True

    def _settling_both(
        self, places: Sequence[int], incoming: Sequence[AckIn], group: str | None
    ) -> Answering:
        """Settle messages of work queues and, if there are any, of partitioned queues.

        Each message of a work queue has its own lease, so each is settled separately.
        """
        answers: dict[int, str] = {}
        work: list[tuple[int, AckIn]] = []
        others: list[tuple[int, AckIn]] = []
        for place, ack in zip(places, incoming, strict=True):
            (work if self._work.owns(ack.partition_id) else others).append((place, ack))
        if others:
            elsewhere = [place for place, _ in others]
            found = yield from self._settling_partitioned(elsewhere, [ack for _, ack in others], group)
            answers.update(zip(elsewhere, found, strict=True))
        for start in range(0, len(work), _WORK_AT_ONCE):
            yield
            answers.update(self._work.settle(work[start : start + _WORK_AT_ONCE]))
        return [answers[place] for place in places]

    def _settling_run(
        self, places: Sequence[int], first: int, home: tuple[int, str], acks: list[Ack]
    ) -> Answering:
        """Settle acks of one queue and group; their indexes in the request start at ``places[first]``."""
        known = self._service.store.by_number.get(home[0])
        with looking_up() as look_up:
            if known is not None:
                yield from look_up.acknowledged(known, home[1], acks, self._clock())
            yield
            queue, outcomes = self._service.settle(*home, acks, self._clock())
        yield
        return ack_answers(places[first : first + len(acks)], acks, queue, outcomes)

    def extend(self, request: HttpRequest) -> None:
        """Renew a lease. Leases are in memory only, so the answer need not wait for the journal."""
        lease_id = segment(request.path[len(LEASE_PREFIX) : -len(LEASE_SUFFIX)].decode("latin-1"))
        seconds: float | None = None
        if request.body.strip():
            try:
                seconds = _read_extend(request.body).seconds
            except msgspec.MsgspecError as error:
                raise invalid_json(error) from None
        if seconds is not None and not 0 < seconds <= _MOST_LEASE:
            raise Refusal(400, f"seconds must be above 0 and at most {_MOST_LEASE:.0f}")
        if not request.identity.reads_everything:
            work = self._work.queue_of_lease(lease_id)
            for name in [work] if work is not None else self._service.queues_of_lease(lease_id):
                request.identity.require(Action.READ, name)
        extension = self._service.extend(lease_id, seconds, self._clock())
        if not extension.known and (until := self._work.extend(lease_id, seconds)) is not None:
            extension = Extension(1, until, True)
        at = quoted_or_null(iso_seconds(extension.expires_at))
        reason = None
        if not extension.renewed:
            reason = "Lease already expired" if extension.known else "Lease not found"
        request.answer(
            200,
            (
                f'{{"leaseId":{quoted(lease_id)},"success":{"true" if extension.renewed else "false"},'
                f'"renewed":{extension.renewed},"newExpiresAt":{at},"expiresAt":{at},'
                f'"lease_expires_at":{at},"error":{quoted_or_null(reason)}}}'
            ).encode(),
        )


NEEDS_TRANSACTION: Final = "transactionId is required"
NEEDS_PARTITION: Final = "partitionId is required to ensure message uniqueness"
_EACH_TRANSACTION: Final = "Each acknowledgment must have a valid transactionId string"
_EACH_PARTITION: Final = (
    "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
)


def document_of(body: bytes) -> object:
    """A body as untyped JSON, to find out what is wrong with it."""
    if not body.strip():
        raise Refusal(400, EMPTY_BODY)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise invalid_json(error) from None


def _steps(by_partition: Iterable[list[int]]) -> Iterator[list[int]]:
    """As many acks as go together; those of one partition take effect together."""
    some: list[int] = []
    partitions = 0
    for places in by_partition:
        if some and (partitions >= _PARTITIONS_AT_ONCE or len(some) + len(places) > _ACKS_AT_ONCE):
            yield some
            some, partitions = [], 0
        some += places
        partitions += 1
    yield some


def _explain_ack(body: bytes, error: Exception) -> Refusal:
    document = document_of(body)
    if isinstance(document, dict):
        if not isinstance(document.get("transactionId"), str):
            return Refusal(400, NEEDS_TRANSACTION)
        if not isinstance(document.get("partitionId"), str):
            return Refusal(400, NEEDS_PARTITION)
    return invalid_json(error)


def _explain_batch(body: bytes, error: Exception) -> Refusal:
    document = document_of(body)
    acks = document.get("acknowledgments") if isinstance(document, dict) else None
    if not isinstance(acks, list):
        return Refusal(400, "acknowledgments array is required")
    for ack in acks:
        if not isinstance(ack, dict) or not isinstance(ack.get("transactionId"), str):
            return Refusal(400, _EACH_TRANSACTION)
        if not isinstance(ack.get("partitionId"), str):
            return Refusal(400, _EACH_PARTITION)
    return invalid_json(error)
