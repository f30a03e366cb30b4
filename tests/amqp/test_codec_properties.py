"""Message properties: whole, as facts, and rewritten in place."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import (
    ContentHeader,
    Properties,
    body_size,
    decode_properties,
    encode_header,
    encode_properties,
    raw_headers,
    read_content_header,
    with_added_headers,
    with_headers,
    with_reply_to,
)
from holtmq.wire.tables import Timestamp, decode_table, encode_table

NAMES = st.none() | st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
HEADERS = st.dictionaries(
    st.text(max_size=10), st.integers(-99, 99) | st.text() | st.booleans() | st.none(), max_size=4
)
PROPERTIES = st.builds(
    Properties,
    content_type=NAMES,
    content_encoding=NAMES,
    headers=st.none() | HEADERS,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=NAMES,
    reply_to=NAMES,
    expiration=NAMES,
    message_id=NAMES,
    timestamp=st.none()
    | st.integers(2**40, 2**64 - 1).map(Timestamp)
    | st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    type=NAMES,
    user_id=NAMES,
    app_id=NAMES,
    cluster_id=NAMES,
)
FULL = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"a": 1},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    type="t",
    user_id="u",
    app_id="a",
    cluster_id="",
)
# By hand from the specification, so that a slip in the table of names cannot agree with itself.
FULL_BYTES = (
    b"\xff\xfc\x0atext/plain\x05utf-8\x00\x00\x00\x07\x01aI\x00\x00\x00\x01\x02\x07\x01c\x01r\x0560000\x01m"
    b"\x00\x00\x00\x00\x65\x93\x7d\x25\x01t\x01u\x01a\x00"
)


def test_all_properties_have_their_bytes_from_the_specification() -> None:
    assert encode_properties(FULL) == FULL_BYTES
    assert decode_properties(FULL_BYTES) == FULL


def test_no_properties_are_two_zero_bytes() -> None:
    assert encode_properties(Properties()) == b"\0\0"
    assert decode_properties(b"\0\0") == Properties()


def test_properties_are_read_where_they_stand_in_a_content_header() -> None:
    assert decode_properties(encode_header(5, FULL_BYTES), 12) == FULL


@given(PROPERTIES)
def test_any_properties_come_back_as_they_were(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(PROPERTIES)
def test_properties_cut_anywhere_or_followed_by_more_are_refused(properties: Properties) -> None:
    wire = encode_properties(properties)
    for broken in [wire[:cut] for cut in range(len(wire))] + [wire + b"\0"]:
        with pytest.raises(CodecError):
            decode_properties(broken)
        with pytest.raises(CodecError):
            read_content_header(encode_header(0, broken))


@given(st.binary(max_size=100))
def test_random_bytes_are_properties_or_a_codec_error(data: bytes) -> None:
    for read in (
        lambda: decode_properties(data),
        lambda: decode_properties(data, 12),
        lambda: read_content_header(data),
        lambda: read_content_header(encode_header(1, data)),
        lambda: raw_headers(data),
        lambda: with_headers(data, {"k": 1}, True),
        lambda: with_reply_to(data, "r"),
    ):
        with suppress(CodecError):
            read()


@pytest.mark.parametrize("flags", [0x0001, 0x0002, 0x8001])
def test_flags_of_properties_that_do_not_exist_are_refused(flags: int) -> None:
    with pytest.raises(CodecError, match="do not exist"):
        decode_properties(struct.pack(">H", flags) + b"\0")


@pytest.mark.parametrize(
    "properties",
    [Properties(priority=256), Properties(delivery_mode=-1), Properties(message_id="x" * 256)],
)
def test_a_property_that_does_not_fit_is_refused(properties: Properties) -> None:
    with pytest.raises(CodecError, match="property"):
        encode_properties(properties)


def test_facts_are_what_the_broker_needs() -> None:
    read = read_content_header(encode_header(1234, FULL_BYTES))

    assert read == ContentHeader(
        body_size=1234,
        delivery_mode=2,
        priority=7,
        expiration=b"60000",
        headers_at=(19, 30),
        reply_to="r",
        user_id="u",
    )
    assert read.headers_at is not None
    assert decode_table(FULL_BYTES[slice(*read.headers_at)])[0] == {"a": 1}


def test_facts_of_a_bare_message_are_empty() -> None:
    read = read_content_header(encode_header(0, b"\0\0"))

    assert read == ContentHeader(0, 0, None, None, None, None, None)


@given(PROPERTIES)
def test_facts_agree_with_the_whole_properties(properties: Properties) -> None:
    read = read_content_header(encode_header(2**64 - 1, encode_properties(properties)))

    assert read.body_size == 2**64 - 1
    assert read.delivery_mode == (properties.delivery_mode or 0)
    assert read.priority == properties.priority
    assert (read.expiration is None) == (properties.expiration is None)
    assert (read.expiration or b"").decode("utf-8", "surrogateescape") == (properties.expiration or "")
    assert (read.headers_at is None) == (properties.headers is None)
    assert read.reply_to == properties.reply_to
    assert read.user_id == properties.user_id


def test_facts_do_not_look_into_the_headers() -> None:
    broken_inside = b"\x20\x00\x00\x00\x00\x03\x01k?"

    assert read_content_header(encode_header(0, broken_inside)).headers_at == (2, 9)
    with pytest.raises(CodecError, match="unknown type"):
        raw_headers(broken_inside)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (struct.pack(">HHQH", 50, 0, 0, 0), "class 50"),
        (struct.pack(">HHQH", 60, 1, 0, 0), "weight 1"),
        (struct.pack(">HHQ", 60, 0, 0), "property flags"),
        (b"\x00\x3c", "content header of 2 bytes"),
    ],
)
def test_a_content_header_that_is_not_one_is_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        read_content_header(payload)


def test_a_body_size_has_eight_bytes() -> None:
    assert body_size(encode_header(2**64 - 1, b"\0\0")) == 2**64 - 1
    with pytest.raises(CodecError, match="body size"):
        encode_header(2**64, b"\0\0")


def test_raw_headers_of_a_message_without_any_are_empty() -> None:
    assert raw_headers(b"\0\0") == {}
    assert raw_headers(FULL_BYTES) == {"a": 1}


@given(PROPERTIES, st.none() | HEADERS, st.booleans())
def test_new_headers_leave_every_other_property_alone(
    properties: Properties, headers: dict[str, int | str | bool | None] | None, drop_expiration: bool
) -> None:
    rewritten = decode_properties(with_headers(encode_properties(properties), headers, drop_expiration))

    properties.headers = None if headers is None else {**headers}
    if drop_expiration:
        properties.expiration = None
    assert rewritten == properties


def test_a_header_that_did_not_change_keeps_its_bytes() -> None:
    # int8, float32, int64 "L" and a string of binary: encoded anew, each would get another type.
    kept = b"\x01bb\x05" + b"\x01ff\x3f\x00\x00\x00" + b"\x01LL" + bytes(8) + b"\x01SS\x00\x00\x00\x01\xff"
    old = b"\x20\x00" + struct.pack(">I", len(kept) + 4) + kept + b"\x01xt\x01"

    headers = raw_headers(old)
    headers["x"] = 1  # equal to True in Python, another type on the wire
    headers["new"] = "n"

    assert with_headers(old, headers, drop_expiration=True) == (
        b"\x20\x00"
        + struct.pack(">I", len(kept) + 7 + 10)
        + kept
        + b"\x01xI\x00\x00\x00\x01"
        + b"\x03newS\x00\x00\x00\x01n"
    )


def test_headers_that_cannot_be_read_can_still_be_replaced() -> None:
    broken_inside = b"\x20\x00\x00\x00\x00\x03\x01k?"

    assert with_headers(broken_inside, {"k": "v"}, False) == b"\x20\x00" + encode_table({"k": "v"})


@given(PROPERTIES)
def test_a_new_reply_to_leaves_every_other_property_alone(properties: Properties) -> None:
    rewritten = decode_properties(with_reply_to(encode_properties(properties), "amq.rabbitmq.reply-to.x"))

    properties.reply_to = "amq.rabbitmq.reply-to.x"
    assert rewritten == properties


@given(PROPERTIES, st.sampled_from(["count", "k", ""]), st.booleans())
def test_one_header_is_set_as_all_would_be(properties: Properties, name: str, is_there: bool) -> None:
    if is_there:
        properties.headers = {"first": "count k", name: 7, **(properties.headers or {})}
    data = encode_properties(properties)

    changed = with_added_headers(data, {name: 9})

    assert list(raw_headers(changed)) == [*(key for key in raw_headers(data) if key != name), name]
    assert changed != data
    old = {key: value for key, value in raw_headers(data).items() if key != name}
    assert changed == with_headers(data, {**old, name: 9}, drop_expiration=False)


def test_one_header_is_set_beside_others_that_cannot_be_read() -> None:
    broken = b"\x20\x00\x00\x00\x00\x03\x01k?"
    broken_with_the_name = b"\x20\x00\x00\x00\x00\x05\x01k?\x01n"

    assert with_added_headers(broken, {"n": 1}) == b"\x20\x00\x00\x00\x00\x0a\x01k?\x01nI\x00\x00\x00\x01"
    assert with_added_headers(broken_with_the_name, {"n": 1}) == b"\x20\x00" + encode_table({"n": 1})
