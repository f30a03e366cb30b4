"""A real browser (Debian's Chromium, driven by Playwright) and a real broker, one of each per module."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pika
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))

from browser_support import watched

from holtmq.testing import TestBroker

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
# A loaded machine is slow; a right answer ends the wait at once.
PATIENCE_MS = int(os.environ.get("HOLT_TEST_BROWSER_MS", "60000"))
expect.set_options(timeout=PATIENCE_MS)


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


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    """Shared by a module's tests: each uses names of its own."""
    with TestBroker() as one:
        yield one


@pytest.fixture
def http(broker: TestBroker) -> Iterator[httpx.Client]:
    """The broker's API, as its administrator."""
    with httpx.Client(base_url=broker.http_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def shared_page(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page, watched(page)
    context.close()


@pytest.fixture
def page(shared_page: tuple[Page, list[str]]) -> Iterator[Page]:
    """A page that must neither log an error nor raise one."""
    opened, problems = shared_page
    problems.clear()
    yield opened
    opened.goto("about:blank")
    assert problems == []


@pytest.fixture
def worker(broker: TestBroker) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "billing-worker"}
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def log_in(broker: TestBroker, browser: Browser) -> Iterator[Callable[[str, str], Page]]:
    """Open the dashboard as a user, through its own login."""
    contexts = []

    def as_user(name: str, password: str) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        contexts.append(context)
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE_MS)
        answer = context.request.post(
            f"{broker.http_url}/api/v1/session", data={"user": name, "password": password}
        )
        assert answer.ok, answer.text()
        opened.goto(broker.http_url + "/")
        return opened

    yield as_user
    for context in contexts:
        context.close()
