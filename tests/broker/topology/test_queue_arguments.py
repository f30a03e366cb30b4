from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.queue_arguments import (
    RULES,
    WITHOUT_EFFECT,
    QueueDeclaration,
    equivalence_error,
    parse_queue_arguments,
)
from holtmq.broker.topology.queue_options import Overflow, QueueMode, QueueOptions, QueueType

Table = dict[str, object]


def parse(arguments: Table) -> QueueOptions:
    return parse_queue_arguments("q", "/", arguments)


def refusal(arguments: Table, **properties: Any) -> str:
    with pytest.raises(Conflict) as refused:
        parse_queue_arguments("q", "/", arguments, **properties)
    return str(refused.value)


def test_no_arguments_are_a_plain_classic_queue() -> None:
    assert parse({}) == QueueOptions()
    assert parse({}).queue_type is QueueType.CLASSIC
    assert parse({}).drops_head


@pytest.mark.parametrize(
    ("argument", "value", "option", "read"),
    [
        ("x-message-ttl", 0, "message_ttl_ms", 0),
        ("x-message-ttl", 60000, "message_ttl_ms", 60000),
        ("x-expires", 1, "expires_ms", 1),
        ("x-max-length", 0, "max_length", 0),
        ("x-max-length-bytes", 2**40, "max_length_bytes", 2**40),
        ("x-overflow", "drop-head", "overflow", Overflow.DROP_HEAD),
        ("x-overflow", "reject-publish", "overflow", Overflow.REJECT_PUBLISH),
        ("x-overflow", "reject-publish-dlx", "overflow", Overflow.REJECT_PUBLISH_DLX),
        ("x-dead-letter-exchange", "", "dead_letter_exchange", ""),
        ("x-max-priority", 1, "max_priority", 1),
        ("x-max-priority", 255, "max_priority", 255),
        ("x-single-active-consumer", True, "single_active_consumer", True),
        ("x-delivery-limit", -1, "delivery_limit", -1),
        ("x-queue-mode", "lazy", "queue_mode", QueueMode.LAZY),
        ("x-retry-delay", 500, "retry_delay_ms", 500),
        ("x-retry-multiplier", 2, "retry_multiplier", 2.0),
        ("x-retry-multiplier", 1.5, "retry_multiplier", 1.5),
        ("x-cancel-requeue", False, "cancel_requeue", False),
        ("x-consumer-timeout", 1000, "consumer_timeout_ms", 1000),
        ("x-queue-version", 2, "queue_version", 2),
        ("x-queue-master-locator", "min-masters", "queue_master_locator", "min-masters"),
        ("x-queue-leader-locator", "balanced", "queue_leader_locator", "balanced"),
        ("x-quorum-initial-group-size", 3, "initial_cluster_size", 3),
    ],
)
def test_an_argument_sets_its_option(argument: str, value: object, option: str, read: object) -> None:
    options = parse({argument: value})

    assert getattr(options, option) == read
    assert type(getattr(options, option)) is type(read)
    assert options.arguments == {argument: value}


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("7D", 604800), ("1Y", 31536000), ("2M", 5184000), ("3h", 10800), ("5m", 300), ("9s", 9)],
)
def test_a_stream_keeps_messages_for_an_age_with_a_unit(age: str, seconds: int) -> None:
    options = parse({"x-queue-type": "stream", "x-max-age": age, "x-stream-max-segment-size-bytes": 1000})

    assert options.max_age == seconds
    assert options.stream_max_segment_size_bytes == 1000


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("x-message-ttl", -1, "-1 is not a non-negative integer"),
        ("x-message-ttl", 10**15, f"{10**15} is not a non-negative integer of at most ten years"),
        ("x-message-ttl", "60000", "expected integer, got '60000' of type longstr"),
        ("x-message-ttl", True, "expected integer, got 'true' of type bool"),
        ("x-message-ttl", 1.0, "expected integer, got '1.0' of type double"),
        ("x-expires", 0, "0 is not a positive integer"),
        ("x-max-length", -5, "-5 is not a non-negative integer"),
        ("x-max-length-bytes", None, "expected integer, got 'undefined' of type void"),
        ("x-overflow", "drop-tail", "'drop-tail' of type longstr is none of drop-head, reject-publish, "),
        ("x-dead-letter-exchange", 5, "expected a string, got '5' of type signedint"),
        ("x-max-priority", 0, "0 is not an integer from 1 to 255"),
        ("x-max-priority", 256, "256 is not an integer from 1 to 255"),
        ("x-single-active-consumer", "true", "'true' of type longstr is not true or false"),
        ("x-single-active-consumer", 1, "'1' of type signedint is not true or false"),
        ("x-delivery-limit", -2, "-2 is not a non-negative integer, or -1"),
        ("x-queue-type", "mirrored", "'mirrored' of type longstr is none of classic, quorum, stream"),
        ("x-queue-type", 1, "'1' of type signedint is none of classic"),
        ("x-queue-mode", "fast", "'fast' of type longstr is none of default, lazy"),
        ("x-retry-delay", -1, "-1 is not a non-negative integer"),
        ("x-retry-multiplier", 0.5, "'0.5' of type double is not a number from 1 to 1000"),
        ("x-retry-multiplier", float("nan"), "'nan' of type double is not a number"),
        ("x-cancel-requeue", "no", "'no' of type longstr is not true or false"),
        ("x-max-age", "7", "'7' of type longstr is not an age"),
        ("x-max-age", "0D", "'0D' of type longstr is not an age"),
        ("x-max-age", 7, "'7' of type signedint is not an age"),
        ("x-queue-version", 3, "3 is not 1 or 2"),
        ("x-initial-cluster-size", 0, "0 is not a positive integer"),
        ("x-queue-leader-locator", "far", "'far' of type longstr is none of client-local"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_be_right(argument: str, value: object, reason: str) -> None:
    text = refusal({argument: value})

    assert text.startswith(f"invalid arg '{argument}' for queue 'q' in vhost '/': {reason}")


def test_a_dead_letter_key_needs_a_dead_letter_exchange() -> None:
    assert "'x-dead-letter-routing-key' for queue 'q'" in refusal({"x-dead-letter-routing-key": "k"})

    options = parse({"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": "dlx"})
    assert (options.dead_letter_exchange, options.dead_letter_routing_key) == ("dlx", "k")


def test_unknown_arguments_are_accepted_and_kept() -> None:
    assert parse({"x-note": "mine", "other": 1}).arguments == {"x-note": "mine", "other": 1}


@pytest.mark.parametrize("kind", ["quorum", "stream"])
@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ],
)
def test_a_replicated_type_is_durable_shared_and_stays(
    kind: str, properties: dict[str, Any], named: str
) -> None:
    text = refusal({"x-queue-type": kind}, **properties)

    assert text.startswith(f"invalid property '{named}' for queue 'q' in vhost '/': a {kind} queue is ")
    parse_queue_arguments("q", "/", {"x-queue-type": "classic"}, **properties)


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("classic", "x-max-age", "7D"),
        ("quorum", "x-max-age", "7D"),
        ("stream", "x-max-priority", 5),
        ("stream", "x-message-ttl", 5),
        ("stream", "x-dead-letter-exchange", "dlx"),
    ],
)
def test_what_a_type_cannot_honour_is_refused(kind: str, argument: str, value: object) -> None:
    text = refusal({"x-queue-type": kind, argument: value})

    assert text == f"invalid arg '{argument}' for queue 'q' in vhost '/' of queue type {kind}"


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({}, None),
        ({"x-delivery-limit": 3}, 3),
        ({"x-delivery-limit": 0}, 0),
        ({"x-delivery-limit": -1}, None),
        ({"x-queue-type": "quorum"}, 20),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, None),
        ({"x-queue-type": "quorum", "x-delivery-limit": 5}, 5),
    ],
)
def test_a_quorum_queue_has_a_delivery_limit_unless_it_says_otherwise(
    arguments: Table, allowed: int | None
) -> None:
    assert parse(arguments).deliveries_allowed == allowed


