"""A walker takes no message for plain that the general codec finds special or broken, and reads the same."""

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from holtmq.broker.errors import BrokerError
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import Properties, encode_header, encode_properties
from holtmq.wire.property_walker import PERSISTENT, SPECIAL, PropertyWalkers, make_walker

text = st.text(max_size=30)
maybe_text = st.none() | text
tables = st.dictionaries(
    st.sampled_from(["CC", "BCC", "a", "CCC", "x-delay", "b"]),
    st.none() | st.integers(-5, 300) | text | st.lists(text, max_size=3),
    max_size=4,
)
property_sets = st.builds(
    Properties,
    content_type=maybe_text,
    content_encoding=maybe_text,
    headers=st.none() | tables,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=maybe_text,
    reply_to=maybe_text | st.just("amq.rabbitmq.reply-to") | st.just("amq.rabbitmq.reply-to.g1h2"),
    expiration=st.none() | st.sampled_from(["", "100", "x"]),
    message_id=maybe_text,
    timestamp=st.none() | st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    type=maybe_text,
    user_id=maybe_text,
    app_id=maybe_text,
    cluster_id=maybe_text,
)


def walk(property_bytes: bytes, before: bytes, after: bytes) -> int:
    data = before + property_bytes + after
    walker = make_walker(int.from_bytes(property_bytes[:2], "big"))
    return walker(data, len(before) + 2, len(before) + len(property_bytes))


def agree(property_bytes: bytes, before: bytes, after: bytes) -> None:
    seen = walk(property_bytes, before, after)
    try:
        properties = PublishProperties(encode_header(0, property_bytes))
    except (CodecError, BrokerError):
        assert seen == SPECIAL
        return
    if seen == SPECIAL:
        flags = int.from_bytes(property_bytes[:2], "big")
        special = not properties.plain or flags & (1 << 8) or b"CC" in property_bytes
        assert special or b"\x15amq.rabbitmq.reply-to" in property_bytes
        return
    assert properties.plain
    assert properties.ttl_ms is None
    assert properties.visible_bytes is None
    assert seen == properties.priority + (PERSISTENT if properties.persistent else 0)


@given(property_sets, st.binary(max_size=5), st.binary(max_size=20))
def test_a_walker_reads_what_the_codec_reads(properties: Properties, before: bytes, after: bytes) -> None:
    agree(encode_properties(properties), before, after)


@given(property_sets, st.data())
def test_a_walker_refuses_what_the_codec_refuses(properties: Properties, data: st.DataObject) -> None:
    broken = bytearray(encode_properties(properties))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: max(2, data.draw(st.integers(0, len(broken))))])

    agree(bytes(broken), b"", data.draw(st.binary(max_size=20)))
    agree(cut, b"ab", data.draw(st.binary(max_size=300)))


@given(st.integers(0, 0xFFFF), st.binary(max_size=40))
@example(0xFFFF, b"")
@example(0x0001, b"")
@example(0x2000, b"\xff\xff\xff\xff")
def test_any_flags_with_any_bytes_are_judged_alike(flags: int, rest: bytes) -> None:
    agree(flags.to_bytes(2, "big") + rest, b"", b"")


def test_there_are_walkers_for_flags_that_repeat_and_not_for_too_many() -> None:
    walkers = PropertyWalkers()

    for flags in range(0, 0x10000, 4):
        walkers.note(flags)
    once = len(walkers.by_flags)
    for _ in range(10):
        for flags in range(0, 0x10000, 4):
            walkers.note(flags)

    assert once == 0
    assert len(walkers.by_flags) == 256
