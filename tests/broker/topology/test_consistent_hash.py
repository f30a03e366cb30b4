from collections import Counter
from hashlib import blake2b

import pytest

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.consistent_hash import MAX_WEIGHT, HashRing, _points_of, parse_weight

KEYS = [f"key-{at}" for at in range(20_000)]


def ring_of(weights: dict[str, int]) -> HashRing[str]:
    ring: HashRing[str] = HashRing()
    for name, weight in weights.items():
        ring.add(name, name, weight, name)
    return ring


def owners(ring: HashRing[str]) -> dict[str, str]:
    found = {key: ring.owner(key) for key in KEYS}
    return {key: owner for key, owner in found.items() if owner is not None}


def test_a_key_belongs_to_the_next_point_clockwise() -> None:
    members = {"a": 1, "b": 2}
    points = sorted((point, name) for name, weight in members.items() for point in _points_of(name, weight))
    ring = ring_of(members)

    for key in KEYS[:5000]:  # enough that some lie past the last point, and go round to the first
        place = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
        assert ring.owner(key) == next((name for point, name in points if point > place), points[0][1])
    assert len(points) == 3 * 64


def test_an_empty_ring_owns_nothing() -> None:
    ring = ring_of({"a": 1})
    ring.remove("a")

    assert ring.owner("key") is None


def test_the_ring_is_the_same_in_every_process() -> None:
    ring = ring_of({"a": 1, "b": 1, "c": 1})

    # Written down once: a change here would re-route every key of every user after an upgrade.
    assert "".join(str(ring.owner(f"k{at}")) for at in range(24)) == "ccacaccbbcbacaacbcaabbba"


def test_the_order_of_arrival_does_not_matter() -> None:
    assert owners(ring_of({"a": 2, "b": 1, "c": 3})) == owners(ring_of({"c": 3, "a": 2, "b": 1}))


def test_a_new_member_takes_its_share_and_no_other_key_moves() -> None:
    ring = ring_of({f"q{at}": 1 for at in range(10)})
    before = owners(ring)

    ring.add("new", "new", 1, "new")

    after = owners(ring)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert 0.5 < len(moved) / (len(KEYS) / 11) < 1.5


def test_a_member_that_goes_gives_back_only_its_own_keys() -> None:
    ring = ring_of({f"q{at}": 1 for at in range(10)})
    before = owners(ring)

    ring.remove("q3")

    after = owners(ring)
    assert {before[key] for key in KEYS if before[key] != after[key]} == {"q3"}


def test_a_higher_weight_only_gains_keys() -> None:
    before = owners(ring_of({"a": 1, "b": 1}))

    after = owners(ring_of({"a": 3, "b": 1}))

    assert all(after[key] == "a" for key in KEYS if before[key] == "a")


def test_load_follows_the_weights() -> None:
    load = Counter(owners(ring_of({"a": 1, "b": 2, "c": 5})).values())

    for name, weight in {"a": 1, "b": 2, "c": 5}.items():
        assert load[name] / len(KEYS) == pytest.approx(weight / 8, rel=0.3)


def test_equal_members_carry_about_the_same() -> None:
    load = Counter(owners(ring_of({f"q{at}": 1 for at in range(10)})).values())

    assert len(load) == 10
    assert max(load.values()) < 1.4 * len(KEYS) / 10


@pytest.mark.parametrize(
    ("text", "weight"), [("1", 1), ("10", 10), ("007", 7), (str(MAX_WEIGHT), MAX_WEIGHT)]
)
def test_a_weight_is_a_positive_integer_in_text(text: str, weight: int) -> None:
    assert parse_weight(text) == weight


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "ten", " 1", "٣", "1_0", str(MAX_WEIGHT + 1)])
def test_any_other_weight_is_refused_by_name(text: str) -> None:
    with pytest.raises(Conflict) as refused:
        parse_weight(text)

    assert f"'{text}'" in str(refused.value)
