"""A message's journal form gives back what went in."""

import struct

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


def test_messages_are_equal_only_to_themselves() -> None:
    one = Message(1, make_address("", "q"), b"", b"", 0)
    other = Message(1, make_address("", "q"), b"", b"", 0)

    assert one == one
    assert one != other
