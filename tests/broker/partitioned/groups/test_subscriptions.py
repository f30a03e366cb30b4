"""Where a named group starts: the four scenarios and five edge cases of the plan, and the words of a pop."""

from random import Random

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.events import NO_QUEUE, Subscribed, SubscriptionMoved, SubscriptionsForgotten
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, micros
from holtmq.broker.partitioned.groups.joining import (
    decide_group_deletion,
    decide_move,
    decide_starts,
    forget_subscriptions,
)
from holtmq.broker.partitioned.groups.subscriptions import (
    Scope,
    StartMode,
    StartRequest,
    Subscriptions,
    _Records,
    read_start,
    read_timestamp,
)

LOOKBACK = 4.0


def test_scenario_1_a_new_group_on_one_partition_sees_the_just_pushed_and_all_later_messages() -> None:
    node = node_with()
    node.push("p1", "m1")
    node.now += 1

    first = node.pop("cg1", partition="p1", mode="new", lookback=LOOKBACK)
    node.ack(first, group="cg1")
    node.now += 600
    node.push("p1", "m2")

    assert ids(first) == ["m1"]
    assert ids(node.pop("cg1", partition="p1", mode="new", lookback=LOOKBACK)) == ["m2"]


def test_scenario_2_a_partition_created_later_starts_at_the_subscription_not_at_its_discovery() -> None:
    node = node_with()
    node.push("p1", "m1")
    first = node.pop("cg1", mode="new", lookback=LOOKBACK)
    node.ack(first, group="cg1")

    node.now += 600
    node.push("p2", "m2", "m3", "m4")
    node.now += 300

    assert ids(first) == ["m1"]
    assert ids(node.pop("cg1", batch=10, mode="new", lookback=LOOKBACK)) == ["m2", "m3", "m4"]


def test_scenario_3_a_namespace_subscription_covers_queues_created_later() -> None:
    node = Node()
    node.create("q1", namespace="ns1")
    node.push("Default", "old", queue="q1")
    node.now += 60
    assert node.pop_scope("cg1", namespace="ns1", mode="new") == []
    node.push("Default", "m1", queue="q1")
    first = node.pop_scope("cg1", namespace="ns1")
    assert ids(first) == ["m1"]
    node.ack(first, group="cg1")

    node.now += 600
    node.create("q2", namespace="ns1")
    node.create("q3", namespace="other")
    node.push("Default", "m2", queue="q2")
    node.push("Default", "m3", queue="q3")

    assert ids(node.pop_scope("cg1", namespace="ns1")) == ["m2"]
    assert [scope for _, scope, _ in node.subscriptions.records("cg1")] == [Scope("", "", "ns1", "")]


def test_scenario_4_two_groups_have_records_of_their_own() -> None:
    node = node_with()
    node.push("p", "m1")
    node.now += 60

    assert node.pop("cg1", mode="new") == []
    node.now += 60
    assert ids(node.pop("cg2")) == ["m1"]

    one, two = node.subscriptions.record("cg1", Scope("q")), node.subscriptions.record("cg2", Scope("q"))
    assert one is not None
    assert two is not None
    assert (one.mode, two.mode) == (StartMode.NEW, StartMode.ALL)
    assert one.created_us < two.created_us


def test_edge_1_a_group_from_before_the_records_starts_with_the_oldest_whatever_it_asks() -> None:
    node = node_with()
    node.push("p1", "a")
    node.pop("old")  # joined, then its record is lost: as if it were older than records
    node.commit(NO_QUEUE, forget_subscriptions("old"))
    node.push("p2", "b")
    node.now += 60

    assert ids(node.pop("old", batch=10, partitions=10, mode="new")) == ["b"]
    record = node.subscriptions.record("old", Scope("q"))
    assert record is not None
    assert record.mode is StartMode.ALL


