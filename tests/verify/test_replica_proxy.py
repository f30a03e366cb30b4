"""The proxy of ``holt verify --replica`` reaches the PostgreSQL that the user's address leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from holtmq.verify.replica.proxy import Proxy, address_of
from ports import free_port
from postgres import Cluster


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster.create()
    finally:
        cluster.destroy()


def ask(url: str) -> object:
    with psycopg.connect(url) as connection:
        return connection.execute("SHOW port").fetchone()


async def test_a_proxy_leads_to_whatever_server_the_address_finds(postgres: Cluster) -> None:
    for url in (
        postgres.url,
        f"postgresql://postgres@/postgres?host={postgres.folder}&port={postgres.port}",
        f"host=127.0.0.1,127.0.0.1 port={free_port()},{postgres.port} user=postgres dbname=postgres",
    ):
        with psycopg.connect(url) as connection:
            proxy = Proxy(address_of(connection, url))
        await proxy.start()
        try:
            found = await asyncio.to_thread(ask, proxy.url)
        finally:
            await proxy.stop()

        assert found == (str(postgres.port),), url


def test_a_proxy_keeps_the_name_that_a_certificate_is_for() -> None:
    proxy = Proxy("host=db.example.org hostaddr=10.0.0.5 user=holt sslmode=verify-full")

    given = psycopg.conninfo.conninfo_to_dict(proxy.url)

    assert (given["host"], given["hostaddr"]) == ("db.example.org", "127.0.0.1")
