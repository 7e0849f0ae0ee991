"""Deltas written by hand, read without our reader, and made to lie with digests that do not give it away.

Shape letters: D embedding dim, N rows of a delta.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import LoadedArtifact
from recsys.artifact.loaded_rows import LoadedRows
from recsys.rows.format import quantize_rows
from recsys.rows.quantize import StoredTable

PREAMBLE = struct.Struct("<16sQQ32s")
USERS, GOODS, TAGS = "plain.users", "plain.goods", "scored.tags"
#: Rows of the tests' own artifact, the first and the last of some tables among them.
CHANGES: dict[str, Sequence[int]] = {USERS: [0, 7, 49], GOODS: [2, 3, 4, 29], TAGS: [19]}


def stored_tables(rows: LoadedRows) -> dict[str, StoredTable]:
    """An artifact's tables by name."""
    return {info.table.name: info.table for info in rows.manifest.tables}


def write_delta(
    path: Path,
    rows: LoadedRows,
    changes: Mapping[str, Sequence[int]],
    seed: int = 0,
    *,
    num_dense_left: int = 0,
    with_dense: bool = False,
) -> dict[str, Tensor]:
    """A delta of random rows from the state that the rows are in.

    Args:
        path: the file.
        rows: of the artifact.
        changes: for each table the numbers of rows.
        seed: of the rows.
        num_dense_left: dense weights that it says it leaves as they are.
        with_dense: whether it has all dense weights, too, with random numbers for floats.

    Returns:
        for each table the whole stored rows ``[N, row_bytes]``.
    """
    generator = torch.Generator().manual_seed(seed)
    header = DeltaHeader(
        model=rows.manifest.name, artifact=rows.digest, base=rows.state, num_dense_left=num_dense_left
    )
    writer = DeltaWriter(path, header)
    made = {}
    for name, numbers in changes.items():
        table = stored_tables(rows)[name]
        floats = torch.randn(len(numbers), table.embedding_dim, generator=generator)
        made[name] = quantize_rows(floats, table.data_type)
        half = len(numbers) // 2
        for part in (slice(0, half), slice(half, None)):
            writer.add(table, torch.tensor(numbers[part], dtype=torch.int64), made[name][part])
    if with_dense:
        assert rows.graphs is not None
        dense = {path: weight for form in rows.graphs.tensors() for path, weight in form.items()}
        for path, weight in sorted(dense.items()):
            # Integers stay: they are positions in other tensors.
            is_float = weight.is_floating_point()
            made_dense = (
                torch.randn(weight.shape, generator=generator).to(weight.dtype) if is_float else weight.cpu()
            )
            writer.add_dense(path, made_dense)
    writer.finish()
    return made


def header_of(path: Path) -> dict[str, Any]:
    """The header as plain data, as ``recsys.artifact.delta.file`` tells how to find it."""
    data = path.read_bytes()
    magic, start, size, digest = PREAMBLE.unpack_from(data)
    assert magic == b"recsys-delta\r\n\x1a\n"
    assert start + size == len(data)
    assert hashlib.sha256(data[start:]).digest() == digest
    header: dict[str, Any] = json.loads(data[start:])
    return header


def digest_of(path: Path) -> str:
    """A delta's name by content."""
    data = path.read_bytes()
    return hashlib.sha256(data[PREAMBLE.unpack_from(data)[1] :]).hexdigest()[:12]


def read_plainly(path: Path) -> dict[str, tuple[list[int], Any]]:
    """Each table's numbers and rows, with nothing of ours."""
    data = path.read_bytes()
    found = {}
    for table in header_of(path)["tables"]:
        n = table["num_rows"]
        numbers = np.frombuffer(data, "<i8", n, table["numbers"]["offset_bytes"])
        dim, bits = table["embedding_dim"], {"FP32": 32, "FP16": 16, "INT8": 8}[table["data_type"]]
        padded = dim + dim % 2 if bits == 8 else dim
        row_bytes = padded * bits // 8 + (4 if bits == 8 else 0)
        rows = np.frombuffer(data, "u1", n * row_bytes, table["rows"]["offset_bytes"])
        for section, size in (("numbers", 8 * n), ("rows", n * row_bytes)):
            start = table[section]["offset_bytes"]
            assert hashlib.sha256(data[start : start + size]).hexdigest() == table[section]["sha256"]
        found[table["name"]] = (numbers.tolist(), rows.reshape(n, row_bytes))
    return found


def write_header(path: Path, header: bytes) -> None:
    """Exchange the header; its digest fits afterwards."""
    data = path.read_bytes()
    start = PREAMBLE.unpack_from(data)[1]
    preamble = PREAMBLE.pack(b"recsys-delta\r\n\x1a\n", start, len(header), hashlib.sha256(header).digest())
    path.write_bytes(preamble + data[PREAMBLE.size : start] + header)


def lie(path: Path, change: Callable[[Any], object]) -> None:
    """Change the header's data in place; its digest fits afterwards."""
    header = header_of(path)
    change(header)
    write_header(path, json.dumps(header).encode())


def rewrite_section(path: Path, table: int, key: str, content: bytes) -> None:
    """Other bytes in a section, with the digest that fits."""
    header = header_of(path)
    section = header["tables"][table][key]
    data = bytearray(path.read_bytes())
    data[section["offset_bytes"] : section["offset_bytes"] + len(content)] = content
    path.write_bytes(data)
    section["sha256"] = hashlib.sha256(content).hexdigest()
    write_header(path, json.dumps(header).encode())


def rewrite_dense(path: Path, weight: int, content: bytes) -> None:
    """Other numbers of a dense weight, with the digest that fits."""
    header = header_of(path)
    section = header["dense"][weight]["values"]
    data = bytearray(path.read_bytes())
    data[section["offset_bytes"] : section["offset_bytes"] + len(content)] = content
    path.write_bytes(data)
    section["sha256"] = hashlib.sha256(content).hexdigest()
    write_header(path, json.dumps(header).encode())


def set_in_dense(weight: int, key: str, value: Any) -> Callable[[Any], None]:
    """A change of a dense weight's field."""

    def change(header: Any) -> None:
        header["dense"][weight][key] = value

    return change


def header_text(path: Path) -> bytes:
    """The header as it stands there."""
    data = path.read_bytes()
    return data[PREAMBLE.unpack_from(data)[1] :]


def set_in(table: int, key: str, value: Any) -> Callable[[Any], None]:
    """A change of a table's field."""

    def change(header: Any) -> None:
        header["tables"][table][key] = value

    return change


def all_rows(artifact: LoadedArtifact) -> list[Tensor]:
    """A copy of every rank's bytes."""
    return [rank.rows.clone().cpu() for rank in artifact.rows.ranks]
