"""Stored messages on their way to AMQP consumers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body, decode_body, encode_bodies, encode_body
from holtmq.broker.streams.envelopes import Showing, message_of, to_body, to_payload
from holtmq.wire.properties import PROPERTIES_AT, Properties, decode_properties, encode_properties

EDGES = st.one_of(st.integers(0, 300), st.integers(0x7FFF_FFF0, 0x8000_0010), st.integers(0, 1 << 62))
HEADERS = st.dictionaries(
    st.sampled_from(["x-stream-offset", "x-partition", "a", "z"]), st.one_of(st.integers(0, 300), st.text())
)
FACTS = st.builds(
    lambda headers, expiration, priority: AmqpMetadata(
        "ex",
        "key",
        encode_properties(Properties(headers=headers, expiration=expiration, delivery_mode=2, app_id="app")),
        priority,
    ),
    st.one_of(st.none(), HEADERS),
    st.one_of(st.none(), st.just("1000")),
    st.integers(0, 9),
)
PAYLOADS = st.binary().map(to_payload)  # a log holds JSON and nothing else


def fields(message: Message) -> tuple[object, ...]:
    return tuple(getattr(message, name) for name in message.__struct_fields__)


@given(
    st.lists(st.one_of(st.none(), FACTS), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["p", "q"]), EDGES, PAYLOADS), max_size=12),
)
def test_messages_shown_one_after_the_other_are_what_each_would_be_alone(
    kinds: list[AmqpMetadata | None], rows: list[tuple[int, str, int, bytes]]
) -> None:
    showing = Showing("queue")
    for kind, partition, offset, payload in rows:
        body = Body(f"id-{offset}", payload, metadata=kinds[kind % len(kinds)])

        shown = showing.message(partition, offset, offset + 5, body)

        assert fields(shown) == fields(message_of("queue", partition, offset, offset + 5, body))


def test_a_publisher_s_own_header_of_that_name_does_not_mislead() -> None:
    showing = Showing("queue")
    octet = b"\x20\x00" + b"\x00\x00\x00\x12" + b"\x0fx-stream-offset" + b"b\x07"  # as a byte, and it is 7
    metadata = AmqpMetadata("", "key", octet, 0)

    for offset in (7, 7, 8, 9):
        body = Body("id", b"1", metadata=metadata)
        shown = showing.message("p", offset, 0, body)

        assert fields(shown) == fields(message_of("queue", "p", offset, 0, body))


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'{"a":[1,-0.5e3,"\\u00e9",null]}', b'{"a":[1,-0.5e3,"\\u00e9",null]}'),
        ('{"a":"é"}'.encode(), '{"a":"é"}'.encode()),
        (b'{"a":1e999}', b'{"a":1e999}'),  # beyond a double, but JSON
        (b'{"a":"\xff"}', b'{"$base64":"eyJhIjoi/yJ9"}'),
        (b"[1,]", b'"[1,]"'),
        (b'{"a":1}x', b'"{\\"a\\":1}x"'),
        (b'["\\ud800"]', b'"[\\"\\\\ud800\\"]"'),
        (b'"text"', b'"\\"text\\""'),
        (b"", b'""'),
    ],
)
def test_only_json_is_stored_unchanged_and_every_body_comes_back(body: bytes, payload: bytes) -> None:
    assert to_payload(body) == payload
    assert to_body(payload) == body


@given(st.lists(st.tuples(st.sampled_from(["", "ex", "é"]), st.sampled_from(["k", "\udcff.x"]), st.binary())))
def test_messages_encoded_together_are_what_each_would_be_alone(rows: list[tuple[str, str, bytes]]) -> None:
    metadata = [AmqpMetadata(exchange, key, header, 3) for exchange, key, header in rows]
    bodies = [Body(f"id-{at}", b"1", metadata=one) for at, one in enumerate(metadata)]

    assert encode_bodies(bodies) == [encode_body(body) for body in bodies]


def test_what_neighbours_share_in_the_journal_is_shared_in_memory() -> None:
    metadata = AmqpMetadata("ex", "key \udcff", encode_properties(Properties(app_id="app")), 3)
    records = [encode_body(Body(name, b"1", metadata=metadata)) for name in "ab"]

    first, second = (decode_body(record, None) for record in records)

    assert first.metadata == metadata
    assert first.metadata is second.metadata


def test_headers_that_are_no_table_are_delivered_as_they_are() -> None:
    """No rule decodes them at the publish; a consumer that does sees its own error."""
    broken = b"\x20\x00" + b"\x00\x00\x00\x04" + b"\x02kk!"
    showing = Showing("queue")
    body = Body("id", b"1", metadata=AmqpMetadata("", "key", broken, 0))

    shown = [showing.message("p", offset, 0, body) for offset in (1, 2, 3)]

    assert [message.header.count(b"\x02kk!") for message in shown] == [1, 1, 1]
    assert [fields(message) for message in shown] == [
        fields(message_of("queue", "p", offset, 0, body)) for offset in (1, 2, 3)
    ]


@given(FACTS, EDGES, st.text())
def test_a_consumer_sees_the_publisher_s_headers_and_where_the_message_is(
    metadata: AmqpMetadata, offset: int, partition: str
) -> None:
    shown = message_of("queue", partition, offset, 0, Body("id", b"1", metadata=metadata))

    before, after = decode_properties(metadata.header), decode_properties(shown.header, PROPERTIES_AT)

    place = {"x-stream-offset": offset, "x-partition": partition}
    assert after.headers == {**(before.headers or {}), **place}
    assert replace(after, headers=before.headers) == before
