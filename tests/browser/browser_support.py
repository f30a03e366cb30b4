"""Messages and clicks that the browser tests have in common."""

import json

import httpx
import pika
from playwright.sync_api import ConsoleMessage, Locator, Page, expect


def watched(page: Page) -> list[str]:
    """What the page logs as an error or raises."""
    problems: list[str] = []

    def logged(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    page.on("console", logged)
    page.on("pageerror", lambda error: problems.append(str(error)))
    return problems


def fill(connection: pika.BlockingConnection, queue: str, count: int, **arguments: object) -> None:
    """Publish ``count`` JSON messages to a new queue; returns when all have been taken in."""
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for n in range(count):
        properties = pika.BasicProperties(
            message_id=f"{queue}-{n}",
            content_type="application/json",
            headers={"parity": "odd" if n % 2 else "even"},
        )
        channel.basic_publish("", queue, json.dumps({"n": n, "order": {"total": n * 10}}), properties)
    channel.queue_declare(queue, passive=True)
    channel.close()


def push(http: httpx.Client, queue: str, count: int) -> None:
    items = [
        {"queue": queue, "partition": f"p{n % 3}", "payload": {"n": n}, "transactionId": f"{queue}-{n}"}
        for n in range(count)
    ]
    http.post("/api/v1/push", json={"items": items}).raise_for_status()


def pop(
    http: httpx.Client, queue: str, group: str, batch: int = 1, partition: str = ""
) -> list[dict[str, str]]:
    path = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
    answer = http.get(path, params={"consumerGroup": group, "batch": batch})
    return list(answer.json()["messages"])


def ack(http: httpx.Client, message: dict[str, str], group: str, **fields: str) -> None:
    names = ("transactionId", "partitionId", "leaseId")
    body = {name: message[name] for name in names} | {"consumerGroup": group, **fields}
    http.post("/api/v1/ack", json=body).raise_for_status()


def rows_of(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).locator("tbody tr")


def confirm(page: Page, action: str, name: str = "", says: str = "") -> None:
    """Do what the dialog asks for; it stays closed until the name is typed."""
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    if says:
        expect(dialog).to_contain_text(says)
    button = dialog.get_by_role("button", name=action, exact=True)
    if name:
        expect(button).to_be_disabled()
        dialog.get_by_role("textbox", name="Name").fill(name)
    button.click()
    expect(dialog).to_be_hidden()
