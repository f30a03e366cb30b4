"""The dashboard as an operator uses it: pages with real data, actions with their effect on the broker."""

import json
import re

import httpx
import pika
import pytest
from playwright.sync_api import Browser, Page, expect

from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("browser")


def fill(connection: pika.BlockingConnection, queue: str, count: int) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    for n in range(count):
        properties = pika.BasicProperties(message_id=f"id-{n}", content_type="application/json")
        channel.basic_publish("", queue, json.dumps({"n": n}), properties)
    channel.queue_declare(queue, passive=True)
    channel.close()


def push(broker: TestBroker, queue: str, count: int) -> None:
    items = [{"queue": queue, "partition": f"p{n % 3}", "payload": {"n": n}} for n in range(count)]
    httpx.post(f"{broker.http_url}/api/v1/push", json={"items": items}).raise_for_status()


def test_from_the_front_page_to_the_stuck_consumer_in_three_clicks(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "orders", 5)
    channel = worker.channel()
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="worker-1")
    worker.process_data_events(0.3)
    broker.clock.advance(600)

    page.goto(broker.http_url + "/")

    finding = page.locator(".findings li.bad").first
    expect(finding).to_contain_text("orders: billing-worker at 127.0.0.1:")
    expect(finding).to_contain_text("for 10 min")
    finding.get_by_role("link", name="orders").click()
    row = page.get_by_role("table", name="Consumers").locator("tbody tr")
    expect(row).to_contain_text("worker-1")
    expect(row).to_contain_text("guest")
    expect(row).to_contain_text("10 min")
    row.get_by_role("link", name="billing-worker").click()
    expect(page.get_by_role("table", name="Connections").locator("tbody tr")).to_contain_text(
        "Pika Python Client"
    )


def test_queues_of_both_kinds_are_filtered_by_what_is_typed(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "orders", 3)
    fill(worker, "empty", 0)
    push(broker, "clicks", 4)

    page.goto(broker.http_url + "/#/queues")

    rows = page.get_by_role("table", name="Queues").locator("tbody tr")
    expect(rows).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("ord")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("orders")
    expect(page).to_have_url(re.compile("text=ord"))
    page.goto(broker.http_url + "/#/queues?hideEmpty=true&kind=work")
    expect(rows).to_have_count(1)


def test_purging_asks_for_the_name_and_says_how_many(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "orders", 7)
    page.goto(broker.http_url + "/#/queue/%2F/orders")

    page.get_by_role("button", name="Purge…").click()

    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("7 waiting messages")
    action = dialog.get_by_role("button", name="Purge")
    expect(action).to_be_disabled()
    dialog.get_by_role("textbox").fill("orders")
    action.click()
    expect(dialog).to_be_hidden()
    assert broker.queue_depth("orders") == 0


def test_peeking_shows_properties_and_takes_nothing(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "orders", 3)
    page.goto(broker.http_url + "/#/queue/%2F/orders")

    page.get_by_role("button", name="Peek").click()

    expect(page.get_by_text("3 of 3 that wait")).to_be_visible()
    page.get_by_text("id-1").first.click()
    expect(page.locator("details[open] pre").last).to_contain_text('"n": 1')
    assert broker.queue_depth("orders") == 3


