"""Certificates made on the fly: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serve.config.settings import TlsConfig

_NOW = datetime.datetime.now(datetime.UTC)
_HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both in PEM, and the serial number to know it by."""

    certificate: bytes
    key: bytes
    serial: int


class Authority:
    """Signs certificates for loopback; nobody trusts it but the test."""

    def __init__(self, name: str = "test authority") -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._made = _signed(self._name, self._name, self._key, self._key, is_authority=True)
        self.certificate = self._made.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str = "localhost", password: bytes | None = None) -> Pair:
        """A certificate for a server or a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _signed(subject, self._name, key, self._key, is_authority=False)
        cipher: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            cipher = serialization.BestAvailableEncryption(password)
        key_text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)
        return Pair(made.public_bytes(serialization.Encoding.PEM), key_text, made.serial_number)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW - _HOUR)
        .not_valid_after(_NOW + 24 * _HOUR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if is_authority:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    else:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def write_tls(folder: Path, pair: Pair, client_ca: bytes | None = None) -> TlsConfig:
    """Write the files of a server, or replace them, each in one step as operators' tools do."""
    config = TlsConfig(
        certificate=folder / "server.crt",
        key=folder / "server.key",
        client_ca=None if client_ca is None else folder / "clients.crt",
    )
    replace(config.certificate, pair.certificate)
    replace(config.key, pair.key)
    if config.client_ca is not None and client_ca is not None:
        replace(config.client_ca, client_ca)
    return config


def replace(path: Path, data: bytes) -> None:
    """Put a file where another may be."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(data)
    fresh.replace(path)