def difference(current: Table, received: Table) -> str | None:
    return equivalence_error(
        "q",
        "/",
        QueueDeclaration(True, False, False, current),
        QueueDeclaration(True, False, False, received),
    )


@pytest.mark.parametrize(
    ("current", "received", "text"),
    [
        ({"x-max-length": 20}, {"x-max-length": 10}, "received '10' but current is '20'"),
        ({"x-max-length": 10}, {}, "received none but current is the value '10' of type 'signedint'"),
        ({}, {"x-max-length": 10}, "received the value '10' of type 'signedint' but current is none"),
    ],
)
def test_another_argument_is_told_in_rabbitmqs_words(current: Table, received: Table, text: str) -> None:
    expected = f"inequivalent arg 'x-max-length' for queue 'q' in vhost '/': {text}"

    assert difference(current, received) == expected


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (
            QueueDeclaration(False, False, False),
            "'durable' for queue 'q' in vhost 'v': received 'false' but current is 'true'",
        ),
        (
            QueueDeclaration(True, True, False),
            "'exclusive' for queue 'q' in vhost 'v': received 'true' but current is 'false'",
        ),
        (
            QueueDeclaration(True, False, True),
            "'auto_delete' for queue 'q' in vhost 'v': received 'true' but current is 'false'",
        ),
    ],
)
def test_another_property_is_told_in_rabbitmqs_words(received: QueueDeclaration, text: str) -> None:
    current = QueueDeclaration(True, False, False)

    assert equivalence_error("q", "v", current, received) == f"inequivalent arg {text}"


def test_saying_classic_and_saying_nothing_is_the_same() -> None:
    assert difference({}, {"x-queue-type": "classic"}) is None
    assert difference({"x-queue-type": "classic"}, {}) is None
    assert difference({}, {"x-queue-type": "quorum"}) is not None
    assert difference({"x-queue-type": "quorum"}, {"x-queue-type": "classic"}) is not None


def test_unknown_arguments_may_differ() -> None:
    assert difference({"x-note": 1}, {"x-note": 2, "other": 3}) is None


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())
)


@given(st.dictionaries(st.sampled_from(sorted(RULES)), VALUES))
def test_any_table_is_read_or_refused_and_equal_to_itself(arguments: Table) -> None:
    refused = ""
    try:
        assert parse(arguments).arguments == arguments
    except Conflict as conflict:
        refused = str(conflict)

    if refused:
        assert "for queue 'q' in vhost '/'" in refused
    else:
        assert difference(arguments, dict(arguments)) is None


def test_arguments_without_effect_are_checked_like_others_and_listed_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "amqp.md").read_text(encoding="utf-8")
    for name, reason in WITHOUT_EFFECT.items():
        assert name in RULES
        assert f"| `{name}` | {reason} |" in page
