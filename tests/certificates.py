"""Certificates for tests of TLS."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates:
    """An authority and what it signs."""

    def __init__(self, folder: Path, *, days: float = 3650) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.authority = folder / "ca.pem"
        self._write(self.authority, self._sign("test authority", self._key.public_key(), days, is_ca=True))

    def issue(self, common_name: str, *, days: float = 365) -> tuple[Path, Path]:
        """Certificate and key of one name, for 127.0.0.1, valid for so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        paths = self._folder / f"{common_name}.pem", self._folder / f"{common_name}.key"
        self._write(paths[0], self._sign(common_name, key.public_key(), days))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def _sign(
        self, name: str, key: ec.EllipticCurvePublicKey, days: float, is_ca: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
            )
            # From Python 3.13 on, ssl refuses certificates without these.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_usage(is_ca), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
