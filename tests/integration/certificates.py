"""Certificates: an authority of a test's own and what it signs, as PEM files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for 127.0.0.1. `ca` is its own one."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = directory / f"{name}.pem"
        own = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def sign(self, name: str, *, host: str = "127.0.0.1", password: str = "") -> tuple[Path, Path]:
        """A certificate of this name for `host`, and its key, with a password where one is given."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
        signed = self._builder(subject, key).add_extension(hosts, critical=False).sign(self._key, hashes.SHA256())
        certificate, key_path = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        lock: KeySerializationEncryption = NoEncryption()
        if password:
            lock = BestAvailableEncryption(password.encode())
        key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
        return certificate, key_path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
        )
