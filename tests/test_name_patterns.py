"""Expressions over names: what people write is taken, and nothing that is taken can stall the broker."""

import pytest

from holtmq.name_patterns import BadPattern, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"shop\..*", "shop.orders"),
        (r".*orders.*", "all-orders-2026"),
        (r"shop\.(orders|clicks)", "shop.clicks"),
        (r"(?:eu|us)-(orders|clicks)-\d{4}", "us-orders-2026"),
        (r"[^]x]+-[\]a-z]*", "ab-]"),
        (r"a{2,3}b{0,2}c{1}", "aaac"),
        (r"(eu-)?orders", "orders"),
        (r"a+?b*", "aab"),
        (r".*", "two\nlines"),
        (r"q\+\*\(", "q+*("),
        (r"(?i)ORDERS", "orders"),
        (r"(a+)+b", "aab"),
        (r"gr.n\.\w", "grün.1"),
    ],
)
def test_what_people_write_is_taken(pattern: str, name: str) -> None:
    assert compile_pattern(pattern).covers(name)
    assert compile_pattern(pattern).found_in(name.partition("\n")[0])


def test_found_is_anywhere_and_covered_is_all() -> None:
    pattern = compile_pattern("order")

    assert pattern.found_in("my-orders")
    assert not pattern.covers("my-orders")
    assert pattern.covers("order")
    assert not compile_pattern("^order$").found_in("order\n")  # PCRE's dollar would match here


@pytest.mark.parametrize(
    "pattern", [r"^(a+)+$", r"(a|a)*b", r"(a|aa){40}b", r"(a?){40}a{40}", r"(.*)*x", r"a*" * 6 + "b"]
)
def test_what_would_run_for_years_elsewhere_ends(pattern: str) -> None:
    assert not compile_pattern(pattern).covers("a" * 250 + "!")
    assert not compile_pattern(pattern).covers("\udcff" * 250)  # no text, and no error either


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(?=a)b", "a lookahead"),
        ("^(?!amq)", "a negative lookahead"),
        ("(?<=a)b", "a lookbehind"),
        ("(?<!a)b", "a negative lookbehind"),
        (r"(a)\1", r"a backreference, \\1"),
        (r"(?<n>a)\k<n>", "a backreference"),
        ("(?P<n>a)(?P=n)", "a reference to a named group"),
        ("(?>a)b", "an atomic group"),
        ("(a)?(?(1)b|c)", "a condition"),
        ("(?#why)a", "a comment"),
        ("a++b", "a possessive repetition"),
        (r"a\Z", r"the escape \\Z"),
    ],
)
def test_what_only_pcre_has_is_refused_by_its_name(pattern: str, construct: str) -> None:
    with pytest.raises(BadPattern, match=f"uses {construct}.*RE2"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", "[", "*", "a**", "a{3,2}", "\\", "a{99999}", "(?", "((a{99}){99}){99}", "\udcff"]
)
def test_what_is_no_expression_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(BadPattern, match=r"is not a regular expression: .+"):
        compile_pattern(pattern)


def test_a_pattern_has_a_longest() -> None:
    with pytest.raises(BadPattern, match="longer than 4096"):
        compile_pattern("a" * 4097)
