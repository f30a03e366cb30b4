"""Methods to bytes and back: all of them, broken ones, unknown ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.amqp import methods as m
from holtmq.amqp.codec import UnknownMethod, decode_method, encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.methods import METHODS, Method
from holtmq.wire.primitives import CodecError

NAMES = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
BY_LETTER: dict[str, st.SearchStrategy[object]] = {
    "o": st.integers(0, 2**8 - 1),
    "h": st.integers(0, 2**16 - 1),
    "l": st.integers(0, 2**32 - 1),
    "q": st.integers(0, 2**64 - 1),
    "s": NAMES,
    "S": st.binary(max_size=300),
    "b": st.booleans(),
    "F": st.dictionaries(
        st.text(max_size=10), st.integers(-9, 9) | st.text() | st.lists(st.booleans()), max_size=3
    ),
}


def instances(kind: type[Method]) -> st.SearchStrategy[Method]:
    build: Callable[..., Method] = kind
    fields = [BY_LETTER[letter] for letter in kind.layout if letter in BY_LETTER]
    return st.tuples(*fields).map(lambda values: build(*values))


ANY_METHOD = st.sampled_from(METHODS).flatmap(instances)

# By hand from the specification's grammar: a layout that is wrong both ways would still round-trip.
BY_HAND: list[tuple[Method, bytes]] = [
    (
        m.ConnectionStartOk({"a": True}, "PLAIN", b"\0u\0p", "en_US"),
        b"\x00\x0a\x00\x0b\x00\x00\x00\x04\x01at\x01\x05PLAIN\x00\x00\x00\x04\0u\0p\x05en_US",
    ),
    (m.ConnectionTune(2047, 131072, 60), b"\x00\x0a\x00\x1e\x07\xff\x00\x02\x00\x00\x00\x3c"),
    (m.ConnectionOpen("/"), b"\x00\x0a\x00\x28\x01/\x00\x00"),
    (m.ConnectionOpenOk(), b"\x00\x0a\x00\x29\x00"),
    (m.ConnectionUpdateSecret(b"s", "r"), b"\x00\x0a\x00\x46\x00\x00\x00\x01s\x01r"),
    (m.ChannelOpenOk(), b"\x00\x14\x00\x0b\x00\x00\x00\x00"),
    (
        m.ChannelClose(404, "NOT_FOUND", 60, 40),
        b"\x00\x14\x00\x28\x01\x94\x09NOT_FOUND\x00\x3c\x00\x28",
    ),
    (
        m.ExchangeDeclare("e", "topic", durable=True, internal=True),
        b"\x00\x28\x00\x0a\x00\x00\x01e\x05topic\x0a\x00\x00\x00\x00",
    ),
    (m.ExchangeUnbindOk(), b"\x00\x28\x00\x33"),
    (
        m.QueueDeclare("q", passive=True, auto_delete=True, no_wait=True),
        b"\x00\x32\x00\x0a\x00\x00\x01q\x19\x00\x00\x00\x00",
    ),
    (m.QueueDeclareOk("q", 3, 4), b"\x00\x32\x00\x0b\x01q\x00\x00\x00\x03\x00\x00\x00\x04"),
    (m.QueueUnbind("q", "e", "k"), b"\x00\x32\x00\x32\x00\x00\x01q\x01e\x01k\x00\x00\x00\x00"),
    (m.BasicQos(0, 10, True), b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00\x0a\x01"),
    (m.BasicPublish("e", "k", mandatory=True), b"\x00\x3c\x00\x28\x00\x00\x01e\x01k\x01"),
    (m.BasicPublish("", "k", immediate=True), b"\x00\x3c\x00\x28\x00\x00\x00\x01k\x02"),
    (
        m.BasicDeliver("c", 258, True, "e", "k"),
        b"\x00\x3c\x00\x3c\x01c\x00\x00\x00\x00\x00\x00\x01\x02\x01\x01e\x01k",
    ),
    (m.BasicNack(1, multiple=False, requeue=True), b"\x00\x3c\x00\x78\x00\x00\x00\x00\x00\x00\x00\x01\x02"),
    (m.ConfirmSelect(no_wait=True), b"\x00\x55\x00\x0a\x01"),
    (m.TxRollbackOk(), b"\x00\x5a\x00\x1f"),
]


@pytest.mark.parametrize(("method", "wire"), BY_HAND, ids=[method.name for method, _ in BY_HAND])
def test_a_method_has_the_bytes_of_the_specification(method: Method, wire: bytes) -> None:
    assert encode_method(method) == wire
    assert decode_method(wire) == method


@pytest.mark.parametrize("kind", METHODS, ids=[kind.name for kind in METHODS])
@settings(max_examples=25)  # of each method; most have few fields
@given(data=st.data())
def test_every_method_comes_back_as_it_was(kind: type[Method], data: st.DataObject) -> None:
    method = data.draw(instances(kind))
    again = decode_method(encode_method(method))

    assert type(again) is kind
    assert again == method


@given(ANY_METHOD)
def test_a_method_cut_anywhere_or_followed_by_more_is_refused(method: Method) -> None:
    wire = encode_method(method)
    for broken in [wire[:cut] for cut in range(len(wire))] + [wire + b"\0"]:
        with pytest.raises(CodecError):
            decode_method(broken)


@given(st.binary(max_size=100))
def test_random_bytes_are_a_method_or_a_codec_error(data: bytes) -> None:
    refused_or_fine(data)


@given(st.sampled_from(METHODS), st.binary(max_size=100))
def test_random_fields_are_a_method_or_a_codec_error(kind: type[Method], data: bytes) -> None:
    refused_or_fine(struct.pack(">HH", kind.class_id, kind.method_id) + data)


@given(ANY_METHOD, st.data())
def test_a_method_with_one_wrong_byte_is_a_method_or_a_codec_error(
    method: Method, data: st.DataObject
) -> None:
    wire = bytearray(encode_method(method))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))

    refused_or_fine(bytes(wire))


def refused_or_fine(data: bytes) -> None:
    with suppress(CodecError):
        decode_method(data)


@pytest.mark.parametrize(("class_id", "method_id"), [(60, 41), (61, 10), (0, 0), (65535, 65535), (40, 41)])
def test_an_unknown_method_says_which_it_is(class_id: int, method_id: int) -> None:
    with pytest.raises(UnknownMethod, match=f"unknown method {method_id} of class {class_id}") as caught:
        decode_method(struct.pack(">HH", class_id, method_id))

    assert (caught.value.class_id, caught.value.method_id) == (class_id, method_id)


def test_an_error_names_the_method_and_the_field() -> None:
    with pytest.raises(CodecError, match=r"^queue\.declare: arguments: unknown type b'\?'"):
        decode_method(b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x03\x01k?")
    with pytest.raises(CodecError, match=r"^basic\.publish: routing_key needs 9 bytes"):
        decode_method(b"\x00\x3c\x00\x28\x00\x00\x00\x09k")
    with pytest.raises(CodecError, match=r"^queue\.declare: 2 bytes after the last field"):
        decode_method(encode_method(m.QueueDeclare("q")) + b"ab")


def test_reserved_fields_and_spare_bits_are_not_looked_at() -> None:
    assert decode_method(b"\x00\x0a\x00\x28\x01/\x03any\xff") == m.ConnectionOpen("/")
    assert decode_method(b"\x00\x3c\x00\x28\x00\x65\x00\x01k\xfd") == m.BasicPublish("", "k", True, False)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (m.QueueDeclare("q" * 256), "queue is 256 bytes long"),
        (m.QueueDeclare("é" * 128), "queue is 256 bytes long"),
        (m.ConnectionTune(65536, 0, 0), "channel_max cannot be 65536"),
        (m.BasicAck(-1), "delivery_tag cannot be -1"),
        (m.QueueDeclare("q", arguments={"k": 2**70}), "arguments: integer"),
        (m.QueueDeclare(None), "queue cannot be None"),  # type: ignore[arg-type]
        (m.QueueDeclare("q", arguments=None), "arguments cannot be a NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_method_that_does_not_fit_the_wire_is_refused(method: Method, reason: str) -> None:
    with pytest.raises(CodecError, match=f"^{method.name}: {reason}"):
        encode_method(method)


def test_a_refused_secret_is_not_quoted() -> None:
    with pytest.raises(CodecError, match="response cannot be a str") as caught:
        encode_method(m.ConnectionSecureOk("hunter2"))  # type: ignore[arg-type]

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "method",
    [
        m.ConnectionStartOk({}, "PLAIN", b"hunter2"),
        m.ConnectionSecureOk(b"hunter2"),
        m.ConnectionUpdateSecret(b"hunter2", "rotated"),
    ],
)
def test_a_secret_is_not_shown(method: Method) -> None:
    assert "hunter2" not in repr(method)


def test_methods_match_by_position() -> None:
    match decode_method(encode_method(m.BasicDeliver("c", 7, False, "e", "k"))):
        case m.BasicDeliver(tag, 7, redelivered, routing_key=key):
            assert (tag, redelivered, key) == ("c", False, "k")
        case other:
            pytest.fail(f"{other} did not match")


def test_methods_are_frozen_and_have_no_other_attributes() -> None:
    declare = m.QueueDeclare("q")

    with pytest.raises(FrozenInstanceError):
        declare.queue = "other"  # type: ignore[misc]
    assert not hasattr(declare, "__dict__")


@pytest.mark.parametrize("kind", METHODS, ids=[kind.name for kind in METHODS])
def test_names_numbers_and_layout_fit_the_class(kind: type[Method]) -> None:
    group, verb = kind.name.split(".")
    spelled = group.title() + "".join(part.title() for part in verb.split("-"))

    assert kind.__name__ == spelled
    assert getattr(m, kind.__name__) is kind
    assert sum(letter in BY_LETTER for letter in kind.layout) == len(kind.__match_args__)
    assert set(kind.layout) <= set(BY_LETTER) | set("HeEB")


def test_no_two_methods_share_a_number() -> None:
    assert len({(kind.class_id, kind.method_id) for kind in METHODS}) == len(METHODS) == 64


def test_reply_codes_have_the_names_rabbitmq_prints() -> None:
    assert ReplyCode(404).name == "NOT_FOUND"
    assert len(ReplyCode) == 19
