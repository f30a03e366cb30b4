"""The dashboard as an operator uses it: pages with real data, actions with their effect on the broker."""

import re
from pathlib import Path

import httpx
import pika
import pytest
from browser_support import ack, confirm, fill, pop, push, rows_of, watched
from playwright.sync_api import Browser, Page, expect

from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("browser")

AXE = Path(__file__).parents[1] / "e2e/node/node_modules/axe-core/axe.min.js"
PAGES = (
    *("overview", "queues", "groups", "messages", "dead-letters", "exchanges", "connections", "shovels"),
    *(
        "pipeline",
        "access",
        "access?part=vhosts",
        "access?part=policies",
        "access?part=definitions",
        "journal",
    ),
)


def test_from_the_front_page_to_the_stuck_consumer_in_three_clicks(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "stuck", 5)
    channel = worker.channel()
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("stuck", lambda *_: None, consumer_tag="worker-1")
    worker.process_data_events(0.3)
    broker.clock.advance(600)

    page.goto(broker.http_url + "/")

    finding = page.locator(".findings li.bad", has_text="stuck:").first
    expect(finding).to_contain_text("stuck: billing-worker at 127.0.0.1:")
    expect(finding).to_contain_text("for 10 min")
    finding.get_by_role("link", name="stuck", exact=True).click()
    row = rows_of(page, "Consumers")
    expect(row).to_contain_text("worker-1")
    expect(row).to_contain_text("guest")
    expect(row).to_contain_text("10 min")
    row.get_by_role("link", name="billing-worker").click()
    expect(rows_of(page, "Connections")).to_contain_text("Pika Python Client")


