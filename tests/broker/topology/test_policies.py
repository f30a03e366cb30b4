import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.errors import Conflict, NotFound
from holtmq.broker.topology.policies import Policy, PolicyBook, alternate_exchange, effective, make_policy
from holtmq.broker.topology.queue_arguments import parse_queue_arguments
from holtmq.broker.topology.queue_options import Overflow, QueueOptions, QueueType

Table = dict[str, object]


def policy(
    definition: Table | None = None,
    name: str = "p",
    pattern: str = "",
    apply_to: str = "all",
    priority: int = 0,
    vhost: str = "/",
    operator: bool = False,
) -> Policy:
    return make_policy(
        vhost, name, pattern, definition or {"max-length": 1}, apply_to, priority, operator=operator
    )


def book_of(*policies: Policy) -> PolicyBook:
    book = PolicyBook()
    for each in policies:
        book.put(each)
    return book


def winner(book: PolicyBook, queue: str = "orders.eu", kind: QueueType = QueueType.CLASSIC) -> str | None:
    found = book.for_queue("/", queue, kind)
    return None if found is None else found.name


def test_the_highest_priority_that_matches_wins_alone() -> None:
    book = book_of(
        policy(name="low", pattern="^orders", priority=1),
        policy(name="high", pattern="^orders", priority=5),
        policy(name="elsewhere", pattern="^bills", priority=9),
    )

    assert winner(book) == "high"
    book.remove("/", "high")
    assert winner(book) == "low"


def test_equal_priorities_are_settled_by_name_and_not_by_arrival() -> None:
    first, second = policy(name="alpha"), policy(name="beta")

    assert winner(book_of(first, second)) == winner(book_of(second, first)) == "alpha"


def test_a_pattern_matches_anywhere_unless_it_is_anchored() -> None:
    assert winner(book_of(policy(pattern="eu"))) == "p"
    assert winner(book_of(policy(pattern="^eu"))) is None


def test_policies_stay_in_their_vhost() -> None:
    book = book_of(policy(vhost="other"))

    assert winner(book) is None
    assert book.for_queue("other", "q", QueueType.CLASSIC) is not None
    book.remove_vhost("other")
    assert book.for_queue("other", "q", QueueType.CLASSIC) is None


def test_putting_a_name_again_replaces_and_returns_the_old() -> None:
    book = book_of(policy({"max-length": 1}))

    old = book.put(policy({"max-length": 2}))

    assert old is not None
    assert old.definition == {"max-length": 1}
    assert [each.definition for each in book.in_vhost("/")] == [{"max-length": 2}]


def test_removing_an_unknown_policy_names_it() -> None:
    with pytest.raises(NotFound, match="no policy 'p' in vhost '/'"):
        PolicyBook().remove("/", "p")


@pytest.mark.parametrize(
    ("apply_to", "kinds", "exchanges"),
    [
        ("all", {"classic", "quorum", "stream"}, True),
        ("queues", {"classic", "quorum", "stream"}, False),
        ("classic_queues", {"classic"}, False),
        ("quorum_queues", {"quorum"}, False),
        ("streams", {"stream"}, False),
        ("exchanges", set(), True),
    ],
)
def test_a_policy_applies_to_what_it_says(apply_to: str, kinds: set[str], exchanges: bool) -> None:
    book = book_of(policy({"alternate-exchange": "x"}, apply_to=apply_to))

    assert {kind.value for kind in QueueType if winner(book, kind=kind)} == kinds
    assert (book.for_exchange("/", "x") is not None) is exchanges


def test_a_queue_that_says_nothing_takes_the_policys_word() -> None:
    definition: Table = {
        "message-ttl": 1,
        "expires": 2,
        "max-length": 3,
        "max-length-bytes": 4,
        "overflow": "reject-publish",
        "dead-letter-exchange": "dlx",
        "dead-letter-routing-key": "key",
        "delivery-limit": 5,
        "retry-delay": 6,
        "retry-multiplier": 2,
        "cancel-requeue": False,
        "max-priority": 7,
        "single-active-consumer": True,
    }

    options = effective(QueueOptions(), policy(definition))

    assert options == QueueOptions(
        message_ttl_ms=1,
        expires_ms=2,
        max_length=3,
        max_length_bytes=4,
        overflow=Overflow.REJECT_PUBLISH,
        dead_letter_exchange="dlx",
        dead_letter_routing_key="key",
        delivery_limit=5,
        retry_delay_ms=6,
        retry_multiplier=2.0,
        cancel_requeue=False,
        max_priority=7,
        single_active_consumer=True,
    )


def test_a_queues_own_word_beats_the_policy_where_there_is_no_stricter() -> None:
    own: Table = {
        "x-overflow": "drop-head",
        "x-dead-letter-exchange": "mine",
        "x-retry-delay": 100,
        "x-cancel-requeue": False,
        "x-single-active-consumer": False,
        "x-max-priority": 9,
    }
    options = parse_queue_arguments("q", "/", own)
    theirs = policy(
        {
            "overflow": "reject-publish",
            "dead-letter-exchange": "theirs",
            "retry-delay": 1,
            "cancel-requeue": True,
            "single-active-consumer": True,
            "max-priority": 1,
        }
    )

    assert effective(options, theirs) == options


LIMITS = {
    "message-ttl": "message_ttl_ms",
    "expires": "expires_ms",
    "max-length": "max_length",
    "max-length-bytes": "max_length_bytes",
    "delivery-limit": "delivery_limit",
}


