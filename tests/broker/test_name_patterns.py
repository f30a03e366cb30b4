"""Expressions over names: those that people write are taken, those that would never end are not."""

import re

import pytest

from holtmq.broker.errors import Conflict
from holtmq.broker.name_patterns import WAYS_MAX, compile_for


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"shop\..*", "shop.orders"),
        (r".*orders.*", "all-orders-2026"),
        (r"shop\.(orders|clicks)", "shop.clicks"),
        (r"(?:eu|us)-(orders|clicks)-\d{4}", "us-orders-2026"),
        (r"[^]x]+-[\]a-z]*", "ab-]"),
        (r"a{2,3}b{,2}c{1}", "aaac"),
        (r"x{}y{", "x{}y{"),
        (r"(eu-)?orders", "orders"),
        (r"a+?b*+", "aab"),
        (r".*", "two\nlines"),
        (r"q\+\*\(", "q+*("),
    ],
)
def test_what_people_write_is_taken(pattern: str, name: str) -> None:
    assert compile_for(pattern, 64).fullmatch(name)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",
        r"(a|a)*b",
        r"(?:a*)*b",
        r"(a|aa){40}b",
        r"(a?){40}a{40}",
        r"(.*)*x",
        r"a*" * 6 + "b",
        r"a?" * 40 + "a" * 40,
        r"a{0,}" * 6 + "b",
        r"a{,}" * 6 + "b",
        r"a{0,99999}" * 6 + "b",
        r"[a]*" * 6 + "b",
        r"[]a]*" * 6 + "b",
        r"\w*" * 6 + "b",
        r"(a|a)" * 40 + "b",
        r"(a*)\1\1b",
        r"(?=(a+))\1*b",
        r"(?i)a",
        r"(?P<n>a)(?P=n)",
        "a" * 2_000,
    ],
)
def test_what_could_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(Conflict):
        compile_for(pattern, 64)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a**", "a{3,2}", "\\", "a{99999999999999999999}", "(?"])
def test_what_is_no_expression_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(Conflict, match="not a regular expression"):
        compile_for(pattern, 64)


def test_the_longer_the_names_the_fewer_choices() -> None:
    pattern = r".*a.*b.*"
    assert compile_for(pattern, 100)
    assert 101**3 <= WAYS_MAX < 1025**3
    with pytest.raises(Conflict, match="so many choices"):
        compile_for(pattern, 1024)
    assert compile_for(r".*orders.*", 1024)


def test_what_is_taken_means_what_python_means() -> None:
    for pattern in (r"a|b.c", r"[\d_]{2,}", r"x?y+"):
        assert compile_for(pattern, 9).pattern == re.compile(pattern).pattern
