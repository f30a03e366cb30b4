"""Objects in the order of their keys, against a plain dict."""

from hypothesis import given
from hypothesis import strategies as st

from holtmq.ordered_table import OrderedTable

_NAME = st.sampled_from(["", "a", "a\0", "b", "ab"])
_KEY = st.tuples(_NAME, _NAME)
_STEP = st.one_of(
    st.tuples(st.just("put"), _KEY),
    st.tuples(st.just("remove"), _KEY),
    st.tuples(st.just("under"), _NAME),
    st.tuples(st.just("at"), _NAME),
)
Row = tuple[str, str, int]


def key_of(row: Row) -> tuple[str, str]:
    return row[0], row[1]


@given(st.lists(_STEP, max_size=40))
def test_a_table_holds_what_a_dict_would_and_in_order(steps: list[tuple[str, object]]) -> None:
    table: OrderedTable[tuple[str, str], Row] = OrderedTable(key_of)
    model: dict[tuple[str, str], Row] = {}
    for number, (what, given_one) in enumerate(steps):
        if isinstance(given_one, tuple):
            key: tuple[str, str] = given_one
            if what == "put":
                model[key] = (*key, number)
                table.put(model[key])
            else:
                assert table.remove(key) == (model.pop(key, None) is not None)
        else:
            place = 0 if what == "under" else 1
            gone = [one for _, one in sorted(model.items()) if one[place] == given_one]
            name = str(given_one)
            taken = table.remove_under(name) if what == "under" else table.remove_at(1, name)
            assert sorted(taken) == gone
            model = {key: one for key, one in model.items() if key[place] != given_one}
        assert table.under() == [one for _, one in sorted(model.items())]
        assert table.under("a") == [one for key, one in sorted(model.items()) if key[0] == "a"]
        assert len(table) == len(model)
        assert all(key in table and table.get(key) == one for key, one in model.items())
