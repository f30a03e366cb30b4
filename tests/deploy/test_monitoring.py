"""The Grafana board and the alert rules use only what a broker under traffic really exposes."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pika
import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from certificates import Certificates
from holtmq.broker_setup import journal_options
from holtmq.config import Config, Http
from holtmq.config.settings import Data
from holtmq.journal.replica.view import Peer
from holtmq.node import Node
from holtmq.replica_life import ReplicaLife
from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("monitoring")  # one broker for all
ROOT = Path(__file__).parents[2]
BOARD = ROOT / "deploy/grafana/dashboards/holtmq.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
SCRAPES = ROOT / "deploy/prometheus/prometheus.yml"
FROM_PROMETHEUS = {"instance", "job"}  # labels of the target, which it adds to every sample
OF_COUNTERS = {"rate", "irate", "increase"}
OF_GAUGES = {"deriv", "delta", "predict_linear"}

# Every metric in RabbitMQ's own board "RabbitMQ-Overview" (10991), but for the sizes of messages: to count
# those would cost every message something.
_OVERVIEW = """
build_info channels channels_closed_total channels_opened_total connections connections_closed_total
connections_opened_total disk_space_available_bytes disk_space_available_limit_bytes erlang_uptime_seconds
global_consumers global_messages_acknowledged_total global_messages_confirmed_total
global_messages_delivered_consume_auto_ack_total global_messages_delivered_consume_manual_ack_total
global_messages_delivered_get_auto_ack_total global_messages_delivered_get_manual_ack_total
global_messages_delivered_total global_messages_get_empty_total global_messages_received_confirm_total
global_messages_received_total global_messages_redelivered_total global_messages_routed_total
global_messages_unroutable_dropped_total global_messages_unroutable_returned_total global_publishers
identity_info process_max_fds process_open_fds process_resident_memory_bytes queue_messages_ready
queue_messages_unacked queues queues_created_total queues_declared_total queues_deleted_total
resident_memory_limit_bytes
"""


@dataclass
class Scraped:
    """What one path exposes: the label sets of each sample name, and its type."""

    labels: dict[str, list[dict[str, str]]]
    kinds: dict[str, str]

    def value(self, name: str, **labels: str) -> float:
        return self.values[name, tuple(sorted(labels.items()))]

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Scraped:
    found = Scraped({}, {}, {})
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.labels.setdefault(sample.name, []).append(dict(sample.labels))
            found.kinds[sample.name] = family.type
            found.values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scraped]]:
    """Both paths of a broker whose queues, groups and dead letters are all in use."""
    folder = tmp_path_factory.mktemp("data")  # whose free space the node reports
    cert, key = Certificates(folder).issue("broker")
    config = Config(data=Data(dir=folder), http=Http(tls_cert=cert, tls_key=key, tls_port=0))
    with TestBroker(config=config) as broker, httpx.Client(base_url=broker.http_url) as http:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        channel.queue_declare("work", durable=True)
        channel.queue_declare("short-lived")
        channel.queue_delete("short-lived")
        channel.confirm_delivery()
        for _ in range(5):
            channel.basic_publish("", "work", b"x", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "no such queue", b"dropped")
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", "no such queue", b"returned", mandatory=True)
        got = channel.basic_get("work")[0]
        channel.basic_nack(got.delivery_tag)
        channel.basic_get("work")  # redelivered, and held from now on
        channel.basic_get("work", auto_ack=True)
        method, _, _ = next(channel.consume("work", inactivity_timeout=120))
        channel.basic_ack(method.delivery_tag)
        items = [{"queue": "log", "payload": n} for n in range(3)]
        http.post("/api/v1/push", json={"items": items}).raise_for_status()
        http.get("/api/v1/pop/queue/log", params={"consumerGroup": "g"}).raise_for_status()
        broker.clock.advance(90)
        broker.call(lambda node: node.sample_figures())
        broker.call(with_a_standby)
        texts = {}
        for path in ("/metrics", "/metrics/per-object"):
            answer = http.get(path, headers={"accept": "text/plain;version=0.0.4"})
            answer.raise_for_status()
            texts[path] = read(answer.text)
        yield texts
        connection.close()


def with_a_standby(node: Node) -> None:
    """As if another node had reported: real ones are in ``tests/replica``."""
    node.replica = ReplicaLife(
        node.config, journal_options(node.config), None, node.scheduler.defer_commit, node.amqp.flush
    )
    node.replica.view.answered_at = math.inf
    node.replica.view.peers = (Peer("two", "standby", "amqp://two", 0, 0.0, 0.5),)


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the board and the rules, with a name for the report."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield f"board: {panel['title']}", target["expr"]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


def parsed(expression: str) -> Any:
    return promql.parse(re.sub(r"\$__rate_interval", "5m", expression).replace("$instance", ".*"))


def nodes(tree: Any) -> list[Any]:
    found: list[Any] = []
    promql.walk(tree, found.append)
    return found


@pytest.mark.parametrize(("where", "expression"), [pytest.param(*row, id=row[0]) for row in expressions()])
def test_every_name_and_label_of_an_expression_is_exposed(
    where: str, expression: str, scraped: dict[str, Scraped]
) -> None:
    exposed = jobs_of(scraped)
    for node in nodes(parsed(expression)):
        if isinstance(node, promql.VectorSelector):
            if node.name == "up":  # Prometheus' own
                continue
            assert node.name in exposed.labels, f"{where}: nothing exposes {node.name}"
            known = set().union(*exposed.labels[node.name]) | FROM_PROMETHEUS
            for matcher in node.matchers.matchers:
                assert matcher.name in known, f"{where}: {node.name} has no label {matcher.name}"
        elif isinstance(node, promql.Call) and node.func.name in OF_COUNTERS | OF_GAUGES:
            name = nodes(node)[-1].name if node.func.name != "predict_linear" else nodes(node)[2].name
            counts = exposed.kinds[name] in ("counter", "histogram")
            assert counts == (node.func.name in OF_COUNTERS), f"{where}: {node.func.name} of {name}"
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            names = {str(one.name) for one in nodes(node) if isinstance(one, promql.VectorSelector)}
            known = set().union(*(labels for name in names for labels in exposed.labels[name]))
            assert set(node.modifier.labels) <= known | FROM_PROMETHEUS, f"{where}: {node.modifier.labels}"


def jobs_of(scraped: dict[str, Scraped]) -> Scraped:
    """What Prometheus keeps, with the paths and the relabelling of the configuration in ``deploy``."""
    kept = Scraped({}, {}, {})
    for job in yaml.safe_load(SCRAPES.read_text())["scrape_configs"]:
        found = scraped[job.get("metrics_path", "/metrics")]
        for name, labels in found.labels.items():
            rules = job.get("metric_relabel_configs", ())
            if all(re.fullmatch(rule["regex"], name) for rule in rules):
                assert name not in kept.labels, f"two jobs keep {name}: sums count it twice"
                kept.labels[name], kept.kinds[name] = labels, found.kinds[name]
    return kept


def test_labels_in_legends_and_alert_texts_exist(scraped: dict[str, Scraped]) -> None:
    exposed = jobs_of(scraped)
    texts = [
        (target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        for panel in json.loads(BOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            texts.append((rule["expr"], re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))))
    assert any(labels for _, labels in texts)
    for expression, labels in texts:
        selectors = [one for one in nodes(parsed(expression)) if isinstance(one, promql.VectorSelector)]
        for one in selectors:
            known = set().union(*exposed.labels.get(str(one.name), [{}])) | FROM_PROMETHEUS
            assert set(labels) <= known, f"{expression}: {set(labels) - known}"


def test_every_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            page, _, anchor = rule["annotations"]["runbook"].partition("#")
            headings = re.findall(r"^### (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
            assert anchor in [heading.lower() for heading in headings], f"{page} has no {rule['alert']}"
            assert rule["labels"]["severity"] in ("critical", "warning")


def test_rabbitmqs_own_board_finds_its_metrics(scraped: dict[str, Scraped]) -> None:
    found = scraped["/metrics"].labels

    assert [name for name in _OVERVIEW.split() if f"rabbitmq_{name}" not in found] == []
    # It joins every metric with this one, and chooses by these labels.
    (identity,) = found["rabbitmq_identity_info"]
    assert {"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"} <= set(identity)
    assert identity["rabbitmq_endpoint"] == "aggregated"
    assert len(found["rabbitmq_build_info"]) == 1


def test_the_counters_of_rabbitmqs_names_are_true(scraped: dict[str, Scraped]) -> None:
    node = scraped["/metrics"]

    def total(name: str) -> float:
        return node.value(f"rabbitmq_global_messages_{name}_total", protocol="amqp091")

    assert total("received") == total("received_confirm") == 7
    assert total("confirmed") == 7
    assert total("routed") == 5
    assert (total("unroutable_dropped"), total("unroutable_returned")) == (1, 1)
    assert (total("delivered_get_manual_ack"), total("delivered_get_auto_ack")) == (2, 1)
    assert total("delivered_consume_manual_ack") == 3
    assert total("redelivered") == 1
    assert total("acknowledged") == 2
    assert node.value("rabbitmq_connections") == node.value("rabbitmq_channels") == 1
    assert node.value("rabbitmq_consumers") == 1
    assert node.value("rabbitmq_global_publishers", protocol="amqp091") == 1
    assert node.value("rabbitmq_queues_declared_total") == 4  # AMQP sees "log", too
    assert node.value("rabbitmq_queues_created_total") == 3
    assert node.value("rabbitmq_queues_deleted_total") == 1
    assert node.value("holtmq_journal_commit_seconds_count") > 0
