"""An outside opinion: pamqp reads what we write, and we read what pamqp writes.

Within what pamqp can do: it refuses many legal names, narrows integers and floats, takes large timestamps for
milliseconds and negative decimals for large ones. Values below stay clear of that; our own tests cover the
rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pamqp.base
import pamqp.commands
import pamqp.frame
import pamqp.header
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import FRAME_HEADER, FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.methods import METHODS, Method
from holtmq.wire.properties import (
    Properties,
    decode_properties,
    encode_header,
    encode_properties,
    read_content_header,
)
from holtmq.wire.tables import FieldTable, FieldValue

RESERVED = {"ticket", "capabilities", "insist", "known_hosts", "out_of_band", "channel_id", "cluster_id"}

NAMES = st.text("abcXYZ019-_.:", max_size=100)
TIMES = st.integers(0, 2**32 - 1).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
VALUES: st.SearchStrategy[FieldValue] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False),
        st.text(),
        st.builds(lambda n, scale: Decimal(n).scaleb(-scale), st.integers(0, 2**31 - 1), st.integers(0, 9)),
        TIMES,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3),
    max_leaves=8,
)
TABLES: st.SearchStrategy[FieldTable] = st.dictionaries(st.text(max_size=20), VALUES, max_size=4)
BY_LETTER: dict[str, st.SearchStrategy[object]] = {
    "o": st.integers(0, 2**8 - 1),
    "h": st.integers(0, 2**16 - 1),
    "l": st.integers(0, 2**32 - 1),
    "q": st.integers(0, 2**63 - 1),
    "s": NAMES,
    "S": st.text(max_size=300).map(str.encode),
    "b": st.booleans(),
    "F": TABLES,
}
# pamqp warns of basic.recover-async whenever it makes one; we serve it all the same.
pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated in AMQP 0-9-1:DeprecationWarning")
EVERY_METHOD = pytest.mark.parametrize("kind", METHODS, ids=[kind.name for kind in METHODS])


def drawn(data: st.DataObject, kind: type[Method]) -> Method:
    build: Callable[..., Method] = kind
    return build(*(data.draw(BY_LETTER[letter]) for letter in kind.layout if letter in BY_LETTER))


def values_of(method: Method) -> list[object]:
    return [getattr(method, name) for name in type(method).__match_args__]


def oracle_for(kind: type[Method]) -> type[pamqp.base.Frame]:
    return pamqp.commands.INDEX_MAPPING[kind.class_id << 16 | kind.method_id]


def oracle_fields(frame: pamqp.base.Frame | type[pamqp.base.Frame]) -> list[str]:
    return [name for name in frame.attributes() if name not in RESERVED]


def test_pamqp_knows_the_same_methods() -> None:
    ours = {kind.class_id << 16 | kind.method_id for kind in METHODS}

    assert ours == set(pamqp.commands.INDEX_MAPPING)


@EVERY_METHOD
@settings(max_examples=25)  # of each method; most have few fields
@given(data=st.data())
def test_pamqp_reads_what_we_write(kind: type[Method], data: st.DataObject) -> None:
    method = drawn(data, kind)
    wire = encode_frame(FRAME_METHOD, 7, encode_method(method))

    consumed, channel, frame = pamqp.frame.unmarshal(wire)

    assert (consumed, channel, type(frame)) == (len(wire), 7, oracle_for(kind))
    assert isinstance(frame, pamqp.base.Frame)
    theirs = [getattr(frame, name) for name in oracle_fields(frame)]
    ours = [value.decode() if isinstance(value, bytes) else value for value in values_of(method)]
    assert theirs == ours


@EVERY_METHOD
@settings(max_examples=25)  # of each method; most have few fields
@given(data=st.data())
def test_we_read_what_pamqp_writes(kind: type[Method], data: st.DataObject) -> None:
    method = drawn(data, kind)
    oracle = oracle_for(kind)
    values = [value.decode() if isinstance(value, bytes) else value for value in values_of(method)]
    frame = oracle(**dict(zip(oracle_fields(oracle), values, strict=True)))

    [(frame_kind, channel, payload)] = FrameReader(frame_max=0).feed(pamqp.frame.marshal(frame, 7))

    assert (frame_kind, channel) == (FRAME_METHOD, 7)
    assert decode_method(payload) == method


OPTIONAL_NAMES = st.none() | NAMES.filter(bool)  # pamqp does not send an empty property
PROPERTIES = st.builds(
    Properties,
    content_type=OPTIONAL_NAMES,
    content_encoding=OPTIONAL_NAMES,
    headers=st.none() | TABLES,
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=OPTIONAL_NAMES,
    reply_to=OPTIONAL_NAMES,
    expiration=OPTIONAL_NAMES,
    message_id=OPTIONAL_NAMES,
    timestamp=st.none() | TIMES,
    type=OPTIONAL_NAMES,
    user_id=OPTIONAL_NAMES,
    app_id=OPTIONAL_NAMES,
)
ORACLE_NAMES = {"type": "message_type"}
PROPERTY_NAMES = [name for name in Properties.__match_args__ if name != "cluster_id"]


@given(PROPERTIES, st.integers(0, 2**63 - 1))
def test_pamqp_reads_the_properties_we_write(properties: Properties, size: int) -> None:
    wire = encode_frame(FRAME_HEADER, 7, encode_header(size, encode_properties(properties)))

    _, _, frame = pamqp.frame.unmarshal(wire)

    assert isinstance(frame, pamqp.header.ContentHeader)
    assert frame.body_size == size
    for name in PROPERTY_NAMES:
        theirs = getattr(frame.properties, ORACLE_NAMES.get(name, name))
        assert theirs == getattr(properties, name), name


@given(PROPERTIES, st.integers(0, 2**63 - 1))
def test_we_read_the_properties_pamqp_writes(properties: Properties, size: int) -> None:
    theirs = pamqp.commands.Basic.Properties(
        **{ORACLE_NAMES.get(name, name): getattr(properties, name) for name in PROPERTY_NAMES}
    )
    wire = pamqp.frame.marshal(pamqp.header.ContentHeader(0, size, theirs), 7)

    [(_, _, payload)] = FrameReader(frame_max=0).feed(wire)

    assert struct.unpack_from(">Q", payload, 4) == (size,)
    assert decode_properties(payload, 12) == properties
    assert read_content_header(payload).priority == properties.priority
