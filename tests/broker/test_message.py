"""A message's journal form gives back what went in."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.message import Message, decode_message, encode_message, make_address, placed

names = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(
    seq=st.integers(0, 2**63),
    exchange=names,
    key=names,
    header=st.binary(max_size=50),
    body=st.binary(max_size=50),
    arrived=st.integers(0, 2**48),
    expires=st.integers(0, 2**48),
    priority=st.integers(0, 255),
    persistent=st.booleans(),
    queues=st.lists(st.integers(0, 2**32 - 1), max_size=5),
)
def test_what_is_encoded_comes_back(
    seq: int,
    exchange: str,
    key: str,
    header: bytes,
    body: bytes,
    arrived: int,
    expires: int,
    priority: int,
    persistent: bool,
    queues: list[int],
) -> None:
    message = Message(seq, make_address(exchange, key), header, body, arrived, expires, priority, persistent)
    ids = struct.pack(f">{len(queues)}I", *queues)

    payload = encode_message(message, ids)
    back, back_ids = decode_message(payload, 77)
    found = placed(payload)

    assert (back.exchange, back.routing_key, back.header, back.body) == (exchange, key, header, body)
    assert (back.seq, back.arrived_ms, back.expires_ms) == (seq, arrived, expires)
    assert (back.priority, back.persistent, back.position) == (priority, persistent, 77)
    assert back_ids == ids
    assert found == (seq, expires, priority, tuple(queues), len(body))


@pytest.mark.parametrize("queues", [65_535, 65_536, 200_000])
def test_a_message_may_be_on_more_queues_than_its_head_can_count(queues: int) -> None:
    message = Message(1, make_address("x", "key"), b"header", b"body", 2, 3, 4, True)
    ids = struct.pack(f">{queues}I", *range(queues))

    payload = encode_message(message, ids)
    back, back_ids = decode_message(payload, 77)

    assert (back.exchange, back.routing_key, back.header, back.body) == ("x", "key", b"header", b"body")
    assert (back.persistent, back_ids) == (True, ids)
    assert placed(payload) == (1, 3, 4, tuple(range(queues)), 4)


def test_messages_are_equal_only_to_themselves() -> None:
    one = Message(1, make_address("", "q"), b"", b"", 0)
    other = Message(1, make_address("", "q"), b"", b"", 0)

    assert one == one
    assert one != other
