"""What users with different rights see of the dashboard, and how an administrator manages them there."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pika
import pytest
from browser_support import confirm, fill, push, rows_of
from playwright.sync_api import Page, expect

from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("browser")


CHANGES = re.compile(
    r"…|Publish\b|Push|Create|Save|Peek|Bind$|Restart|Checkpoint now|Download|^Set$|Edit|Import|Forget"
    "|Thresholds"
)


def make_user(http: httpx.Client, name: str, tags: str, **patterns: str) -> None:
    http.put(f"/api/users/{name}", json={"password": "secret", "tags": tags}).raise_for_status()
    if patterns:
        given = {"configure": "", "write": "", "read": ""} | patterns
        http.put(f"/api/permissions/%2F/{name}", json=given).raise_for_status()


def pages_of(page: Page) -> list[str]:
    expect(page.get_by_role("navigation", name="Pages").or_(page.get_by_role("heading"))).not_to_have_count(0)
    return page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()


def test_a_user_without_rights_is_told_so_and_sees_nothing(
    broker: TestBroker, http: httpx.Client, log_in: Callable[[str, str], Page]
) -> None:
    make_user(http, "nobody", "")

    page = log_in("nobody", "secret")

    expect(page.get_by_text("has no permission on any queue and no tag")).to_be_visible()
    assert pages_of(page) == []
    page.goto(broker.http_url + "/#/queues")
    expect(page.get_by_role("heading", name="No access")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_a_monitoring_user_sees_every_page_and_may_change_nothing(
    broker: TestBroker,
    http: httpx.Client,
    log_in: Callable[[str, str], Page],
    worker: pika.BlockingConnection,
) -> None:
    fill(worker, "watched", 2)
    push(http, "watched-log", 2)
    worker.channel().basic_consume("watched", lambda *_: None)
    make_user(http, "watcher", "monitoring")

    page = log_in("watcher", "secret")

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert pages_of(page) == [
        *(
            "Overview",
            "Queues",
            "Exchanges",
            "Connections",
            "Shovels",
            "Pipeline",
            "Users and policies",
            "Journal",
        )
    ]
    expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
    for path in (
        "overview",
        "queues",
        "queue/%2F/watched",
        "queue/%2F/watched-log",
        "exchanges",
        "exchanges/%2F/amq.topic",
        "connections",
        "shovels",
        "pipeline",
        "access?part=vhosts",
        "access?part=policies",
        "journal",
    ):
        page.goto("about:blank")  # or the heading of the page before would do
        page.goto(f"{broker.http_url}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading…")).to_have_count(0)
        offers = page.locator("main button, main summary, main a.do", has_text=CHANGES)
        assert offers.all_inner_texts() == [], path
    page.goto(f"{broker.http_url}/#/access")
    expect(page.get_by_role("button", name="Users", exact=True)).to_have_count(0)
    refused = page.request.delete(f"{broker.http_url}/api/queues/%2F/watched")
    assert refused.status == 403  # asked all the same


def test_a_management_user_sees_its_own_virtual_hosts_only(
    broker: TestBroker,
    http: httpx.Client,
    log_in: Callable[[str, str], Page],
    worker: pika.BlockingConnection,
) -> None:
    fill(worker, "of-others", 2)
    http.put("/api/vhosts/tenant").raise_for_status()
    http.put("/api/queues/tenant/of-its-own", json={"durable": True}).raise_for_status()
    make_user(http, "tenant", "management")
    given = {"configure": "", "write": "", "read": ".*"}
    http.put("/api/permissions/tenant/tenant", json=given).raise_for_status()

    page = log_in("tenant", "secret")

    expect(rows_of(page, "Queues")).to_have_count(1)
    expect(rows_of(page, "Queues")).to_contain_text("of-its-own")
    assert "Connections" not in pages_of(page)
    page.goto(f"{broker.http_url}/#/exchanges")
    expect(rows_of(page, "Exchanges").filter(has_text="amq.topic")).to_have_count(1)
    page.goto(f"{broker.http_url}/#/queue/%2F/of-others")
    expect(page.get_by_role("alert").first).to_contain_text("no queue 'of-others' in vhost '/'")
    page.goto(f"{broker.http_url}/#/overview")
    expect(page.get_by_role("heading", name="No access")).to_be_visible()


def test_a_policymaker_edits_policies_after_a_preview_and_its_own_queues_only(
    broker: TestBroker,
    http: httpx.Client,
    log_in: Callable[[str, str], Page],
    worker: pika.BlockingConnection,
) -> None:
    fill(worker, "maker.q", 2)
    fill(worker, "foreign.q", 2)
    make_user(http, "maker", "policymaker", configure="^maker", read="^maker")

    page = log_in("maker", "secret")

    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert "Overview" not in pages_of(page)
    rows = rows_of(page, "Queues")
    expect(rows.filter(has_text="maker.q").get_by_role("button")).to_have_count(3)
    expect(rows.filter(has_text="foreign.q").get_by_role("button")).to_have_count(0)
    page.goto(f"{broker.http_url}/#/access?part=policies")
    page.get_by_text("Create a policy").click()
    form = page.get_by_role("form", name="Edit a policy")
    form.get_by_label("Name", exact=True).fill("short")
    form.get_by_label("Pattern of names").fill("^maker")
    form.get_by_label("Definition as JSON").fill('{"max-length": 5}')
    form.get_by_role("button", name="Show the effect").click()
    expect(page.get_by_text("It matches 1 queue and takes effect on 1")).to_be_visible()
    assert http.get("/api/policies").json() == []
    form.get_by_role("button", name="Save").click()
    expect(form).to_contain_text("short is saved")
    assert http.get("/api/policies/%2F/short").json()["definition"] == {"max-length": 5}
    row = rows_of(page, "Policies")
    row.get_by_role("button", name="Delete").click()
    confirm(page, "Delete", "short")
    expect(page.get_by_text("No policies.")).to_be_visible()


def test_an_administrator_creates_edits_and_deletes_a_user(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    page.goto(f"{broker.http_url}/#/access?text=carol")
    page.get_by_text("Create a user").click()
    form = page.get_by_role("form", name="Create a user")
    form.get_by_label("Name").fill("carol")
    form.get_by_label("Password").fill("first")
    form.get_by_label("monitoring").check()
    form.get_by_role("button", name="Create").click()
    expect(form).to_contain_text("carol is saved")
    assert http.get("/api/users/carol").json()["tags"] == ["monitoring"]

    page.get_by_role("button", name="carol", exact=True).click()
    region = page.get_by_role("region", name="User carol")
    edit = region.get_by_role("form", name="Edit carol")
    edit.get_by_label("management").check()
    edit.get_by_role("button", name="Save").click()
    expect(edit).to_contain_text("carol is saved")
    grant = region.get_by_role("form", name="Set permissions")
    grant.get_by_label("configure").fill("^carol")
    grant.get_by_role("button", name="Set").click()
    expect(rows_of(page, "Permissions")).to_contain_text("^carol")
    topics = region.get_by_role("form", name="Set topic permissions")
    topics.get_by_label("write").fill("^carol\\.")
    topics.get_by_role("button", name="Set").click()
    expect(rows_of(page, "Topic permissions")).to_contain_text("^carol")
    limits = region.get_by_role("form", name="Set limits")
    limits.get_by_label("max-connections").fill("7")
    limits.get_by_role("button", name="Set").click()
    expect(limits).to_contain_text("set")

    user = http.get("/api/users/carol").json()
    assert (sorted(user["tags"]), user["limits"]) == (["management", "monitoring"], {"max-connections": 7})
    assert http.get("/api/permissions/%2F/carol").json()["configure"] == "^carol"
    assert http.get("/api/topic-permissions/%2F/carol").json()[0]["write"] == "^carol\\."
    as_before = httpx.get(f"{broker.http_url}/api/whoami", auth=("carol", "first"), timeout=60)
    assert as_before.status_code == 200  # the password was left as it was

    rows_of(page, "Users").get_by_role("button", name="Delete… carol").click()
    confirm(page, "Delete", "carol")
    expect(page.get_by_text("No user matches.")).to_be_visible()
    assert http.get("/api/users/carol").status_code == 404


def test_a_virtual_host_is_created_limited_and_deleted(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    page.goto(f"{broker.http_url}/#/access?part=vhosts")
    page.get_by_text("Create a virtual host").click()
    form = page.get_by_role("form", name="Create a virtual host")
    form.get_by_label("Name").fill("trial")
    form.get_by_role("button", name="Create").click()
    row = rows_of(page, "Virtual hosts").filter(has_text="trial")
    row.get_by_role("button", name="Limits").click()
    limits = page.get_by_role("form", name="Set limits")
    limits.get_by_label("max-queues").fill("3")
    limits.get_by_role("button", name="Set").click()
    expect(page.get_by_role("region", name="Limits of trial").get_by_label("max-queues")).to_have_value("3")
    assert http.get("/api/vhost-limits/trial").json()[0]["value"] == {"max-queues": 3}
    row.get_by_role("button", name="Delete").click()
    confirm(page, "Delete", "trial", "All its queues")
    expect(row).to_have_count(0)
    assert http.get("/api/vhosts/trial").status_code == 404


def test_definitions_are_imported_after_a_diff(
    broker: TestBroker, page: Page, http: httpx.Client, tmp_path: Path
) -> None:
    document = http.get("/api/definitions").json()
    document["queues"].append({"name": "imported", "vhost": "/", "durable": True})
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document))

    page.goto(f"{broker.http_url}/#/access?part=definitions")
    page.get_by_label("File").set_input_files(file)

    queues = rows_of(page, "What would change").filter(has_text="imported")
    expect(queues).to_contain_text("queues")
    assert http.get("/api/queues/%2F/imported").status_code == 404
    page.get_by_role("button", name="Import").click()
    confirm(page, "Import", "import", "1 object will be created and 0 changed")
    expect(page.get_by_text("imported", exact=True)).to_be_visible()
    assert http.get("/api/queues/%2F/imported").status_code == 200


def test_what_a_click_in_a_long_list_opens_comes_into_view(
    broker: TestBroker, page: Page, http: httpx.Client
) -> None:
    for n in range(40):
        user = {"password_hash": "", "tags": ""}
        http.put(f"/api/users/many-{n:02}", json=user).raise_for_status()
        policy = {"pattern": "^none$", "definition": {"max-length": 1}}
        http.put(f"/api/policies/%2F/many-{n:02}", json=policy).raise_for_status()

    page.goto(broker.http_url + "/#/access?part=users&text=many")
    page.get_by_role("button", name="many-01", exact=True).click()
    expect(page.get_by_role("region", name="User many-01")).to_be_focused()
    expect(page.get_by_role("heading", name="many-01")).to_be_in_viewport()
    page.get_by_role("button", name="many-02", exact=True).click()
    expect(page.get_by_role("heading", name="many-02")).to_be_in_viewport()
    page.goto(broker.http_url + "/#/access?part=policies")
    rows_of(page, "Policies").nth(1).get_by_role("button", name="Edit").click()
    expect(page.get_by_role("heading", name="many-01")).to_be_in_viewport()
    for n in range(40):  # other tests have the broker, too
        http.delete(f"/api/users/many-{n:02}").raise_for_status()
        http.delete(f"/api/policies/%2F/many-{n:02}").raise_for_status()
