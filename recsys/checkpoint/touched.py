"""Touched rows in a checkpoint: which rows differ from the checkpoint that its training started from.

Plain data in the field ``info`` of a checkpoint: the digest of its own weights, and of those it started from with the
rows that were touched since, a compressed bitmap for each table. Untrusted, as all of a checkpoint.

Shape letters: N number of rows.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from recsys.errors import CheckpointError

#: Fields of ``info``.
WEIGHTS, TOUCHED = "weights", "touched"
_DIGEST = re.compile("[0-9a-f]{32}")
_MAX_ROWS = 1 << 40


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Return the digest of weights in host memory: of names, types, shapes and bytes."""
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.detach().contiguous().reshape(-1)
        if data.numel():
            digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def touched_info(since: str, rows: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return touched rows as plain data.

    Args:
        since: The digest of the weights that the training started from.
        rows: By table path, int64 ``[N]``.
        sizes: The number of rows of each table.
    """
    return {
        "since": since,
        "rows": {
            name: {"num_rows": sizes[name], "bits": _packed(found, sizes[name])}
            for name, found in rows.items()
        },
    }


def touched_since(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Return the rows that a training touched, by table path, int64 ``[N]`` ascending.

    Args:
        old: The ``info`` of the checkpoint that it may have started from.
        new: That of its own.

    Returns:
        None if the new checkpoint does not say, or started from another one.

    Raises:
        CheckpointError: The data is damaged.
    """
    held, digest = new.get(TOUCHED), old.get(WEIGHTS)
    if held is None or digest is None:
        return None
    if not isinstance(held, dict) or not isinstance(held.get("rows"), dict):
        raise CheckpointError(f"info.{TOUCHED}: got something else, expected the rows of each table")
    for since in (held.get("since"), digest):
        if not isinstance(since, str) or _DIGEST.fullmatch(since) is None:
            raise CheckpointError(f"info.{TOUCHED}.since: got {str(since)[:80]!r}, expected a digest")
    if held["since"] != digest:
        return None
    return {str(name): _unpacked(found, str(name)) for name, found in held["rows"].items()}


def _packed(rows: Tensor, num_rows: int) -> str:
    bits = np.zeros(num_rows, dtype=np.bool_)
    bits[rows.numpy()] = True
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 1)).decode()


def _unpacked(found: Any, table: str) -> Tensor:
    at = f"info.{TOUCHED}.rows[{table[:80]!r}]"
    num_rows = found.get("num_rows") if isinstance(found, dict) else None
    if type(num_rows) is not int or not 0 <= num_rows < _MAX_ROWS:
        raise CheckpointError(f"{at}.num_rows: got {str(num_rows)[:80]!r}, expected a number of rows")
    num_bytes = -(-num_rows // 8)
    try:
        packed = base64.b64decode(found.get("bits", ""), validate=True)
        stream = zlib.decompressobj()
        data = stream.decompress(packed, num_bytes + 1)
    except (TypeError, ValueError, binascii.Error, zlib.error):
        raise CheckpointError(f"{at}.bits: it is damaged") from None
    if len(data) != num_bytes or not stream.eof:
        raise CheckpointError(f"{at}.bits: got another size than that of {num_rows} rows")
    # Most bytes are zero.
    numbers = np.flatnonzero(np.frombuffer(data, np.uint8))
    bits = np.unpackbits(np.frombuffer(data, np.uint8)[numbers].reshape(-1, 1), axis=1)
    rows = (numbers[:, None] * 8 + np.arange(8))[bits.astype(bool)]
    if len(rows) and rows[-1] >= num_rows:
        raise CheckpointError(f"{at}.bits: got row {rows[-1]}, expected rows below {num_rows}")
    return torch.from_numpy(rows.astype(np.int64))
