"""TLS on a non-blocking socket: what is reported as sent is what arrives, and no decrypted byte is left."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Certificates
from holtmq.load.sockets import TlsSocket, connect, has_begun, has_decrypted, trusting


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """The load tool's end, not blocking, and the broker's end."""
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("broker"))
    accepted: list[ssl.SSLSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            plain, _ = listening.accept()
            accepted.append(context.wrap_socket(plain, server_side=True))

        thread = threading.Thread(target=accept)
        thread.start()
        tls = trusting(str(certificates.authority))
        ours = connect("127.0.0.1", listening.getsockname()[1], tls, 60.0)
        thread.join()
    assert isinstance(ours, TlsSocket)
    ours.setblocking(False)
    accepted[0].settimeout(60)
    with ours, accepted[0] as theirs:
        yield ours, theirs


def test_a_full_socket_buffer_blocks_and_the_record_it_has_begun_is_completed(
    pair: tuple[TlsSocket, ssl.SSLSocket],
) -> None:
    ours, theirs = pair
    data = memoryview(bytes(range(256)) * 100_000)
    sent = ours.send(data)
    assert 0 < sent < len(data)
    with pytest.raises(BlockingIOError):
        ours.send(data[sent:])
    assert has_begun(ours)

    arrived = bytearray()
    while has_begun(ours):
        arrived += theirs.recv(65_536)
        try:
            sent += ours.send(data[sent : sent + 1])  # less than it has begun
        except BlockingIOError:
            continue
    while len(arrived) < sent:
        arrived += theirs.recv(65_536)

    assert arrived == data[:sent]


def test_the_rest_of_a_record_is_known_where_no_selector_reports_it(
    pair: tuple[TlsSocket, ssl.SSLSocket],
) -> None:
    ours, theirs = pair
    with pytest.raises(BlockingIOError):
        ours.recv(10)
    theirs.sendall(b"x" * 100)
    got = b""
    while not got:
        select.select([ours], (), (), 60)
        try:
            got = ours.recv(10)
        except BlockingIOError:  # a ticket for the next session
            continue

    assert has_decrypted(ours)
    assert ours.recv_into(room := bytearray(1000)) == 90
    assert (got + room[:90], has_decrypted(ours)) == (b"x" * 100, False)
    with socket.socket() as plain:
        assert not has_decrypted(plain)
