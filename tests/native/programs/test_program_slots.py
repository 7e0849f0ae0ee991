"""What a lookup of a program reads: rows by slots, whose numbers are checked before a row is read.

Shape letters: S slots, N number of IDs.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.configs import DataType
from recsys.kernels import operators
from tests.cases.rows_of_ids import read
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

#: Two slots of 4 rows of 2 float32 numbers: offset, rows, type, width, column, modulus, last ID, feature.
SLOTS = torch.tensor([[0, 4, 0, 2, 0, 0, -1, 0], [32, 4, 0, 2, 2, 0, -1, 1]])
ROWS = torch.arange(16.0).view(torch.uint8)


class Values(nn.Module):
    """Two pooled features side by side."""

    def __init__(self, pooling: str, is_weighted: bool) -> None:
        super().__init__()
        tables = [bag("t", 4, 2, ["f"], pooling), bag("u", 4, 2, ["g"], pooling)]
        self.tables = EmbeddingBagCollection(tables, is_weighted=is_weighted)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        values: Tensor = self.tables(features).values()
        return values


@functools.cache
def part_of(pooling: str, is_weighted: bool) -> bytes:
    """Return the program of the model."""
    with TemporaryDirectory() as folder:
        config = ExportConfig(data_type=DataType.FP32, accept_unproven=True)
        export_model(Values(pooling, is_weighted).eval(), Path(folder) / "a", config)
        return (Path(folder) / "a" / "program.safetensors").read_bytes()


def with_slots(part: bytes, slots: Tensor) -> bytes:
    """Return a program whose lookup has other slots."""
    (length,) = struct.unpack_from("<Q", part)
    header = json.loads(part[8 : 8 + length])
    (name,) = [
        name
        for name, tensor in header.items()
        if name.startswith("constants.") and tensor["shape"][-1:] == [8]
    ]
    numbers = part[8 + length :]
    tensors = [(key, tensor) for key, tensor in header.items() if key != "__metadata__"]
    data = b""
    for key, tensor in sorted(tensors, key=lambda one: one[1]["data_offsets"]):
        begin, end = tensor["data_offsets"]
        data_of = slots.contiguous().numpy().tobytes() if key == name else numbers[begin:end]
        tensor["data_offsets"] = [len(data), len(data) + len(data_of)]
        data += data_of
    header[name]["shape"] = list(slots.shape)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def looked_up(lengths: list[int], values: list[int], **changes: Any) -> Tensor:
    """Look up bags, feature by feature."""
    given = {"rows": ROWS, "slots": SLOTS, "weights": None, "pooling": "SUM", **changes}
    weights = given["weights"]
    part = with_slots(part_of(given["pooling"], weights is not None), given["slots"])
    call = operators.stored_program(part).bind(given["rows"], {}, "float32")
    bags, ids = torch.tensor(lengths, dtype=torch.int64), torch.tensor(values, dtype=torch.int64)
    found: Tensor = call(bags, ids, *([] if weights is None else [weights]))["default"]
    return found


@pytest.mark.usefixtures("isa")
def test_lookups_pool_rows() -> None:
    found = looked_up([1, 0, 2, 1], [3, 0, 1, 2])
    assert found.tolist() == [[6, 7, 18, 20], [0, 0, 12, 13]]
    weighted = looked_up([1, 0, 2, 1], [3, 0, 1, 2], weights=torch.tensor([2.0, 1, -1, 0.5]), pooling="MEAN")
    assert weighted.tolist() == [[12, 14, -1, -1], [0, 0, 6, 6.5]]
    assert looked_up([], []).shape == (0, 4)


@pytest.mark.usefixtures("isa")
def test_slots_read_the_bags_of_their_features() -> None:
    slots = SLOTS.clone()
    slots[:, 7] = torch.tensor([1, 0])
    assert looked_up([1, 0, 2, 1], [3, 0, 1, 2], slots=slots).tolist() == [[2, 4, 14, 15], [4, 5, 0, 0]]
    with pytest.raises(RuntimeError, match="got ID 7 for feature 1, expected 0 <= ID < 4"):
        looked_up([1, 0, 2, 1], [3, 0, 1, 7], slots=slots)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: looked_up([1, 1], [0, 4]), "values: got ID 4 for feature 1, expected 0 <= ID < 4"),
        (lambda: looked_up([1, 1], [-1, 0]), "values: got ID -1 for feature 0, expected 0 <= ID < 4"),
        (lambda: looked_up([1, 2], [0, 0]), "lengths: got 2 at position 1 for 2 values"),
        (lambda: looked_up([1, 0], [0, 0]), "lengths: got a sum of 1 for 2 values"),
        (lambda: looked_up([-1, 3], [0, 0]), "lengths: got -1 at position 0"),
        (lambda: looked_up([2**62, 2**62], [0]), "lengths: got 4611686018427387904 at position 0"),
        (lambda: looked_up([1], [0]), "lengths: got 1, expected a multiple of 2"),
        (
            lambda: looked_up([1, 0], [0], weights=torch.ones(2)),
            r"weights: got Float \[2\], expected floating-point numbers \[1\]",
        ),
        (lambda: looked_up([1, 0], [0], rows=ROWS[:-1]), "slots: got 4 rows of 8 bytes, expected at most 3"),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS + 5),
            "slots: got a type, dim, column, offset, modulus or feature out of its range",
        ),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS - torch.tensor([0, 0, 0, 0, 0, 1 << 62, 0, 0])),
            "slots: got a type, dim, column, offset, modulus or feature out of its range",
        ),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS + torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])),
            "slots: got a type, dim, column, offset, modulus or feature out of its range",
        ),
        (
            lambda: looked_up([1, 0], [0], slots=SLOTS[:, :7]),
            r"slots: got Long \[2, 7\], expected int64 \[S, 8\]",
        ),
    ],
)
@pytest.mark.usefixtures("isa")
def test_wrong_lookups_are_refused_before_a_row_is_read(call: Callable[[], Tensor], text: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=text):
        call()


@pytest.mark.usefixtures("isa")
def test_a_slot_without_a_number_of_rows_stays_inside_the_rows() -> None:
    slots = SLOTS.clone()
    slots[:, 1] = -1
    assert looked_up([1, 1], [7, 3], slots=slots).tolist() == [[14, 15, 14, 15]]
    with pytest.raises(RuntimeError, match="got ID 8 for feature 0, expected 0 <= ID < 8"):
        looked_up([1, 1], [8, 3], slots=slots)


@pytest.mark.usefixtures("isa")
def test_slots_treat_ids_by_their_policy() -> None:
    slots = SLOTS.clone()
    slots[0, 5], slots[1, 6] = 3, 2
    found = [looked_up([1, 1], [bad, bad], slots=slots)[0].tolist() for bad in (3, -1, 2**63 - 1, -(2**63))]
    modulo = [[0, 1], [4, 5], [2, 3], [2, 3]]
    assert found == [[*row, 12, 13] for row in modulo]


@pytest.mark.usefixtures("isa")
def test_slots_mix_ids_whose_modulus_is_negative() -> None:
    cases: dict[int, list[tuple[int, int]]] = {}
    for one, num_rows, row in read():
        cases.setdefault(num_rows, []).append((one, row))
    assert {1, 60, 1024} <= set(cases)
    for num_rows, of_table in cases.items():
        if num_rows > 1 << 20:
            continue
        slots = torch.tensor([[0, num_rows, 0, 1, column, -num_rows, -1, column] for column in (0, 1)])
        rows = torch.arange(float(num_rows)).view(torch.uint8)
        ids = [one for one, _ in of_table]
        found = looked_up([1] * len(ids) * 2, ids * 2, slots=slots, rows=rows)
        expected = [row for _, row in of_table]
        assert found[:, :2].t().tolist() == [expected, expected]
