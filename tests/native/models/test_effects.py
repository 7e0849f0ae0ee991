"""Models that write to dicts, lists and tensors: their programs predict what torch's operators do.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels

DIM = 8


@torch.fx.wrap
def latest(base: dict[str, Tensor], more: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write a dict twice."""
    result: dict[str, Tensor] = {}
    result.update(base)
    result.update(more)
    return result


@torch.fx.wrap
def last_item(first: Tensor, second: Tensor) -> Tensor:
    """Write an item of a dict over another one."""
    found = {"x": first}
    before = found["x"].sum(1, keepdim=True)
    found["x"] = second
    return found["x"] + before


@torch.fx.wrap
def popped(first: Tensor, second: Tensor) -> Tensor:
    """Take out of a dict what the next line writes again."""
    found = {"x": first}
    taken = found.pop("x")
    found["x"] = second
    return found["x"] - taken


@torch.fx.wrap
def deleted(first: Tensor, second: Tensor) -> Tensor:
    """Delete a key between two reads."""
    found = {"x": first, "y": second}
    taken = found["x"] * 3
    del found["x"]
    found["x"] = second
    return found["x"] + taken


@torch.fx.wrap
def listed(first: Tensor, second: Tensor) -> Tensor:
    """Append to a list, and replace an item of it."""
    found = [first]
    found.append(second)
    taken = found[0] * 2
    found[0] = second
    return torch.stack(found).sum(0) + taken


@torch.fx.wrap
def inserted(first: Tensor, second: Tensor) -> Tensor:
    """Insert in front of a list, and reverse it."""
    found = [first]
    taken = found[-1] * 1.5
    found.insert(0, second)
    found.reverse()
    return found[-1] - taken


@torch.fx.wrap
def printed(first: Tensor, second: Tensor) -> Tensor:
    """Print between two steps."""
    total = first + second
    print("rows:", total.size(0))
    return total * first


@torch.fx.wrap
def added_in_place(first: Tensor, second: Tensor) -> Tensor:
    """Write into rows through another view of them, between two reads."""
    total = first + second
    flat = total.view(-1)
    before = total.relu()
    flat.mul_(0.5)
    return total + before


@torch.fx.wrap
def filled_part(first: Tensor, second: Tensor) -> Tensor:
    """Overwrite some columns of rows after they were read."""
    total = first * second
    before = total.sum(1, keepdim=True)
    total[:, :2].zero_()
    return total + before


JOINS = (
    latest,
    last_item,
    popped,
    deleted,
    listed,
    inserted,
    printed,
    added_in_place,
    filled_part,
)


def joined(name: str, first: Tensor, second: Tensor) -> Tensor:
    """Return what one of the functions makes of two tensors."""
    if name == "latest":
        return latest({"x": first}, {"x": second})["x"]
    found: Tensor = globals()[name](first, second)
    return found


class Towers(nn.Module):
    """Two towers of rows that a function puts together with a default."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.users = EmbeddingBagCollection([bag("users", 40, DIM, ["user"])])
        self.items = EmbeddingBagCollection([bag("items", 30, DIM, ["item"])])
        self.over_users = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 4))
        self.over_items = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 4))
        self.join = join

    def forward(self, features: KeyedJaggedTensor, default: Tensor) -> Tensor:
        users = joined(self.join, default, self.users(features).values())
        items = joined(self.join, default, self.items(features).values())
        return (self.over_users(users) * self.over_items(items)).sum(1)


def exported(path: Path, join: str, **options: Any) -> Path:
    torch.manual_seed(0)
    model = Towers(join)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    export_model(model.eval(), path, ExportConfig(dense_widths={"default": DIM}, **options))
    return path


@pytest.mark.parametrize("join", [function.__name__ for function in JOINS])
def test_what_is_written_between_steps_is_read_behind_it(tmp_path: Path, join: str) -> None:
    path = exported(tmp_path / "a", join)
    plain, own = load_artifact(path, scripted=True), load_artifact(path)
    assert own.runs_program
    for num_rows in (1, 2, 5, 300):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        for name, expected in plain.forward(*batch.inputs()).items():
            found = own.forward(*batch.inputs())[name]
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), name
