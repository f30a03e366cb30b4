"""Python's clients of RabbitMQ's management API, unmodified: every call they have, on one broker."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pika
import pika.exceptions
import pytest
from amqpstorm import Message
from amqpstorm.management.api import ManagementApi
from flower.utils.broker import RabbitMQ
from pyrabbit2.api import Client
from rabbitmq_admin import AdminAPI

from holtmq.testing import TestBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as one:
        yield one


@pytest.fixture
def connection(broker: TestBroker) -> Iterator[pika.BlockingConnection]:
    """A client to look at."""
    one = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    one.channel().queue_declare("seen")
    yield one
    with suppress(pika.exceptions.AMQPError):  # the test may have closed it
        one.close()


def test_amqpstorm(broker: TestBroker, connection: pika.BlockingConnection) -> None:
    api = ManagementApi(broker.http_url, "guest", "guest")

    assert api.aliveness_test("/") == {"status": "ok"}
    assert api.whoami()["name"] == "guest"
    assert api.overview()["object_totals"]["connections"] >= 1
    (node,) = api.nodes()
    assert api.node(node["name"])["running"]
    assert api.cluster_name()["name"]
    (open_one,) = api.connection.list()
    assert api.connection.get(open_one["name"])["user"] == "guest"
    (channel,) = api.channel.list()
    assert api.channel.get(channel["name"])["number"] == 1
    api.queue.declare("storm", durable=True)
    api.exchange.declare("storm-x", exchange_type="topic", durable=True)
    api.queue.bind(queue="storm", exchange="storm-x", routing_key="a.b", virtual_host="/")
    assert [b["routing_key"] for b in api.queue.bindings("storm")] == ["storm", "a.b"]
    assert len(api.exchange.bindings("storm-x")) == 1
    assert api.basic.publish(body="hello", exchange="storm-x", routing_key="a.b") == {"routed": True}
    (message,) = api.basic.get("storm", requeue=True, count=1)
    assert isinstance(message, Message)
    assert message.body == "hello"
    assert api.queue.get("storm")["messages"] == 1
    assert {"storm", "seen"} <= {queue["name"] for queue in api.queue.list(show_all=True)}
    assert len(api.queue.list(name="sto", page_size=10)) == 1
    api.queue.purge("storm")
    api.queue.unbind(queue="storm", exchange="storm-x", routing_key="a.b", virtual_host="/")
    api.queue.delete("storm")
    api.exchange.delete("storm-x")
    api.virtual_host.create("storm-v")
    api.user.create("storm-u", "secret", tags="monitoring")
    api.user.set_permission("storm-u", "storm-v")
    assert api.user.get_permission("storm-u", "storm-v")["read"] == ".*"
    assert {"storm-u", "guest"} <= {row["user"] for row in api.virtual_host.get_permissions("storm-v")}
    api.user.delete_permission("storm-u", "storm-v")
    api.user.delete("storm-u")
    api.virtual_host.delete("storm-v")
    api.connection.close(open_one["name"])


def test_pyrabbit2(broker: TestBroker, connection: pika.BlockingConnection) -> None:
    api = Client(f"127.0.0.1:{broker.http_port}", "guest", "guest")

    assert api.is_alive()
    assert api.get_overview()["message_stats"]
    assert api.get_whoami()["name"] == "guest"
    assert api.get_nodes()
    assert api.get_cluster_name()["name"]
    assert api.get_extensions() == []
    assert "/" in api.get_vhost_names()
    api.create_vhost("py")
    api.create_user("py-u", "secret", "management")
    api.set_vhost_permissions("py", "py-u", ".*", ".*", ".*")
    assert api.get_permission("py", "py-u")["write"] == ".*"
    assert api.get_user_permissions("py-u")[0]["vhost"] == "py"
    api.create_queue("py", "one", durable=True)
    api.create_exchange("py", "x", "direct")
    api.create_binding("py", "x", "one", "key")
    assert len(api.get_queue_bindings("py", "one")) == 2
    assert api.publish("py", "x", "key", "payload")
    assert api.get_queue_depth("py", "one") == 1
    (message,) = api.get_messages("py", "one")
    assert message["payload"] == "payload"
    api.purge_queue("py", "one")
    api.create_policy("py", "limit", pattern="^one", definition={"max-length": 5}, priority=1)
    assert api.get_policy("py", "limit")["definition"] == {"max-length": 5}
    ends = {"src-uri": "amqp:///py", "src-queue": "one", "dest-uri": "amqp:///py", "dest-queue": "two"}
    api.create_shovel("py", "mover", **ends)
    assert api.get_shovel("py", "mover")["value"]["src-queue"] == "one"
    assert [shovel["name"] for shovel in api.get_all_shovels()] == ["mover"]
    api.delete_shovel("py", "mover")
    (open_one,) = [row for row in api.get_connections() if row["vhost"] == "/"]
    assert api.get_connection(open_one["name"])["state"] == "running"
    assert api.get_channels()
    assert api.get_definitions()["queues"]
    api.delete_policy("py", "limit")
    api.delete_queue("py", "one")
    api.delete_exchange("py", "x")
    api.delete_user("py-u")
    api.delete_vhost("py")
    api.delete_connection(open_one["name"])


def test_rabbitmq_admin(broker: TestBroker, connection: pika.BlockingConnection) -> None:
    api = AdminAPI(broker.http_url, ("guest", "guest"))

    assert api.overview()["node"] == api.list_nodes()[0]["name"]
    assert api.get_node(api.overview()["node"])["running"]
    assert api.whoami()["name"] == "guest"
    assert api.get_cluster_name()["name"]
    assert api.list_extensions() == []
    assert api.is_vhost_alive("/") == {"status": "ok"}
    api.create_vhost("admin-v")
    assert "admin-v" in [vhost["name"] for vhost in api.list_vhosts()]
    api.create_user("admin-u", "secret", tags="policymaker")
    api.create_user_permission("admin-u", "admin-v")
    assert api.get_user_permission("admin-v", "admin-u")["configure"] == ".*"
    api.create_exchange_for_vhost("x", "admin-v", {"type": "fanout"})
    assert api.get_exchange_for_vhost("x", "admin-v")["type"] == "fanout"
    assert api.list_bindings_for_vhost("admin-v") == []
    api.create_policy_for_vhost("admin-v", "p", {"max-length": 1}, pattern=".*")
    assert api.get_policy_for_vhost("admin-v", "p")["definition"] == {"max-length": 1}
    # It writes the spaces in the name of a connection as "+", which in a path is not a space.
    assert [row["user"] for row in api.list_connections()] == ["guest"]
    assert [row["number"] for row in api.list_channels()] == [1]
    assert api.list_consumers() == []
    api.post_definitions(api.get_definitions())
    api.delete_policy_for_vhost("admin-v", "p")
    api.delete_exchange_for_vhost("x", "admin-v")
    api.delete_user_permission("admin-u", "admin-v")
    api.delete_user("admin-u")
    api.delete_vhost("admin-v")


@pytest.mark.parametrize("vhost", ["", "shop"])
def test_flower_reads_the_queues_of_its_vhost(broker: TestBroker, vhost: str) -> None:
    name = vhost or "/"
    api = AdminAPI(broker.http_url, ("guest", "guest"))
    api.create_vhost(name)
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, name)
    with pika.BlockingConnection(parameters) as celery:
        celery.channel().queue_declare("celery", durable=True)

    async def queues() -> list[dict[str, object]]:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/{vhost}"
        flower = RabbitMQ(url, f"http://guest:guest@127.0.0.1:{broker.http_port}/api/")
        while not (found := await flower.queues(["celery"])):  # it waits for two seconds at most
            await asyncio.sleep(0.05)
        return list(found)

    found = asyncio.run(asyncio.wait_for(queues(), 60))
    (row,) = [row for row in found if row["vhost"] == name]  # for the default vhost it asks for all

    assert (row["messages"], row["messages_unacknowledged"], row["consumers"]) == (0, 0, 0)
