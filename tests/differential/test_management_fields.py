"""Every field that RabbitMQ's management API answers with is here, or in the list of those without meaning.

``recorded_fields.json`` has what RabbitMQ 3.10.8 answered; a test beside the migration asks a RabbitMQ.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from differential.management_fields import Fields, fields_of, recorded
from holtmq.config import load
from holtmq.http.management.missing_fields import MISSING_FIELDS, reason_for
from holtmq.testing import TestBroker

RECORDED = recorded()
PAGE = Path(__file__).parents[2] / "docs" / "management-api.md"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fields]:
    folder = tmp_path_factory.mktemp("fields")
    config = load({"HOLT_PROFILE": "rabbitmq", "HOLT_DATA_DIR": str(folder)}).config
    with TestBroker(folder, config=config) as broker:
        yield fields_of(broker.amqp_url, broker.http_url, lambda: broker.clock.advance(seconds=6))


@pytest.mark.parametrize("resource", sorted(RECORDED))
def test_no_field_of_rabbitmq_is_missing_without_a_reason(ours: Fields, resource: str) -> None:
    missing = RECORDED[resource] - ours[resource]

    assert [field for field in sorted(missing) if reason_for(resource, field) is None] == []


@pytest.mark.parametrize("pattern", MISSING_FIELDS)
def test_the_list_names_fields_of_rabbitmq_that_are_not_here(ours: Fields, pattern: str) -> None:
    def matching(fields: Fields) -> list[str]:
        paths = [f"{resource}.{field}" for resource, found in fields.items() for field in found]
        return [path for path in paths if fnmatchcase(path, pattern)]

    assert matching(RECORDED)
    assert matching(ours) == []


def test_the_documentation_has_the_list() -> None:
    rows = [f"| `{pattern}` | {reason} |" for pattern, reason in MISSING_FIELDS.items()]

    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8"), "\n".join(rows)
