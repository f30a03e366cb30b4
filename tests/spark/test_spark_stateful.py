"""Stateful streams: the processors by themselves, and the guide's examples in Spark."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.tws_tester import TwsTester
from spark_support import Shop

from holtmq.spark.errors import InvalidOption
from holtmq.spark.stateful import Command, Move, _First, _Saga, _Sessions, _Waiting, deduplicate

pytestmark = pytest.mark.xdist_group("spark")

GUIDE = Path(__file__).parents[2] / "docs" / "spark" / "stateful.md"


def test_of_each_key_the_first_row_passes() -> None:
    tester = TwsTester(_First(["id", "text"], 1000), timeMode="ProcessingTime")

    one = tester.test("a", [Row(id=1, text="x", _key="a"), Row(id=1, text="y", _key="a")])
    again = tester.test("a", [Row(id=1, text="z", _key="a")])
    other = tester.test("b", [Row(id=2, text="w", _key="b")])

    assert one == [Row(id=1, text="x")]
    assert (again, other) == ([], [Row(id=2, text="w")])


def asked(text: str) -> Row:
    return Row(_asked=True, _row=text)


def told(text: str) -> Row:
    return Row(_asked=False, _row=text)


def test_an_answer_finds_its_request_whichever_came_first_and_the_rest_times_out() -> None:
    tester = TwsTester(_Waiting(1000), timeMode="ProcessingTime")

    assert tester.test("a", [asked("q"), asked("q again")]) == []
    assert tester.test("b", [told("r")]) == []
    assert tester.test("c", [asked("never")]) == []
    assert tester.test("d", [told("stray")]) == []
    tester.setProcessingTime(400)
    (one,) = tester.test("a", [told("a")])
    (two,) = tester.test("b", [asked("q")])
    (both,) = tester.test("e", [told("a"), asked("q")])
    late = tester.setProcessingTime(1001)

    assert (one.request, one.answer, one.outcome, one.waited_ms) == ("q", "a", "answered", 400)
    assert (two.request, two.answer, two.outcome) == ("q", "r", "answered")
    assert (both.request, both.answer, both.outcome) == ("q", "a", "answered")
    assert sorted((row.key, row.outcome) for row in late) == [("c", "timed out"), ("d", "not asked")]


def test_a_session_ends_with_a_gap_or_with_the_watermark() -> None:
    processor = _Sessions(gap_ms=1000, keep=2)
    tester = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda row: row["_at"] // 1000)

    def rows(*seconds: float) -> list[Row]:
        return [Row(at=datetime.fromtimestamp(s, UTC), _at=round(s * 1e6), _row=f"r{s:g}") for s in seconds]

    ended = tester.test("a", rows(3, 1, 1.5, 2.2, 10))
    rest = tester.setWatermark(11_500)

    assert [(row.started.timestamp(), row.ended.timestamp(), row.events) for row in ended] == [(1, 3, 4)]
    assert ended[0].rows == ["r1", "r1.5"]
    assert [(row.key, row.started.timestamp(), row.events) for row in rest] == [("a", 10, 1)]


def step(state: Any, event: Any) -> Move:
    if event is None:
        return Move(None, [Command("release", {"id": state["id"]})])
    if event["kind"] == "ordered":
        return Move({"id": event["id"]}, [Command("reserve", {"id": event["id"]})], wait="1s")
    return Move(None, [Command("ship", {"id": state["id"]})])


def test_a_saga_moves_on_with_events_and_back_when_its_time_is_over() -> None:
    tester = TwsTester(_Saga(step), timeMode="ProcessingTime")

    def event(kind: str, order: int) -> Row:
        return Row(_order=order, _row=f'{{"id": 7, "kind": "{kind}"}}')

    good = tester.test("7", [event("reserved", 2), event("ordered", 1)])
    begun = tester.test("8", [event("ordered", 1)])
    late = tester.setProcessingTime(1500)

    assert [row.queue for row in good] == ["reserve", "ship"]
    assert [(row.queue, row.partition) for row in begun + late] == [("reserve", "8"), ("release", "8")]
    assert tester.setProcessingTime(9000) == []


def test_what_cannot_work_is_refused_with_the_reason(spark: SparkSession) -> None:
    frame = spark.range(1)

    with pytest.raises(InvalidOption, match="there is no column 'user'"):
        deduplicate(frame, "user", "1h")
    with pytest.raises(InvalidOption, match="use a duration"):
        deduplicate(frame, "id", "soon")


@pytest.mark.timeout(600)
def test_the_examples_of_the_guide_run(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(examples) == 4

    def push(queue: str, *payloads: dict[str, Any]) -> None:
        items = [{"queue": queue, "payload": payload} for payload in payloads]
        if not items:
            return
        assert shop.http.post("/api/v1/push", json={"items": items}).status_code == 201

    def rows(queue: str) -> list[str]:
        answer = shop.http.get(f"/api/v1/ranges/{queue}/rows", params={"columns": "payload"})
        if answer.status_code == 404:
            return []
        return sorted(row.decode() for row in pa.ipc.open_stream(answer.content).read_all()[0].to_pylist())

    def run(example: str, results: dict[str, list[str]], *later: dict[str, Any]) -> None:
        names: dict[str, Any] = {"spark": spark, "url": shop.url, "checkpoints": str(tmp_path)}
        exec(example, names)
        query = names["query"]
        try:
            for queue, expected in results.items():
                while len(found := rows(queue)) < len(expected):
                    assert query.isActive, query.exception()
                    time.sleep(0.05)  # leaves Spark the processor
                assert found == expected
                push("order-events", *later)
        finally:
            query.stop()

    first, answer, session, process = examples
    push("clicks", {"user": "a", "page": "1"}, {"user": "b", "page": "1"}, {"user": "a", "page": "2"})
    run(first, {"first-clicks": ['{"user":"a","page":"1"}', '{"user":"b","page":"1"}']})
    push("questions", {"id": 1, "text": "q"}, {"id": 2, "text": "q"})
    push("answers", {"id": 1, "text": "a"})
    run(answer, {"pairs": ['{"key":"1","outcome":"answered"}', '{"key":"2","outcome":"timed out"}']})
    push("visits", *({"user": "a", "at": f"2026-05-01T{at}:00Z"} for at in ("10:00", "10:20", "12:00")))
    run(session, {"sessions": ['{"key":"a","events":2}']})
    push("order-events", {"id": 5, "kind": "ordered"})
    later = ({"id": 5, "kind": "reserved"}, {"id": 5, "kind": "charged"})
    run(process, {"reserve": ['{"id": 5}'], "ship": ['{"id": 5}']}, *later)
