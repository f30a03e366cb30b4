"""Exchanges as clients use them: every type, bindings between exchanges, alternates, delays."""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from e2e_support import Consuming, depth, drain, eventually, get, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

pytestmark = pytest.mark.e2e


@pytest.fixture
def exchange(channel: BlockingChannel, name: str) -> Callable[..., str]:
    """Declare an exchange that goes with its last binding."""

    def declare(kind: str, suffix: str = "", **options: Any) -> str:
        channel.exchange_declare(name + suffix, kind, auto_delete=True, **options)
        return name + suffix

    return declare


@pytest.fixture
def bound(channel: BlockingChannel) -> Callable[..., str]:
    """A queue of one's own, bound."""

    def bind(exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> str:
        queue: str = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange, key, arguments)
        return queue

    return bind


Exchange = Callable[..., str]
Bound = Callable[..., str]


def test_the_default_exchange_leads_to_every_queue_by_name(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)

    publish(channel, name, "x")

    delivery = get_soon(channel, name)
    assert (delivery.method.exchange, delivery.method.routing_key) == ("", name)


def test_a_direct_exchange_compares_keys(channel: BlockingChannel, exchange: Exchange, bound: Bound) -> None:
    source = exchange("direct")
    red, blue = bound(source, "red"), bound(source, "blue")

    publish(channel, "red", "r", exchange=source)

    assert (drain(channel, red), drain(channel, blue)) == ([b"r"], [])


def test_a_fanout_exchange_ignores_keys(channel: BlockingChannel, exchange: Exchange, bound: Bound) -> None:
    source = exchange("fanout")
    queues = [bound(source), bound(source, "whatever")]

    publish(channel, "x", "to all", exchange=source)

    assert [drain(channel, queue) for queue in queues] == [[b"to all"], [b"to all"]]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c", "a.b"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["b", "ab"]),
        ("#", ["", "a", "a.b"], []),
        ("*", ["a"], ["", "a.b"]),
        ("#.z", ["z", "a.z", "a.b.z"], ["z.a"]),
        ("a.#.b.*", ["a.b.c", "a.x.b.c", "a.b.b.c"], ["a.b", "a.x.b"]),
    ],
)
def test_a_topic_exchange_matches_words(
    channel: BlockingChannel,
    exchange: Exchange,
    bound: Bound,
    pattern: str,
    matching: list[str],
    others: list[str],
) -> None:
    source = exchange("topic")
    queue = bound(source, pattern)

    for key in matching + others:
        publish(channel, key, key, exchange=source)

    assert drain(channel, queue) == [key.encode() for key in matching]


def test_a_queue_bound_twice_gets_a_message_once(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("topic")
    queue = bound(source, "a.*")
    channel.queue_bind(queue, source, "*.b")

    publish(channel, "a.b", "once", exchange=source)

    assert drain(channel, queue) == [b"once"]


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"a": 1}, False),  # all is the default
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "x"}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "any", "a": 1}, {}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "all", "x-a": 1}, {}, True),  # x- headers have no say
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "all", "a": None}, {"a": "anything"}, True),  # void: it only has to be there
    ],
)
def test_a_headers_exchange_matches_headers(
    channel: BlockingChannel,
    exchange: Exchange,
    bound: Bound,
    arguments: dict[str, Any],
    headers: dict[str, Any],
    matches: bool,
) -> None:
    source = exchange("headers")
    queue = bound(source, "", arguments)

    publish(channel, "", "x", exchange=source, headers=headers)

    assert drain(channel, queue) == ([b"x"] if matches else [])


