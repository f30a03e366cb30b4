"""The dashboard while something goes wrong: sessions that end, a broker that restarts, a slow network."""

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pika
import pytest
from browser_support import fill, pop, push, rows_of
from playwright.sync_api import Browser, Page, Route, expect

from holtmq.http.engine.sessions import IDLE_SECONDS
from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("browser")


def add_user(broker: TestBroker, name: str) -> None:
    body = {"password": "secret", "tags": "administrator"}
    httpx.put(f"{broker.http_url}/api/users/{name}", json=body, timeout=60).raise_for_status()
    given = {"configure": ".*", "write": ".*", "read": ".*"}
    httpx.put(f"{broker.http_url}/api/permissions/%2F/{name}", json=given, timeout=60).raise_for_status()


def log_in_again(page: Page, name: str) -> None:
    expect(page.get_by_role("status")).to_have_text(
        f"The session of {name} has ended. Log in to go on where you were."
    )
    page.get_by_label("User").fill(name)
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Log in").click()


def test_a_session_that_ends_asks_for_the_login_and_goes_on_where_it_was(
    broker: TestBroker, log_in: Callable[[str, str], Page], worker: pika.BlockingConnection
) -> None:
    fill(worker, "after-lunch", 2)
    add_user(broker, "ann")
    page = log_in("ann", "secret")
    page.goto(f"{broker.http_url}/#/queues?text=after-lunch")
    expect(rows_of(page, "Queues")).to_have_count(1)

    broker.clock.advance(IDLE_SECONDS + 1)
    log_in_again(page, "ann")

    expect(rows_of(page, "Queues")).to_have_count(1)
    assert page.url.endswith("/#/queues?text=after-lunch")
    assert page.title() == "Queues · HoltMQ"


def test_a_restart_of_the_broker_is_noticed_and_ends_the_session(browser: Browser) -> None:
    with TestBroker() as broker:
        add_user(broker, "bea")
        context = browser.new_context()
        page = context.new_page()
        login = {"user": "bea", "password": "secret"}
        assert context.request.post(f"{broker.http_url}/api/v1/session", data=login).ok
        page.goto(f"{broker.http_url}/#/journal")
        expect(page.get_by_role("heading", name="Segments")).to_be_visible()

        broker.stop()
        expect(page.get_by_text("broker does not answer")).to_be_visible()
        expect(page.get_by_role("heading", name="Segments")).to_be_visible()  # what was known stays in sight
        broker.start()
        log_in_again(page, "bea")

        expect(page.get_by_role("heading", name="Segments")).to_be_visible()
        expect(page.get_by_text("all well")).to_be_visible()
        context.close()


def test_messages_that_cannot_be_read_are_listed(browser: Browser, tmp_path: Path) -> None:
    with TestBroker(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("hurt", durable=True)
        channel.basic_publish("", "hurt", b"a body to find", pika.BasicProperties(delivery_mode=2))
        connection.close()
        broker.call(lambda node: node.checkpoints.make())
        broker.stop()
        (file,) = (one for one in (tmp_path / "data").glob("*.seg") if b"a body to find" in one.read_bytes())
        file.write_bytes(file.read_bytes().replace(b"a body to find", b"a body to fin_"))
        broker.start()
        add_user(broker, "eva")
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        assert connection.channel().basic_get("hurt")[0] is None
        connection.close()
        context = browser.new_context()
        login = {"user": "eva", "password": "secret"}
        assert context.request.post(f"{broker.http_url}/api/v1/session", data=login).ok
        page = context.new_page()

        page.goto(broker.http_url)
        finding = page.get_by_role("listitem").filter(has_text="1 message cannot be read and is set aside")
        finding.get_by_role("link").click()

        expect(page.get_by_role("heading", name="Set aside")).to_be_visible()
        (row,) = rows_of(page, "Set aside").all()
        expect(row).to_contain_text("hurt")
        expect(row).to_contain_text("checksum")
        expect(row).to_contain_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"))  # when it was found
        context.close()


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    for name in ("late-a", "late-ab"):
        fill(worker, name, 0)
    held: list[Route] = []
    page.route("**/dashboard/queues?text=late-a&*", lambda route: held.append(route))
    page.route("**/dashboard/queues?text=late-a", lambda route: held.append(route))
    page.goto(f"{broker.http_url}/#/queues?text=late-")
    rows = rows_of(page, "Queues")
    expect(rows).to_have_count(2)

    page.keyboard.press("/")
    page.keyboard.press("End")
    with page.expect_request(lambda request: "text=late-a" in request.url and "late-ab" not in request.url):
        page.keyboard.type("a")
    page.keyboard.type("b")
    expect(rows).to_have_count(1)
    assert held
    with page.expect_response(lambda response: response.request.url == held[0].request.url) as late:
        held[0].continue_()
    late.value.finished()

    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert rows.count() == 1
    page.unroute_all(behavior="ignoreErrors")


def test_a_slow_network_shows_that_it_waits_and_submits_once(
    broker: TestBroker, browser: Browser, http: httpx.Client
) -> None:
    context = browser.new_context()
    page = context.new_page()
    slow = {"offline": False, "latency": 150, "downloadThroughput": 100_000, "uploadThroughput": 50_000}
    context.new_cdp_session(page).send("Network.emulateNetworkConditions", slow)
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.method) if "/api/queues/" in request.url else None
    )

    page.goto(f"{broker.http_url}/#/queues?text=slowly")
    expect(page.get_by_text("No queue matches.")).to_be_visible()
    page.get_by_text("Create a queue").click()
    form = page.get_by_role("form", name="Create a queue")
    form.get_by_label("Name").fill("slowly")
    form.get_by_role("button", name="Create").dblclick()

    expect(form).to_contain_text("slowly is there")
    assert asked.count("PUT") == 1
    assert http.get("/api/queues/%2F/slowly").status_code == 200
    context.close()


