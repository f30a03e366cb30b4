"""Singular and plural in what commands print."""

import pytest

from holtmq.cli.wording import counted


@pytest.mark.parametrize(
    ("count", "plural", "text"),
    [
        (0, "queues", "0 queues"),
        (1, "streams", "1 stream"),
        (1, "policies", "1 policy"),
        (2, "users", "2 users"),
    ],
)
def test_a_number_has_the_right_form_of_its_noun(count: int, plural: str, text: str) -> None:
    assert counted(count, plural) == text