@pytest.mark.parametrize(
    ("predeclared", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_predeclared_exchanges_are_there(
    channel: BlockingChannel, bound: Bound, name: str, predeclared: str, kind: str
) -> None:
    channel.exchange_declare(predeclared, kind, durable=True)
    queue = bound(predeclared, name, {"id": name})

    publish(channel, name, "x", exchange=predeclared, headers={"id": name})

    assert drain(channel, queue) == [b"x"]


def test_exchanges_can_be_bound_to_exchanges(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source, middle, last = exchange("topic"), exchange("fanout", ".2"), exchange("direct", ".3")
    queue = bound(last, "a.b")
    bound(source, "keeps it alive")
    channel.exchange_bind(middle, source, "a.*")
    channel.exchange_bind(last, middle)
    channel.exchange_bind(source, last, "a.b")  # a circle

    publish(channel, "a.b", "through", exchange=source)
    publish(channel, "a.c", "lost", exchange=source)

    assert drain(channel, queue) == [b"through"]
    channel.exchange_unbind(middle, source, "a.*")
    publish(channel, "a.b", "unbound", exchange=source)
    assert drain(channel, queue) == []


def test_an_alternate_exchange_takes_what_nobody_wants(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    lost = exchange("fanout", ".lost")
    source = exchange("direct", arguments={"alternate-exchange": lost})
    wanted, unwanted = bound(source, "wanted"), bound(lost)

    publish(channel, "wanted", "w", exchange=source)
    publish(channel, "other", "o", exchange=source)

    assert (drain(channel, wanted), drain(channel, unwanted)) == ([b"w"], [b"o"])


def test_a_message_the_alternate_took_is_not_returned(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    lost = exchange("fanout", ".lost")
    source = exchange("direct", arguments={"alternate-exchange": lost})
    bound(lost)
    channel.confirm_delivery()

    channel.basic_publish(source, "other", b"o", mandatory=True)  # raises if it comes back


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("direct")
    queue = bound(source, "k")

    channel.queue_unbind(queue, source, "k")

    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND - no exchange"):
        channel.exchange_declare(source, passive=True)


def test_an_auto_delete_exchange_goes_with_the_last_queue_bound_to_it(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("direct")
    queue = bound(source, "k")

    channel.queue_delete(queue)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND - no exchange"):
        channel.exchange_declare(source, passive=True)


def test_an_internal_exchange_is_reached_through_another(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    inner, outer = exchange("fanout", ".in", internal=True), exchange("fanout")
    queue = bound(inner)
    channel.exchange_bind(inner, outer)

    publish(channel, "", "x", exchange=outer)

    assert drain(channel, queue) == [b"x"]


def test_a_consistent_hash_exchange_keeps_a_key_on_one_queue(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("x-consistent-hash")
    queues = [bound(source, "1") for _ in range(3)]

    for round_number in range(3):
        for key in range(60):
            publish(channel, f"key-{key}", f"{key}/{round_number}", exchange=source)

    seen = [drain(channel, queue) for queue in queues]
    assert sum(map(len, seen)) == 180
    assert all(seen), "every queue has a share"
    for bodies in seen:
        keys = [body.split(b"/")[0] for body in bodies]
        assert all(keys.count(key) == 3 for key in keys)


def test_a_consistent_hash_exchange_can_hash_a_header(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("x-consistent-hash", arguments={"hash-header": "customer"})
    queues = [bound(source, "1") for _ in range(3)]

    for n in range(20):
        publish(channel, f"key-{n}", str(n), exchange=source, headers={"customer": "same"})

    assert sorted(len(drain(channel, queue)) for queue in queues) == [0, 0, 20]


def test_a_delayed_exchange_holds_a_message_back(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("x-delayed-message", arguments={"x-delayed-type": "direct"})
    queue = bound(source, "k")

    publish(channel, "k", "late", exchange=source, headers={"x-delay": 150})
    publish(channel, "k", "soon", exchange=source, headers={"x-delay": 40})
    publish(channel, "k", "now", exchange=source)

    consumer = Consuming(channel, queue, auto_ack=True)
    consumer.wait(3)
    assert consumer.bodies == [b"now", b"soon", b"late"]


def test_cc_and_bcc_route_to_more_keys(channel: BlockingChannel, exchange: Exchange, bound: Bound) -> None:
    source = exchange("direct")
    to, cc, bcc = bound(source, "to"), bound(source, "cc"), bound(source, "bcc")

    publish(channel, "to", "x", exchange=source, headers={"CC": ["cc"], "BCC": ["bcc"], "other": 1})

    for queue in (to, cc, bcc):
        headers = get_soon(channel, queue).headers
        assert headers == {"CC": ["cc"], "other": 1}  # blind copies are not visible


def test_a_mandatory_message_nobody_wants_is_returned(channel: BlockingChannel, exchange: Exchange) -> None:
    source = exchange("direct")
    returned: list[Any] = []
    channel.add_on_return_callback(lambda *parts: returned.append(parts))

    channel.basic_publish(source, "nowhere", b"back", pika.BasicProperties(message_id="m1"), mandatory=True)

    def came_back() -> bool:
        channel.connection.process_data_events(0.01)
        return bool(returned)

    eventually(came_back, "the message returns")
    _, method, properties, body = returned[0]
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == (source, "nowhere")
    assert (properties.message_id, body) == ("m1", b"back")


def test_a_binding_with_other_arguments_is_another_binding(
    channel: BlockingChannel, exchange: Exchange, bound: Bound
) -> None:
    source = exchange("headers")
    queue = bound(source, "", {"a": 1})
    channel.queue_bind(queue, source, "", {"a": 2})
    channel.queue_unbind(queue, source, "", {"a": 1})

    publish(channel, "", "1", exchange=source, headers={"a": 1})
    publish(channel, "", "2", exchange=source, headers={"a": 2})

    assert drain(channel, queue) == [b"2"]


def test_a_deleted_exchange_takes_its_bindings_along(
    channel: BlockingChannel, name: str, bound: Bound
) -> None:
    channel.exchange_declare(name, "fanout")
    queue = bound(name)
    channel.exchange_delete(name)
    channel.exchange_declare(name, "fanout", auto_delete=True)

    publish(channel, "", "x", exchange=name)

    assert get(channel, queue) is None
    assert depth(channel, queue) == 0
    channel.exchange_delete(name)


def test_a_queue_receives_the_recent_history_of_an_exchange_once(
    channel: BlockingChannel, name: str, bound: Bound
) -> None:
    source = f"{name}.recent"
    channel.exchange_declare(source, "x-recent-history", arguments={"x-recent-history-length": 3})
    for text in "abcde":
        publish(channel, "any", text, exchange=source)
    publish(channel, "any", "secret", exchange=source, headers={"x-recent-history-no-store": True})

    queue = bound(source, "key")
    channel.queue_bind(queue, source, "key")  # the same binding again: nothing new

    assert drain(channel, queue) == [b"c", b"d", b"e"]
    publish(channel, "other", "f", exchange=source)
    assert drain(channel, queue) == [b"f"]
    behind = f"{name}.behind"
    channel.exchange_declare(behind, "fanout")
    second = bound(behind)
    channel.exchange_bind(behind, source)
    assert drain(channel, second) == [b"d", b"e", b"f"]
    channel.exchange_delete(source)
    channel.exchange_delete(behind)


@pytest.mark.parametrize("length", [-1, "3", True, 10_001])
def test_a_length_of_the_history_that_makes_no_sense_is_refused(
    channel: BlockingChannel, name: str, length: object
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-recent-history-length"):
        channel.exchange_declare(name, "x-recent-history", arguments={"x-recent-history-length": length})
