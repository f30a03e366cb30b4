"""What needs an operator's attention: the object, since when, and which consumers hold its messages.

Owns: the rules. Must not touch: state, sockets; rows come in, findings go out.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.partitioned.extras.timer_firing import Late
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.http.dashboard.queue_columns import DIED_MOST, QueueRow
from holtmq.http.dashboard.thresholds import Thresholds
from holtmq.http.engine.clients import HolderRow
from holtmq.http.engine.context import ServedCertificate
from holtmq.http.engine.pipeline_reports import Kept, QueryState
from holtmq.http.engine.shovel_listing import ShovelRow
from holtmq.journal.replica.view import Peer

GROWING_MINUTES: Final = 5
_DAY: Final = 86_400


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind on one queue."""

    queue: str
    group: str
    messages: int
    seconds: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that needs attention."""

    rule: str
    severity: str  # "bad" or "warn"
    subject: str  # queue, group, node, listener, shovel, query
    name: str
    vhost: str | None = None
    since: int | None = None  # milliseconds; None: not known
    text: str
    who: tuple[HolderRow, ...] = ()
    queue: str | None = None  # of a group, with ``group``: its name alone can be split in several ways
    group: str | None = None


def of_queue(
    row: QueueRow, holders: list[HolderRow], net_by_minute: list[int], limits: Thresholds, now: float
) -> list[Finding]:
    """Findings about a queue. ``net_by_minute``: messages in minus out, oldest first, complete minutes."""
    found: list[Finding] = []
    now_ms = int(now * 1000)
    arrived = None if row.oldest is None else now_ms - int(row.oldest * 1000)
    stuck = [holder for holder in holders if (now_ms - holder.since) / 1000 >= limits.unacked_seconds]
    if stuck:
        stuck.sort(key=lambda holder: holder.since)
        first = stuck[0]
        found.append(
            Finding(
                rule="unacked",
                severity="bad",
                subject="queue",
                name=row.name,
                vhost=row.vhost,
                since=first.since,
                text=_held(first),
                who=tuple(stuck),
            )
        )
    if row.paused:
        why = f" ({row.paused_reason})" if row.paused_reason else ""
        text = f"paused by {row.paused_by}{why}, {_messages(row.ready)} held back"
        paused = 0.0 if row.paused_since is None else now - row.paused_since / 1000
        severity = "bad" if paused >= limits.paused_seconds else "warn"  # forgotten, perhaps
        found.append(_finding("paused", severity, row, row.paused_since, text))
    elif row.kind != "stream" and row.ready and not row.consumers:
        if row.oldest is None or row.oldest >= limits.unread_seconds:
            if row.holds_dead_letters:  # the usual end of a dead letter: an operator reads it, no consumer
                text = f"{row.ready:,} dead letter{'' if row.ready == 1 else 's'} waiting"
                found.append(_finding("dead-letter-queue", "warn", row, arrived, text))
            else:
                text = f"{_messages(row.ready)} waiting and no consumer"
                found.append(_finding("unread", "bad", row, arrived, text))
    elif row.kind != "stream" and row.oldest is not None and row.oldest >= limits.oldest_seconds:
        text = f"the oldest of {_messages(row.ready)} has waited {_span(row.oldest)}"
        found.append(_finding("oldest", "warn", row, arrived, text))
    growth = net_by_minute
    if len(growth) == GROWING_MINUTES and min(growth) > 0 and sum(growth) >= limits.growing_messages:
        text = f"the backlog has grown by {_messages(sum(growth))} in {GROWING_MINUTES} minutes"
        found.append(_finding("growing", "warn", row, now_ms - GROWING_MINUTES * 60_000, text))
    if row.died_today >= max(limits.dead_letters, 1):
        at_least = "at least " if row.kind == "stream" and row.died_today >= DIED_MOST else ""
        text = f"{at_least}{_messages(row.died_today)} dead-lettered within 24 hours"
        found.append(_finding("dead-letters", "warn", row, row.died_since, text))
    return found


def of_dedup(queue: str, window: float, remembered: float | None) -> list[Finding]:
    """Findings about a partitioned queue that does not remember ids for as long as it should (seconds)."""
    if remembered is None:
        return []
    text = (
        f"transaction ids are remembered for {_span(remembered)}, not for {_span(window)}: "
        "limits.dedup_memory is too small"
    )
    return [
        Finding(
            rule="dedup-window", severity="warn", subject="queue", name=queue, vhost=DEFAULT_VHOST, text=text
        )
    ]


def of_group(lag: GroupLag, limits: Thresholds, now: float) -> list[Finding]:
    """Findings about a consumer group."""
    if not lag.messages or lag.seconds < limits.group_lag_seconds:
        return []
    return [
        Finding(
            rule="group-lag",
            severity="warn",
            subject="group",
            name=f"{'(no group)' if lag.group == QUEUE_MODE else lag.group} on {lag.queue}",
            queue=lag.queue,
            group=lag.group,
            since=int((now - lag.seconds) * 1000),
            text=f"{_messages(lag.messages)} behind, the oldest for {_span(lag.seconds)}",
        )
    ]


def of_standbys(peers: Iterable[Peer], limits: Thresholds, now: float) -> list[Finding]:
    """Findings about the nodes that could take over."""
    found: list[Finding] = []
    for peer in peers:
        behind = peer.lag_seconds
        if peer.is_gone or behind < limits.standby_seconds:
            continue
        text = f"the standby is {peer.behind_bytes:,} bytes behind, seen {_span(peer.seen_seconds_ago)} ago"
        since = int((now - behind) * 1000)
        found.append(
            Finding(rule="standby", severity="warn", subject="node", name=peer.name, since=since, text=text)
        )
    return found


def of_shovel(row: ShovelRow) -> list[Finding]:
    """Findings about a shovel: it cannot run, or its destination takes nothing."""
    if row.failing_since is not None:
        text = f"the shovel does not run: {row.last_error or row.state}"
        severity, since = "bad", row.failing_since
    elif row.state == "terminated":
        text, severity, since = f"the shovel cannot run: {row.reason}", "bad", None
    elif row.state == "blocked":
        text, severity, since = f"the shovel waits: {row.reason}", "warn", None
    else:
        return []
    return [
        Finding(
            rule="shovel",
            severity=severity,
            subject="shovel",
            name=row.name,
            vhost=row.vhost,
            since=since,
            text=text,
        )
    ]


def of_timers(late: Late) -> list[Finding]:
    """Findings about timed messages that a queue does not take."""
    text = f"timed messages that are due cannot be delivered: {late.reason}"
    since = late.due_us // 1000
    return [
        Finding(
            rule="timers", severity="bad", subject="queue", name=late.queue, vhost="/", since=since, text=text
        )
    ]


def of_query(kept: Kept, limits: Thresholds, now: float) -> list[Finding]:
    """Findings about a Spark query that reports here."""
    report, silent = kept.report, now - kept.at
    name = report.name or report.query
    if report.state is QueryState.FAILED:
        text, severity = f"the Spark query failed: {kept.last_error.partition(chr(10))[0][:200]}", "bad"
    elif report.state is QueryState.RUNNING and silent >= limits.silent_seconds:
        text, severity = f"the Spark query has not reported for {_span(silent)}", "warn"
    else:
        return []
    since = int(kept.at * 1000)
    return [Finding(rule="query", severity=severity, subject="query", name=name, since=since, text=text)]


def of_damage(count: int, since: int | None) -> list[Finding]:
    """Findings about messages that cannot be read; ``since``: when the first was found, in milliseconds."""
    if not count:
        return []
    text = f"{_messages(count)} cannot be read and {'is' if count == 1 else 'are'} set aside"
    return [Finding(rule="damage", severity="bad", subject="node", name="node", since=since, text=text)]


def of_certificates(served: Iterable[ServedCertificate], limits: Thresholds, now: float) -> list[Finding]:
    """Findings about certificates of listeners that end soon; listeners that share a file share a finding."""
    listeners: dict[tuple[str, tuple[float, ...]], list[str]] = {}
    for one in served:
        if one.ends:  # else it could not be parsed
            listeners.setdefault((one.path, one.ends), []).append(one.listener)
    found: list[Finding] = []
    for (path, ends), names in listeners.items():
        end = min(ends)
        noticed = max(limits.certificate_days, limits.certificate_urgent_days) * _DAY
        if end - now >= noticed:
            continue
        what = "the certificate" if ends[0] == end else "an intermediate certificate"
        when = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if end <= now:
            text = f"{what} in {path} ended on {when}: clients refuse it"
        else:
            text = f"{what} in {path} ends in {_span(end - now)}, on {when}"
        urgent = end - now < limits.certificate_urgent_days * _DAY
        found.append(
            Finding(
                rule="certificate",
                severity="bad" if urgent or end <= now else "warn",
                subject="listener",
                name=", ".join(names),
                since=int((end if end <= now else end - noticed) * 1000),
                text=text,
            )
        )
    return found


def of_node(alarm: str, alarm_since: float | None, healthy: bool, reason: str) -> list[Finding]:
    """Findings about the node itself."""
    found: list[Finding] = []
    if not healthy:
        found.append(Finding(rule="health", severity="bad", subject="node", name="node", text=reason))
    if alarm:
        text = f"publishers are blocked: the broker is {alarm}"
        since = None if alarm_since is None else int(alarm_since * 1000)
        found.append(
            Finding(rule="blocked", severity="bad", subject="node", name="node", since=since, text=text)
        )
    return found


def urgency(one: Finding) -> tuple[bool, bool, int, str]:
    """The order of findings: the worst first, then the longest-lasting."""
    return one.severity != "bad", one.since is None, one.since or 0, one.name


def _finding(rule: str, severity: str, row: QueueRow, since: int | None, text: str) -> Finding:
    return Finding(
        rule=rule, severity=severity, subject="queue", name=row.name, vhost=row.vhost, since=since, text=text
    )


def _held(holder: HolderRow) -> str:
    messages = _messages(holder.unacked)
    tag = f"consumer {holder.consumer}" if holder.kind == "consumer" else ""
    name = holder.client or tag or holder.consumer or "a client without a name"
    match holder.kind:
        case "get":
            them = "it" if holder.unacked == 1 else "them"
            return f"{name} at {holder.host} took {messages} by basic.get and has not acknowledged {them}"
        case "cancelled":
            return f"{name} at {holder.host} cancelled its consumer and has not acknowledged {messages}"
        case "lease":
            return f"a worker of {holder.user or 'no user'} at {holder.host} holds {messages} over HTTP"
    return f"{name} at {holder.host} has not acknowledged {messages}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{int(seconds)} s"
    if seconds < 7200:
        return f"{int(seconds / 60)} min"
    if seconds < 2 * _DAY:
        return f"{seconds / 3600:.1f} h"
    return f"{int(seconds / _DAY)} days"
