"""What publishing reads from a message's properties."""

import pytest
from core_support import content_header

from holtmq.broker.errors import Conflict
from holtmq.broker.publish import publish_properties as cached_module
from holtmq.broker.publish.publish_properties import PublishProperties, PublishPropertiesCache
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import Properties, decode_properties, encode_header, encode_properties
from holtmq.wire.tables import FieldValue


def publish_properties_of(properties: Properties) -> PublishProperties:
    return PublishProperties(encode_header(0, encode_properties(properties)))


@pytest.mark.parametrize(
    ("mode", "persistent"), [(None, False), (0, False), (1, False), (2, True), (3, False)]
)
def test_only_delivery_mode_two_is_persistent(mode: int | None, persistent: bool) -> None:
    assert publish_properties_of(Properties(delivery_mode=mode)).persistent is persistent


def test_no_priority_means_zero() -> None:
    assert (
        publish_properties_of(Properties()).priority,
        publish_properties_of(Properties(priority=9)).priority,
    ) == (0, 9)


@pytest.mark.parametrize(("text", "ms"), [("0", 0), ("1500", 1500), ("4294967295", 4294967295)])
def test_an_expiration_is_milliseconds_as_text(text: str, ms: int) -> None:
    assert publish_properties_of(Properties(expiration=text)).ttl_ms == ms


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "4294967296", " 5", "\N{ARABIC-INDIC DIGIT FIVE}"])
def test_any_other_expiration_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(Conflict, match="invalid expiration"):
        publish_properties_of(Properties(expiration=text))


def test_carbon_copies_are_keys_and_blind_ones_are_taken_out_of_sight() -> None:
    properties = publish_properties_of(Properties(headers={"CC": ["a"], "BCC": ["b"], "mine": 1}))

    assert properties.extra_keys == ["a", "b"]
    assert not properties.plain
    assert properties.visible_bytes is not None
    assert decode_properties(properties.visible_bytes).headers == {"CC": ["a"], "mine": 1}


@pytest.mark.parametrize("value", ["a", 1, {"a": "b"}])
def test_copies_that_are_not_a_list_are_refused(value: FieldValue) -> None:
    with pytest.raises(Conflict, match=r'unacceptable_type_in_header,"CC"'):
        publish_properties_of(Properties(headers={"CC": value}))


def test_letters_that_look_like_a_copy_header_are_none() -> None:
    properties = publish_properties_of(Properties(headers={"ACCOUNT": "x"}))

    assert (properties.extra_keys, properties.plain) == ([], True)


def test_a_direct_reply_or_a_user_makes_a_message_special() -> None:
    assert not publish_properties_of(Properties(reply_to="amq.rabbitmq.reply-to")).plain
    assert not publish_properties_of(Properties(user_id="guest")).plain
    assert publish_properties_of(Properties(reply_to="somewhere")).plain


def test_properties_that_repeat_are_read_twice_and_then_kept_whatever_the_body_size() -> None:
    cache = PublishPropertiesCache()
    cache.of(content_header(b"a"))
    second = cache.of(content_header(b"ab"))

    assert cache.of(content_header(b"longer")) is second


def test_nothing_is_kept_at_first_sight() -> None:
    cache = PublishPropertiesCache()

    for n in range(250):
        cache.of(content_header(b"", priority=n))

    assert cache.by_bytes == {}


def test_the_cache_forgets_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_module, "_CACHE_BYTES", 10_000)
    cache = PublishPropertiesCache()

    for n in [number for number in range(50) for _ in range(3)]:
        assert cache.of(content_header(b"", priority=n)).priority == n

    assert 0 < len(cache.by_bytes) <= 12


def test_huge_headers_are_not_kept() -> None:
    cache = PublishPropertiesCache()

    for _ in range(3):
        properties = cache.of(content_header(b"", headers={"big": "x" * 5000}))

    assert properties.headers == {"big": "x" * 5000}
    assert cache.by_bytes == {}


def test_a_header_of_another_class_is_refused() -> None:
    with pytest.raises(CodecError):
        PublishPropertiesCache().of(b"\x00\x0a" + bytes(12))


def test_a_header_of_another_class_is_refused_even_if_its_properties_are_known() -> None:
    cache = PublishPropertiesCache()
    header = content_header(b"a")
    for _ in range(3):
        cache.of(header)

    with pytest.raises(CodecError):
        cache.of(b"\x00\x0a" + header[2:])
