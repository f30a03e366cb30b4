"""Every route with every role: who gets in, who is refused, and that names count wherever they stand."""

import base64
import io
import re
import socket
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import jwt
import pyarrow as pa
import pytest
from expected_rights import EXPECTED
from http_support import Api

from holtmq.auth.permissions import FULL_ACCESS, Permissions
from holtmq.auth.users import User
from holtmq.broker.partitioned.requests import PopRequest
from holtmq.config import Auth, Config, Http, Limits
from holtmq.config.values import Secret
from holtmq.first_start import GUEST_HASH
from holtmq.http import rights_table
from holtmq.http.engine.endpoints import Endpoint
from holtmq.http.engine.stepwise import in_order
from holtmq.http.management.api import ENDPOINTS as MANAGEMENT
from holtmq.http.operator import groups
from holtmq.http.routes import ENDPOINTS
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

DOCS = Path(__file__).parents[2] / "docs"
SECRET = "a secret that is long enough for HS256"
LIMITS = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
OUTSIDE = {"x-forwarded-for": "203.0.113.9"}  # what a proxy on this machine says of its client
ROLES = {"read-only": 1, "read-write": 2, "admin": 3}
# Names in paths: nothing of importance is there under them.
SAMPLES = {
    "vhost": "%2F",
    "queue": "q",
    "exchange": "x",
    "kind": "q",
    "properties": "~",
    "user": "nobody",
}


@dataclass(frozen=True)
class Role:
    """A user, by what was given to them."""

    name: str
    configure: bool = False
    write: bool = False
    read: bool = False
    tags: tuple[str, ...] = ()

    def may(self, right: str) -> bool:
        """By the words of the expected table alone."""
        if right in ("none", "login"):
            return True
        action, _, tag = right.partition(", ") if ", " in right else ("", "", right)
        if "tag" not in tag:
            action, tag = right, ""
        if tag and "administrator" not in self.tags:
            named = (
                {"management", "policymaker", "monitoring"}
                if tag == "any tag"
                else set(tag[4:].split(" or "))
            )
            if not named & set(self.tags):
                return False
        words = re.findall(r"configure|write|read", action)
        given = [getattr(self, word) for word in words]
        return (any(given) if " or " in action else all(given)) if words else True


USERS = (
    Role("nothing"),
    Role("reader", read=True),
    Role("writer", write=True),
    Role("configurer", configure=True),
    Role("everything", True, True, True),
    Role("monitor", tags=("monitoring",)),
    Role("policymaker", True, True, True, ("policymaker",)),
    Role("manager", True, True, True, ("management",)),
    Role("administrator", tags=("administrator",)),
    Role("root", True, True, True, ("administrator",)),
)


def prepare(node: FaultyNode) -> None:
    for role in USERS:
        node.broker.access.put_user(User(role.name, GUEST_HASH, role.tags))
        node.amqp.authenticator.remember(role.name, role.name, GUEST_HASH)
        patterns = [".*" if given else "" for given in (role.configure, role.write, role.read)]
        node.broker.access.set_permissions(role.name, "/", Permissions(*patterns))


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    config = Config(limits=LIMITS, http=Http(max_wait_ms=20))
    with TestBroker(config=config) as one:
        one.call(prepare)
        yield one


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestBroker]:
    auth = Auth(jwt_enabled=True, jwt_secret=Secret(SECRET))
    with TestBroker(config=Config(limits=LIMITS, auth=auth, http=Http(max_wait_ms=20))) as one:
        one.call(prepare)
        yield one


def routes() -> list[tuple[str, str, str]]:
    """(method and path, right, role) of the expected table."""
    return [(route, *need) for need, listed in EXPECTED.items() for route in listed]


def ask(http: httpx.Client, route: str) -> int:
    method, path = route.split()
    path = re.sub(r"\{(\w+)(:path)?\}", lambda found: SAMPLES.get(found[1], f"no-{found[1]}"), path)
    if route == "DELETE /api/vhosts/{vhost}":
        path = "/api/vhosts/no-vhost"
    with http.stream(method, path) as answer:  # some never end
        return answer.status_code


