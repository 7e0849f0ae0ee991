"""A digest of data files, which tells a resumed training whether they are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Larger files are read in part: their beginning, their end, and parts between at equal distances.
_WHOLE_BYTES = 256 << 20
_PART_BYTES = 1 << 20
_NUM_PARTS = 64


def fingerprint(paths: Sequence[Path], settings: Any = None) -> str:
    """Return a digest of the files' contents, in their order, and of settings that decide how they are read.

    Args:
        paths: The files.
        settings: Plain data.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in paths:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                while data := file.read(_PART_BYTES):
                    digest.update(data)
                continue
            for part in range(_NUM_PARTS):
                file.seek((size - _PART_BYTES) * part // (_NUM_PARTS - 1))
                digest.update(file.read(_PART_BYTES))
    return digest.hexdigest()[:32]
