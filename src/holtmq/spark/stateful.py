"""Stateful streams: deduplication, request and answer, sessions, sagas.

Owns: the four helpers, each a ``StatefulProcessor`` of Spark's ``transformWithState``. Must not touch: the
broker; they work on any stream. Spark keeps the state in the query's checkpoint, so it is exactly once.

Waiting rows are stored as JSON text: it survives a change of the stream's columns, and a queue's payload is
JSON anyway.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from holtmq.spark.ddl import quoted
from holtmq.spark.errors import InvalidOption
from holtmq.spark.option_values import parse_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY: Final = "_key"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def deduplicate(frame: "DataFrame", key: str, within: str) -> "DataFrame":
    """Drop rows whose key was already seen within ``within`` (``"1h"``).

    The time runs from the first row, by the machine's clock: a key seen again later is new again.
    """
    keyed = _keyed(frame, key)
    return keyed.groupBy(_KEY).transformWithState(
        _First(frame.columns, _milliseconds(within)), frame.schema, "append", "ProcessingTime"
    )


class _First(StatefulProcessor):
    def __init__(self, columns: Sequence[str], within_ms: int) -> None:
        self._columns = tuple(columns)
        self._within_ms = within_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "seen BOOLEAN", self._within_ms)

    def handleInputRows(  # noqa: N802
        self,
        key: object,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        first = next(rows, None)
        for _ in rows:
            pass
        if first is not None and not self._seen.exists():
            self._seen.update((True,))
            yield Row(**{name: first[name] for name in self._columns})

    def close(self) -> None:
        """Nothing to close."""


ANSWERED: Final = "key STRING, request STRING, answer STRING, outcome STRING, waited_ms BIGINT"


def wait_for_answer(requests: "DataFrame", answers: "DataFrame", key: str, within: str) -> "DataFrame":
    """Every request with its answer, or without one after ``within``.

    Both streams have column ``key``. A row has ``key``, ``request`` and ``answer`` (as JSON), ``outcome``
    (``answered``, ``timed out``, or ``not asked``: an answer whose request never came) and ``waited_ms``.
    """
    asked = _keyed(requests, key).selectExpr(_KEY, "true AS _asked", f"{_as_json(requests)} AS _row")
    told = _keyed(answers, key).selectExpr(_KEY, "false AS _asked", f"{_as_json(answers)} AS _row")
    return (
        asked.unionByName(told)
        .groupBy(_KEY)
        .transformWithState(_Waiting(_milliseconds(within)), ANSWERED, "append", "ProcessingTime")
    )


class _Waiting(StatefulProcessor):
    def __init__(self, within_ms: int) -> None:
        self._within_ms = within_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._held = handle.getValueState("held", "asked BOOLEAN, body STRING, since_ms BIGINT")

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in sorted(rows, key=lambda row: not row["_asked"]):  # within one batch, the request first
            held = self._held.get()
            if held is not None and held[0] != row["_asked"]:
                request, answer = (held[1], row["_row"]) if held[0] else (row["_row"], held[1])
                self._clear()
                yield _answered(key, request, answer, "answered", now - held[2])
            elif held is None:  # a repeated request or answer is ignored
                self._held.update((row["_asked"], row["_row"], now))
                self._handle.registerTimer(now + self._within_ms)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        held = self._held.get()
        if held is None:
            return
        self._held.clear()
        waited = timerValues.getCurrentProcessingTimeInMs() - held[2]
        if held[0]:
            yield _answered(key, held[1], None, "timed out", waited)
        else:
            yield _answered(key, None, held[1], "not asked", waited)

    def _clear(self) -> None:
        self._held.clear()
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)

    def close(self) -> None:
        """Nothing to close."""


def _answered(key: tuple[str], request: str | None, answer: str | None, outcome: str, waited: int) -> Row:
    return Row(key=key[0], request=request, answer=answer, outcome=outcome, waited_ms=waited)


SESSION: Final = "key STRING, started TIMESTAMP, ended TIMESTAMP, events BIGINT, rows ARRAY<STRING>"


def sessions(
    frame: "DataFrame", key: str, gap: str, at: str = "created_at", late: str = "1m", keep: int = 1000
) -> "DataFrame":
    """One row per session: rows of a key with less than ``gap`` between two, by the time in ``at``.

    A session is emitted when the watermark (the newest time seen, minus ``late``) has passed its end. It has
    ``key``, ``started``, ``ended``, ``events``, and its first ``keep`` rows as JSON.
    """
    marked = frame.withWatermark(at, f"{_milliseconds(late)} milliseconds")
    keyed = _keyed(marked, key).selectExpr(
        _KEY, quoted(at), f"unix_micros({quoted(at)}) AS _at", f"{_as_json(frame)} AS _row"
    )
    return keyed.groupBy(_KEY).transformWithState(
        _Sessions(_milliseconds(gap), keep), SESSION, "append", "EventTime"
    )


class _Sessions(StatefulProcessor):
    def __init__(self, gap_ms: int, keep: int) -> None:
        self._gap_us = gap_ms * 1000
        self._keep = keep

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getValueState(
            "open", "first_us BIGINT, last_us BIGINT, events BIGINT, rows ARRAY<STRING>"
        )

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        found = self._open.get()
        session = None if found is None else (found[0], found[1], found[2], list(found[3]))
        for at, text in sorted((row["_at"], row["_row"]) for row in rows if row["_at"] is not None):
            if session is not None and at > session[1] + self._gap_us:
                yield _session(key, session)
                session = None
            if session is None:
                session = (at, at, 0, [])
            first, last, events, kept = session
            kept += [text] if len(kept) < self._keep else []
            session = (min(first, at), max(last, at), events + 1, kept)
        if session is not None:
            self._open.update(session)
            for timer in list(self._handle.listTimers()):
                self._handle.deleteTimer(timer)
            self._handle.registerTimer((session[1] + self._gap_us) // 1000 + 1)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        found = self._open.get()
        if found is not None:
            self._open.clear()
            yield _session(key, found)

    def close(self) -> None:
        """Nothing to close."""


def _session(key: tuple[str], session: Sequence[object]) -> Row:
    first, last, events, kept = session
    return Row(key=key[0], started=_moment(first), ended=_moment(last), events=events, rows=list(kept))  # type: ignore[call-overload]


def _moment(at_us: object) -> datetime:
    assert isinstance(at_us, int)
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


@dataclass(frozen=True, slots=True)
class Command:
    """A message that a saga sends."""

    queue: str
    payload: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Move:
    """The result of a step: the new state (None: the saga is over), what to send, how long to wait."""

    state: Mapping[str, object] | None
    send: Sequence[Command] = ()
    wait: str = ""  # "5m": then the step is called with event None; empty: no limit


Step = Callable[[Mapping[str, object] | None, Mapping[str, object] | None], Move]
COMMANDS: Final = "queue STRING, partition STRING, payload STRING"


def saga(events: "DataFrame", key: str, step: Step) -> "DataFrame":
    """A process over several messages, with a time limit for each step; a step may send compensations.

    ``step(state, event)`` is called for each event of a key, in the order of column ``offset`` if there is
    one, with the state it returned last (None at first); with event None when its time limit has passed. The
    output is for the sink: ``queue``, ``partition`` (the key), ``payload``.
    """
    order = "offset" if "offset" in events.columns else "CAST(NULL AS BIGINT)"
    rows = _keyed(events, key).selectExpr(_KEY, f"{order} AS _order", f"{_as_json(events)} AS _row")
    return rows.groupBy(_KEY).transformWithState(_Saga(step), COMMANDS, "append", "ProcessingTime")


class _Saga(StatefulProcessor):
    def __init__(self, step: Step) -> None:
        self._step = step

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("state", "state STRING")

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in sorted(rows, key=lambda row: row["_order"] or 0):
            yield from self._move(key, json.loads(row["_row"]), now)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        if self._state.exists():
            yield from self._move(key, None, timerValues.getCurrentProcessingTimeInMs())

    def _move(self, key: tuple[str], event: Mapping[str, object] | None, now: int) -> Iterator[Row]:
        held = self._state.get()
        move = self._step(None if held is None else json.loads(held[0]), event)
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if move.state is None:
            self._state.clear()
        else:
            self._state.update((json.dumps(dict(move.state)),))
            if move.wait:
                self._handle.registerTimer(now + _milliseconds(move.wait))
        for command in move.send:
            yield Row(queue=command.queue, partition=key[0], payload=json.dumps(dict(command.payload)))

    def close(self) -> None:
        """Nothing to close."""


def _keyed(frame: "DataFrame", key: str) -> "DataFrame":
    """The frame with its key as an additional text column; refused if Spark could not run it."""
    provider = frame.sparkSession.conf.get(_PROVIDER)
    if provider != ROCKS_DB:
        raise InvalidOption(
            f"state with timers needs RocksDB: set {_PROVIDER} to {ROCKS_DB} (holtmq.spark.session does)"
        )
    schema: StructType = frame.schema
    if key not in schema.fieldNames():
        raise InvalidOption(
            f"there is no column {key!r} to go by; there are {', '.join(schema.fieldNames())}"
        )
    return frame.selectExpr("*", f"CAST({quoted(key)} AS STRING) AS {_KEY}")


def _as_json(frame: "DataFrame") -> str:
    """The row as JSON, with its payload as text."""
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    columns = [
        f"CAST({quoted(name)} AS STRING) AS {quoted(name)}" if kind == "binary" else quoted(name)
        for name, kind in kinds.items()
    ]
    return f"to_json(struct({', '.join(columns)}))"


def _milliseconds(text: str) -> int:
    try:
        found = round(parse_seconds(text) * 1000)
    except ValueError as error:
        raise InvalidOption(f"{text!r}: {error}") from None
    if found < 1:
        raise InvalidOption(f"{text!r}: it must be at least a millisecond")
    return found
