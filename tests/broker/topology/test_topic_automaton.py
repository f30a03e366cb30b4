"""The automaton answers what the trie answers, for any bindings and keys."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holtmq.broker.topology import topic_automaton
from holtmq.broker.topology.topic_automaton import TopicAutomaton
from holtmq.broker.topology.topic_trie import TopicTrie

words = st.sampled_from(["a", "b", "c", "", "é", "\udcff", "*", "#"])
patterns = st.lists(st.lists(words, max_size=5).map(".".join), max_size=12)
listed = st.sampled_from([0, 2, 100])
keys = st.lists(st.lists(words, max_size=6).map(".".join), min_size=1, max_size=10)


def trie_of(patterns: list[str]) -> TopicTrie[str]:
    trie: TopicTrie[str] = TopicTrie()
    for pattern in patterns:
        trie.add(pattern, pattern, pattern)
    return trie


def matches(automaton: TopicAutomaton[str, list[str]], key: str) -> list[str]:
    return automaton.match(key.encode("utf-8", "surrogateescape")).result(sorted)


@given(patterns, keys, listed)
@example(["#"], [""], 0)
@example(["*"], ["", "."], 0)
@example(["#.a.#.b"], ["a.b", "a.a.c.b", "b"], 0)
@example(["a.#", "a.*", "a"], ["a", "a.b", "a.b.c"], 0)
def test_it_matches_what_the_trie_matches(patterns: list[str], keys: list[str], listed: int) -> None:
    trie = trie_of(patterns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_automaton, "_LISTED_MAX", listed)
        automaton: TopicAutomaton[str, list[str]] = TopicAutomaton(trie)
        for key in [*keys, *keys]:  # the second time every state is there
            assert matches(automaton, key) == sorted(trie.match(key))


@given(patterns, keys, listed)
def test_it_matches_the_same_while_it_forgets_its_states(
    patterns: list[str], keys: list[str], listed: int
) -> None:
    trie = trie_of(patterns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_automaton, "_WORDS_MAX", 2)
        patch.setattr(topic_automaton, "_LISTED_MAX", listed)
        automaton: TopicAutomaton[str, list[str]] = TopicAutomaton(trie)
        for key in [*keys, *keys]:
            assert matches(automaton, key) == sorted(trie.match(key))


def test_a_state_with_very_many_words_lists_only_those_that_were_asked_for() -> None:
    trie = trie_of(["#", *(f"user.{number}.#" for number in range(2_000))])
    automaton: TopicAutomaton[str, list[str]] = TopicAutomaton(trie)

    found = [matches(automaton, f"user.{number}.created") for number in range(1_990, 2_010)]

    assert found == [
        *(["#", f"user.{number}.#"] for number in range(1_990, 2_000)),
        *[["#"]] * 10,
    ]
    state = automaton.match(b"user")
    assert sorted(state.following) == [b"%d" % number for number in range(1_990, 2_000)]


@pytest.mark.parametrize("listed", [0, 100])
def test_keys_that_never_repeat_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, listed: int) -> None:
    monkeypatch.setattr(topic_automaton, "_LISTED_MAX", listed)
    automaton: TopicAutomaton[str, list[str]] = TopicAutomaton(trie_of(["load.*.q00.#", "load.*.q01.#"]))
    for number in range(20):
        matches(automaton, f"load.{number}.q00.{number}")
    before = automaton.states

    for number in range(20, 2000):
        matches(automaton, f"load.{number}.q00.{number}")

    assert automaton.states == before < 10
