"""Trace events: by message, by name, within a bound."""

from dataclasses import replace

from holtmq.broker.partitioned.extras.traces import Traced, TraceName, TraceStore


def event(number: int, transaction_id: str = "t", names: tuple[str, ...] = (), queue: int = 1) -> Traced:
    return Traced(number, queue, 0, transaction_id, "g", "info", names, b"{}", number * 10)


def test_a_messages_events_come_oldest_first() -> None:
    store = TraceStore()
    for number in (1, 2, 3):
        store.apply(event(number, "t" if number != 2 else "other"))

    assert store.of_message(1, 0, "t", 9, 0) == ([event(1), event(3)], 2)
    assert store.of_message(1, 0, "t", 9, 1) == ([event(3)], 2)
    assert store.of_message(1, 0, "t", 1, 0) == ([event(1)], 2)
    assert store.of_message(1, 9, "t", 9, 0) == ([], 0)


def test_events_of_a_name_come_newest_first_in_pages() -> None:
    store = TraceStore()
    for number in range(1, 6):
        store.apply(event(number, names=("order",)))

    page, total = store.named("order", limit=2, skip=1)

    assert ([x.number for x in page], total) == ([4, 3], 5)


def test_names_are_counted_most_recent_first() -> None:
    store = TraceStore()
    store.apply(event(1, "a", ("x", "y", "x")))
    store.apply(event(2, "b", ("x",)))
    store.apply(event(3, "b", ("y",)))

    names, total = store.names(limit=10, skip=0)

    assert (names, total) == (["y", "x"], 2)
    assert store.names(limit=1, skip=1) == (["x"], 2)
    assert store.statistics("y") == TraceName("y", 2, 2, 30)
    assert store.statistics("x") == TraceName("x", 2, 2, 20)
    assert store.statistics("z") is None


def test_beyond_the_bound_the_oldest_leave_every_index() -> None:
    store = TraceStore(limit=2)
    for number in range(1, 5):
        store.apply(event(number, f"t{number}", (f"n{number}", "all")))

    assert len(store) == 2
    assert store.of_message(1, 0, "t1", 9, 0) == ([], 0)
    assert store.named("n1", 10, 0) == ([], 0)
    assert [x.number for x in store.named("all", 10, 0)[0]] == [4, 3]


def test_beyond_the_bound_of_bytes_the_oldest_leave_and_the_newest_stays() -> None:
    store = TraceStore(most_bytes=25_000)
    for number in range(1, 5):
        store.apply(replace(event(number, names=("n",)), data=b"x" * 8_000))
    kept = [x.number for x in store]
    store.forget_queue(9)  # counts anew
    store.apply(replace(event(5, names=("n",)), data=b"x" * 8_000))
    after = [x.number for x in store]
    store.apply(replace(event(6, names=("n",)), data=b"x" * 80_000))

    assert (kept, after) == ([3, 4], [4, 5])
    assert [x.number for x in store] == [6]
    assert [x.number for x in store.named("n", 9, 0)[0]] == [6]


def test_names_count_by_what_they_take_in_memory() -> None:
    store = TraceStore(most_bytes=150_000)
    for number in range(1, 4):
        store.apply(event(number, names=tuple(f"{number}-{n}" for n in range(100))))

    assert [x.number for x in store] == [3]
    assert store.names(1, 0)[1] == 100


def test_a_deleted_queues_events_leave_and_numbers_go_on() -> None:
    store = TraceStore()
    store.apply(event(1, queue=1))
    store.apply(event(2, queue=2))
    store.forget_queue(2)

    assert [x.number for x in store] == [1]
    assert store.next_number == 3