def test_edge_2_a_record_for_the_partition_beats_the_one_for_the_queue() -> None:
    node = node_with()
    node.push("p1", "a")
    node.push("p2", "b")
    node.now += 60

    assert node.pop("g", partition="p1", mode="new") == []
    assert ids(node.pop("g", batch=10, partitions=10, mode="all")) == ["b"]
    node.push("p1", "c")
    assert ids(node.pop("g", partition="p1", batch=10)) == ["c"]
    assert {scope for _, scope, _ in node.subscriptions.records("g")} == {Scope("q", "p1"), Scope("q")}


def test_edge_2_two_partitions_subscribed_at_different_times_keep_their_own_starts() -> None:
    node = node_with()
    node.push("p1", "a1")
    node.push("p2", "b1")
    node.now += 10
    assert node.pop("g", partition="p1", mode="new") == []
    node.now += 10
    node.push("p1", "a2")
    node.push("p2", "b2")
    node.now += 10

    assert node.pop("g", partition="p2", mode="new") == []
    assert ids(node.pop("g", partition="p1", batch=10)) == ["a2"]


def test_edge_3_one_group_may_read_one_queue_from_now_and_another_from_the_start() -> None:
    node = Node()
    node.create("q1")
    node.create("q2")
    node.push("p", "a", queue="q1")
    node.push("p", "b", queue="q2")
    node.now += 60

    assert node.pop("g", queue="q1", mode="new") == []
    assert ids(node.pop("g", queue="q2")) == ["b"]


def test_edge_4_the_first_mode_wins_until_the_record_is_deleted() -> None:
    node = node_with()
    node.push("p", "a")
    node.now += 60
    assert node.pop("g", mode="new") == []

    assert node.pop("g", mode="all") == []

    deleted, _ = decide_group_deletion(node.queue, "g")
    assert deleted is not None
    node.commit(node.queue.number, deleted)
    node.commit(NO_QUEUE, forget_subscriptions("g"))
    assert ids(node.pop("g", mode="all")) == ["a"]


def test_edge_5_a_changed_server_default_changes_nothing_for_a_known_group() -> None:
    node = node_with()
    node.push("p", "a")
    node.now += 60
    node.pop("g", default_mode="all", batch=1)
    node.restart()

    node.push("p2", "b")
    node.now += 60

    assert ids(node.pop("g", default_mode="new", batch=10, partitions=10)) == ["a", "b"]
    assert node.pop("h", default_mode="new", batch=10) == []


def test_the_record_is_made_by_a_pop_that_finds_nothing_not_even_the_queue() -> None:
    node = Node()
    assert node.pop("g", mode="new") == []
    node.now += 60
    node.create("q")
    node.push("p", "first")

    assert ids(node.pop("g")) == ["first"]


def test_a_new_group_gets_exactly_what_is_pushed_after_it_came_even_within_one_instant() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")

    assert node.pop("g", mode="new", batch=10) == []
    node.push("p", "d")

    assert ids(node.pop("g", batch=10)) == ["d"]


def test_a_timestamp_starts_with_the_first_message_at_or_after_it() -> None:
    node = node_with()
    for one in ("a", "b", "c"):
        node.push("p", one)
        node.now += 10

    at = "1970-01-12T13:46:50Z"  # 1,000,010: when b was pushed
    assert ids(node.pop("g", start=at, batch=10)) == ["b", "c"]


def test_a_timestamp_in_the_future_waits_for_it() -> None:
    node = node_with()
    node.push("p", "a")
    assert node.pop("g", start="1970-01-12T13:48:00Z", batch=10) == []
    node.now += 30
    node.push("p", "b")
    assert node.pop("g", batch=10) == []
    node.now += 60
    node.push("p", "c")

    assert ids(node.pop("g", batch=10)) == ["c"]


def test_the_group_of_the_nameless_has_no_record_and_starts_with_the_oldest() -> None:
    node = node_with()
    node.push("p", "a")
    node.now += 60

    assert ids(node.pop(QUEUE_MODE, mode="new")) == ["a"]
    assert list(node.subscriptions.records()) == []


def test_a_pop_of_one_partition_without_a_mode_follows_the_record_of_the_queue() -> None:
    node = node_with()
    node.push("p", "a")
    node.now += 60
    assert node.pop("g", mode="new") == []

    assert node.pop("g", partition="p") == []
    assert node.subscriptions.count("g") == 1