def test_a_name_of_255_bytes_hides_no_column_and_a_name_of_dots_is_explained(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    name, dots = "long-" + "x" * 250, ".."
    fill(worker, name, 0)
    fill(worker, dots, 0)

    page.goto(broker.http_url + "/#/queues?text=long-x")

    expect(rows_of(page, "Queues")).to_contain_text(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    table = page.locator("table.list")
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    page.goto(broker.http_url + "/#/queue/%2F/..")
    expect(page.get_by_role("alert").first).to_contain_text('a browser cannot ask for something named ".."')


def test_queues_of_both_kinds_are_filtered_by_what_is_typed(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    fill(worker, "list-work", 3)
    fill(worker, "list-empty", 0)
    push(http, "list-stream", 4)

    page.goto(broker.http_url + "/#/queues?text=list-")

    rows = rows_of(page, "Queues")
    expect(rows).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.press("End")
    page.keyboard.type("wor")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("list-work")
    expect(page).to_have_url(re.compile("text=list-wor"))
    page.goto(broker.http_url + "/#/queues?text=list-&hideEmpty=true&kind=work")
    expect(rows).to_have_count(1)
    page.goto(broker.http_url + "/#/queues?text=list-&sort=ready&descending=true")
    expect(rows.first).to_contain_text("list-stream")


def test_a_queue_is_created_paused_resumed_purged_and_deleted(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    page.goto(broker.http_url + "/#/queues?text=life")
    page.get_by_text("Create a queue").click()
    form = page.get_by_role("form", name="Create a queue")
    form.get_by_label("Name").fill("life")
    form.get_by_label("Arguments as JSON").fill('{"x-max-length": 100}')
    form.get_by_role("button", name="Create").click()
    expect(form).to_contain_text("life is there")
    assert http.get("/api/queues/%2F/life").json()["arguments"] == {"x-max-length": 100}
    fill(worker, "life", 7, **{"x-max-length": 100})

    row = rows_of(page, "Queues")
    expect(row).to_contain_text("7")
    row.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("maintenance")
    confirm(page, "Pause")
    expect(row).to_contain_text("paused")
    channel = worker.channel()
    assert channel.basic_get("life")[0] is None
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    assert channel.basic_get("life", auto_ack=True)[0] is not None

    row.get_by_role("button", name="Purge").click()
    confirm(page, "Purge", "life", "waiting messages will be deleted for good")
    assert broker.queue_depth("life") == 0
    row.get_by_role("button", name="Delete").click()
    confirm(page, "Delete", "life")
    expect(page.get_by_text("No queue matches.")).to_be_visible()
    assert http.get("/api/queues/%2F/life").status_code == 404


def test_messages_of_a_work_queue_are_peeked_at_published_moved_and_purged_by_filter(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    fill(worker, "source", 6)
    fill(worker, "target", 0)
    page.goto(broker.http_url + "/#/queue/%2F/source")

    page.get_by_role("button", name="Peek").click()
    expect(page.get_by_text("6 of 6 that wait")).to_be_visible()
    page.get_by_text("source-1", exact=True).first.click()
    body = page.locator("details[open] .body")
    expect(body).to_contain_text('"n": 1')
    body.get_by_role("button", name="hex").click()
    expect(body).to_contain_text("7b 22 6e 22")
    assert broker.queue_depth("source") == 6

    page.get_by_text("Publish a message").click()
    form = page.get_by_role("form", name="Publish a message")
    form.get_by_label("Body", exact=True).fill("hello")
    form.get_by_label("Headers").fill('{"k": "v"}')
    form.get_by_text("Properties").click()
    form.get_by_label("priority").fill("3")
    form.get_by_label("message id").fill("by-hand")
    form.get_by_role("button", name="Publish").click()
    expect(form.get_by_role("status")).to_have_text("published")

    page.get_by_text("Move, copy or purge messages").click()
    form = page.get_by_role("form", name="Move, copy or purge")
    form.get_by_label("To queue").fill("target")
    form.get_by_label("Filters").fill("header.parity=odd")
    form.get_by_label("only count").check()
    form.get_by_role("button", name="Move").click()
    expect(form).to_contain_text("3 messages would be moved")
    assert broker.queue_depth("source") == 7
    form.get_by_label("only count").uncheck()
    form.get_by_role("button", name="Move").click()
    confirm(page, "Move", "source", "3 messages will be moved")
    expect(form).to_contain_text("3 messages moved")
    assert (broker.queue_depth("source"), broker.queue_depth("target")) == (4, 3)

    page.get_by_role("button", name="Purge by filter").click()
    form.get_by_label("Filters").fill("json.order.total<30")
    form.get_by_role("button", name="Purge by filter").click()
    confirm(page, "Purge", "source", "2 messages will be deleted")
    expect(form).to_contain_text("2 messages deleted")
    left = [worker.channel().basic_get("source", auto_ack=True) for _ in range(2)]
    assert [found[2] for found in left] == [b'{"n": 4, "order": {"total": 40}}', b"hello"]
    assert (left[1][1].priority, left[1][1].message_id, left[1][1].headers) == (3, "by-hand", {"k": "v"})


def test_what_is_typed_survives_the_refresh_of_the_page(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "typed", 1)
    page.goto(broker.http_url + "/#/queue/%2F/typed")
    form = page.get_by_role("form", name="Peek")
    form.get_by_label("Show").fill("33")

    fill(worker, "typed", 1)
    expect(page.get_by_role("region", name="Figures").locator("dd").first).to_have_text("2")

    expect(form.get_by_label("Show")).to_have_value("33")


def test_settings_bindings_and_histograms_of_a_queue(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    http.put("/api/policies/%2F/shown", json={"pattern": "^settle", "definition": {"max-length": 50}})
    fill(worker, "settled", 3, **{"x-message-ttl": 86_400_000})
    worker.channel().queue_bind("settled", "amq.topic", "a.*")

    page.goto(broker.http_url + "/#/queue/%2F/settled")

    settings = rows_of(page, "Settings")
    expect(settings.filter(has_text="x-max-length")).to_contain_text("policy shown")
    expect(settings.filter(has_text="x-message-ttl")).to_contain_text("argument")
    page.get_by_role("button", name="Show defaults").click()
    expect(settings.filter(has_text="x-overflow")).to_contain_text("default")
    expect(rows_of(page, "Bindings").filter(has_text="amq.topic")).to_contain_text("a.*")
    expect(rows_of(page, "Age of waiting messages").first).to_contain_text("3")

    page.get_by_text("Change settings").click()
    form = page.get_by_role("form", name="Change settings")
    expect(form).to_contain_text("It is put above the policy shown.")
    form.get_by_label("Settings as JSON").fill('{"max-length": 2}')
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("status")).to_have_text("saved as the policy only-settled")
    expect(settings.filter(has_text="x-max-length").first).to_contain_text("policy only-settled")
    assert broker.queue_depth("settled") == 2


def test_a_consumer_is_cancelled_and_a_connection_closed_with_a_reason(
    broker: TestBroker, page: Page
) -> None:
    # A name of its own: lists are kept for a second, with the connections of earlier tests.
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "cancelled-worker"}
    worker = pika.BlockingConnection(parameters)
    fill(worker, "cancelled", 2)
    told: list[object] = []
    channel = worker.channel()
    channel.add_on_cancel_callback(told.append)
    channel.basic_consume("cancelled", lambda *_: None, consumer_tag="to-cancel")
    worker.process_data_events(0.2)
    page.goto(broker.http_url + "/#/connections?text=cancelled-worker")
    published = rows_of(page, "Connections").locator("td[data-title=Published]")
    expect(published).to_contain_text("2")
    broker.clock.advance(2)  # a rate is known from the second reading on
    expect(published).to_contain_text("/s")

    page.get_by_role("button", name="Consumers of cancelled-worker").click()
    rows_of(page, "Consumers").get_by_role("button", name="Cancel").click()
    confirm(page, "Cancel the consumer", says="2 unacknowledged messages")
    expect(page.get_by_text("This connection consumes nothing.")).to_be_visible()
    page.get_by_role("button", name="Hide").click()
    worker.process_data_events(5)
    assert len(told) == 1
    assert broker.queue_depth("cancelled") == 2

    rows_of(page, "Connections").get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("stuck since noon")
    confirm(page, "Close")
    expect(page.get_by_text("No connection matches.")).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="stuck since noon"):
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


def test_a_shovel_made_on_the_page_moves_messages(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    fill(worker, "shovel-from", 3)
    fill(worker, "shovel-to", 0)
    page.goto(broker.http_url + "/#/shovels")

    page.get_by_text("Create a shovel").click()
    form = page.get_by_role("form", name="Create a shovel")
    form.get_by_label("Name").fill("by-hand")
    form.get_by_label("To", exact=True).fill("amqp://")
    form.get_by_role("button", name="Create").click()
    expect(form.get_by_role("alert")).to_have_text("name the queue or the exchange to read from")
    form.get_by_label("Source queue").fill("shovel-from")
    form.get_by_label("Destination queue").fill("shovel-to")
    form.get_by_role("button", name="Create").click()
    expect(form.get_by_role("status")).to_have_text("by-hand is there")

    expect(rows_of(page, "Shovels")).to_contain_text("running")
    expect(rows_of(page, "Shovels").get_by_role("cell", name="3", exact=True)).to_be_visible()
    assert broker.queue_depth("shovel-to") == 3
    httpx.delete(broker.http_url + "/api/parameters/shovel/%2F/by-hand").raise_for_status()


def test_an_exchange_is_created_bound_tested_and_deleted(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    fill(worker, "bound", 0)
    page.goto(broker.http_url + "/#/exchanges?text=drawn")
    page.get_by_text("Create an exchange").click()
    form = page.get_by_role("form", name="Create an exchange")
    form.get_by_label("Name").fill("drawn")
    form.get_by_label("Type").select_option("topic")
    form.get_by_role("button", name="Create").click()
    expect(rows_of(page, "Exchanges")).to_contain_text("unbound")

    page.get_by_role("link", name="drawn").click()
    expect(page.get_by_text("Nothing is bound")).to_be_visible()
    page.locator("summary", has_text="Bind").click()
    form = page.get_by_role("form", name="Bind")
    form.get_by_label("Named").fill("bound")
    form.get_by_label("Routing key").fill("order.*")
    form.get_by_role("button", name="Bind").click()
    graph = page.get_by_role("group", name="drawn leads to 1 destination: bound")
    expect(graph.locator("rect.lost")).to_have_count(1)  # the queue has no consumer
    test = page.get_by_role("form", name="Route test")
    test.get_by_label("Routing key").fill("order.new")
    test.get_by_role("button", name="Where would it go?").click()
    region = page.get_by_role("region", name="Route test")
    expect(region.get_by_role("link", name="bound")).to_be_visible()
    test.get_by_label("Routing key").fill("other")
    test.get_by_role("button", name="Where would it go?").click()
    expect(region).to_contain_text("To no queue")

    rows_of(page, "Bindings").get_by_role("button", name="Remove").click()
    confirm(page, "Remove")
    expect(page.get_by_text("Nothing is bound")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    confirm(page, "Delete", "drawn")
    expect(page.get_by_role("heading", name="Exchanges")).to_be_visible()
    assert http.get("/api/exchanges/%2F/drawn").status_code == 404


def test_a_partitioned_queue_shows_its_partitions_and_takes_messages_and_options(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    push(http, "heat", 7)
    for message in pop(http, "heat", "readers", batch=2):
        ack(http, message, "readers", status="completed")
    page.goto(broker.http_url + "/#/queue/%2F/heat")

    expect(page.get_by_role("img", name="3 partitions; the largest backlog is 3 in p0")).to_be_visible()
    page.get_by_label("Backlog of").select_option("readers")
    expect(rows_of(page, "Largest backlogs")).to_have_count(3)
    expect(page).to_have_url(re.compile("group=readers"))
    page.get_by_text("Push a message").click()
    form = page.get_by_role("form", name="Push a message")
    form.get_by_label("Partition").fill("p9")
    form.get_by_label("Message as JSON").fill('{"n": "pushed"}')
    form.get_by_role("button", name="Push").click()
    expect(form.get_by_role("status")).to_have_text("pushed")
    assert http.get("/api/v1/messages?queue=heat&partition=p9").json()["messages"][0]["data"] == {
        "n": "pushed"
    }

    page.get_by_text("Edit the options").click()
    form = page.get_by_role("form", name="Options")
    form.get_by_label("Lease (s)").fill("77")
    form.get_by_role("button", name="Save").click()
    expect(form).to_contain_text("changed: leaseTime")
    assert http.get("/api/v1/dashboard/queues/%2F/heat/partitions").json()["options"]["leaseTime"] == 77

    http.delete("/api/v1/queues/heat/clear?partition=p9").raise_for_status()
    broker.clock.advance(90_000)
    page.get_by_text("Delete idle partitions").click()
    page.get_by_role("form", name="Delete idle partitions").get_by_role("button").click()
    confirm(page, "Delete", "heat", "1 empty partition")
    expect(rows_of(page, "Largest backlogs")).to_have_count(3)


def test_a_group_seeks_after_a_dry_run_and_a_lease_is_released(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    push(http, "sought", 6)
    for message in pop(http, "sought", "seekers", batch=2):
        ack(http, message, "seekers", status="completed")
    (held,) = pop(http, "sought", "seekers")

    page.goto(broker.http_url + "/#/groups?text=seekers")
    expect(rows_of(page, "Groups")).to_contain_text("4")
    page.get_by_role("link", name="seekers").click()
    lease = rows_of(page, "Partitions").filter(has_text=held["leaseId"])
    lease.get_by_role("button", name="Release").click()
    confirm(page, "Release", says="1 message held by")
    expect(page.get_by_role("button", name="Release")).to_have_count(0)
    (again,) = pop(http, "sought", "seekers", partition=held["partition"])
    assert again["transactionId"] == held["transactionId"]

    page.locator("summary", has_text="Seek").click()
    form = page.get_by_role("form", name="Seek")
    form.get_by_label("only count").check()
    form.get_by_role("button", name="Seek").click()
    expect(form).to_contain_text("4 unread messages would be skipped and 0 messages delivered again")
    form.get_by_label("only count").uncheck()
    form.get_by_role("combobox").select_option("start")
    form.get_by_role("button", name="Seek").click()
    confirm(page, "Seek", "seekers", "2 messages delivered again")
    expect(page.get_by_role("region", name="Figures")).to_contain_text("6")
    assert http.get("/api/v1/dashboard/groups/sought/seekers").json()["row"]["messages"] == 6
    page.get_by_role("button", name="Delete the group").click()
    confirm(page, "Delete", "seekers")
    assert http.get("/api/v1/dashboard/groups/sought/seekers").status_code == 404


def test_dead_letters_of_both_kinds_are_grouped_redriven_and_discarded(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    push(http, "dying", 3)
    for n in range(2):
        (message,) = pop(http, "dying", "payers")
        ack(http, message, "payers", status="dlq", error=f"card 47{n}1 declined")
    channel = worker.channel()
    channel.exchange_declare("dlx", "fanout")
    fill(worker, "buried", 0)
    channel.queue_bind("buried", "dlx")
    fill(worker, "died", 2, **{"x-dead-letter-exchange": "dlx"})
    for _ in range(2):
        channel.basic_reject(channel.basic_get("died")[0].delivery_tag, requeue=False)
    channel.queue_declare("died", passive=True)

    page.goto(broker.http_url + "/#/dead-letters")
    rows = rows_of(page, "Kinds of dead letters")
    expect(rows.filter(has_text="dying")).to_contain_text("card <n> declined")
    expect(rows.filter(has_text="dying")).to_contain_text("2")
    expect(page.get_by_role("img", name="Dead letters over time: 4 since")).to_be_visible()
    page.get_by_role("button", name="card <n> declined").click()
    expect(page.get_by_role("img", name="Dead letters over time: 2 since")).to_be_visible()
    page.get_by_role("region", name="Letters of one kind").get_by_role(
        "checkbox", name="Select"
    ).first.check()
    form = page.get_by_role("form", name="1 selected letters")
    form.get_by_role("button", name="Redrive").click()
    confirm(page, "Redrive", says="1 dead letter will be sent back")
    expect(rows.filter(has_text="dying").get_by_role("cell", name="1", exact=True)).to_be_visible()
    assert len(http.get("/api/v1/dlq?queue=dying").json()["messages"]) == 1

    page.goto(broker.http_url + "/#/dead-letters?queue=died")
    expect(rows).to_have_count(1)
    page.get_by_text("All dead letters of died").click()
    form = page.get_by_role("form", name="All dead letters")
    form.get_by_role("button", name="Redrive").click()
    confirm(page, "Redrive", says="2 dead letters will be sent back to the queue in which they died")
    expect(page.get_by_text("No dead letters.")).to_be_visible()
    assert (broker.queue_depth("died"), broker.queue_depth("buried")) == (2, 0)

    page.goto(broker.http_url + "/#/dead-letters?queue=dying")
    page.get_by_text("All dead letters of dying").click()
    form.get_by_label("What").select_option("discard")
    form.get_by_role("button", name="Discard").click()
    confirm(page, "Discard", "dying", "1 dead letter will be deleted")
    expect(page.get_by_text("No dead letters.")).to_be_visible()
    assert http.get("/api/v1/dlq?queue=dying").json()["messages"] == []


def test_a_message_is_searched_for_and_sent_again_edited(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    fill(worker, "searched", 30)
    push(http, "searched-log", 3)
    page.goto(broker.http_url + "/#/messages")
    form = page.get_by_role("form", name="Search messages")

    form.get_by_label("Queue").fill("searched")
    form.get_by_label("Filters").fill("json.order.total=170")
    form.get_by_role("button", name="Search").click()

    expect(page.get_by_text("1 message found, 30 looked at; that is everything")).to_be_visible()
    expect(page).to_have_url(re.compile("queue=searched&filter=json.order.total"))
    page.get_by_text("searched-17").first.click()
    page.get_by_text("Edit and send again").click()
    again = page.get_by_role("form", name="Send again")
    again.get_by_label("Body", exact=True).fill('{"n": "edited"}')
    again.get_by_role("button", name="Send").click()
    expect(again.get_by_role("status")).to_have_text("sent")
    assert broker.queue_depth("searched") == 31

    form.get_by_label("Queue").fill("")
    form.get_by_label("Filters").fill("")
    form.get_by_label("Id", exact=True).fill("searched-log-2")
    form.get_by_role("button", name="Search").click()
    result = page.locator("details.message")
    expect(result).to_have_count(1)
    expect(result).to_contain_text("retained")


def test_a_delayed_message_is_delivered_now_and_another_one_cancelled(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    channel = worker.channel()
    fill(worker, "in-time", 0)
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    channel.queue_bind("in-time", "later", "in-time")
    for name in ("wanted", "unwanted"):
        delay = pika.BasicProperties(headers={"x-delay": 3_600_000}, message_id=name)
        channel.basic_publish("later", "in-time", name.encode(), delay)
    channel.queue_declare("in-time", passive=True)
    page.goto(broker.http_url + "/#/messages?states=delayed")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("details.message")).to_have_count(2)

    for name, action in (("wanted", "Deliver now"), ("unwanted", "Cancel it…")):
        message = page.locator("details.message", has=page.get_by_text(name, exact=True))
        message.locator("summary").first.click()
        message.get_by_role("button", name=action).click()
        if name == "unwanted":
            confirm(page, "Cancel it", says="1 message will be deleted")
        expect(message.get_by_role("status").first).to_contain_text(
            "in-time" if name == "wanted" else "cancelled"
        )

    assert channel.basic_get("in-time", auto_ack=True)[2] == b"wanted"
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("0 messages found")).to_be_visible()
    assert broker.queue_depth("in-time") == 0


def test_pipelines_report_and_are_forgotten(broker: TestBroker, page: Page, http: httpx.Client) -> None:
    report = {"name": "to the lake", "batch": 3, "rows": 10, "lag": 4, "sources": ["clicks"], "error": "boom"}
    http.post("/api/v1/pipelines/q1", json=report | {"state": "failed"}).raise_for_status()
    push(http, "archived", 2)
    for message in pop(http, "archived", "archive"):
        ack(http, message, "archive", status="completed")

    page.goto(broker.http_url + "/#/pipeline")

    row = rows_of(page, "Queries").filter(has_text="to the lake")
    expect(row).to_contain_text("failed")
    expect(row).to_contain_text("boom")
    expect(rows_of(page, "Archives").filter(has_text="archived")).to_contain_text("1")
    row.get_by_role("button", name="Forget").click()
    expect(row).to_have_count(0)
    assert http.get("/api/v1/pipelines").json()["pipelines"] == []


def test_a_checkpoint_is_made_and_thresholds_are_edited_on_the_page(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    page.goto(broker.http_url + "/#/journal")
    expect(rows_of(page, "Segments").last).to_contain_text("it is being written")
    before = http.get("/api/v1/dashboard/journal").json()["checkpoints"]
    page.get_by_role("button", name="Checkpoint now").click()
    expect(page.get_by_text("begun: it completes in the background")).to_be_visible()
    while http.get("/api/v1/dashboard/journal").json()["checkpoints"] == before:
        pass
    expect(page.get_by_text("The newest checkpoint is")).to_be_visible()
    expect(page.get_by_text("This node alone has the journal")).to_be_visible()
    expect(page.get_by_role("link", name="Download a backup")).to_have_attribute(
        "href", "/api/v1/operator/backups/archive"
    )

    page.keyboard.press("g")
    page.keyboard.press("o")
    page.get_by_text("Thresholds").click()
    page.get_by_label("A queue without a reader, after (s)").fill("5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("saved")).to_be_visible()
    assert http.get("/api/v1/dashboard/attention").json()["thresholds"]["unread_seconds"] == 5


def test_a_broker_that_goes_away_and_comes_back_is_noticed(browser: Browser) -> None:
    with TestBroker() as broker:
        page = browser.new_page()
        page.goto(broker.http_url + "/")
        expect(page.get_by_text("all well")).to_be_visible()

        broker.stop()
        expect(page.get_by_text("broker does not answer")).to_be_visible()

        broker.start()
        expect(page.get_by_text("all well")).to_be_visible()
        page.close()


def barriers(page: Page) -> list[str]:
    """What axe-core finds that keeps people with a screen reader or a keyboard out."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text() + ";0")
    # Colours are checked in test_style.py, for both schemes: here they would take most of the time.
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], rules: {'color-contrast': {enabled: false}}})"
        ".then((run) => run.violations.map((one) => `${one.id}: ${one.nodes[0].html}`))"
    )
    return list(found)


@pytest.mark.parametrize(("scheme", "width"), [("light", 380), ("dark", 1280)])
def test_no_page_is_wider_than_the_window_and_every_field_has_a_label(
    broker: TestBroker, browser: Browser, worker: pika.BlockingConnection, scheme: str, width: int
) -> None:
    long = "a-rather-long-queue-name-that-does-not-fit-anywhere-in-a-narrow-window"
    fill(worker, long, 3)
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})  # type: ignore[arg-type]
    page = context.new_page()
    problems = watched(page)
    for path in (*PAGES, f"queue/%2F/{long}"):
        page.goto(f"{broker.http_url}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        nameless = page.evaluate(
            "[...document.querySelectorAll('input, select, textarea, button')].filter((field) => "
            "!(field.labels?.length || field.ariaLabel || field.textContent.trim())).map((f) => f.outerHTML)"
        )
        assert nameless == [], path
        if scheme == "dark":
            assert barriers(page) == [], path
    context.close()
    assert problems == []
