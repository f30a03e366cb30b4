"""Long lists are made in steps: other requests have their turn between any two dozen rows."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from holtmq.http.engine import stepwise
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.listing import Rows, RowsOf, View, encoded
from holtmq.http.management.paging import Page


@pytest.fixture(autouse=True)
def _every_look_ends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STEP", -1.0)


def rows(count: int, made: list[int] | None = None) -> Iterator[object]:
    for number in range(count):
        if made is not None:
            made.append(number)
        yield {"name": f"q{number % 7}", "n": number, "deep": {"rank": count - number}, "spare": None}


def listed(value: object, view: View | None = None) -> tuple[object, int]:
    """The answer, and how many turns another task had meanwhile."""

    async def run() -> tuple[bytes, int]:
        turns = 0

        async def beside() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(beside())
        answer = (await encoded(value, view)).joined()
        task.cancel()
        return answer, turns

    answer, turns = asyncio.run(run())
    return json.loads(answer), turns


@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(sort="name", reverse=True),
        View(columns="name"),
        View(sort="deep.rank", columns="n", page=Page(2, 10, None)),
        View(page=Page(1, 5, lambda row: False)),
    ],
)
def test_others_have_a_turn_after_every_few_rows(view: View) -> None:
    _, turns = listed(Rows(rows(1_600)), view)

    assert turns >= 100


def test_a_list_inside_an_object_is_made_in_steps_too() -> None:
    answer, turns = listed({"version": "1", "queues": Rows(rows(1_600)), "users": Rows(())})

    assert isinstance(answer, dict)
    assert [len(answer["queues"]), answer["users"], answer["version"]] == [1_600, [], "1"]
    assert turns >= 100


def test_sorting_in_runs_gives_the_order_of_one_sort() -> None:
    expected = sorted(rows(5_000), key=lambda row: row["name"], reverse=True)  # type: ignore[index]

    answer, _ = listed(Rows(rows(5_000)), View(sort="name", reverse=True))

    assert answer == expected


def test_a_field_of_a_field_can_be_the_order_and_rows_without_it_come_first() -> None:
    mixed = [{"n": 1, "a": {"b": 2}}, {"n": 2}, {"n": 3, "a": {"b": 1}}]

    answer, _ = listed(Rows(mixed), View(sort="a.b", columns="n,a.b"))

    assert answer == [{"n": 2}, {"n": 3, "a": {"b": 1}}, {"n": 1, "a": {"b": 2}}]


def test_a_page_counts_all_rows_and_those_that_match() -> None:
    page = Page(2, 3, lambda row: row["name"] == "q1")  # type: ignore[index]

    answer, _ = listed(Rows(rows(70)), View(columns="n", page=page))

    assert answer == {
        "total_count": 70,
        "filtered_count": 10,
        "item_count": 3,
        "page": 2,
        "page_size": 3,
        "page_count": 4,
        "items": [{"n": 22}, {"n": 29}, {"n": 36}],
    }


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (Page(3, 4, None), [8, 9, 10, 11]),
        (Page(8, 4, None), [28, 29]),
        (Page(2, 3, lambda one: getattr(one, "name", "").endswith("7")), []),
        (Page(1, 3, lambda one: getattr(one, "name", "").endswith("7")), [7, 17, 27]),
    ],
)
def test_a_page_of_objects_makes_no_other_rows(page: Page, wanted: list[int]) -> None:
    objects = [SimpleNamespace(name=f"q{number}", n=number) for number in range(30)]
    made: list[int] = []

    def row(one: SimpleNamespace) -> dict[str, object]:
        made.append(one.n)
        return {"name": one.name, "n": one.n}

    if not wanted:
        with pytest.raises(Refusal, match="Page out of range, page: 2 page size: 3, len: 3"):
            listed(RowsOf(objects, row), View(page=page))
        return
    found, turns = listed(RowsOf(objects, row), View(page=page, columns="n"))

    assert made == wanted
    alike, _ = listed(Rows([one.__dict__ for one in objects]), View(page=replace(page, wanted=None)))
    if page.wanted is None:
        assert isinstance(alike, dict)
        assert found == {**alike, "items": [{"n": number} for number in wanted]}
    else:
        assert isinstance(found, dict)
        assert (found["total_count"], found["filtered_count"], found["item_count"]) == (30, 3, 3)
        assert turns >= 30
    listed(RowsOf(objects, row), View(page=page, sort="n"))
    assert len(made) > len(objects)  # another order needs all of them


def test_columns_can_be_chosen_of_a_single_object() -> None:
    answer, _ = listed({"name": "q", "messages": 3, "node": "n"}, View(columns="name,messages"))

    assert answer == {"name": "q", "messages": 3}