def test_a_message_published_from_the_page_arrives(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "orders", 0)
    page.goto(broker.http_url + "/#/queue/%2F/orders")

    page.get_by_text("Publish a message").click()
    page.get_by_role("textbox", name="Body").fill("hello")
    page.get_by_role("textbox", name="Properties").fill('{"headers": {"k": "v"}, "priority": 3}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("published", exact=True).last).to_be_visible()

    channel = worker.channel()
    method, properties, body = channel.basic_get("orders", auto_ack=True)
    assert method is not None
    assert (body, properties.priority, properties.headers) == (b"hello", 3, {"k": "v"})


def test_closing_a_connection_from_the_page(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    page.goto(broker.http_url + "/#/connections")

    page.get_by_role("button", name="Close…").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()

    expect(page.get_by_text("Nobody is connected over AMQP.")).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        worker.process_data_events(20)


def test_a_shovel_is_shown_and_deleted_from_the_page(broker: TestBroker, page: Page) -> None:
    ends = {
        "src-uri": "amqp://",
        "src-queue": "from-here",
        "dest-uri": "amqp://127.0.0.1:9",
        "dest-queue": "to",
    }
    url = broker.http_url + "/api/parameters/shovel/%2F/mover"
    httpx.put(url, json={"value": ends}, auth=("guest", "guest")).raise_for_status()
    page.goto(broker.http_url + "/#/shovels")

    expect(page.get_by_text("cannot connect to amqp://127.0.0.1:9")).to_be_visible()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    expect(page.get_by_text("No shovel moves messages between brokers.")).to_be_visible()


def test_the_route_test_says_where_a_message_would_go(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    channel = worker.channel()
    channel.exchange_declare("events", "topic")
    channel.queue_declare("orders")
    channel.queue_bind("orders", "events", "order.*")
    page.goto(broker.http_url + "/#/exchanges/%2F/events")

    page.get_by_label("Routing key").fill("order.new")
    page.get_by_role("button", name="Where would it go?").click()

    expect(page.get_by_role("status").last).to_contain_text("orders")
    page.get_by_label("Routing key").fill("other")
    page.get_by_role("button", name="Where would it go?").click()
    expect(page.get_by_text("To no queue")).to_be_visible()


def test_groups_and_dead_letters_of_a_partitioned_queue(broker: TestBroker, page: Page) -> None:
    push(broker, "clicks", 6)
    popped = httpx.get(f"{broker.http_url}/api/v1/pop/queue/clicks?consumerGroup=billing&batch=1").json()
    first = popped["messages"][0]
    httpx.post(
        f"{broker.http_url}/api/v1/ack",
        json={
            "transactionId": first["transactionId"],
            "partitionId": first["partitionId"],
            "leaseId": first["leaseId"],
            "consumerGroup": "billing",
            "status": "dlq",
            "error": "card 4711 declined",
        },
    ).raise_for_status()

    page.goto(broker.http_url + "/#/groups")
    row = page.get_by_role("table", name="Groups").locator("tbody tr")
    expect(row).to_contain_text("billing")
    expect(row).to_contain_text("5")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
    letters = page.get_by_role("table", name="Families of dead letters").locator("tbody tr")
    expect(letters).to_contain_text("card <n> declined")
    letters.get_by_role("button", name="Send back").click()
    expect(page.get_by_text("1 sent back")).to_be_visible()
    expect(page.get_by_text("No dead letters.")).to_be_visible()


def test_thresholds_are_edited_on_the_page(broker: TestBroker, page: Page) -> None:
    page.goto(broker.http_url + "/")

    page.get_by_text("Thresholds").click()
    page.get_by_label("A queue without a reader, after (s)").fill("5")
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_text("saved")).to_be_visible()
    found = httpx.get(f"{broker.http_url}/api/v1/dashboard/attention").json()
    assert found["thresholds"]["unread_seconds"] == 5


def test_a_broker_that_goes_away_and_comes_back_is_noticed(broker: TestBroker, browser: Browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(broker.http_url + "/")
    expect(page.get_by_text("all well")).to_be_visible()

    broker.stop()
    expect(page.get_by_text("broker does not answer")).to_be_visible()

    broker.start()
    expect(page.get_by_text("all well")).to_be_visible()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_no_page_is_wider_than_the_window(
    broker: TestBroker, browser: Browser, worker: pika.BlockingConnection, scheme: str, width: int
) -> None:
    fill(worker, "a-rather-long-queue-name-that-does-not-fit-anywhere-in-a-narrow-window", 3)
    push(broker, "clicks", 3)
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})  # type: ignore[arg-type]
    page = context.new_page()
    for path in (
        "",
        "queues",
        "groups",
        "dead-letters",
        "exchanges",
        "connections",
        "shovels",
        "access",
        "journal",
    ):
        page.goto(f"{broker.http_url}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    context.close()
