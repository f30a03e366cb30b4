"""A page of a long list is the page of the list sorted at once."""

import asyncio
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.http.dashboard import ordering


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "_SORTED_AT_ONCE", 4)
        patch.setattr(ordering, "_NEAR", 6)
        yield


@given(st.lists(st.integers(0, 9), max_size=40), st.booleans(), st.integers(0, 45), st.integers(1, 12))
def test_a_page_from_the_front_the_back_and_the_middle(
    values: list[int], descending: bool, skip: int, limit: int
) -> None:
    rows = [(value, place) for place, value in enumerate(values)]

    page = asyncio.run(ordering.ordered_page(rows, lambda row: (row[0],), descending, skip, limit))

    in_order = sorted(rows, key=itemgetter(0), reverse=descending)  # ties keep their order
    assert page == in_order[skip : skip + limit]
