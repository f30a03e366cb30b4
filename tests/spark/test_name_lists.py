"""A comma separates names; with a backslash before it, it is part of one."""

import pytest

from holtmq.spark.name_lists import join_names, split_names
from holtmq.spark.options import source_options


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("orders", ("orders",)),
        (" orders , returns,orders,", ("orders", "returns")),
        (r"a\,b", ("a,b",)),
        (r"a\,b, c", ("a,b", "c")),
        (r"folder\name", (r"folder\name",)),
        ("", ()),
    ],
)
def test_names_are_read_from_a_list(text: str, names: tuple[str, ...]) -> None:
    assert split_names(text) == names
    assert split_names(join_names(names)) == names


def test_the_source_reads_a_queue_with_a_comma_in_its_name() -> None:
    options = source_options({"url": "http://127.0.0.1:1", "queue": r"a\,b,c"}, streaming=True)

    assert options.selection.queues == ("a,b", "c")