def test_the_tables_say_what_is_expected_of_them() -> None:
    rows: list[Endpoint] = [*ENDPOINTS, *MANAGEMENT]
    declared = {
        f"{row.method} {row.path}": (str(row.right), "-" if row.right.role is None else row.right.role.name)
        for row in rows
    }

    expected = {
        route: (right, role.upper().replace("-", "_") if role != "-" else role)
        for route, right, role in routes()
    }

    assert declared == expected


def test_the_documentation_lists_every_right_as_it_is() -> None:
    # Make it so with: .venv/bin/python scripts/docs.py
    assert rights_table.markdown() in (DOCS / "rights.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("role", USERS, ids=lambda role: role.name)
def test_a_user_gets_in_where_rights_and_tags_allow_it(broker: TestBroker, role: Role) -> None:
    with httpx.Client(base_url=broker.http_url, auth=(role.name, role.name), timeout=60) as http:
        wrong = [
            (route, right, status)
            for route, right, _ in routes()
            if ((status := ask(http, route)) not in (401, 403)) is not role.may(right)
        ]

    assert wrong == []


def test_without_credentials_a_request_from_this_machine_is_the_guest_s(broker: TestBroker) -> None:
    with httpx.Client(base_url=broker.http_url, timeout=60) as http:
        refused = [route for route, _, _ in routes() if ask(http, route) in (401, 403)]

    assert refused == []


def test_without_credentials_a_request_from_elsewhere_gets_to_public_routes_alone(broker: TestBroker) -> None:
    with httpx.Client(base_url=broker.http_url, headers=OUTSIDE, timeout=60) as http:
        wrong = [
            (route, status)
            for route, right, _ in routes()
            if ((status := ask(http, route)) != 401) is not (right == "none")
            and route != "POST /api/v1/session"  # which answers 400 to nothing, and 401 to wrong passwords
        ]

    assert wrong == []


@pytest.mark.parametrize("role", ["none", *ROLES])
def test_a_token_gets_in_by_queen_s_roles(guarded: TestBroker, role: str) -> None:
    token = jwt.encode({"role": role, "exp": guarded.clock.now + 600}, SECRET, "HS256")
    level = ROLES.get(role, 0)
    with httpx.Client(base_url=guarded.http_url, timeout=60) as http:
        http.headers["authorization"] = f"Bearer {token}"
        wrong = [
            (route, needed, status)
            for route, right, needed in routes()
            if ((status := ask(http, route)) not in (401, 403))
            is not (right == "none" or level >= ROLES.get(needed, 4))
        ]

    assert wrong == []


def test_a_token_that_names_a_user_has_that_user_s_rights(guarded: TestBroker) -> None:
    claims = {"role": "admin", "sub": "reader", "exp": guarded.clock.now + 600}
    reader = next(role for role in USERS if role.name == "reader")
    with httpx.Client(base_url=guarded.http_url, timeout=60) as http:
        http.headers["authorization"] = f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"
        wrong = [
            (route, right)
            for route, right, _ in routes()
            if (ask(http, route) not in (401, 403)) is not reader.may(right)
        ]

    assert wrong == []


@pytest.fixture
def mine() -> Iterator[tuple[Api, Api, TestBroker]]:
    """A user with every right on names that begin with ``mine``, the guest, and their broker.

    In another vhost the user has every right on all names: nothing of that may reach into this one.
    """

    def add(node: FaultyNode) -> None:
        node.broker.access.put_user(User("me", GUEST_HASH))
        node.amqp.authenticator.remember("me", "me", GUEST_HASH)
        node.broker.access.set_permissions("me", "/", Permissions("^mine", "^mine", "^mine"))
        node.broker.put_vhost("elsewhere")
        for user in ("me", "guest"):
            node.broker.access.set_permissions(user, "elsewhere", FULL_ACCESS)

    with TestBroker(config=Config(limits=LIMITS, http=Http(max_wait_ms=20))) as broker:
        broker.call(add)
        me, guest = Api(broker.http_url, auth=("me", "me")), Api(broker.http_url)
        yield me, guest, broker
        me.http.close()
        guest.http.close()


def test_names_in_bodies_queries_and_ids_are_checked(mine: tuple[Api, Api, TestBroker]) -> None:
    me, guest, _ = mine
    for queue in ("mine", "theirs"):
        guest.push(queue, "a", "b", "c", "d")
        guest.ack(guest.pop(queue, batch=1)[0], "dlq")
    letters = {row["queue"]: row for row in guest.letters()}
    popped = {queue: guest.pop(queue, batch=1, consumerGroup="h")[0] for queue in ("mine", "theirs")}
    query = {"name": "n", "config_hash": "h"}

    def calls(queue: str) -> dict[str, tuple[str, str, object]]:
        partition, lease = popped[queue]["partitionId"], popped[queue]["leaseId"]
        ack = {"transactionId": "none", "partitionId": partition}
        item = {"queue": queue, "payload": 1}
        look, cancel = (
            {"op": "get", "ns": queue, "key": "k"},
            {"op": "cancel", "queue": queue, "timerKey": "k"},
        )
        acquire = {"op": "acquire", "name": queue, "ttlSeconds": 1}
        staged: dict[str, list[object]] = {"tasks": []}
        transaction, sunk = "/api/v1/transaction", {**query, "source_queue": "mine"}
        return {
            "push": ("POST", "/api/v1/push", {"items": [{"queue": "mine", "payload": 1}, item]}),
            "delayed push": ("POST", "/api/v1/push", {"items": [{**item, "delaySeconds": 60}]}),
            "pop": ("GET", f"/api/v1/pop/queue/{queue}", None),
            "pop a partition": ("GET", f"/api/v1/pop/queue/{queue}/partition/p", None),
            "ack": ("POST", "/api/v1/ack", ack),
            "ack batch": ("POST", "/api/v1/ack/batch", {"acknowledgments": [ack]}),
            "extend": ("POST", f"/api/v1/lease/{lease}/extend", {}),
            "push in a transaction": (
                "POST",
                transaction,
                {"operations": [{"type": "push", "items": [item]}]},
            ),
            "ack in a transaction": ("POST", transaction, {"operations": [{"type": "ack", **ack}]}),
            "kv in a transaction": ("POST", transaction, {"kv": [look]}),
            "timer in a transaction": ("POST", transaction, {"timers": [cancel]}),
            "configure": ("POST", "/api/v1/configure", {"queue": queue}),
            "dead letters": ("GET", f"/api/v1/dlq?queue={queue}", None),
            "replay": ("POST", f"/api/v1/dlq/{letters[queue]['id']}/replay", {"queue": "mine"}),
            "replay to": ("POST", f"/api/v1/dlq/{letters['mine']['id']}/replay", {"queue": queue}),
            "retry": ("POST", f"/api/v1/messages/{partition}/none/retry", {}),
            "purge dead letters": ("DELETE", f"/api/v1/dlq?queue={queue}", None),
            "a message": ("GET", f"/api/v1/messages/{partition}/b", None),
            "give a message up": ("POST", f"/api/v1/messages/{partition}/none/dlq", {}),
            "delete a message": ("DELETE", f"/api/v1/messages/{partition}/none", None),
            "traces": ("GET", f"/api/v1/traces/{partition}/b", None),
            "trace": ("POST", "/api/v1/traces", {"transactionId": "b", "partitionId": partition, "data": 1}),
            "ranges": ("GET", f"/api/v1/ranges?names={queue}", None),
            "dead letters as a range": ("GET", f"/api/v1/ranges/{queue}$dlq/rows", None),
            "rows": ("GET", f"/api/v1/ranges/{queue}/rows", None),
            "counts": ("POST", f"/api/v1/ranges/{queue}/counts", {"bounds": [0, 1]}),
            "fetch": ("POST", "/api/v1/fetch", {"entries": [{"queue": "mine"}, {"queue": queue}]}),
            "changed": ("POST", "/api/v1/partitions/changed", {"entries": [{"queue": queue}]}),
            "kv": ("POST", "/api/v1/kv", {"operations": [look]}),
            "kv row": ("PUT", f"/api/v1/kv/{queue}/k", {"value": 1, "forever": True}),
            "lock": ("POST", "/api/v1/locks", {"operations": [{"op": "get", "name": queue}]}),
            "take a lock": ("POST", "/api/v1/locks", {"operations": [acquire]}),
            "a lock's row": ("GET", f"/api/v1/kv/queen-locks/{queue}%230", None),
            "timers": ("POST", "/api/v1/timers", {"operations": [cancel]}),
            "a timer": ("GET", f"/api/v1/timers/{queue}/k", None),
            "ephemeral push": ("POST", "/api/v1/ephemeral/push", {"queue": queue, "messages": []}),
            "ephemeral pop": ("GET", f"/api/v1/ephemeral/pop?queue={queue}", None),
            "ephemeral configure": ("POST", "/api/v1/ephemeral/configure", {"queue": queue}),
            "ephemeral ack": ("POST", "/api/v1/ephemeral/ack", {"queue": queue, "acks": []}),
            "query": ("POST", "/streams/v1/queries", {**query, "source_queue": queue}),
            "query's sink": ("POST", "/streams/v1/queries", {**sunk, "sink_queue": queue}),
            "state": ("POST", "/streams/v1/state/get", {"query_id": "x", "partition_id": partition}),
            "cycle": ("POST", "/streams/v1/cycle", {"query_id": "x", "partition_id": partition}),
            "cycle's pushes": (
                "POST",
                "/streams/v1/cycle",
                {"query_id": "x", "partition_id": popped["mine"]["partitionId"], "push_items": [item]},
            ),
            "seek": ("POST", f"/api/v1/consumer-groups/g/queues/{queue}/seek", {"toEnd": True}),
            "commit nothing": ("POST", "/api/v1/staging/w/1/commit", staged),
            "clear": ("DELETE", f"/api/v1/queues/{queue}/clear", None),
            "delete": ("DELETE", f"/api/v1/resources/queues/{queue}", None),
        }

    theirs = {
        what: me.http.request(method, path, json=body)
        for what, (method, path, body) in calls("theirs").items()
    }
    own = {
        what: me.http.request(method, path, json=body) for what, (method, path, body) in calls("mine").items()
    }

    assert {what for what, answer in theirs.items() if answer.status_code != 403} == {"commit nothing"}
    assert {what: answer.text for what, answer in own.items() if answer.status_code in (401, 403)} == {}
    assert theirs["pop"].json()["error"] == (
        "ACCESS_REFUSED - read access to 'theirs' in vhost '/' refused for user 'me'"
    )


@pytest.mark.parametrize("how", ["delete", "move"])
def test_a_queue_that_joins_a_group_while_its_rights_are_looked_at_is_not_changed(
    mine: tuple[Api, Api, TestBroker], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, guest, broker = mine
    for queue in ("mine", "theirs"):
        guest.push(queue, "a", "b")
    guest.pop("mine", batch=1, consumerGroup="g", autoAck="true")
    service = broker.call(lambda node: node.partitioned)

    async def joins_meanwhile(names: Iterable[str]) -> AsyncGenerator[list[str], None]:
        async for part in in_order(names):
            yield part
        service.pop(PopRequest("l", "theirs", group="g", auto_ack=True), 1.0)

    monkeypatch.setattr(groups, "in_order", joins_meanwhile)
    if how == "delete":
        answer = me.http.delete("/api/v1/consumer-groups/g")
    else:
        start = {"subscriptionTimestamp": "2100-01-01T00:00:00Z"}
        answer = me.post("/api/v1/consumer-groups/g/subscription", start)

    assert answer.status_code == 403
    assert [row["transactionId"] for row in guest.pop("theirs", consumerGroup="g")] == ["b"]


def test_rows_that_another_client_staged_are_published_and_dropped_by_who_may_write_to_their_queue(
    mine: tuple[Api, Api, TestBroker],
) -> None:
    me, guest, _ = mine
    sink = io.BytesIO()
    table = pa.table({"payload": ["1"]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    for queue in ("theirs", "mine"):
        where = f"/api/v1/staging/for-{queue}/1/0/0"
        put = guest.http.put(where, content=sink.getvalue(), params={"part": 0, "queue": queue})
        assert put.is_success, put.text
    commit = {"tasks": [{"task": 0, "attempt": 0, "rows": 1}]}

    refused = me.post("/api/v1/staging/for-theirs/1/commit", commit)
    dropped = me.http.delete("/api/v1/staging/for-theirs/1")
    allowed = me.post("/api/v1/staging/for-mine/1/commit", commit)

    assert (refused.status_code, dropped.status_code, allowed.status_code) == (403, 403, 200)
    assert "write access to 'theirs'" in refused.text


def test_lists_show_what_the_caller_may_read(mine: tuple[Api, Api, TestBroker]) -> None:
    me, guest, _ = mine
    for queue in ("mine", "theirs"):
        guest.push(queue, "a", "b")
        guest.ack(guest.pop(queue, batch=1, consumerGroup="g")[0], "dlq")
        guest.post("/api/v1/ephemeral/push", {"queue": queue, "messages": [{"payload": 1}]})
    paths = (
        "resources/queues",
        "resources/partitions",
        "status/queues",
        "consumer-groups",
        "consumer-groups/g",
        "consumer-groups/lagging?minLagSeconds=0",
        "messages",
        "dlq",
        "ranges",
        "ephemeral/queues",
    )

    for path in paths:
        shown = me.get(f"/api/v1/{path}") if "?" not in path else me.http.get(f"/api/v1/{path}")
        assert '"mine"' in shown.text, path
        assert "theirs" not in shown.text, path
        assert "theirs" in guest.http.get(f"/api/v1/{path}").text, path


def test_a_prefix_of_locks_shows_those_that_the_caller_may_read(mine: tuple[Api, Api, TestBroker]) -> None:
    me, guest, broker = mine
    broker.call(lambda node: node.broker.access.set_permissions("me", "/", Permissions("", "", "^(mine|m)$")))
    acquire = [{"op": "acquire", "name": name, "ttlSeconds": 60} for name in ("mine", "mine2")]
    assert guest.post("/api/v1/locks", {"operations": acquire}).is_success
    look = {"op": "getPrefix", "ns": "queen-locks", "prefix": "m"}

    def shown(api: Api) -> list[list[str]]:
        alone = api.post("/api/v1/kv", {"operations": [look]}).json()["results"]
        beside = api.post("/api/v1/transaction", {"kv": [look]}).json()["results"]
        return [[row["key"] for row in results[0]["rows"]] for results in (alone, beside)]

    assert shown(guest) == [["mine#0", "mine2#0"]] * 2
    assert shown(me) == [["mine#0"]] * 2


def test_a_pop_without_a_queue_takes_from_the_caller_s_own(mine: tuple[Api, Api, TestBroker]) -> None:
    me, guest, _ = mine
    guest.push("theirs", "secret")
    guest.push("mine", "a")

    def pop(api: Api) -> list[str]:
        answer = api.get("/api/v1/pop", batch=10, partitions=10, consumerGroup="g")
        return [m["transactionId"] for m in answer.json()["messages"]] if answer.status_code == 200 else []

    assert pop(me) == ["a"]
    assert pop(me) == []
    assert pop(guest) == ["secret"]


def test_a_user_without_rights_does_not_hold_up_others_who_wait(mine: tuple[Api, Api, TestBroker]) -> None:
    me, guest, broker = mine
    guest.configure("theirs")
    with httpx.Client(base_url=broker.http_url, timeout=60) as third:
        import threading

        found: list[int] = []
        ours = threading.Thread(
            target=lambda: found.append(
                me.get("/api/v1/pop", wait="true", timeout=20, consumerGroup="g").status_code
            )
        )
        ours.start()
        ours.join(60)
        guest.push("theirs", "x")
        got = third.get("/api/v1/pop", params={"wait": "true", "timeout": 20, "consumerGroup": "g"})

    assert found == [204]
    assert got.json()["messages"][0]["transactionId"] == "x"


def test_a_stream_of_another_vhost_is_that_vhost_s(mine: tuple[Api, Api, TestBroker]) -> None:
    me, guest, broker = mine

    def add(node: FaultyNode) -> None:
        node.broker.put_vhost("v")
        node.broker.access.set_permissions("me", "v", Permissions("", "", "^s$"))
        vhost = node.broker.vhosts["v"]
        node.broker.declare_queue(vhost, "s", durable=True, arguments={"x-queue-type": "stream"})

    broker.call(add)

    assert guest.get("/api/v1/pop/queue/v%2Fs").status_code == 403  # guest has no permissions in v
    assert me.get("/api/v1/pop/queue/v%2Fs").status_code == 204
    assert me.post("/api/v1/push", {"items": [{"queue": "v/s", "payload": 1}]}).status_code == 403


def test_a_change_of_rights_holds_for_the_next_request_on_an_open_connection(
    mine: tuple[Api, Api, TestBroker],
) -> None:
    me, _, broker = mine
    assert me.get("/api/v1/pop/queue/mine").status_code == 204

    broker.call(lambda node: node.broker.access.set_permissions("me", "/", Permissions("", "", "")))
    assert me.get("/api/v1/pop/queue/mine").status_code == 403

    broker.call(lambda node: node.broker.access.delete_user("me"))
    assert me.get("/api/v1/pop/queue/mine").status_code == 401


def test_a_change_of_rights_holds_for_the_next_request_with_the_same_head(
    mine: tuple[Api, Api, TestBroker],
) -> None:
    _, _, broker = mine
    body = b'{"items":[{"queue":"mine","payload":1}]}'
    login = b"authorization: Basic " + base64.b64encode(b"me:me") + b"\r\nconnection: keep-alive\r\n"
    request = b"POST /api/v1/push HTTP/1.1\r\nhost: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n%b"
    whole = request % (login, len(body), body)
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=60) as wire:

        def status() -> bytes:
            wire.sendall(whole)
            answer = b""
            while not answer.endswith((b"]", b"}")):
                answer += wire.recv(65536)
            return answer[9:12]

        assert [status() for _ in range(3)] == [b"201"] * 3
        broker.call(lambda node: node.broker.access.set_permissions("me", "/", Permissions("", "", "")))
        assert status() == b"403"
        broker.call(lambda node: node.broker.access.delete_user("me"))
        assert status() == b"401"


def test_two_senders_on_one_connection_keep_their_own_rights(mine: tuple[Api, Api, TestBroker]) -> None:
    _, _, broker = mine
    body = b'{"items":[{"queue":"other","payload":1}]}'

    def request(user: bytes) -> bytes:
        login = base64.b64encode(user + b":" + user)
        head = b"POST /api/v1/push HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Basic %b\r\n"
        return head % login + b"content-length: %d\r\n\r\n%b" % (len(body), body)

    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=60) as wire:

        def status(user: bytes) -> bytes:
            wire.sendall(request(user))
            answer = b""
            while not answer.endswith((b"]", b"}")):
                answer += wire.recv(65536)
            return answer[9:12]

        assert [status(user) for user in (b"guest", b"guest", b"me", b"guest", b"me", b"guest")] == [
            b"201",
            b"201",
            b"403",
            b"201",
            b"403",
            b"201",
        ]


@pytest.mark.parametrize(
    ("anonymous", "here", "elsewhere"),
    [("", 204, 401), ("guest", 204, 401), ("none", 401, 401), ("reader", 204, 204), ("missing", 401, 401)],
)
def test_http_anonymous_names_who_comes_without_credentials(
    anonymous: str, here: int, elsewhere: int
) -> None:
    with TestBroker(config=Config(limits=LIMITS, http=Http(anonymous=anonymous))) as broker:
        broker.call(prepare)
        api, outside = Api(broker.http_url), Api(broker.http_url, headers=OUTSIDE)

        assert api.get("/api/v1/pop/queue/q").status_code == here
        assert outside.get("/api/v1/pop/queue/q").status_code == elsewhere
        assert api.get("/api/v1/resources/queues", **{}).status_code == (200 if here == 204 else 401)
        api.http.close()
        outside.http.close()


def test_without_guest_a_request_from_this_machine_is_nobody_s(broker: TestBroker) -> None:
    with TestBroker() as one:
        one.call(lambda node: node.broker.access.delete_user("guest"))

        answer = httpx.get(f"{one.http_url}/api/v1/pop/queue/q", timeout=60)

    assert (answer.status_code, answer.json()["error"]) == (401, "Authentication required")


def test_wrong_credentials_are_never_taken_for_none(broker: TestBroker) -> None:
    for path in ("/api/v1/pop/queue/q", "/api/v1/resources/queues", "/api/whoami"):
        wrong = httpx.get(broker.http_url + path, auth=("guest", "wrong"), timeout=60)
        token = httpx.get(broker.http_url + path, headers={"authorization": "Bearer x.y.z"}, timeout=60)

        assert wrong.status_code == token.status_code == 401
