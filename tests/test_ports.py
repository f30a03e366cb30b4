"""One port on several addresses: which addresses a machine may lack, and what stays open after an error."""

import asyncio
import errno
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holtmq.ports import OpenPort, open_port
from ports import free_port

NOWHERE = "192.0.2.1"  # reserved for documentation: no machine has it


async def opened(*hosts: str, port: int = 0) -> OpenPort:
    return await open_port(asyncio.Protocol, hosts, port, backlog=8)


def close(one: OpenPort) -> None:
    for server in one.servers:
        server.close()


def without_ipv6(monkeypatch: pytest.MonkeyPatch, error: int | None) -> None:
    """``error``: of a kernel that binds no such address. None: the kernel has no such sockets at all."""
    loop = asyncio.get_running_loop()
    create = loop.create_server

    async def create_server(protocol: object, host: str, *others: object, **named: object) -> object:
        if ":" not in host:
            return await create(protocol, host, *others, **named)  # type: ignore[call-overload]
        if error is not None:
            raise OSError(error, "no")
        return asyncio.base_events.Server(loop, [], protocol, None, 8, None)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "create_server", create_server)


@pytest.mark.parametrize("error", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, None])
@pytest.mark.parametrize("hosts", [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("::", "127.0.0.1")])
async def test_without_ipv6_the_other_addresses_are_open(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], error: int | None
) -> None:
    without_ipv6(monkeypatch, error)

    one = await opened(*hosts)

    assert one.hosts == ("127.0.0.1",)
    assert [server.sockets[0].getsockname()[1] for server in one.servers] == [one.port]
    close(one)


@pytest.mark.parametrize("error", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, None])
@pytest.mark.parametrize("hosts", [("::1",), ("::1", "::"), ("127.0.0.1", "2001:db8::1")])
async def test_without_ipv6_an_address_that_was_meant_is_an_error(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], error: int | None
) -> None:
    without_ipv6(monkeypatch, error)

    with pytest.raises(OSError, match=r"no"):
        await opened(*hosts)


async def test_an_address_of_another_machine_is_an_error_and_nothing_stays_open() -> None:
    port = free_port()

    with pytest.raises(OSError, match=NOWHERE):
        await opened("127.0.0.1", NOWHERE, port=port)

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_chosen_port_that_is_taken_on_another_address_is_chosen_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    create: Callable[..., object] = loop.create_server
    others: list[socket.socket] = []

    def create_server(protocol: object, host: str, port: int, **named: object) -> object:
        if host == "127.0.0.2" and len(others) < 3:
            others.append(socket.create_server((host, port)))
        return create(protocol, host, port, **named)

    monkeypatch.setattr(loop, "create_server", create_server)

    one = await opened("127.0.0.1", "127.0.0.2")

    assert one.hosts == ("127.0.0.1", "127.0.0.2")
    assert len(others) == 3
    assert one.port not in [other.getsockname()[1] for other in others]
    close(one)
    for other in others:
        other.close()


@pytest.mark.parametrize("name", ["amqp", "http"])
def test_a_broker_does_not_start_beside_another_server_on_its_ipv6_address(tmp_path: Path, name: str) -> None:
    port = free_port()  # on 127.0.0.1, too: one that the kernel chooses for ::1 may be taken there
    try:
        other = socket.create_server(("::1", port), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with other:
        settings = [f"--{name}-host", "127.0.0.1,::1", f"--{name}-port", str(port)]
        second = "http" if name == "amqp" else "amqp"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "holtmq", "serve", "--data-dir", str(tmp_path), *settings),
                *(f"--{second}-host", "127.0.0.1", f"--{second}-port", "0"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert done.returncode != 0
    assert f"('::1', {port}" in done.stdout + done.stderr
