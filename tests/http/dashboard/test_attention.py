"""What needs attention: the rules, each with its threshold on both sides."""

import pytest

from holtmq.http.dashboard.attention import (
    Finding,
    GroupLag,
    of_damage,
    of_group,
    of_node,
    of_query,
    of_queue,
    of_standbys,
    urgency,
)
from holtmq.http.dashboard.queue_columns import DIED_MOST, QueueRow
from holtmq.http.dashboard.thresholds import Thresholds
from holtmq.http.engine.clients import HolderRow
from holtmq.http.engine.pipeline_reports import Kept, QueryState, Report
from holtmq.journal.replica.view import Peer

NOW = 1_000_000.0


def row(**changes: object) -> QueueRow:
    fields: dict[str, object] = {
        "name": "orders",
        "vhost": "/",
        "kind": "classic",
        "ready": 0,
        "unacked": 0,
        "oldest": None,
        "incoming": 0.0,
        "outgoing": 0.0,
        "acked": 0.0,
        "consumers": 1,
    }
    return QueueRow(**{**fields, **changes})  # type: ignore[arg-type]


def rules(found: list[Finding]) -> list[str]:
    return [one.rule for one in found]


def holder(seconds: float, **changes: object) -> HolderRow:
    since = int((NOW - seconds) * 1000)
    fields: dict[str, object] = {
        **{"kind": "consumer", "consumer": "c", "connection": "a -> b", "channel": 1, "client": "billing"},
        **{"user": "guest", "host": "h:1", "unacked": 7, "since": since},
    }
    return HolderRow(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_queue_that_flows_needs_nothing() -> None:
    assert of_queue(row(ready=3, oldest=1.0), [holder(1)], [5, -2, 1, 0, 3], Thresholds(), NOW) == []


@pytest.mark.parametrize(("oldest", "expected"), [(59.9, []), (60.0, ["unread"]), (None, ["unread"])])
def test_a_queue_without_a_reader(oldest: float | None, expected: list[str]) -> None:
    found = of_queue(row(ready=2, consumers=0, oldest=oldest), [], [], Thresholds(), NOW)

    assert rules(found) == expected


def test_a_stuck_consumer_is_named_with_client_host_and_since() -> None:
    (found,) = of_queue(row(unacked=7), [holder(10), holder(400)], [], Thresholds(), NOW)

    assert found.rule == "unacked"
    assert found.since == int((NOW - 400) * 1000)
    assert "billing at h:1" in found.text
    assert [who.since for who in found.who] == [int((NOW - 400) * 1000)]


def test_an_old_message_with_a_reader_is_a_warning() -> None:
    (found,) = of_queue(row(ready=4, oldest=300.0), [], [], Thresholds(), NOW)

    assert (found.rule, found.severity) == ("oldest", "warn")
    assert found.since == int((NOW - 300) * 1000)


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        ([250, 250, 250, 250, 250], ["growing"]),
        ([250, 250, 0, 500, 500], []),
        ([10] * 5, []),
        ([999] * 4, []),
    ],
)
def test_a_backlog_grows_when_every_minute_adds_to_it(net: list[int], expected: list[str]) -> None:
    assert rules(of_queue(row(ready=9, oldest=1.0), [], net, Thresholds(), NOW)) == expected


def test_dead_letters_of_the_last_day_show_with_the_time_of_the_first() -> None:
    since = int((NOW - 3_600) * 1000)
    found = of_queue(row(died_today=2, died_since=since), [], [], Thresholds(), NOW)

    assert rules(found) == ["dead-letters"]
    assert (found[0].since, found[0].text) == (since, "2 messages dead-lettered within 24 hours")
    assert of_queue(row(kind="stream", dead_letters=2), [], [], Thresholds(), NOW) == []
    assert of_queue(row(died_today=2), [], [], Thresholds(dead_letters=3), NOW) == []
    (many,) = of_queue(row(kind="stream", died_today=DIED_MOST), [], [], Thresholds(), NOW)
    assert many.text.startswith("at least 1,000 messages")


