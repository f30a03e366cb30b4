"""Rows by key: read in order, page by page, whatever was put and taken meanwhile; what they leave behind."""

from collections.abc import Iterator
from random import Random

import pytest

from holtmq.broker.partitioned.extras import keyed
from holtmq.broker.partitioned.extras.keyed import FOREVER, KeyedRows, KeyOp, KeyResult, Row, Verb
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.journal.memory import MemoryJournal

NOW_US = 1_000_000_000


@pytest.fixture
def rows() -> KeyedRows:
    return KeyedRows(PartitionedStore(MemoryJournal()))


def run(rows: KeyedRows, *ops: KeyOp, now_us: int = NOW_US) -> list[KeyResult]:
    decision = rows.decide(ops, now_us)
    rows.commit(decision)
    return decision.results


def put(key: str, namespace: str = "n", ttl_us: int = FOREVER) -> KeyOp:
    return KeyOp(Verb.PUT, namespace, key, ttl_us=ttl_us)


def delete(key: str, namespace: str = "n") -> KeyOp:
    return KeyOp(Verb.DELETE, namespace, key)


def prefix(text: str, after: str = "", limit: int = 100, namespace: str = "n") -> KeyOp:
    return KeyOp(Verb.GET_PREFIX, namespace, prefix=text, after=after, limit=limit)


def keys(result: KeyResult) -> list[str]:
    return [row.key for row in result.rows]


def test_keys_of_a_prefix_come_in_order_and_in_pages(rows: KeyedRows) -> None:
    run(rows, *[put(key) for key in ("b/2", "a", "b/10", "c", "b/1", "b", "b0")], put("b/3", "other"))

    (whole,) = run(rows, prefix("b/"))
    (first,) = run(rows, prefix("b/", limit=2))
    (second,) = run(rows, prefix("b/", after="b/10", limit=2))
    (behind,) = run(rows, prefix("b/", after="c"))
    (nobody,) = run(rows, prefix("b/", namespace="nobody's"))

    assert (keys(whole), whole.truncated) == (["b/1", "b/10", "b/2"], False)
    assert (keys(first), first.truncated) == (["b/1", "b/10"], True)
    assert (keys(second), second.truncated) == (["b/2"], False)
    assert (keys(behind), keys(nobody)) == ([], [])


def test_a_call_reads_in_order_what_it_has_put_and_taken_itself(rows: KeyedRows) -> None:
    run(rows, put("k1"), put("k3"), put("k5"))

    *_, found = run(rows, put("k4"), delete("k3"), put("k5"), put("k0"), prefix("k", after="k0"))

    assert keys(found) == ["k1", "k4", "k5"]


def test_keys_in_order_are_those_of_a_plain_dict_after_any_history(rows: KeyedRows) -> None:
    random = Random(7)
    model: dict[str, int] = {}  # key -> when it expires
    now_us = NOW_US
    for _ in range(3_000):
        now_us += random.randrange(3)
        key = "".join(random.choices("ab/", k=random.randrange(1, 5)))
        match random.randrange(4):
            case 0:
                run(rows, delete(key), now_us=now_us)
                model.pop(key, None)
            case 1 | 2:
                ttl_us = random.choice((FOREVER, 1, 20))
                run(rows, put(key, ttl_us=ttl_us), now_us=now_us)
                model[key] = now_us + ttl_us if ttl_us else 0
            case _:
                after = "".join(random.choices("ab/", k=random.randrange(3)))
                alive = sorted(k for k, until in model.items() if not until or until > now_us)
                wanted = [k for k in alive if k.startswith(key[:2]) and k > after]
                (found,) = run(rows, prefix(key[:2], after, limit=3), now_us=now_us)
                assert (keys(found), found.truncated) == (wanted[:3], len(wanted) > 3)


class Watched(dict[str, Row]):
    """Rows that count how often all of them were iterated."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


def test_a_page_costs_no_pass_over_the_whole_namespace(rows: KeyedRows) -> None:
    run(rows, *[put(f"k{number}") for number in range(50)])
    watched = rows._rows["n"] = Watched(rows._rows["n"])

    run(rows, *[prefix("k", limit=3)] * 20)
    run(rows, put("k-new"), delete("k7"))
    run(rows, *[prefix("k1")] * 20)

    assert watched.passes <= 1


def test_a_row_put_again_and_again_leaves_one_place_among_those_that_expire(rows: KeyedRows) -> None:
    for _ in range(5_000):
        run(rows, put("same", ttl_us=10**12))
    run(rows, put("short", ttl_us=5))

    assert len(rows._expiries) == 2
    run(rows, now_us=NOW_US + 5)
    assert len(rows) == 1
    run(rows, now_us=NOW_US + 10**12)
    assert len(rows) == 0


def test_a_namespace_without_rows_is_forgotten(rows: KeyedRows) -> None:
    for number in range(10):
        run(rows, put("k", f"n{number}", ttl_us=5 if number % 2 else FOREVER))
        run(rows, prefix("k", namespace=f"n{number}"))
    run(rows, *[delete("k", f"n{number}") for number in range(0, 10, 2)], now_us=NOW_US + 5)

    assert (rows._rows, rows._sorted) == ({}, {})


def test_of_very_many_expired_rows_a_call_removes_some_and_sees_none(rows: KeyedRows) -> None:
    run(rows, *[put(f"k{number:05}", ttl_us=5) for number in range(2_500)], put("k99999"))

    (found,) = run(rows, prefix("k"), now_us=NOW_US + 5)
    left = len(rows)
    (one,) = run(rows, KeyOp(Verb.GET, "n", "k02400"), now_us=NOW_US + 5)
    again = len(rows)
    run(rows, now_us=NOW_US + 5)

    assert (keys(found), found.truncated, one.row) == (["k99999"], False, None)
    assert (left, again, len(rows)) == (1_501, 501, 1)


def test_a_call_looks_at_so_many_rows_for_its_prefixes_and_says_where_to_continue(
    rows: KeyedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "_LOOKED_AT_MAX", 20)
    monkeypatch.setattr(keyed, "_SWEPT_MAX", 0)
    run(rows, *[put(f"k{number:02}", ttl_us=5) for number in range(50)], put("k99"))

    pages: list[KeyResult] = []
    while not pages or pages[-1].truncated:
        after = pages[-1].looked_upto if pages else ""
        pages += run(rows, prefix("k", after=after), now_us=NOW_US + 5)

    assert [(keys(page), page.looked_upto) for page in pages] == [([], "k19"), ([], "k39"), (["k99"], "")]


def test_the_prefixes_of_a_call_return_so_many_rows_and_each_at_least_one(
    rows: KeyedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "ROWS_MAX", 5)
    run(rows, *[put(f"k{number}") for number in range(4)])

    whole, part, one = run(rows, *[prefix("k")] * 3)
    (rest,) = run(rows, prefix("k", after=part.looked_upto))

    assert (keys(whole), whole.truncated) == (["k0", "k1", "k2", "k3"], False)
    assert (keys(part), part.truncated) == (["k0"], True)
    assert (keys(one), one.truncated) == (["k0"], True)
    assert (keys(rest), rest.truncated) == (["k1", "k2", "k3"], False)
