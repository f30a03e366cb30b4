"""Listeners of a real process: TLS alone, new certificates without a restart, who may read the folder."""

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from cryptography.x509 import load_pem_x509_certificate

from certificates import Certificates


@contextmanager
def serving(
    folder: Path, **settings: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, object], list[str]]]:
    """``holt serve`` until the block ends: the process, its ready entry, its log so far."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
    fixed = {"DATA_DIR": str(folder / "data"), "LOG_FORMAT": "json"}
    for name in ("AMQP", "HTTP"):
        fixed |= {f"{name}_HOST": "127.0.0.1", f"{name}_PORT": "0", f"{name}_TLS_PORT": "0"}
    environment |= {f"HOLT_{name}": value for name, value in (fixed | settings).items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "holtmq", "serve"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    try:
        yield process, said(process, lines, "ready"), lines
    finally:
        process.kill()
        process.communicate(timeout=60)


def said(process: subprocess.Popen[str], lines: list[str], message: str) -> dict[str, object]:
    """The next log entry with this message."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("{"):
            entry: dict[str, object] = json.loads(line)
            if entry["message"] == message:
                return entry
    raise AssertionError("the broker ended: " + "".join(lines))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def tls_settings(cert: Path, key: Path) -> dict[str, str]:
    files = {"CERT": str(cert), "KEY": str(key)}
    return {f"{name}_TLS_{what}": file for name in ("AMQP", "HTTP") for what, file in files.items()}


def serial(port: int) -> int:
    """Of the certificate that a listener shows."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=60)
    return load_pem_x509_certificate(pem.encode()).serial_number


def test_without_plain_listeners_there_is_tls_alone(tmp_path: Path, certificates: Certificates) -> None:
    settings = tls_settings(*certificates.issue("broker"))
    with serving(tmp_path, **settings, AMQP_PLAIN="false", HTTP_PLAIN="false") as (_, ready, _lines):
        port = int(str(ready["https_port"]))
        verify = ssl.create_default_context(cafile=certificates.authority)
        healthy = httpx.get(f"https://127.0.0.1:{port}/health", verify=verify, timeout=60)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            refused = plain.recv(100)

    assert healthy.status_code == 200
    assert not refused.startswith(b"HTTP")
    assert not {"amqp_port", "http_port"} & set(ready)
    assert ready["listeners"] == f"amqps://127.0.0.1:{ready['amqps_port']} https://127.0.0.1:{port}"


def test_the_ready_entry_names_every_listener(tmp_path: Path, certificates: Certificates) -> None:
    with serving(tmp_path, **tls_settings(*certificates.issue("broker"))) as (_, ready, lines):
        pass

    entries = [json.loads(line) for line in lines]  # a log in JSON has no other lines
    assert (entries[0]["message"], entries[0]["data"]) == ("starting", str(tmp_path / "data"))
    names = {"amqp": "amqp_port", "amqps": "amqps_port", "http": "http_port", "https": "https_port"}
    assert ready["listeners"] == " ".join(f"{name}://127.0.0.1:{ready[port]}" for name, port in names.items())


def test_a_hangup_reloads_certificates_and_a_bad_one_changes_nothing(
    tmp_path: Path, certificates: Certificates
) -> None:
    cert, key = certificates.issue("broker")
    with serving(tmp_path, **tls_settings(cert, key)) as (process, ready, lines):
        ports = [int(str(ready[name])) for name in ("amqps_port", "https_port")]
        before = [serial(port) for port in ports]
        new_cert, new_key = certificates.issue("renewed")
        cert.write_bytes(b"half a certificate")
        process.send_signal(signal.SIGHUP)
        said(process, lines, "certificate not reloaded")
        damaged = [serial(port) for port in ports]

        cert.write_bytes(new_cert.read_bytes())
        key.write_bytes(new_key.read_bytes())
        process.send_signal(signal.SIGHUP)
        said(process, lines, "certificate reloaded")
        said(process, lines, "certificate reloaded")
        after = [serial(port) for port in ports]

        assert process.poll() is None

    assert before == damaged
    assert set(after).isdisjoint(before)
    assert len(set(after)) == 1


def test_a_hangup_without_certificates_does_not_end_the_broker(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, ready, lines):
        process.send_signal(signal.SIGHUP)
        said(process, lines, "nothing to reload: no listener has a certificate")

        assert httpx.get(f"http://127.0.0.1:{ready['http_port']}/health", timeout=60).status_code == 200


def test_a_tls_handshake_that_stalls_is_hung_up_on(tmp_path: Path, certificates: Certificates) -> None:
    settings = {**tls_settings(*certificates.issue("broker")), "AMQP_HANDSHAKE_TIMEOUT": "0.2"}
    with (
        serving(tmp_path, **settings) as (_, ready, _lines),
        socket.create_connection(("127.0.0.1", int(str(ready["amqps_port"]))), timeout=60) as peer,
    ):
        received = b""
        with suppress(ConnectionError):  # a reset, if the time was up before the broker read this
            peer.sendall(b"\x16\x03\x01")  # how a handshake begins
            received = peer.recv(100)

        assert received == b""


@pytest.mark.parametrize("existing", [None, 0o755])
def test_the_data_folder_is_for_its_owner_alone(tmp_path: Path, existing: int | None) -> None:
    data = tmp_path / "data"
    if existing is not None:
        data.mkdir()
        data.chmod(existing)
    with serving(tmp_path):
        mode = stat.S_IMODE(data.stat().st_mode)

    assert mode == 0o700


def test_hundreds_of_bad_logins_do_not_lock_a_good_user_out_of_amqp(tmp_path: Path) -> None:
    header = b"AMQP\x00\x00\x09\x01"
    with serving(tmp_path) as (_, ready, _lines):
        port = int(str(ready["amqp_port"]))
        flood = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(150)]
        for number, peer in enumerate(flood):
            peer.sendall(header)
            while not peer.recv(65536).endswith(b"\xce"):
                pass
            peer.sendall(start_ok(f"bad{number}"))
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as good:
            good.sendall(header)
            while not good.recv(65536).endswith(b"\xce"):
                pass
            good.sendall(start_ok("guest", "guest"))
            tune = good.recv(65536)
        waited = time.monotonic() - began
        unanswered = sum(1 for peer in flood if not has_answer(peer))
        for peer in flood:
            peer.close()

    assert tune[7:11] == b"\x00\x0a\x00\x1e"  # connection.tune
    assert unanswered > 0, f"the flood was over after {waited:.1f} s: it proved nothing"


def has_answer(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return bool(peer.recv(1)) or True
    except BlockingIOError:
        return False


def start_ok(user: str, password: str = "wrong") -> bytes:
    """connection.start-ok with PLAIN."""
    response = b"\0%b\0%b" % (user.encode(), password.encode())
    payload = b"\x00\x0a\x00\x0b" + b"\0\0\0\0" + b"\x05PLAIN" + len(response).to_bytes(4, "big") + response
    payload += b"\x05en_US"
    return b"\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload + b"\xce"
