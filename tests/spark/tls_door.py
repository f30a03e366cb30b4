"""TLS in front of a broker, as a proxy has it: an authority for certificates, and a door that shows one."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates; ``folder/ca.pem`` is its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.ca = self._write("ca.pem", self._certificate(self._name, self._key.public_key(), ca=True))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._certificate(subject, key.public_key(), ca=False)
        return self._write(f"{name}.pem", certificate), self._write(f"{name}.key", pem)

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


@contextmanager
def tls_door(port: int, cert: Path, key: Path, client_ca: Path | None = None) -> Iterator[str]:
    """The URL of a TLS port that leads to the broker at ``port``; with ``client_ca`` only for its holders."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tls door")
    thread.start()
    door = _Door(port)
    try:
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(door.carry, "127.0.0.1", 0, ssl=context), loop
        ).result(30)
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        asyncio.run_coroutine_threadsafe(door.close(server), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


class _Door:
    def __init__(self, port: int) -> None:
        self._port = port
        self._carrying: set[asyncio.Task[None]] = set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = asyncio.current_task()
        assert mine is not None
        self._carrying.add(mine)
        to_broker: asyncio.StreamWriter | None = None
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._port)
            pumps = [
                asyncio.ensure_future(_pump(reader, to_broker)),
                asyncio.ensure_future(_pump(from_broker, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # the door closes
        finally:
            self._carrying.discard(mine)
            for one in (writer, to_broker):
                if one is not None:
                    one.transport.abort()

    async def close(self, server: asyncio.Server) -> None:
        server.close()
        for task in list(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports say goodbye in the next turn


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
