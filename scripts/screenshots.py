"""Screenshots of every page of the dashboard, light and dark, wide and narrow: ``make screenshots``.

Owns: the example data and the list of pages. Must not touch: anything but the folder it writes to. It needs
Chromium and Playwright (the test extra).
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import httpx
import pika
from playwright.sync_api import Browser, Page, sync_playwright

from holtmq.testing import TestBroker

WIDTHS = {"wide": 1400, "narrow": 380}
PAGES = {
    "overview": "/overview",
    "queues": "/queues",
    "work-queue": "/queue/%2F/orders",
    "partitioned-queue": "/queue/%2F/clicks?group=billing",
    "groups": "/groups",
    "group": "/groups/clicks/billing",
    "messages": "/messages",
    "dead-letters": "/dead-letters",
    "exchanges": "/exchanges",
    "exchange": "/exchanges/%2F/events",
    "connections": "/connections",
    "shovels": "/shovels",
    "pipeline": "/pipeline",
    "users": "/access?part=users",
    "vhosts": "/access?part=vhosts",
    "policies": "/access?part=policies",
    "definitions": "/access?part=definitions",
    "journal": "/journal",
}


def connect(broker: TestBroker, name: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": name}
    parameters.heartbeat = 0  # nothing reads from it while the pictures are taken
    return pika.BlockingConnection(parameters)


def second(broker: TestBroker) -> None:
    broker.clock.advance(1)
    broker.call(lambda node: node.sample_figures())


def topology(channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    channel.exchange_declare("events", "topic", durable=True)
    channel.exchange_declare("graveyard", "fanout", durable=True)
    channel.exchange_declare("unused", "direct", durable=True)
    channel.exchange_declare("ingress", "fanout", durable=True)
    channel.exchange_declare(
        "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    dead = {"x-dead-letter-exchange": "graveyard", "x-max-priority": 5}
    channel.queue_declare("orders", durable=True, arguments=dead)
    quorum = {"x-queue-type": "quorum", "x-dead-letter-exchange": "graveyard"}
    channel.queue_declare("invoices", durable=True, arguments=quorum)
    channel.queue_declare("emails", durable=True)
    channel.queue_declare("audit.of-everything-that-happens-in-the-shop.long-name", durable=True)
    channel.queue_declare("graveyard", durable=True)
    channel.exchange_bind("events", "ingress")
    channel.queue_bind("orders", "events", "order.*")
    channel.queue_bind("invoices", "events", "order.paid")
    channel.queue_bind("emails", "events", "*.created")
    channel.queue_bind("audit.of-everything-that-happens-in-the-shop.long-name", "events", "#")
    channel.queue_bind("graveyard", "graveyard")
    channel.queue_bind("emails", "later", "emails")


def work(broker: TestBroker, worker: pika.BlockingConnection) -> None:
    channel = worker.channel()
    topology(channel)
    channel.confirm_delivery()
    for n in range(120):
        headers = {"tenant": "acme" if n % 3 else "globex", "attempt": n % 4}
        properties = pika.BasicProperties(
            message_id=f"order-{n}", content_type="application/json", delivery_mode=2, headers=headers
        )
        body = json.dumps({"order": {"id": n, "total": n * 10, "lines": [{"sku": f"A{n}"}]}})
        channel.basic_publish("ingress", "order.paid" if n % 2 else "order.created", body, properties)
        if n % 10 == 0:
            second(broker)
    channel.basic_publish(
        "later",
        "emails",
        "in an hour",
        pika.BasicProperties(headers={"x-delay": 3_600_000}, message_id="late-1"),
    )
    for n in range(8):
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=n % 4 == 0)
    channel.basic_qos(prefetch_count=20)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="worker-1")
    worker.process_data_events(0.2)


def flow(broker: TestBroker, worker: pika.BlockingConnection) -> None:
    """A minute of traffic that rises and falls, so that charts have something to show."""
    channel = worker.channel()
    for n in range(60):
        amount = 6 + n % 20
        for number in range(amount):
            channel.basic_publish("", "emails", b"hello %d" % number)
        channel.queue_declare("emails", passive=True)
        if n % 9 == 0:
            for _ in range(2):
                method, _, _ = channel.basic_get("invoices")
                channel.basic_reject(method.delivery_tag, requeue=False)
        second(broker)


def shovel(http: httpx.Client, name: str, **ends: str) -> None:
    value = {key.replace("_", "-"): text for key, text in ends.items()}
    http.put(f"/api/parameters/shovel/%2F/{name}", json={"value": value}).raise_for_status()


def streams(http: httpx.Client) -> None:
    for step in range(40):
        items = [
            {"queue": "clicks", "partition": f"user-{n}", "payload": {"page": f"/p/{n}", "step": step}}
            for n in range(60)
            if n % (step + 1) == 0 or step < 2
        ]
        http.post("/api/v1/push", json={"items": items}).raise_for_status()
    for n in range(12):
        query = {"consumerGroup": "billing" if n % 2 else "archive", "batch": 3}
        popped = http.get("/api/v1/pop/queue/clicks", params=query).json()
        for message in popped["messages"][: 0 if n > 8 else 2]:
            fields = ("transactionId", "partitionId", "leaseId", "consumerGroup")
            failed = {"status": "dlq", "error": f"card {n}4711 declined by bank {n % 2}"}
            body = {name: message[name] for name in fields} | (
                failed if n in (3, 5, 7) else {"status": "completed"}
            )
            http.post("/api/v1/ack", json=body).raise_for_status()
    report = {"name": "clicks to lake", "batch": 41, "rows": 1200, "rowsPerSecond": 5200.5, "lag": 17}
    more = {"sources": ["clicks"], "sink": "delta s3://lake/clicks", "durationMs": 230, "stateRows": 1200}
    http.post("/api/v1/pipelines/5d1c", json=report | more | {"stateBytes": 1 << 20}).raise_for_status()
    broken = {
        "name": "daily report",
        "state": "failed",
        "error": "the lake's catalog does not answer: timeout",
    }
    http.post("/api/v1/pipelines/77aa", json=broken).raise_for_status()


def access(http: httpx.Client) -> None:
    for name, tags in (("ann", "administrator"), ("bob", "monitoring,policymaker"), ("shop", "")):
        http.put(f"/api/users/{name}", json={"password": "secret", "tags": tags}).raise_for_status()
    rights = {"configure": "^shop", "write": "^(shop|events)", "read": "^shop"}
    http.put("/api/permissions/%2F/shop", json=rights).raise_for_status()
    http.put("/api/vhosts/staging", json={"description": "for trying things out"}).raise_for_status()
    policy = {"pattern": "^(orders|emails)$", "definition": {"max-length": 10000}, "apply-to": "queues"}
    http.put("/api/policies/%2F/bounded", json=policy | {"priority": 1}).raise_for_status()
    guard = {"pattern": ".*", "definition": {"message-ttl": 604800000}}
    http.put("/api/operator-policies/%2F/week", json=guard).raise_for_status()


def prepare(page: Page, name: str) -> None:
    """Open what a page shows only when asked."""
    if name == "work-queue":
        page.get_by_role("button", name="Peek").click()
        page.locator("details.message summary").first.click()
        page.get_by_text("Move, copy or purge messages").click()
    elif name == "messages":
        page.get_by_label("Text in the body").fill("A7")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("that is everything").wait_for()
        page.locator("details.message summary").first.click()
    elif name == "dead-letters":
        page.get_by_role("button", name="card").first.click()
    elif name == "users":
        page.get_by_role("button", name="shop", exact=True).click()
    elif name == "policies":
        page.get_by_role("button", name="Edit").first.click()
        page.get_by_role("button", name="Show the effect").first.click()
        page.get_by_text("takes effect on").wait_for()
    elif name == "group":
        page.get_by_text("Seek", exact=True).first.click()
    elif name == "connections":
        page.get_by_role("button", name="Consumers of").first.click()


def shoot(browser: Browser, url: str, folder: Path) -> None:
    for scheme in ("light", "dark"):
        for size, width in WIDTHS.items():
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
            page = context.new_page()
            for name, path in PAGES.items():
                page.goto(f"{url}/#{path}")
                page.locator("h1").first.wait_for()
                page.wait_for_load_state("load")
                page.locator("text=Loading…").first.wait_for(state="detached")
                page.wait_for_timeout(700)
                prepare(page, name)
                page.wait_for_timeout(400)
                page.screenshot(path=folder / f"{name}-{scheme}-{size}.png", full_page=True)
            context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default="screenshots")
    folder = parser.parse_args().folder
    folder.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("screenshots need Chromium (Debian: apt-get install chromium)")
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url, timeout=60) as http:
        worker, other = connect(broker, "billing-worker"), connect(broker, "mailer")
        work(broker, worker)
        streams(http)
        access(http)
        other.channel().basic_consume("emails", lambda *_: None, auto_ack=True)
        other.process_data_events(0.1)
        shovel(http, "to-staging", src_uri="amqp://", src_queue="graveyard", dest_uri="amqp://127.0.0.1:9")
        shovel(
            http, "copies", src_uri="amqp://", src_queue="copy-me", dest_uri="amqp://", dest_queue="copied"
        )
        broker.clock.advance(900)
        flow(broker, worker)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            shoot(browser, broker.http_url, folder)
            browser.close()
        worker.close()
        other.close()
    sys.stdout.write(f"{len(list(folder.glob('*.png')))} screenshots in {folder}/\n")


if __name__ == "__main__":
    main()
