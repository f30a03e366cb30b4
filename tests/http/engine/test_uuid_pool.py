"""Identifiers made by the server."""

from uuid import UUID

from holtmq.http.engine.uuid_pool import new_uuid


def test_minted_ids_are_distinct_version_4_uuids() -> None:
    made = [new_uuid() for _ in range(1000)]

    assert len(set(made)) == 1000
    assert all(str(UUID(one)) == one and UUID(one).version == 4 for one in made)
