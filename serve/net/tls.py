"""TLS with files that may change while the server runs."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from serve.config.settings import TlsConfig
from serve.net.files import SecurityError, stamp

_log = logging.getLogger("serve")


@dataclass(frozen=True, kw_only=True)
class TlsMaterial:
    """Contents of the files, as PEM, when they were consistent."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


def read_tls(config: TlsConfig) -> TlsMaterial:
    """Read the files and check that they fit together.

    Raises:
        SecurityError: a file cannot be read or holds something else, or the key is not the certificate's.
    """
    material = _read_files(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, config, material.client_ca)
    # OpenSSL has read the files again by name. It checked the same bytes only if they are unchanged.
    if _read_files(config) != material:
        raise SecurityError("tls: the files are being replaced just now")
    return material


class TlsFiles:
    """The current contents of the files, or the last usable contents.

    Thread-safe: handshakes run in any thread.

    Args:
        config: names the files.

    Raises:
        SecurityError: the files are unusable at the start.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._paths = [p for p in (config.certificate, config.key, config.client_ca) if p is not None]
        self._lock = threading.Lock()
        self._stamp = stamp(self._paths)
        self._material = read_tls(config)
        self._context = self._make_context()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new handshake."""
        with self._lock:
            self._refresh()
            return self._context

    def material(self) -> TlsMaterial:
        """Return the files' contents for a new handshake."""
        with self._lock:
            self._refresh()
            return self._material

    def _refresh(self) -> None:
        found = stamp(self._paths)
        if found == self._stamp:
            return
        # Set before reading, so that a change during the read is seen as a further change. Unusable files are
        # logged once, not at every handshake.
        self._stamp = found
        try:
            self._material = read_tls(self._config)
            self._context = self._make_context()
        except SecurityError as error:
            _log.error("the new TLS files cannot be used, connections get the old ones: %s", error)
            return
        _log.info("TLS files have changed: new connections get the new ones")

    def _make_context(self) -> ssl.SSLContext:
        return _made_context(self._config, self._material.client_ca)


def server_credentials(config: TlsConfig) -> grpc.ServerCredentials:
    """Return credentials of a gRPC port. New connections use the current files; open ones are not affected.

    With ``client_ca``, clients without a certificate signed by it are refused.

    Raises:
        SecurityError: the files are unusable.
    """
    files = TlsFiles(config)
    known = files.material()
    handed_out = known

    def fetch() -> Any:
        """Return new credentials or None; gRPC calls it before each handshake, serialized per port."""
        nonlocal handed_out
        material = files.material()
        if material is handed_out:
            return None
        handed_out = material
        return _certificates(material)

    return grpc.dynamic_ssl_server_credentials(
        _certificates(known), fetch, require_client_authentication=known.client_ca is not None
    )


def ssl_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a context for a REST port. New connections use the current files.

    Raises:
        SecurityError: the files are unusable.
    """
    files = TlsFiles(config)

    def newest(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Set the current context; called after the ClientHello, before the certificate is sent."""
        connection.context = files.context()

    # The returned context is fixed and has the callback; the current contexts have none.
    context = _made_context(config, files.material().client_ca)
    context.sni_callback = newest
    return context


def _made_context(config: TlsConfig, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A resumed session presents no certificate, so a client refused since could still connect. Python can
    # disable sessions in TLS 1.3, but not in TLS 1.2.
    context.num_tickets = 0
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if client_ca is None else ssl.TLSVersion.TLSv1_3
    _load(context, config, client_ca)
    return context


def _certificates(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.client_ca
    )


def _read_files(config: TlsConfig) -> TlsMaterial:
    return TlsMaterial(
        certificate=read_file("tls.certificate", config.certificate),
        key=read_file("tls.key", config.key),
        client_ca=None if config.client_ca is None else read_file("tls.client_ca", config.client_ca),
    )


def read_file(key: str, path: Path) -> bytes:
    """Read the file that the setting ``key`` names.

    Raises:
        SecurityError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{key}: cannot read {str(path)!r}: {error.strerror}") from None


def check_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key into a context.

    Raises:
        SecurityError: they are not PEM, do not belong together, or the key has a password.
    """

    def no_password() -> str:
        raise SecurityError(f"tls.key: {str(key)!r} is encrypted, expected a key without a password")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:  # includes ssl.SSLError
        raise SecurityError(
            f"tls.certificate, tls.key: got {str(certificate)!r} and {str(key)!r}, "
            f"expected a certificate in PEM and its own key ({_reason(error)})"
        ) from None


def check_authorities(context: ssl.SSLContext, key: str, path: Path, data: bytes) -> None:
    """Load trusted authorities from ``data``, the contents of the file that the setting ``key`` names.

    Raises:
        SecurityError: the data is not certificates in PEM.
    """
    try:
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (OSError, ValueError) as error:
        raise SecurityError(
            f"{key}: got {str(path)!r}, expected certificates in PEM ({_reason(error)})"
        ) from None


def _load(context: ssl.SSLContext, config: TlsConfig, client_ca: bytes | None) -> None:
    check_pair(context, config.certificate, config.key)
    if client_ca is None or config.client_ca is None:
        return
    check_authorities(context, "tls.client_ca", config.client_ca, client_ca)
    context.verify_mode = ssl.CERT_REQUIRED


def _reason(error: Exception) -> str:
    return (
        getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    ).lower()
