"""The short lookup by key answers what the general walk answers, whatever happened to the topology before."""

from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.topology.targets import NO_QUEUES
from holtmq.journal import MemoryJournal

NAMES = ("q", "r", "s")
KEYS = ("", "q", "r", "a.b", "a.c", "x")
PATTERNS = ("", "q", "a.b", "a.*", "#", "a.#")
EXCHANGES = ("", "direct", "fanout", "topic", "headers", "other")

steps = st.one_of(
    st.tuples(st.just("declare"), st.sampled_from(NAMES), st.sampled_from([None, 5])),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(
        st.just("bind"), st.sampled_from(EXCHANGES[1:]), st.sampled_from(NAMES), st.sampled_from(PATTERNS)
    ),
    st.tuples(
        st.just("unbind"), st.sampled_from(EXCHANGES[1:]), st.sampled_from(NAMES), st.sampled_from(PATTERNS)
    ),
    st.tuples(st.just("link"), st.sampled_from(EXCHANGES[1:]), st.sampled_from(PATTERNS)),
    st.tuples(st.just("limit"), st.sampled_from(NAMES)),
    st.tuples(st.just("no limit")),
    st.tuples(st.just("alternate"), st.sampled_from(["topic", "direct"])),
    st.tuples(st.just("drop exchange"), st.sampled_from(EXCHANGES[1:])),
)


def apply(broker: Broker, step: tuple[str, ...]) -> None:
    vhost = broker.vhost("/")
    match step:
        case "declare", name, limit:
            broker.declare_queue(vhost, name, arguments={"x-max-length": limit} if limit else {})
        case "delete", name:
            broker.delete_queue(vhost, name)
        case "bind", exchange, name, pattern:
            broker.bind(vhost, exchange, name, pattern)
        case "unbind", exchange, name, pattern:
            broker.exchanges.unbind(vhost, exchange, name, pattern)
        case "link", exchange, pattern:
            broker.bind(vhost, exchange, "other", pattern, to_exchange=True)
        case "limit", name:
            broker.policy_changes.put("/", "limits", f"^{name}$", {"max-length": 3}, "queues")
        case ("no limit",):
            broker.policy_changes.delete("/", "limits")
        case "alternate", name:
            broker.policy_changes.put(
                "/", "alternate", f"^{name}$", {"alternate-exchange": "other"}, "exchanges"
            )
        case "drop exchange", name:
            kind = vhost.exchange(name).kind.value
            broker.exchanges.delete(vhost, name)
            broker.exchanges.declare(vhost, name, kind)


@given(st.lists(steps, max_size=30))
def test_the_short_lookup_agrees_with_the_walk(plan: list[tuple[str, ...]]) -> None:
    broker = Broker(MemoryJournal())
    broker.put_vhost("/")
    vhost = broker.vhost("/")
    for name in EXCHANGES[1:]:
        broker.exchanges.declare(vhost, name, "fanout" if name == "other" else name)

    for step in plan:
        try:
            apply(broker, step)
        except BrokerError:
            continue
        for name in EXCHANGES:
            exchange = vhost.exchange(name)
            targets = vhost.targets_of(exchange)
            for key in KEYS:
                result = vhost.route(exchange, key)
                found = targets.find(key.encode())
                if found is not None:
                    assert found.queues == result.queues
                    assert not any(queue.limited or queue.deleted for queue in found.queues)
                elif name in ("", "direct", "fanout", "topic") and not result.depends_on_message:
                    reasons = any(queue.limited for queue in result.queues)
                    reasons = reasons or vhost.alternate_of(exchange) is not None
                    assert reasons or any(binding.to_exchange for binding in exchange.bindings())


def test_keys_that_lead_to_the_same_queues_share_one_set() -> None:
    broker = Broker(MemoryJournal())
    broker.put_vhost("/")
    vhost = broker.vhost("/")
    broker.exchanges.declare(vhost, "t", "topic")
    broker.declare_queue(vhost, "q")
    broker.bind(vhost, "t", "q", "a.*")
    broker.bind(vhost, "t", "q", "#.c")
    targets = vhost.targets_of(vhost.exchange("t"))

    assert targets.find(b"a.b") is targets.find(b"x.y.c")
    assert targets.find(b"b") is NO_QUEUES


def test_a_queue_that_comes_or_goes_elsewhere_leaves_an_exchange_as_it_was() -> None:
    broker = Broker(MemoryJournal())
    broker.put_vhost("/")
    vhost = broker.vhost("/")
    broker.exchanges.declare(vhost, "t", "topic")
    broker.declare_queue(vhost, "q")
    broker.bind(vhost, "t", "q", "a.*")
    token = vhost.targets_of(vhost.exchange("t")).token

    broker.declare_queue(vhost, "passing")
    broker.bind(vhost, "amq.fanout", "passing", "")
    broker.delete_queue(vhost, "passing")

    assert vhost.targets_of(vhost.exchange("t")).token is token