@pytest.mark.parametrize(
    ("behind", "seen", "expected"), [(1.0, 1.0, []), (29.0, 1.0, ["standby"]), (0.0, 40.0, ["standby"])]
)
def test_a_standby_that_is_behind_or_silent_shows(behind: float, seen: float, expected: list[str]) -> None:
    peer = Peer("two", "standby", "amqp://two", 4096, behind, seen)

    assert rules(of_standbys([peer], Thresholds(), NOW)) == expected


def test_a_group_behind() -> None:
    lag = GroupLag(queue="q", group="g", messages=5, seconds=301.0)

    (found,) = of_group(lag, Thresholds(), NOW)

    assert (found.name, found.queue, found.group) == ("g on q", "q", "g")
    assert of_group(lag, Thresholds(group_lag_seconds=302), NOW) == []
    nameless = GroupLag(queue="q", group="__QUEUE_MODE__", messages=5, seconds=301.0)
    assert [one.name for one in of_group(nameless, Thresholds(), NOW)] == ["(no group) on q"]


def test_blocked_publishers_come_before_old_warnings() -> None:
    old = of_queue(row(ready=4, oldest=9_000.0), [], [], Thresholds(), NOW)

    assert rules(sorted([*old, *of_node("low on disk", NOW, True, "")], key=urgency)) == ["blocked", "oldest"]


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="oldest_seconds must not be negative"):
        Thresholds(oldest_seconds=-1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("get", "billing at h:1 took 7 messages by basic.get and has not acknowledged them"),
        ("cancelled", "billing at h:1 cancelled its consumer and has not acknowledged 7 messages"),
        ("lease", "a worker of guest at h:1 holds 7 messages over HTTP"),
    ],
)
def test_a_holder_that_is_no_consumer_is_named(kind: str, words: str) -> None:
    (found,) = of_queue(row(unacked=7, consumers=0), [holder(400, kind=kind)], [], Thresholds(), NOW)

    assert (found.rule, found.severity, found.text) == ("unacked", "bad", words)


@pytest.mark.parametrize(("hours", "severity"), [(1, "warn"), (25, "bad")])
def test_a_queue_that_was_forgotten_paused_is_worse(hours: int, severity: str) -> None:
    since = int((NOW - hours * 3600) * 1000)
    (found,) = of_queue(row(paused=True, paused_since=since, paused_by="ann"), [], [], Thresholds(), NOW)

    assert (found.rule, found.severity, found.since) == ("paused", severity, since)


def test_a_queue_of_dead_letters_without_a_consumer_is_a_warning() -> None:
    (found,) = of_queue(
        row(ready=2, consumers=0, oldest=99.0, holds_dead_letters=True), [], [], Thresholds(), NOW
    )

    assert (found.rule, found.severity, found.text) == ("dead-letter-queue", "warn", "2 dead letters waiting")


def test_a_spark_query_that_failed_or_is_silent_shows() -> None:
    failed = Kept(
        Report("q1", name="lake", state=QueryState.FAILED), NOW - 5, NOW - 50, last_error="boom\nat x"
    )
    silent = Kept(Report("q2"), NOW - 130, NOW - 500)

    (one,), (other,) = of_query(failed, Thresholds(), NOW), of_query(silent, Thresholds(), NOW)
    assert (one.severity, one.name, one.text) == ("bad", "lake", "the Spark query failed: boom")
    assert (other.severity, other.since) == ("warn", int((NOW - 130) * 1000))
    assert of_query(Kept(Report("q3"), NOW - 5, NOW - 500), Thresholds(), NOW) == []
    assert of_query(Kept(Report("q4", state=QueryState.STOPPED), NOW - 900, NOW), Thresholds(), NOW) == []


def test_messages_that_cannot_be_read_show() -> None:
    (one,) = of_damage(1, 1_700_000_000_000)
    assert one.text == "1 message cannot be read and is set aside"
    assert one.since == 1_700_000_000_000
    assert of_damage(0, None) == []
