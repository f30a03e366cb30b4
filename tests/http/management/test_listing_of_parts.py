"""Answers of the management API with long lists inside: valid JSON, with the columns that were asked for."""

import asyncio
import json

import pytest

from holtmq.http.management.listing import Rows, View, encoded


def shown(value: object, view: View | None = None) -> object:
    return json.loads(asyncio.run(encoded(value, view)).joined())


@pytest.mark.parametrize("count", [0, 1, 16, 17, 50])
def test_a_list_inside_an_object_is_encoded_in_steps(count: int) -> None:
    rows = [{"number": number} for number in range(count)]

    answer = shown({"before": 1, "rows": Rows(iter(rows)), "after": 2})

    assert answer == {"before": 1, "rows": rows, "after": 2}
    assert shown(Rows(iter(rows))) == rows


def test_columns_choose_among_the_lists_too() -> None:
    answer = shown({"name": "q", "rows": Rows([1]), "more": 2}, View(columns="rows,more"))

    assert answer == {"rows": [1], "more": 2}
