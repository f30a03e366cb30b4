"""Message interceptors: what the settings add to each message, and that the rest of it is untouched."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import get_soon, publish
from msgspec.structs import replace

from holtmq.config import Limits, load
from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]


def start(how: str) -> TestBroker:
    names = ("TIMESTAMP", "ROUTING_NODE", "CLIENT_ID")
    config = load({f"HOLT_INTERCEPTORS_{name}": how for name in names}).config
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    return TestBroker(config=replace(config, limits=limits))


@pytest.mark.parametrize("how", ["off", "keep", "overwrite"])
def test_what_is_added_and_whether_the_publishers_own_value_stays(how: str, connect: Connect) -> None:
    own = {"timestamp_in_ms": 1, "x-routed-by": "mine", "x-client-id": "me", "small": 5}
    with start(how) as broker:
        now = int(broker.clock() * 1000)
        properties = {"connection_name": "the worker"}
        connection = connect(broker.amqp_port, client_properties=properties)
        channel = connection.channel()
        channel.queue_declare("q")

        for _ in range(3):  # repeated publishes may take a shortcut
            publish(channel, "q", "bare")
        publish(channel, "q", "own", headers=own, timestamp=7, content_type="text/plain")

        bare = [get_soon(channel, "q") for _ in range(3)]
        mine = get_soon(channel, "q")
        connection.close()
    assert (mine.body, mine.properties.content_type, mine.headers["small"]) == (b"own", "text/plain", 5)
    for one in bare:
        assert one.body == b"bare"
        if how == "off":
            assert (one.properties.headers, one.properties.timestamp) == (None, None)
            continue
        assert one.headers["timestamp_in_ms"] == now
        assert one.properties.timestamp == now // 1000
        assert one.headers["x-routed-by"].startswith("holt@")
        assert one.headers["x-client-id"] == "the worker"
    if how == "overwrite":
        assert (mine.headers["timestamp_in_ms"], mine.properties.timestamp) == (now, now // 1000)
        assert mine.headers["x-client-id"] == "the worker"
    else:
        assert mine.headers == own
        assert mine.properties.timestamp == 7
