"""A real browser (Debian's Chromium, driven by Playwright) in front of a real broker."""

import shutil
from collections.abc import Iterator

import pika
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from holtmq.testing import TestBroker

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
expect.set_options(timeout=60_000)  # a loaded machine is slow; a right answer ends the wait at once


@pytest.fixture(
    scope="module"
)  # not longer: while it lives an event loop runs in this thread, and other tests need it
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "the browser tests need Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must neither log an error nor raise one."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    problems: list[str] = []

    def logged(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    opened.on("console", logged)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


@pytest.fixture
def worker(broker: TestBroker) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "billing-worker"}
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()
