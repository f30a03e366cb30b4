"""One RabbitMQ for the folder: its start costs seconds."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "shovel"))

import rabbitmq
from rabbitmq import RabbitMq


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    node = rabbitmq.started(tmp_path_factory.mktemp("rabbitmq") / "node")
    try:
        yield node
    finally:
        node.stop()