def test_the_link_that_skips_the_navigation_moves_the_focus_and_keeps_the_page(
    broker: TestBroker, page: Page
) -> None:
    page.goto(f"{broker.http_url}/#/queues")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert page.url.endswith("/#/queues")


def test_numbers_and_line_ends_that_a_browser_would_change_are_shown_and_sent_again_as_they_are(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    """JavaScript rounds 64-bit ids, and a text field has other line ends than a body."""
    body, payload = '{"id": 1234567890123456789, "price": 1.50}', '{"id":9007199254740993,"price":1.50}'
    channel = worker.channel()
    channel.queue_declare("exact", durable=True)
    headers = {"order": 1234567890123456789}
    for text in (body, "a;b\r\n1;2\r\n"):
        channel.basic_publish("", "exact", text, pika.BasicProperties(headers=headers))
    push = f'{{"items":[{{"queue":"exact-log","payload":{payload}}}]}}'
    http.post("/api/v1/push", content=push, headers={"content-type": "application/json"}).raise_for_status()

    for queue, count, first in (
        ("exact", 2, '"id": 1234567890123456789'),
        ("exact-log", 1, '"id": 9007199254740993'),
    ):
        page.goto(f"{broker.http_url}/#/messages?queue={queue}")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("details.message")).to_have_count(count)
        for result in page.locator("details.message").all():
            result.locator("summary").first.click()
            result.get_by_text("Edit and send again").click()
            again = result.get_by_role("form", name="Send again")
            again.get_by_role("button", name="Send").click()
            expect(again.get_by_role("status")).to_have_text("sent")
        shown = page.locator("details.message").first
        expect(shown.locator(".body pre")).to_contain_text(first)
        expect(shown.locator(".body pre")).to_contain_text('"price": 1.50')

    sent = [channel.basic_get("exact", auto_ack=True) for _ in range(4)]
    assert [text.decode() for _, _, text in sent] == [body, "a;b\r\n1;2\r\n"] * 2
    assert [properties.headers for _, properties, _ in sent] == [headers] * 4
    popped = http.get("/api/v1/pop/queue/exact-log", params={"batch": 2, "autoAck": "true"}).text
    assert popped.count(f'"data":{payload}') == 2


def test_groups_of_any_name_are_reached_from_the_front_page_and_a_half_typed_address_opens(
    broker: TestBroker, page: Page, http: httpx.Client, worker: pika.BlockingConnection
) -> None:
    push(http, "orders on hold", 2)
    pop(http, "orders on hold", "audit on tape")
    http.get("/api/v1/pop/queue/orders on hold", params={"autoAck": "true"}).raise_for_status()
    push(http, "orders on hold", 4)
    broker.clock.advance(600)

    fill(worker, "100%", 0)
    page.goto(broker.http_url + "/#/queue/%2F/100%")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("100%")
    for finding, title in (
        ("audit on tape on orders on hold", "audit on tape"),
        ("(no group) on orders on hold", "(no group)"),
    ):
        page.goto(broker.http_url + "/#/overview")
        page.locator(".findings").get_by_role("link", name=finding).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Groups / {title} on orders on hold")


def test_escape_leaves_the_search_so_that_keys_open_pages(broker: TestBroker, page: Page) -> None:
    page.goto(broker.http_url + "/#/queues")
    search = page.get_by_role("searchbox", name="Name contains")
    expect(search).to_be_visible()
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", level=1)).to_have_text("Journal")


def test_a_page_behind_the_end_of_a_list_becomes_the_last_page(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    for n in range(51):
        http.put(f"/api/queues/%2F/listed-{n:02}", json={"durable": True}).raise_for_status()

    page.goto(f"{broker.http_url}/#/queues?text=listed-&offset=500")
    expect(rows_of(page, "Queues")).to_have_count(1)
    expect(page.get_by_role("navigation", name="Rows")).to_contain_text("51 of 51")
    http.delete("/api/queues/%2F/listed-50").raise_for_status()
    expect(rows_of(page, "Queues")).to_have_count(50)


def test_a_name_from_right_to_left_leaves_the_words_beside_it_in_place(
    broker: TestBroker, page: Page, worker: pika.BlockingConnection
) -> None:
    name = "\u0645\u0631\u062d\u0628\u0627"
    fill(worker, name, 1)
    broker.clock.advance(600)
    page.goto(broker.http_url + "/#/overview")

    link = page.locator(".findings").get_by_role("link", name=name, exact=True)
    expect(link).to_be_visible()
    text = link.evaluate("""link => {
        const range = document.createRange(), text = link.nextSibling.nextSibling;
        range.setStart(text, 0);
        range.setEnd(text, 1);
        return [range.getBoundingClientRect().left, link.getBoundingClientRect().right];
    }""")
    assert text[0] >= text[1] - 1
