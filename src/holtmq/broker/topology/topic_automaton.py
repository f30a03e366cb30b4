"""Topic matching with one table lookup for each word of a key.

Owns: the states, created on demand. A state is the set of trie nodes that match the words so far. It has
the next state for each literal word of those nodes, and one for all other words, so its size depends on the
bindings and not on the keys. Must not touch: the trie. A change of the bindings needs a new automaton.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final, Generic, TypeVar

from holtmq.broker.topology.topic_trie import TopicTrie, TrieNode, enter

T = TypeVar("T")
R = TypeVar("R")

_WORDS_MAX: Final = 65_536  # in all states together; above it, all states are dropped
_STATE: Final = 4  # a state takes as much memory as so many words
_LISTED_MAX: Final = 100  # literal words that a state lists when it is created: about 10 µs


class TopicState(Generic[T, R]):
    """The trie nodes that match some words.

    ``following`` has None for states not created yet. A state with very many literal words does not list them
    (that would take longer than all else about a message): it has those that were asked for, and keeps the
    state for all other words in ``rest``, out of the way of a word that was not asked for yet.
    """

    __slots__ = ("following", "has_result", "is_listed", "known", "nodes", "other", "rest")

    def __init__(self, nodes: tuple[TrieNode[T], ...]) -> None:
        self.nodes = nodes
        self.is_listed = sum([len(node.children) for node in nodes]) <= _LISTED_MAX
        self.following: dict[bytes, TopicState[T, R] | None] = {}
        self.other: TopicState[T, R] | None = None
        self.rest: TopicState[T, R] | None = None
        self.has_result = False
        self.known: R  # set when ``has_result``
        self.forget()

    def forget(self) -> None:
        """Forget all following states."""
        self.other = self.rest = None
        self.following = {}
        if self.is_listed:
            self.following = dict.fromkeys(
                word.encode("utf-8", "surrogateescape") for node in self.nodes for word in node.children
            )

    def result(self, make: Callable[[list[T]], R]) -> R:
        """The result for the values that match here; computed once."""
        if not self.has_result:
            values = [node.values.values() for node in self.nodes]
            self.known = make(list(chain.from_iterable(values)))  # there may be 100,000
            self.has_result = True
        return self.known


class TopicAutomaton(Generic[T, R]):
    """The states over one trie, which must not change."""

    __slots__ = ("_states", "_words", "start")

    def __init__(self, trie: TopicTrie[T]) -> None:
        alive: dict[TrieNode[T], None] = {}
        enter(alive, trie.root)
        self._states: dict[frozenset[TrieNode[T]], TopicState[T, R]] = {}
        self._words = 0
        self.start = self._state(alive)

    def match(self, routing_key: bytes) -> TopicState[T, R]:
        """The state after all words of a key. (The publish path inlines this.)"""
        state = self.start
        if routing_key:  # the empty key has no words
            for word in routing_key.split(b"."):
                following = state.following.get(word, state.other)
                state = following if following is not None else self.extend(state, word)
        return state

    def extend(self, state: TopicState[T, R], word: bytes) -> TopicState[T, R]:
        """The state after one more word, created if needed."""
        text = word.decode("utf-8", "surrogateescape")
        if state.is_listed:
            literal = word in state.following
        else:
            literal = any(text in node.children for node in state.nodes)
            if not literal and state.rest is not None:
                return state.rest
        alive: dict[TrieNode[T], None] = {}
        for node in state.nodes:
            if node.is_any_words:
                enter(alive, node)
            if literal:
                enter(alive, node.children.get(text))
            enter(alive, node.one_word)
        found = self._state(alive)
        if literal:
            state.following[word] = found
            self._words += not state.is_listed
        elif state.is_listed:
            state.other = found
        else:
            state.rest = found
        return found

    @property
    def states(self) -> int:
        """How many states exist."""
        return len(self._states)

    def _state(self, alive: dict[TrieNode[T], None]) -> TopicState[T, R]:
        key = frozenset(alive)
        found = self._states.get(key)
        if found is None:
            if self._words > _WORDS_MAX:
                self._forget()
            found = self._states[key] = TopicState(tuple(alive))
            self._words += len(found.following) + _STATE
        return found

    def _forget(self) -> None:
        """Drop every state but the start state, and all references to them."""
        self._states.clear()
        start = self.start
        start.forget()
        self._states[frozenset(start.nodes)] = start
        self._words = len(start.following) + _STATE
