"""A sorted set in runs: the same as a sorted list after any history, and no run grows without bound."""

from random import Random

import pytest

from holtmq.broker.partitioned.extras import sorted_keys
from holtmq.broker.partitioned.extras.sorted_keys import SortedKeys


@pytest.mark.parametrize("most", [2, 3, 8])
def test_it_is_what_a_sorted_list_would_be_after_any_history(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(sorted_keys, "_MOST", most)
    random, keys, model = Random(most), SortedKeys[str](), set[str]()
    for _ in range(3_000):
        key = "".join(random.choices("abc", k=random.randrange(4)))
        if random.random() < 0.5:
            keys.add(key)
            model.add(key)
        else:
            keys.discard(key)
            model.discard(key)

        start = random.choice("abc")
        assert list(keys.starting("")) == sorted(model)
        assert list(keys.starting(start)) == sorted(one for one in model if one >= start)
        assert list(keys.behind(start)) == sorted(one for one in model if one > start)
        assert (len(keys), keys.first) == (len(model), min(model, default=None))


def test_a_change_among_very_many_entries_moves_few_of_them() -> None:
    keys = SortedKeys[str]()
    for number in range(20_000):
        keys.add(f"{number * 7_919 % 20_000:05}")
    for number in range(20_000, 30_000):
        keys.add(f"{number:05}")

    assert list(keys.starting("")) == [f"{number:05}" for number in range(30_000)]
    assert max(map(len, keys._runs)) <= 1_000
    assert len(keys._runs) < 80
