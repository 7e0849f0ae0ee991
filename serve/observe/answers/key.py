"""The secret key of the hashes that an answer log has in place of IDs and texts."""

from __future__ import annotations

from pathlib import Path

from recsys.options.kinds import ConfigError

_MIN_KEY_BYTES = 16
_MAX_KEY_BYTES = 64  # BLAKE2b's


def read_key(path: Path) -> bytes:
    """Return the key of hashes.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is too short or too long.
    """
    key = path.read_bytes().strip()
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise ConfigError(
            f"answer_log.hash_key_file: got {len(key)} bytes, expected {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES}"
        )
    return key
