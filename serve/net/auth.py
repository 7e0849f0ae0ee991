"""The bearer token of the admin service, in a file that may change while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from serve.net.files import SecurityError, stamp

_log = logging.getLogger("serve")
_BEARER = "Bearer "
# Shorter tokens can be guessed. `openssl rand -hex 32` gives 64 characters.
MIN_TOKEN_LENGTH = 16
_MAX_TOKEN_BYTES = 4096


class UnauthenticatedError(Exception):
    """The caller has not shown the token."""


def read_token(path: Path, key: str = "admin.token_file") -> str:
    """Read the token in a file, without surrounding white space.

    Args:
        path: the file.
        key: the setting that names it, for messages.

    Raises:
        SecurityError: the file cannot be read, users other than its owner and group can read or write it, or
            it holds no token.
    """
    try:
        # Nonblocking, because opening a pipe without a writer would block.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            # The mode of the open file, so that it cannot be replaced in between.
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
    """Admits calls that carry the token of a file.

    A changed file is read again. While the file is unusable, all calls are refused, so removing it revokes
    access. Not thread-safe.

    Args:
        path: the file.

    Raises:
        SecurityError: the file is unusable at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = stamp([path])
        self._digest: bytes | None = _digest(read_token(path))

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Check a call's metadata.

        Raises:
            UnauthenticatedError: the header is missing, repeated, or carries another token; the message does
                not reveal the token.
        """
        headers = [value for key, value in metadata if key == "authorization"]
        if len(headers) != 1 or not isinstance(headers[0], str) or not headers[0].startswith(_BEARER):
            raise UnauthenticatedError("authorization: expected one header, Bearer and the token")
        self._refresh()
        # Digests have a fixed length and are compared in constant time.
        shown = _digest(headers[0].removeprefix(_BEARER))
        if self._digest is None or not hmac.compare_digest(shown, self._digest):
            raise UnauthenticatedError("authorization: got another token than the admin service's")

    def _refresh(self) -> None:
        found = stamp([self._path])
        if found == self._stamp:
            return
        self._stamp = found
        try:
            self._digest = _digest(read_token(self._path))
        except SecurityError as error:
            self._digest = None
            _log.error("admin calls are refused until the token file can be used: %s", error)
            return
        _log.info("the admin token has changed")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
