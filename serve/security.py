"""Who may talk to the server: TLS whose files may change while it serves, and the bearer token of the admin service."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import ssl
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from serve.config import TlsConfig

_log = logging.getLogger("serve")
_BEARER = "Bearer "
# Shorter tokens can be guessed. `openssl rand -hex 32` gives 64 characters.
MIN_TOKEN_LENGTH = 16
_MAX_TOKEN_BYTES = 4096
#: For how the files looked: of each the device, the number, the size and the time of the last change.
_Stamp = tuple[tuple[int, ...], ...]


class SecurityError(ValueError):
    """A certificate, a key or a token file cannot be used; the text names the setting, the file and the fix."""


class UnauthenticatedError(Exception):
    """The caller has not shown the token."""


@dataclass(frozen=True, kw_only=True)
class TlsMaterial:
    """What the files held when they fitted together: PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


def read_tls(config: TlsConfig) -> TlsMaterial:
    """Read the files, and try whether they fit together.

    Raises:
        SecurityError: a file cannot be read or holds something else, or the key is not the certificate's.
    """
    material = _read_files(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, config, material.client_ca)
    # OpenSSL has read the files once more by their names: it judged the same bytes only if they are still there.
    if _read_files(config) != material:
        raise SecurityError("tls: the files are being replaced just now")
    return material


class TlsFiles:
    """The files as they are now, or, where they cannot be used any more, as they last could.

    Thread-safe: handshakes ask from any thread.

    Args:
        config: names the files.

    Raises:
        SecurityError: they cannot be used from the start.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._paths = [p for p in (config.certificate, config.key, config.client_ca) if p is not None]
        self._lock = threading.Lock()
        self._stamp = _stamp(self._paths)
        self._material = read_tls(config)
        self._context = self._make_context()

    def context(self) -> ssl.SSLContext:
        """For a handshake that begins now."""
        with self._lock:
            self._refresh()
            return self._context

    def material(self) -> TlsMaterial:
        """For a handshake that begins now."""
        with self._lock:
            self._refresh()
            return self._material

    def _refresh(self) -> None:
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return
        # Kept before they are read: what changes meanwhile is seen as one more change. Files that cannot be used
        # are complained of once, not at every handshake.
        self._stamp = stamp
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
    """Credentials of a gRPC port; each new connection sees the files as they are then, open ones stay as they are.

    With ``client_ca``, a client without a certificate that it signed gets no connection.

    Raises:
        SecurityError: the files cannot be used.
    """
    files = TlsFiles(config)
    known = files.material()
    handed_out = known

    def fetch() -> Any:
        """What gRPC calls before a handshake, one at a time for each port; None for no change."""
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
    """A context for a REST port; each new connection sees the files as they are then.

    Raises:
        SecurityError: the files cannot be used.
    """
    files = TlsFiles(config)

    def newest(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, after the client's first words and before the certificate is sent."""
        connection.context = files.context()

    # What is handed out is never one of the newest: those carry no callback, and this one never changes.
    context = _made_context(config, files.material().client_ca)
    context.sni_callback = newest
    return context


def _made_context(config: TlsConfig, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A session that is resumed shows no certificate again, whoever may have been shut out since. TLS 1.3 can do
    # without sessions; with TLS 1.2 Python cannot.
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
    """What the file holds that the setting ``key`` names.

    Raises:
        SecurityError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{key}: cannot read {str(path)!r}: {error.strerror}") from None


def check_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key into a context.

    Raises:
        SecurityError: they are not both PEM, not of each other, or the key has a password.
    """

    def no_password() -> str:
        raise SecurityError(f"tls.key: {str(key)!r} is encrypted, expected a key without a password")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:  # ssl.SSLError among them
        raise SecurityError(
            f"tls.certificate, tls.key: got {str(certificate)!r} and {str(key)!r}, "
            f"expected a certificate in PEM and its own key ({_reason(error)})"
        ) from None


def check_authorities(context: ssl.SSLContext, key: str, path: Path, data: bytes) -> None:
    """Load what is trusted into a context: ``data``, which was read from the file that the setting ``key`` names.

    Raises:
        SecurityError: it is not certificates in PEM.
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


def _stamp(paths: Iterable[Path]) -> _Stamp:
    """Changes when a file is written, replaced or opened to others; a missing one has a stamp too."""
    stamps = []
    for path in paths:
        try:
            found = path.stat()
            # The time of change is that of modes and owners too.
            stamps.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except OSError:
            stamps.append((0, 0, 0, 0, 0))
    return tuple(stamps)


def read_token(path: Path, key: str = "admin.token_file") -> str:
    """The token of a file, without the white space around it.

    Args:
        path: the file.
        key: the setting that names it, for messages.

    Raises:
        SecurityError: it cannot be read, others than its owner and group may read or write it, or it holds no token.
    """
    try:
        # Without waiting: nobody may ever write to a pipe of that name.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            # Of the open file, so that nobody can put another one in between.
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise SecurityError(f"{key}: {str(path)!r} is no regular file, expected one")
            data = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise SecurityError(f"{key}: cannot read {str(path)!r}: {error.strerror}") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise SecurityError(
            f"{key}: {str(path)!r} has mode {stat.S_IMODE(mode):04o}, expected none but its owner to "
            "write it and none but its owner and group to read it; chmod 0600 does that"
        )
    text = data.decode("ascii", errors="replace").strip()
    if not MIN_TOKEN_LENGTH <= len(text) <= _MAX_TOKEN_BYTES or not text.isascii() or not text.isprintable():
        raise SecurityError(
            f"{key}: {str(path)!r} holds no token, expected one line of {MIN_TOKEN_LENGTH} to "
            f"{_MAX_TOKEN_BYTES} printable ASCII characters, such as openssl rand -hex 32 gives"
        )
    return text


class TokenCheck:
    """Lets those through who show the token of a file.

    A file that has changed is read again. One that cannot be used lets nobody through until it can: who takes the
    file away takes the access away. All calls from one thread.

    Args:
        path: the file.

    Raises:
        SecurityError: it cannot be used from the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp([path])
        self._digest: bytes | None = _digest(read_token(path))

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Check a call's metadata.

        Raises:
            UnauthenticatedError: the header is missing, doubled, or carries another token; the text does not say
                which tokens there are.
        """
        headers = [value for key, value in metadata if key == "authorization"]
        if len(headers) != 1 or not isinstance(headers[0], str) or not headers[0].startswith(_BEARER):
            raise UnauthenticatedError("authorization: expected one header, Bearer and the token")
        self._refresh()
        # Digests are of one length, whatever was sent, and compared in constant time.
        shown = _digest(headers[0].removeprefix(_BEARER))
        if self._digest is None or not hmac.compare_digest(shown, self._digest):
            raise UnauthenticatedError("authorization: got another token than the admin service's")

    def _refresh(self) -> None:
        stamp = _stamp([self._path])
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digest = _digest(read_token(self._path))
        except SecurityError as error:
            self._digest = None
            _log.error("admin calls are refused until the token file can be used: %s", error)
            return
        _log.info("the admin token has changed")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
