"""What transactions had still to place when a node died is placed before the next one listens."""

import time

import pytest

from holtmq.broker.message import Message
from holtmq.broker.publish.due_message import Origin
from holtmq.broker.publish.placings import Placings
from holtmq.node import Node
from holtmq.testing import Keep, TestBroker
from holtmq.wire.properties import Properties, encode_header, encode_properties


def test_a_node_places_it_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    # What waits in a line is placed later, beside the work for clients: here, never.
    monkeypatch.setattr(Placings, "line_up", lambda *_: None)

    def commit(node: Node) -> None:
        flow, vhost = node.broker.flow, node.broker.vhost("/")
        node.broker.exchanges.declare(vhost, "wide", "fanout", durable=True)
        for name in ("a", "b"):
            node.broker.declare_queue(vhost, name, durable=True)
            node.broker.bind(vhost, "wide", name, "")
        header = encode_header(1, encode_properties(Properties(delivery_mode=2)))
        flow.seq += 1
        flow.begin()
        message = Message(flow.seq, b"\x04wide\x00", header, b"m", flow.now_ms, persistent=True)
        flow.delays.accept(message, ("/", "wide"), Origin.PUBLISH, is_kept=True)
        flow.delays.commit()
        node.journal.flush()

    with TestBroker() as broker:
        broker.call(commit)
        while broker.call(lambda node: node.journal.backlog):
            time.sleep(0.001)
        broker.crash_and_restart(keep=Keep.EVERYTHING)

        assert [len(broker.messages(name)) for name in ("a", "b")] == [1, 1]