def test_deleting_a_group_but_keeping_its_record_starts_it_there_again() -> None:
    node = node_with()
    node.push("p", "old")
    node.now += 60
    node.pop("g", mode="new")
    node.push("p", "a")
    node.ack(node.pop("g"), group="g")

    deleted, members = decide_group_deletion(node.queue, "g")
    assert deleted is not None
    node.commit(node.queue.number, deleted)

    assert members == 1
    assert ids(node.pop("g", batch=10)) == ["a"]


def test_moving_the_start_leaves_cursors_alone() -> None:
    node = node_with()
    node.push("p1", "a")
    node.push("p2", "b")
    node.now += 60
    node.pop("g", mode="new")
    node.push("p1", "c")
    node.ack(node.pop("g"), group="g")

    moved, count = decide_move(node.subscriptions, "g", 0)
    node.commit(NO_QUEUE, moved)
    for queue in node.queues.values():
        for event in decide_starts(queue, "g", 0):
            node.commit(queue.number, event)

    assert count == 1
    assert ids(node.pop("g", batch=10, partitions=10)) == ["b"]


def test_records_survive_a_restart_and_leave_with_their_queue() -> None:
    node = node_with()
    node.pop("g", mode="new")
    node.pop("g", queue="other")
    node.restart()
    assert node.subscriptions.count("g") == 2

    node.commit(NO_QUEUE, forget_subscriptions(queue="q"))

    assert [scope.queue for _, scope, _ in node.subscriptions.records("g")] == ["other"]


def test_namespace_and_task_together_beat_namespace_alone_which_beats_task() -> None:
    node = Node()
    for number, scope in enumerate([Scope(task="t"), Scope(namespace="n"), Scope(namespace="n", task="t")]):
        request = StartRequest(StartMode.TIMESTAMP, number + 1)
        event = node.subscriptions.decide("g", scope, request, node.now, 0)
        assert event is not None
        node.subscriptions.apply(event)
        found = node.subscriptions.lookup("g", Scope("q", "p", "n", "t"))
        assert found is not None
        assert found.timestamp_us == number + 1


@pytest.mark.parametrize(
    ("mode", "start", "default", "expected"),
    [
        (None, None, "", StartRequest(StartMode.ALL, explicit=False)),
        (None, None, "new", StartRequest(StartMode.NEW, explicit=False)),
        ("all", None, "new", StartRequest(StartMode.ALL)),
        ("from_beginning", None, "new", StartRequest(StartMode.ALL)),
        ("new", None, "", StartRequest(StartMode.NEW)),
        ("new-only", None, "", StartRequest(StartMode.NEW)),
        ("all", "now", "", StartRequest(StartMode.NEW)),
        ("new", "1970-01-01T00:00:01.5Z", "", StartRequest(StartMode.TIMESTAMP, 1_500_000)),
    ],
)
def test_a_start_is_read_from_a_pops_words(
    mode: str | None, start: str | None, default: str, expected: StartRequest
) -> None:
    assert read_start(mode, start, default) == expected


def test_a_time_keeps_its_microseconds_and_without_a_zone_is_utc() -> None:
    assert read_timestamp("2026-01-02T03:04:05.123456Z") == read_timestamp("2026-01-02T04:04:05.123456+01:00")
    assert read_timestamp("1970-01-01T00:00:00.000001") == 1
    assert read_timestamp("1969-12-31T23:59:59") == read_timestamp("0001-01-01T00:00:00+23:59") == 0
    assert read_timestamp("9999-12-31T23:59:59-23:59") == read_timestamp("9999-12-31")


def test_a_time_that_is_none_is_refused_instead_of_replaying_everything() -> None:
    with pytest.raises(Conflict, match="ISO-8601"):
        read_start(None, "yesterday")


def test_a_look_back_never_reaches_before_the_epoch() -> None:
    node = Node()
    event = node.subscriptions.decide("g", Scope("q"), StartRequest(StartMode.NEW), 1.0, 60)

    assert event is not None
    assert (event.timestamp_us, event.created_us) == (0, micros(1.0))


