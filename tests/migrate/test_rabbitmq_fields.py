"""The fields of a real RabbitMQ's management API are those that were recorded."""

import time

from differential.management_fields import RABBITMQ_AWAITED, fields_of, recorded
from holtmq.http.management.missing_fields import reason_for
from rabbitmq import RabbitMq


def test_rabbitmq_answers_with_no_field_that_was_not_compared(old: RabbitMq) -> None:
    theirs = fields_of(old.amqp_url, old.http_url, lambda: time.sleep(0.2), RABBITMQ_AWAITED)

    known = recorded()
    news = [
        f"{resource}.{field}"
        for resource, fields in theirs.items()
        for field in sorted(fields - known[resource])
        if reason_for(resource, field) is None
    ]
    assert news == []
