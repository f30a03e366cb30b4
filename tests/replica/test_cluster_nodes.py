"""Nodes of one log as clients, load balancers and operators see them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pika
import psycopg
import pytest
import pytest_asyncio
from click.testing import CliRunner
from playwright.async_api import Page, async_playwright, expect

from alert_rules import firing
from holtmq.broker.records.changes import Kind
from holtmq.cli import main as holt
from holtmq.cli.cluster import cluster
from holtmq.config import Amqp, Config, Data, Http, Limits
from holtmq.journal import JournalFailed
from holtmq.node import Node
from holtmq.verify.http_client import HttpClient
from holtmq.verify.replica.nodes import NodeProcess
from holtmq.verify.replica.proxy import Proxy, Weather
from holtmq.verify.workload import Gone
from postgres import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("failover")]

SERVE = (sys.executable, "-m", "holtmq", "serve")
PATIENCE = 180.0
expect.set_options(timeout=PATIENCE * 1000)


class Nodes:
    """Nodes of one log, and the command line beside them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.log = uuid4().hex
        self._folder = folder
        self._made: list[NodeProcess] = []

    def make(self, name: str, **settings: str) -> NodeProcess:
        more = {
            "HOLT_JOURNAL_REPLICA": self.url,
            "HOLT_JOURNAL_REPLICA_NAME": self.log,
            "HOLT_JOURNAL_TAKEOVER_AFTER": "60",  # an owner that is merely slow is not replaced
        }
        node = NodeProcess(name, self._folder / name, SERVE, more | settings)
        self._made.append(node)
        return node

    async def owner(self, name: str, **settings: str) -> NodeProcess:
        node = self.make(name, **settings)
        await node.start()
        await until(node.is_ready, f"{name} owns the log")
        return node

    async def standby(self, name: str, **settings: str) -> NodeProcess:
        node = self.make(name, **settings)
        await node.start()
        await until(lambda: is_standing_by(node), f"{name} stands by")
        return node

    async def holt(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output of a ``holt cluster`` verb."""
        where = ("--replica", self.url, "--log", self.log)
        result = await asyncio.to_thread(CliRunner().invoke, cluster, [*arguments, *where])
        return result.exit_code, result.output

    async def end(self) -> None:
        for node in self._made:
            await node.kill()


@pytest_asyncio.fixture
async def nodes(postgres: Cluster, tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(postgres.url, tmp_path)
    yield made
    await made.end()


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = condition()
                if await found if asyncio.iscoroutine(found) else found:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(what) from None


async def get(node: NodeProcess, path: str) -> tuple[int, Any]:
    client = await HttpClient.connect(node.ports.http)
    try:
        status, body = await client.get(path)
    finally:
        client.close()
    return status, json.loads(body)


async def post(node: NodeProcess, path: str, body: object) -> tuple[int, Any]:
    client = await HttpClient.connect(node.ports.http)
    try:
        status, answer = await client.post(path, body)
    finally:
        client.close()
    return status, json.loads(answer)


async def is_standing_by(node: NodeProcess) -> bool:
    return bool((await get(node, "/health"))[1]["status"] == "standby")


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """A page of Debian's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "this test needs Chromium (Debian: apt-get install chromium)"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        yield page
        await browser.close()


def connect(*nodes: NodeProcess) -> pika.BlockingConnection:
    hosts = [pika.ConnectionParameters("127.0.0.1", node.ports.amqp) for node in nodes]
    return pika.BlockingConnection(hosts)


async def test_only_the_owner_is_ready_and_the_standby_says_who_that_is(nodes: Nodes) -> None:
    owner = await nodes.owner("one")
    standby = await nodes.standby("two")

    assert await get(owner, "/ready") == (200, {"ready": True})
    status, body = await get(standby, "/ready")
    assert status == 503
    assert "the owner is one" in str(body["reason"])
    status, health = await get(standby, "/health")
    assert status == 200
    assert (health["status"], health["owner"], health["behind_bytes"]) == ("standby", "one", 0)
    status, body = await get(standby, "/api/v1/resources/queues")
    assert (status, body["code"]) == (503, "standby")
    with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
        await asyncio.to_thread(connect, standby)
    assert "the owner is one" in repr(refused.value.args) + str(refused.value)

    standby.send(signal.SIGTERM)

    assert await standby.ended(PATIENCE)


async def test_the_verbs_show_promote_and_forget_and_a_switchover_repeats_nothing(nodes: Nodes) -> None:
    first = await nodes.owner("one")
    second = await nodes.standby("two")
    received: list[tuple[bytes, bool]] = []
    in_doubt: list[int] = []  # pika reported no confirm
    sent = 400

    def produce() -> None:
        number = 0
        while number < sent:
            try:
                connection = connect(first, second)
                channel = connection.channel()
                channel.confirm_delivery()
                while number < sent:
                    channel.basic_publish("", "work", b"%d" % number, pika.BasicProperties(delivery_mode=2))
                    number += 1
                    connection.sleep(0.002)
                connection.close()
            except pika.exceptions.AMQPError:
                in_doubt.append(number)
                continue

    def consume() -> None:
        seen: set[bytes] = set()
        while len(seen) < sent:
            try:
                connection = connect(first, second)
                channel = connection.channel()
                channel.basic_qos(prefetch_count=20)
                for method, _, body in channel.consume("work", inactivity_timeout=1):
                    if method is not None:
                        received.append((body, method.redelivered))
                        seen.add(body)
                        channel.basic_ack(method.delivery_tag)
                    if len(seen) == sent:
                        break
                connection.close()
            except pika.exceptions.AMQPError:
                continue

    def declare() -> None:
        connection = connect(first)
        connection.channel().queue_declare("work", durable=True)
        connection.close()

    await asyncio.to_thread(declare)
    status, output = await nodes.holt("status", "--json")
    found = json.loads(output)
    roles = {node["name"]: node["role"] for node in found["nodes"]}
    assert (status, found["owner"], roles) == (0, "one", {"one": "owner", "two": "standby"})
    status, output = await nodes.holt("promote", "three")
    assert status == 1
    assert "no node is named three" in output
    work = asyncio.gather(asyncio.to_thread(produce), asyncio.to_thread(consume))
    await until(lambda: len(received) > 50, "the load runs")

    assert await nodes.holt("promote", "two") == (0, "two owns the log\n")
    await asyncio.wait_for(work, PATIENCE)

    # Nothing was delivered again, and nothing is there twice but what the producer itself sent again: if pika
    # reads a confirm and the close at once, it reports the close alone.
    assert not any(redelivered for _, redelivered in received)
    numbers = [int(body) for body, _ in received]
    assert list(dict.fromkeys(numbers)) == list(range(sent))
    assert {number for number in numbers if numbers.count(number) > 1} <= set(in_doubt)
    assert await first.ended(PATIENCE)  # it has handed over
    await until(second.is_ready, "the successor serves")
    status, output = await nodes.holt("forget", "two")
    assert status == 1
    assert "owns the log" in output
    assert await nodes.holt("forget", "one") == (0, "one is forgotten\n")
    assert "one" not in (await nodes.holt("status"))[1]


async def test_a_worker_acks_at_the_new_owner_what_the_dead_one_gave_it(nodes: Nodes) -> None:
    first = await nodes.owner("one")
    second = await nodes.standby("two")
    await post(first, "/api/v1/push", {"items": [{"queue": "log", "payload": 1, "transactionId": "a"}]})

    async def pop(node: NodeProcess) -> dict[str, Any]:
        _, popped = await get(node, "/api/v1/pop/queue/log?consumerGroup=g&subscriptionMode=all")
        (message,) = popped["messages"]
        names = ("transactionId", "partitionId", "leaseId", "consumerGroup")
        return {name: message[name] for name in names}

    await post(first, "/api/v1/ack", {**await pop(first), "status": "retry"})
    held = await pop(first)  # a second delivery is recorded at once, and is durable when a later push is
    await post(first, "/api/v1/push", {"items": [{"queue": "other", "payload": 2}]})

    await first.kill()
    await until(second.is_ready, "the successor serves")

    _, (verdict,) = await post(second, "/api/v1/ack", {**held, "status": "completed"})
    assert verdict["success"]


async def test_the_dashboard_shows_standbys_and_hands_the_log_over(nodes: Nodes) -> None:
    first = await nodes.owner("one")
    second = await nodes.standby("two")
    found: dict[str, Any] = {}

    async def standby_is_shown() -> bool:
        found.update((await get(first, "/api/v1/dashboard/journal"))[1])
        return [peer["role"] for peer in found["node"]["peers"]] == ["standby"]

    await until(standby_is_shown, "the journal page names the standby")
    peer = found["node"]["peers"][0]
    assert (peer["name"], peer["seen_seconds_ago"] < PATIENCE) == ("two", True)
    status, refused = await post(first, "/api/v1/dashboard/journal/switchover", {"node": "three"})
    assert status == 404
    assert "no other node is named 'three'; there are: two" in str(refused)

    async with browser_page() as page:
        await page.goto(f"http://127.0.0.1:{first.ports.http}/#/journal")
        nodes_panel = page.get_by_role("region", name="Nodes")
        await expect(nodes_panel.locator("dd").nth(1)).to_have_text("one")
        await page.get_by_role("button", name="Switch over to two").click()
        dialog = page.get_by_role("dialog")
        confirm = dialog.get_by_role("button", name="Switch over")
        await expect(dialog).to_contain_text("then one stops and two owns the log")
        await expect(confirm).to_be_disabled()
        await dialog.get_by_role("textbox").fill("two")
        await confirm.click()

        assert await first.ended(PATIENCE)
        await until(second.is_ready, "the successor serves")
        await expect(page.get_by_text("broker does not answer").first).to_be_visible()

        await page.goto(f"http://127.0.0.1:{second.ports.http}/#/journal")
        await expect(nodes_panel.locator("dd").nth(1)).to_have_text("two")
        await expect(nodes_panel.get_by_role("row", name=re.compile("^one "))).to_contain_text("gone")


async def test_a_standby_that_is_silent_is_a_finding_and_the_alert_fires(nodes: Nodes) -> None:
    owner = await nodes.owner("one")
    standby = await nodes.standby("two")
    url = f"http://127.0.0.1:{owner.ports.http}"

    async def scrape() -> str:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            answer = await http.get(f"{url}/metrics", headers={"accept": "text/plain"})
        return answer.text

    async def is_reported() -> bool:
        return 'holtmq_standby_behind_seconds{node="two"}' in await scrape()

    async def is_silent() -> bool:
        return ("HoltMQStandbyBehind", "two") in firing(await scrape())

    async def is_found() -> bool:
        findings = (await get(owner, "/api/v1/dashboard/overview"))[1]["findings"]
        assert isinstance(findings, list)
        return [(one["rule"], one["name"]) for one in findings] == [("standby", "two")]

    await until(is_reported, "the owner knows its standby")
    standby.send(signal.SIGSTOP)
    with psycopg.connect(nodes.url, autocommit=True) as database:  # a minute need not pass

        async def is_backdated() -> bool:
            """Again, if the standby had a heartbeat on its way."""
            database.execute(
                "UPDATE holtmq.node SET seen = now() - interval '1 minute' WHERE name = 'two'"
                " AND log = (SELECT id FROM holtmq.log WHERE name = %s)",
                (nodes.log,),
            )
            return await is_silent()

        await until(is_backdated, "the alert fires")
    await until(is_found, "it is a finding")
    stuck = await asyncio.to_thread(CliRunner().invoke, holt, ["stuck", "--url", url])
    standby.send(signal.SIGCONT)

    assert stuck.exit_code == 1
    assert re.match(r"warn  two: the standby is [\d,]+ bytes behind, seen \d+ s ago; since ", stuck.output)

    async def is_calm() -> bool:
        return not await is_silent()

    await until(is_calm, "the standby goes on")


async def test_an_owner_out_of_reach_of_postgresql_sends_its_clients_away(
    postgres: Cluster, nodes: Nodes
) -> None:
    proxy = Proxy(postgres.url)
    await proxy.start()
    owner = await nodes.owner("one", HOLT_JOURNAL_REPLICA=proxy.url, HOLT_JOURNAL_TAKEOVER_AFTER="1")
    pushes, pops = [await HttpClient.connect(owner.ports.http) for _ in range(2)]
    message = {"items": [{"queue": "q", "partition": "p", "payload": 1}]}

    async def is_pushed() -> bool:  # on a busy machine it may be cut off for a moment
        client = await HttpClient.connect(owner.ports.http)
        try:
            return (await client.post("/api/v1/push", message))[0] == 201
        except Gone:
            return False
        finally:
            client.close()

    await until(is_pushed, "the owner takes messages")
    connection = await asyncio.to_thread(connect, owner)
    waiting = asyncio.create_task(pops.get("/api/v1/pop/queue/other?wait=true&timeout=600000"))
    proxy.change(Weather.CUT)
    pushing = asyncio.create_task(pushes.post("/api/v1/push", message))

    def is_sent_away() -> bool:
        try:
            connection.process_data_events(0.1)
        except pika.exceptions.ConnectionClosedByBroker as closed:
            return "PostgreSQL has not answered" in closed.reply_text
        return False

    await until(lambda: asyncio.to_thread(is_sent_away), "the client is told why")
    for request in (pushing, waiting):
        status, body = await asyncio.wait_for(request, PATIENCE)
        assert (status, json.loads(body)["code"]) == (503, "cut_off")
        assert b"PostgreSQL has not answered" in body
        assert b"Whether this request took effect is unknown" in body
    status, refused = await get(owner, "/api/v1/resources/queues")
    assert (status, refused["code"]) == (503, "cut_off")
    assert (await get(owner, "/ready"))[0] == 503
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        await asyncio.to_thread(connect, owner)
    proxy.change(Weather.FAIR)
    await until(owner.is_ready, "PostgreSQL is back, and no other node took the log")

    await until(is_pushed, "it takes messages again")
    for client in (pushes, pops):
        client.close()
    await proxy.stop()


async def test_a_switchover_does_not_wait_for_http_clients_that_push_on(tmp_path: Path) -> None:
    node = Node(
        Config(
            data=Data(dir=tmp_path),
            amqp=Amqp(host=("127.0.0.1",), port=0),
            http=Http(host=("127.0.0.1",), port=0),
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        )
    )
    await node.start()
    pushes = 0

    def push(_: JournalFailed | None) -> None:
        """One client after the other: there is always a push that is not durable yet."""
        nonlocal pushes
        pushes += 1
        if not node.ended.is_set():
            node.journal.append(Kind.PAGED, b"push")
            node.journal.on_durable(push)

    push(None)

    async with asyncio.timeout(PATIENCE):
        await node._hand_over()

    assert node.ended.is_set()
    assert pushes > 1
    await node.stop(0)