def test_an_earlier_start_on_one_partition_reaches_a_line_already_built() -> None:
    node = node_with()
    node.push("p", "a")
    node.now += 60
    assert node.pop("g", mode="new") == []
    node.push("r", "b")

    claimed = node.pop("g", partition="p", mode="all")
    node.queue.release("g", 0, claimed[0].lease_id)

    assert ids(claimed) == ["a"]
    assert sorted(ids(node.pop("g", batch=5, partitions=5))) == ["a", "b"]


@pytest.mark.parametrize("seed", range(100))
def test_records_are_those_of_a_plain_table_whatever_happens_to_them(seed: int) -> None:
    dice, subscriptions = Random(seed), Subscriptions()
    table: dict[tuple[str, Scope], tuple[str, int, int]] = {}
    freeing = subscriptions.free()
    for at in range(dice.randint(1, 60)):
        group, queue, partition = dice.choice("gh"), dice.choice("abc"), dice.choice(("", "", "p", "q"))
        choice = dice.random()
        if choice < 0.6:
            event: Subscribed | SubscriptionMoved | SubscriptionsForgotten = Subscribed(
                group, queue, partition, "", "", "all", 0, at
            )
            table.setdefault((group, Scope(queue, partition)), ("all", 0, at))
        elif choice < 0.75:
            event = SubscriptionMoved(group, at)
            table |= {key: ("timestamp", at, row[2]) for key, row in table.items() if key[0] == group}
        elif choice < 0.85:
            event = SubscriptionsForgotten("", queue)
            table = {key: row for key, row in table.items() if key[1].queue != queue}
        elif choice < 0.9:
            event = SubscriptionsForgotten(group, queue)
            table = {key: row for key, row in table.items() if (key[0], key[1].queue) != (group, queue)}
        else:
            event = SubscriptionsForgotten(group, "")
            table = {key: row for key, row in table.items() if key[0] != group}
        captured = subscriptions.capture()
        before = list(subscriptions.records())
        subscriptions.apply(event)
        for _ in range(dice.choice((0, 0, 1, 2, 9))):  # what is forgotten is freed in steps, among others
            next(freeing, None)
        if dice.random() < 0.2:
            freeing = subscriptions.free()

        copy = Subscriptions()
        for recorded in captured:  # not before: a checkpoint is written while the records change
            copy.apply(recorded)
        assert list(copy.records()) == before
        found = {(name, scope): row for name, scope, row in subscriptions.records()}
        assert {
            key: (row.mode.value, row.timestamp_us, row.created_us) for key, row in found.items()
        } == table
        assert all(subscriptions.record(*key) == row for key, row in found.items())
        for name in "gh":
            assert subscriptions.count(name) == len(subscriptions.scopes(name))
            assert set(subscriptions.scopes(name)) == {scope for one, scope in table if one == name}
    for _ in subscriptions.free():
        pass
    for _ in freeing:
        pass
    for name in "abc":
        subscriptions.apply(SubscriptionsForgotten("", name))
    assert not list(subscriptions.records())
    assert not subscriptions._groups
    assert not subscriptions._of_queues


def test_a_capture_copies_only_the_records_of_groups_that_change_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscriptions = Subscriptions()
    for number in range(50):
        subscriptions.apply(Subscribed(f"g{number}", "q", "", "", "", "all", 0, number))
    copied: list[int] = []
    copy = _Records.copy

    def counted(records: _Records, age: int) -> _Records:
        copied.append(len(records))
        return copy(records, age)

    monkeypatch.setattr(_Records, "copy", counted)

    captured = subscriptions.capture()
    assert copied == []
    for queue in ("r", "s"):
        subscriptions.apply(Subscribed("g7", queue, "", "", "", "all", 0, 60))
    subscriptions.apply(SubscriptionsForgotten("g8", ""))
    subscriptions.apply(Subscribed("new", "q", "", "", "", "all", 0, 61))

    assert copied == [1]
    assert {event.group for event in captured} == {f"g{number}" for number in range(50)}
    assert subscriptions.count("g7") == 3
