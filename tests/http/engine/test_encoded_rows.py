"""Long answers that are encoded row by row, and pages of the newest of very many."""

import json
from random import Random

import pytest

from holtmq.http.engine.encoded_rows import EncodedObject, EncodedRows, pieces_of
from holtmq.http.engine.newest import Newest


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1_000])
def test_rows_and_members_are_the_same_json_as_if_they_were_encoded_together(count: int) -> None:
    rows, members = EncodedRows(), EncodedObject()
    for number in range(count):
        rows.append({"n": number, "text": 'a"b\u00e9'})
        members.put(f'k"{number}', [number])

    answer = pieces_of({"rows": rows, "total": count, "members": members})

    assert answer is not None
    body = answer.joined()
    assert json.loads(body) == {
        "rows": [{"n": number, "text": 'a"b\u00e9'} for number in range(count)],
        "total": count,
        "members": {f'k"{number}': [number] for number in range(count)},
    }


@pytest.mark.parametrize("counts", [[0], [3, 0, 200], [70, 1, 64, 5]])
@pytest.mark.parametrize("plain_between", [False, True])
def test_members_may_hold_rows_and_are_handed_on_in_pieces(counts: list[int], plain_between: bool) -> None:
    members = EncodedObject()
    wanted: dict[str, object] = {}
    for member, count in enumerate(counts):
        rows = EncodedRows()
        for number in range(count):
            rows.append({"n": number})
        members.put(f"m{member}", {"rows": rows, "count": count})
        wanted[f"m{member}"] = {"rows": [{"n": number} for number in range(count)], "count": count}
        if plain_between:
            members.put(f"p{member}", member)
            wanted[f"p{member}"] = member

    answer = pieces_of(members)

    assert answer is not None
    assert json.loads(answer.joined()) == wanted
    assert max(map(len, members.pieces())) < 64 * 12


def test_an_array_alone_is_an_answer_and_others_are_left_to_the_encoder() -> None:
    rows = EncodedRows()
    rows.append(1)

    alone = pieces_of(rows)

    assert alone is not None
    assert alone.joined() == b"[1]"
    assert pieces_of({"rows": [1]}) is None
    assert pieces_of([1]) is None


@pytest.mark.parametrize("seed", range(50))
def test_a_page_of_the_newest_is_that_of_all_in_order(seed: int) -> None:
    dice = Random(seed)
    ages = [(dice.randint(0, 9), dice.randint(0, 3)) for _ in range(dice.randint(0, 40))]
    skip, limit = dice.randint(0, 10), dice.randint(0, 10)
    newest = Newest[int](skip + limit)

    for number, age in enumerate(ages):
        newest.add(age, number)

    every = sorted(range(len(ages)), key=lambda number: ages[number], reverse=True)
    assert newest.page(skip) == every[skip : skip + limit]
    assert newest.count == len(ages)
