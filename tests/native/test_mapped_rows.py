"""The native operator that finds the rows of raw IDs, against torch's operators.

Shape letters: N number of IDs, T tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from export.pipeline import export_model
from recsys.kernels import operators
from recsys.managed.frozen import found_rows
from recsys.managed.slots import filled, num_buckets_of, placeholder
from tests.support.models.managed import Managed, trained

pytestmark = pytest.mark.skipif(bool(operators.why_missing()), reason="the native kernels are not built")
SIZES = (1, 5, 300, 4_000)


def mapped(*inputs: Tensor) -> Tensor:
    found: Tensor = torch.ops.recsys_ops.mapped_rows(*inputs)
    return found


def tables_of(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The buckets of tables of some sizes, their masks and first buckets, and the IDs of all."""
    parts, ids = [], []
    for size in SIZES:
        ids.append(torch.unique(torch.randint(-(2**63), 2**63 - 1, (size,), generator=generator)))
        parts.append(filled(num_buckets_of(size), ids[-1], torch.arange(len(ids[-1]))))
    sizes = torch.tensor([len(part) for part in parts])
    masks = torch.cat([sizes - 1, sizes.new_zeros(1)])
    starts = torch.cat([sizes.cumsum(0) - sizes, sizes.new_zeros(1)])
    return torch.cat(parts), masks, starts, torch.cat(ids)


@pytest.mark.parametrize("num_ids", [0, 1, 15, 16, 17, 1000])
def test_it_finds_what_torch_finds(num_ids: int) -> None:
    generator = torch.Generator().manual_seed(num_ids)
    slots, masks, starts, known = tables_of(generator)
    ids = known[torch.randint(len(known), (num_ids,), generator=generator)]
    strange = torch.randint(-(2**63), 2**63 - 1, (num_ids,), generator=generator)
    ids = torch.where(torch.rand(num_ids, generator=generator) < 0.3, strange, ids)
    tables = torch.randint(len(masks), (num_ids,), generator=generator)
    inputs = (slots, masks, starts, tables, ids)
    assert torch.equal(mapped(*inputs), found_rows(*inputs))


def test_buckets_that_are_no_memory() -> None:
    ids = torch.arange(5)
    inputs = (placeholder(16), torch.tensor([15]), torch.tensor([0]), torch.zeros(5, dtype=torch.int64), ids)
    assert mapped(*inputs).tolist() == [-1] * 5


WRONG = {
    "slots of another width": {0: torch.zeros(16, 7, dtype=torch.int64)},
    "slots of another type": {0: torch.zeros(16, 8)},
    "more buckets than there are": {1: torch.tensor([31])},
    "no power of two": {1: torch.tensor([6])},
    "a start below": {2: torch.tensor([-1])},
    "a start too far": {2: torch.tensor([1])},
    "fewer tables": {3: torch.tensor([0])},
    "an unknown table": {3: torch.tensor([0, 1])},
    "a table below": {3: torch.tensor([-1, 0])},
    "short IDs": {4: torch.zeros(2, dtype=torch.int32)},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_it_refuses(name: str) -> None:
    inputs = {
        0: placeholder(16).contiguous(),
        1: torch.tensor([15]),
        2: torch.tensor([0]),
        3: torch.tensor([0, 0]),
        4: torch.tensor([1, 2]),
    }
    mapped(*inputs.values())
    with pytest.raises(ValueError, match="expected"):
        mapped(*(inputs | WRONG[name]).values())


def test_programs_call_it(tmp_path: Path) -> None:
    export_model(trained(Managed(), 0), tmp_path / "a")
    assert b"mapped_rows" in (tmp_path / "a" / "program.safetensors").read_bytes()
