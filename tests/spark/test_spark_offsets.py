"""Offsets in a checkpoint: what they say, what they survive, where a query starts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.spark.errors import DataLoss, InvalidOption
from holtmq.spark.offset_bounds import EARLIEST, LATEST, Bound
from holtmq.spark.offsets import (
    Head,
    Mark,
    check_inside,
    decode_marks,
    describe_gap,
    encode_marks,
    queue_of,
    resolve,
)

ORDERS = Head("orders", 7, 10, 100, 90)
CLICKS = Head("clicks", 8, 0, 5, 5)


def test_an_offset_without_holes_is_a_bare_number() -> None:
    encoded = encode_marks({"orders#7": 10}, {"orders#7": Mark(50, 40, 100, 50, 10)})

    assert encoded == {"orders#7": 50}
    assert decode_marks(encoded, {"orders#7": Mark(10, 0, 10, 0)}) == {"orders#7": Mark(50, 40, 50, 0, 10)}


def test_holes_are_written_down() -> None:
    marks = {"orders#7": Mark(50, 38, 100, 49, 10)}

    encoded = encode_marks({"orders#7": 10}, marks)

    assert encoded == {"orders#7": [50, 38, 100, 49, 10]}
    assert decode_marks(encoded) == marks


def test_a_queue_that_is_new_says_where_its_first_batch_began() -> None:
    encoded = encode_marks({}, {"new#9": Mark(5, 5, 5, 0, 0)})

    assert decode_marks(encoded)["new#9"].first == 0


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.data())
def test_what_is_encoded_is_what_is_decoded(first: int, size: int, backlog: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, size))
    waiting = data.draw(st.integers(0, backlog))
    mark = Mark(first + size, rows, first + size + backlog, waiting, first)
    known = data.draw(st.booleans())
    start = {"q#1": Mark(first, 0, first, 0)} if known else {}

    (decoded,) = decode_marks(encode_marks(start, {"q#1": mark}), start).values()

    assert (decoded.next, decoded.rows, decoded.first) == (mark.next, mark.rows, mark.first)
    assert all(decoded.expected(mark.seen + more) == mark.expected(mark.seen + more) for more in (0, 7))


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(InvalidOption, match="not an offset of this source"):
        decode_marks({"orders#7": {"0": 5}})


def test_a_queue_with_a_hash_in_its_name_keeps_it() -> None:
    assert queue_of("a#b#12") == "a#b"


def test_words_numbers_and_times_become_offsets() -> None:
    heads = [ORDERS, CLICKS]

    assert resolve(Bound(word=EARLIEST), heads, {}, "x") == {"orders#7": 10, "clicks#8": 0}
    assert resolve(Bound(word=LATEST), heads, {}, "x") == {"orders#7": 100, "clicks#8": 5}
    assert resolve(Bound(timestamp_us=1), heads, {"orders": 40, "clicks": 2}, "x") == {
        "orders#7": 40,
        "clicks#8": 2,
    }
    given = Bound(offsets=(("orders", 55), ("clicks", LATEST)))
    assert resolve(given, heads, {}, "x") == {"orders#7": 55, "clicks#8": 5}


def test_json_offsets_must_name_exactly_the_queues_that_are_read() -> None:
    with pytest.raises(InvalidOption, match="no offset for queue clicks"):
        resolve(Bound(offsets=(("orders", 1),)), [ORDERS, CLICKS], {}, "startingOffsets")
    with pytest.raises(InvalidOption, match="clicks, which this query does not read"):
        resolve(Bound(offsets=(("orders", 1), ("clicks", 1))), [ORDERS], {}, "startingOffsets")


def test_an_offset_outside_of_the_queue_is_a_loss_or_is_moved_inside() -> None:
    with pytest.raises(DataLoss, match="8 are gone"):
        check_inside({"orders#7": 2}, [ORDERS], "startingOffsets", fail=True)
    with pytest.raises(DataLoss, match="ends at 100"):
        check_inside({"orders#7": 101}, [ORDERS], "startingOffsets", fail=True)
    assert check_inside({"orders#7": 2}, [ORDERS], "startingOffsets", fail=False) == {"orders#7": 10}
    assert check_inside({"orders#7": 101}, [ORDERS], "startingOffsets", fail=False) == {"orders#7": 100}


def test_a_gap_is_named() -> None:
    text = describe_gap("orders", 5, 100, 95, 60, 40)

    assert "queue orders lost 35 of 95 unread messages" in text
    assert "offsets 5 to 39" in text
