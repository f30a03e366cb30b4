"""``POST /api/definitions`` accepts JSON and an uploaded file and refuses others, as RabbitMQ does."""

from collections.abc import Iterator

import httpx
import pytest

from holtmq.testing import TestBroker

DOCUMENT = '{"queues": [{"name": "né", "vhost": "/", "durable": true, "auto_delete": false}]}'.encode()


@pytest.fixture(scope="module")
def api() -> Iterator[httpx.Client]:
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url, auth=("guest", "guest")) as client:
        yield client


@pytest.mark.parametrize("path", ["/api/definitions", "/api/definitions/%2F"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_refused(api: httpx.Client, path: str, content_type: str) -> None:
    answer = api.post(path, content=DOCUMENT, headers={"content-type": content_type})

    assert answer.status_code == 415
    assert "application/json" in answer.json()["reason"]
    assert api.get("/api/queues").json() == []


def test_json_may_name_its_charset(api: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}

    assert api.post("/api/definitions", content=b"{}", headers=headers).status_code == 204


def test_a_file_is_uploaded_as_by_a_web_form(api: httpx.Client) -> None:
    form = {"redirect": b"/", "file": DOCUMENT}

    assert api.post("/api/definitions", files=form).status_code == 204
    assert [queue["name"] for queue in api.get("/api/queues").json()] == ["né"]
    assert api.delete("/api/queues/%2F/né").status_code == 204


def test_a_form_without_a_file_is_refused(api: httpx.Client) -> None:
    answer = api.post("/api/definitions", files={"other": ("x", DOCUMENT)})

    assert answer.status_code == 400
    assert "file=@" in answer.json()["reason"]


def test_a_queue_may_have_control_characters_in_its_name(api: httpx.Client) -> None:
    """RabbitMQ takes all but line breaks, which it removes."""
    assert api.put("/api/queues/%2F/a%00b%0Ac", json={"durable": True}).status_code == 201
    assert api.get("/api/queues/%2F/a%00bc").json()["name"] == "a\0bc"

    again = api.post("/api/definitions", json=api.get("/api/definitions").json())

    assert again.status_code == 204
    assert api.delete("/api/queues/%2F/a%00bc").status_code == 204