@given(
    st.sampled_from(sorted(LIMITS)),
    st.none() | st.integers(1, 99),
    st.none() | st.integers(1, 99),
    st.none() | st.integers(1, 99),
)
def test_of_limits_the_strictest_of_queue_policy_and_operator_holds(
    key: str, own: int | None, by_policy: int | None, by_operator: int | None
) -> None:
    options = parse_queue_arguments("q", "/", {} if own is None else {f"x-{key}": own})

    merged = effective(
        options,
        None if by_policy is None else policy({key: by_policy}),
        None if by_operator is None else policy({key: by_operator}, operator=True),
    )

    said = [value for value in (own, by_policy, by_operator) if value is not None]
    assert getattr(merged, LIMITS[key]) == min(said, default=None)


def test_no_delivery_limit_yields_to_any() -> None:
    unlimited = parse_queue_arguments("q", "/", {"x-delivery-limit": -1})

    assert effective(unlimited, policy({"delivery-limit": 4})).delivery_limit == 4
    assert effective(QueueOptions(delivery_limit=4), policy({"delivery-limit": -1})).delivery_limit == 4


def test_a_zero_is_a_limit_and_not_silence() -> None:
    assert effective(QueueOptions(max_length=0), policy({"max-length": 5})).max_length == 0
    assert effective(QueueOptions(max_length=5), policy({"max-length": 0})).max_length == 0


def test_a_policy_gives_no_queue_what_its_type_cannot_honour() -> None:
    stream = QueueOptions(queue_type=QueueType.STREAM)

    merged = effective(stream, policy({"message-ttl": 5, "max-length-bytes": 10, "max-age": "1D"}))

    assert merged == QueueOptions(queue_type=QueueType.STREAM, max_length_bytes=10, max_age=86400)


def test_without_policies_the_options_are_the_same_object() -> None:
    options = QueueOptions(max_length=5)

    assert effective(options, None, None) is options


def test_an_exchanges_own_alternate_beats_the_policys() -> None:
    by_policy = policy({"alternate-exchange": "theirs"})

    assert alternate_exchange("mine", by_policy) == "mine"
    assert alternate_exchange(None, by_policy) == "theirs"
    assert alternate_exchange(None, policy({"max-length": 1})) is None
    assert alternate_exchange(None, None) is None


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (
            {"mesage-ttl": 1},
            "unknown key 'mesage-ttl' for policy 'p' in vhost '/': the nearest right one is 'message-ttl'",
        ),
        (
            {"x-max-length": 1},
            "unknown key 'x-max-length' for policy 'p' in vhost '/': the nearest right one is 'max-length'",
        ),
        ({"queue-type": "quorum"}, "unknown key 'queue-type'"),
        (
            {"message-ttl": -1},
            "invalid value of 'message-ttl' for policy 'p' in vhost '/': -1 is not a non-negative",
        ),
        (
            {"overflow": "no"},
            "invalid value of 'overflow' for policy 'p' in vhost '/': 'no' of type longstr is none of",
        ),
        (
            {"alternate-exchange": 1},
            "invalid value of 'alternate-exchange' for policy 'p' in vhost '/': expected a string",
        ),
    ],
)
def test_a_bad_definition_is_refused_with_the_right_one(definition: Table, text: str) -> None:
    with pytest.raises(Conflict) as refused:
        policy(definition)

    assert str(refused.value).startswith(text)


def test_an_operator_may_only_set_limits() -> None:
    with pytest.raises(Conflict, match="unknown key 'overflow' for operator policy 'p'"):
        policy({"overflow": "drop-head"}, operator=True)


def test_an_empty_definition_is_refused() -> None:
    with pytest.raises(Conflict, match="it is empty"):
        make_policy("/", "p", "", {})


def test_a_broken_pattern_is_refused_by_name() -> None:
    with pytest.raises(Conflict, match=r"invalid pattern '\(' for policy 'p' in vhost '/'"):
        policy(pattern="(")


def test_an_unknown_target_is_refused_with_the_right_ones() -> None:
    with pytest.raises(Conflict, match=r"invalid apply-to 'topics' .* expected all, queues, exchanges"):
        policy(apply_to="topics")


def test_a_priority_is_an_integer() -> None:
    with pytest.raises(Conflict, match="invalid priority True"):
        policy(priority=True)


@pytest.mark.parametrize("priority", [1 << 63, -(1 << 63) - 1, 10**30])
def test_a_priority_that_the_journal_cannot_store_is_refused(priority: int) -> None:
    """It was in force although it was refused, and no checkpoint could be written."""
    with pytest.raises(Conflict, match="an integer of 64 bits at most"):
        make_policy("/", "p", ".*", {"max-length": 1}, priority=priority)

    assert make_policy("/", "p", ".*", {"max-length": 1}, priority=(1 << 63) - 1).priority == (1 << 63) - 1


def test_a_queue_key_on_exchanges_alone_is_refused() -> None:
    with pytest.raises(Conflict, match=r"invalid key 'max-length' .* means nothing to exchanges"):
        policy({"max-length": 1}, apply_to="exchanges")


def test_a_stored_pattern_that_cannot_be_compiled_is_kept_and_matches_nothing() -> None:
    definition = {"max-length": 1}

    policy = make_policy("/", "p", "^(?!amq)", definition, stored=True)

    assert policy.pattern.pattern == "^(?!amq)"
    assert not policy.pattern.found_in("orders")
    with pytest.raises(Conflict, match="a negative lookahead"):
        make_policy("/", "p", "^(?!amq)", definition)
