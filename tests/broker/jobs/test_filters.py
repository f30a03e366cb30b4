"""The language of filters."""

from datetime import UTC, datetime

import pytest

from holtmq.broker.errors import Conflict
from holtmq.broker.jobs.filters import Subject, parse_filter
from holtmq.wire.properties import Properties, encode_header, encode_properties

BODY = b'{"order": {"id": 17, "lines": [{"sku": "a-1"}], "paid": true}, "total": 99.5}'
HEADER = encode_header(
    len(BODY),
    encode_properties(
        Properties(
            headers={"tenant": "acme", "n": 5, "when": datetime.fromtimestamp(100, UTC)},
            message_id="m-1",
            priority=3,
        )
    ),
)
SUBJECT = Subject(BODY, HEADER, "orders", "order.new", 90.0, 2)


@pytest.mark.parametrize(
    "expression",
    [
        "body~order",
        "json.order.id=17",
        "json.order.lines[0].sku=a-1",
        "json.order.paid=true",
        "json.total>99",
        "json.total<100",
        "json.missing!=1",
        "json.order.id!=18",
        "property.message_id=m-1",
        "property.priority>2",
        "property.app_id!=x",
        "header.tenant=acme",
        "header.tenant~cm",
        "header.n=5",
        'header.tenant="acme"',
        "header.when=100",
        "exchange=orders",
        "key=order.new",
        "age>60",
        "age<91",
        "size>10",
        "deliveries=2",
        " header.tenant = acme ",
    ],
)
def test_holds(expression: str) -> None:
    assert parse_filter([expression])(SUBJECT)


@pytest.mark.parametrize(
    "expression",
    [
        "body~nothing",
        "json.order.id=1",
        "json.order.paid=1",
        "json.order.lines[1].sku=a-1",
        "json.order.id.deeper=17",
        "json.missing=1",
        "json.missing~1",
        "json.missing<1",
        "json.order.id!=17",
        "property.app_id=x",
        "header.none~a",
        "header.tenant>1",
        "age>90",
    ],
)
def test_does_not_hold(expression: str) -> None:
    assert not parse_filter([expression])(SUBJECT)


def test_every_expression_must_hold_and_none_is_always_true() -> None:
    assert parse_filter([])(SUBJECT)
    assert not parse_filter(["age>60", "header.tenant=other"])(SUBJECT)


def test_a_body_that_is_no_json_and_a_header_that_is_malformed_have_no_fields() -> None:
    subject = Subject(b"\xff not json", b"\x00" * 12 + b"\xff", "", "", 0.0, 0)
    assert not parse_filter(["json.a=1"])(subject)
    assert not parse_filter(["header.a=1"])(subject)
    assert parse_filter(["body~not json"])(subject)


def test_a_body_too_large_to_decode_is_no_json_but_still_text() -> None:
    body = b'{"n": 1, "x": "' + b"y" * (4 << 20) + b'"}'
    subject = Subject(body, b"", "", "", 0.0, 0)
    assert not parse_filter(["json.n=1"])(subject)
    assert parse_filter(["body~yyy"])(subject)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("tenant=acme", "fields are body"),
        ("header.tenant", "is not understood"),
        ("age>old", "'old' is not a number"),
        ("property.colour=red", "there is no property 'colour'; one of content_type"),
    ],
)
def test_what_is_not_understood_is_refused(expression: str, complaint: str) -> None:
    with pytest.raises(Conflict, match=complaint):
        parse_filter([expression])
