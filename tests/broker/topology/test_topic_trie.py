"""The trie against a matcher that is too simple to be wrong."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.broker.topology.topic_trie import TopicTrie, split_words


def naive_match(pattern: str, key: str) -> bool:
    wanted, given_words = tuple(split_words(pattern)), tuple(split_words(key))

    @cache
    def fits(at: int, word: int) -> bool:
        if at == len(wanted):
            return word == len(given_words)
        if wanted[at] == "#":
            return any(fits(at + 1, rest) for rest in range(word, len(given_words) + 1))
        return (
            word < len(given_words)
            and (wanted[at] == "*" or wanted[at] == given_words[word])
            and fits(at + 1, word + 1)
        )

    return fits(0, 0)


PATTERN = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
KEY = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


@settings(max_examples=500)
@given(st.lists(PATTERN, max_size=12), st.lists(KEY, min_size=1, max_size=6))
def test_the_trie_agrees_with_a_naive_matcher(patterns: list[str], keys: list[str]) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for at, pattern in enumerate(patterns):
        trie.add(pattern, at, at)

    for key in keys:
        assert sorted(trie.match(key)) == [at for at, p in enumerate(patterns) if naive_match(p, key)]


@settings(max_examples=300)
@given(st.lists(PATTERN, max_size=12), st.data())
def test_removed_patterns_leave_the_others_and_in_the_end_nothing(
    patterns: list[str], data: st.DataObject
) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for at, pattern in enumerate(patterns):
        trie.add(pattern, at, at)
    left = dict(enumerate(patterns))

    for at in data.draw(st.permutations(list(left))):
        assert trie.remove(left.pop(at), at)
        key = data.draw(KEY)
        assert sorted(trie.match(key)) == [at for at, p in left.items() if naive_match(p, key)]

    assert trie.is_empty


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("#", "", True),
        ("", "", True),
        ("*", "", False),
        ("*", "a", True),
        ("*.*", ".", True),
        ("*", ".", False),
        ("a.", "a.", True),
        ("a.", "a", False),
        (".a", ".a", True),
        ("a.#", "a", True),
        ("#.a", "a", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("#.#", "", True),
        ("#.*.#", "", False),
        ("#.*.#", "a", True),
        ("a.*.c", "a..c", True),
        ("a*", "ab", False),
        ("A", "a", False),
    ],
)
def test_star_is_one_word_and_hash_is_any_number(pattern: str, key: str, matches: bool) -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(pattern, 1, "here")

    assert trie.match(key) == (["here"] if matches else [])
    assert naive_match(pattern, key) is matches


def test_unrelated_patterns_cost_nothing() -> None:
    def cost_with(others: int) -> int:
        trie: TopicTrie[int] = TopicTrie()
        for at in range(others):
            trie.add(f"other{at}.*.#", at, at)
        trie.add("orders.*.eu", "it", -1)
        before = trie.visited
        assert trie.match("orders.new.eu") == [-1]
        return trie.visited - before

    assert cost_with(10_000) == cost_with(0) == 4


def test_many_hashes_cost_no_backtracking() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(".".join(["#", "a"] * 12), 1, "deep")

    assert trie.match(".".join(["a"] * 200 + ["b"])) == []

    assert trie.visited < 201 * 26  # words times nodes, not two to the power of either


def test_removing_what_is_not_there_changes_nothing() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.*", 1, "kept")

    assert not trie.remove("a.*", 2)
    assert not trie.remove("a.b", 1)
    assert not trie.remove("a", 1)
    assert trie.match("a.z") == ["kept"]
