"""SQL filter expressions: what is true, what is unknown, what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.errors import Conflict
from holtmq.broker.streams.sql_filter import SqlFilter

FIELDS: dict[str, object] = {
    "a": 5,
    "b": 2.5,
    "name": "eu-west",
    "yes": True,
    "no": False,
    "x-odd name": "quoted",
    "percent": "50%",
}


def is_true(text: str) -> bool:
    return SqlFilter(text).accepts(FIELDS.get)


@pytest.mark.parametrize(
    "text",
    [
        "a = 5",
        "a<>6 AND a != 7",
        "a >= 5 and a <= 5.0 AND NOT a > 5",
        "b * 2 = a",
        "a + 1 * 2 = 7",
        "(a + 1) * 2 = 12",
        "a - 1 - 1 = 3",
        "-a = 0 - 5",
        "a % 3 = 2",
        "a / 2 = 2.5",
        "name = 'eu-west'",
        "name > 'a'",
        "name LIKE 'eu-%'",
        "name LIKE '__-west'",
        "name NOT LIKE 'us-%'",
        "percent LIKE '50!%' ESCAPE '!'",
        "name IN ('us', 'eu-west')",
        "a IN (1, 5.0)",
        "name NOT IN ('us')",
        "missing IS NULL",
        "name IS NOT NULL",
        "yes",
        "yes = TRUE AND NOT no",
        "no OR yes",
        "missing = 1 OR yes",
        "\"x-odd name\" = 'quoted'",
        "[x-odd name] = 'quoted'",
        "'it''s' = 'it''s'",
        "NOT (a = 1 AND missing = 2)",
        "1e3 = 1000",
    ],
)
def test_true(text: str) -> None:
    assert is_true(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = 6",
        "missing = 1",
        "NOT missing = 1",  # unknown, not true
        "missing <> 1",
        "missing NOT IN (1)",
        "missing NOT LIKE 'x'",
        "missing = 1 AND yes",
        "a = '5'",
        "a <> '5'",
        "yes = 1",
        "yes > no",
        "a / 0 = 1",
        "a % 0 = 1",
        "name + 1 = 2",
        "a",  # a number is no truth
        "name",
        "name LIKE 'EU-%'",
        "name LIKE 'eu.west'",
        "9999999999999999999 * 9999999999999999999 > 1",
    ],
)
def test_not_true(text: str) -> None:
    assert not is_true(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends too early: expected a value"),
        ("a =", "ends too early"),
        ("a = 5 5", "at character 7, '5': expected the end"),
        ("(a = 5", "ends too early: expected )"),
        ("a NOT 5", "expected IN or LIKE"),
        ("a LIKE b", "expected a 'text'"),
        ("a LIKE 'x' ESCAPE 'xy'", "not one character"),
        ("a LIKE 'x!' ESCAPE '!'", "ends with its ESCAPE"),
        ("a IS 5", "expected NULL"),
        ("a ; b", "at character 2"),
        ("a = 'open", "at character 4"),
        ("(" * 40 + "a" + ")" * 40, "nested deeper than 32"),
        ("NOT " * 100 + "a", "nested deeper than 32"),
        (" AND ".join(["a = 1"] * 200), "more than 512 words"),
        ("a = '" + "x" * 5000 + "'", "at most 4096"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(Conflict) as refused:
        SqlFilter(text)
    assert reason in str(refused.value)


@given(st.text(alphabet="ab().,'%=<>+-*/ ANDORTLIKEIS012\"[]", max_size=60))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        compiled = SqlFilter(text)
    except Conflict:
        return
    assert compiled.accepts(FIELDS.get) in (True, False)


def test_a_pattern_that_makes_backtracking_engines_hang_is_linear() -> None:
    """With a backtracking engine this never ends."""
    compiled = SqlFilter("text LIKE '" + "%a" * 100 + "%b'")

    assert not compiled.accepts({"text": "a" * 20_000}.get)


PATTERN_PARTS = st.lists(st.sampled_from(["%", "_", "a", "b", "ab", "ä", "\n", "%%"]), max_size=8)


@given(PATTERN_PARTS, st.text(alphabet="abä\n", max_size=12))
def test_like_is_what_the_regular_expression_says(parts: list[str], value: str) -> None:
    pattern = "".join(parts)
    wanted = re.compile(re.escape(pattern).replace("%", ".*").replace("_", "."), re.DOTALL)

    found = SqlFilter(f"text LIKE '{pattern}'").accepts({"text": value}.get)

    assert found is (wanted.fullmatch(value) is not None)


def test_like_of_a_very_long_value_is_unknown() -> None:
    within, beyond = {"text": "a" * 32_768}, {"text": "a" * 32_769}

    assert SqlFilter("text LIKE 'a%'").accepts(within.get)
    for text in ("text LIKE 'a%'", "NOT text LIKE 'b%'"):
        assert not SqlFilter(text).accepts(beyond.get)


def test_like_with_any_character_of_a_long_value_is_unknown() -> None:
    assert SqlFilter("text LIKE '_%'").accepts({"text": "a" * 1_024}.get)
    assert not SqlFilter("text LIKE '_%'").accepts({"text": "a" * 1_025}.get)


def test_like_of_bytes_that_are_no_text_is_unknown() -> None:
    assert not SqlFilter("p LIKE '_b'").accepts({"p": "\udcffb"}.get)
    assert not SqlFilter("NOT p LIKE '_b'").accepts({"p": "\udcffb"}.get)
    assert SqlFilter("p LIKE '%b'").accepts({"p": "\udcffb"}.get)
