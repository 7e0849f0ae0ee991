"""What models compute of dense weights alone: once for each set of weights, not for each row.

Shape letters: B batch, R rows and C columns of a weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramGraphs
from tests.native.program_models import ranking_inputs
from tests.native.programs.test_programs import write_delta
from tests.recsys.artifact.damage import same
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels

#: From a module, weights ``[4, 6]`` or ``[6]``, by which pooled rows ``[B, 4, 6]`` are multiplied.
WEIGHTS: dict[str, Callable[[Any], Tensor]] = {
    "taken": lambda m: m.by_place[m.places].permute(2, 0, 1)[:, :, 0],
    "scaled": lambda m: (m.by_place[m.places] * 2).permute(2, 0, 1)[:, :, 0],
    "functions": lambda m: torch.tanh(m.by_place[m.places]).permute(2, 0, 1).unsqueeze(0)[0, :, :, 0],
    "gates": lambda m: (torch.sigmoid(m.gates) + functional.gelu(m.gates)).view(1, 6),
    "a_row": lambda m: torch.tanh(m.rows)[1],
    "shares": lambda m: torch.softmax(m.rows, dim=1) + torch.softmax(m.rows, dim=0),
    "products": lambda m: torch.relu(m.rows @ m.square),
    "layers": lambda m: m.layer(torch.relu(m.layer(m.rows))),
    "norms": lambda m: m.norm(m.rows) + functional.normalize(m.rows, dim=1),
    "sums_of_rows": lambda m: torch.tanh(m.square).sum(0),
    "sums_of_columns": lambda m: torch.tanh(m.square).sum(1),
    "sums_of_both": lambda m: m.square.sum((0, 1)) + m.square.mean(1, keepdim=True)[:4],
    "extremes": lambda m: m.square.amax(0) + m.square.min(dim=1).values,
    "joined": lambda m: torch.cat([m.rows[:2], m.rows[2:] * 2]),
    "joined_columns": lambda m: torch.cat([m.rows[:, :2], m.rows[:, 2:] * 2], dim=1),
    "stacked": lambda m: torch.stack([m.rows[0], m.gates, m.rows[2], m.rows[3] + 1]),
    "parts": lambda m: m.rows.split(2)[1].chunk(2)[0] + m.rows.unbind(0)[1],
    "logarithms": lambda m: torch.log1p(m.rows.exp().abs().clamp(0.1, 1.5)),
}


class Weighted(nn.Module):
    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 12, ["f", "g"])])
        self.rows, self.square = nn.Parameter(torch.rand(4, 6)), nn.Parameter(torch.rand(6, 6))
        self.gates, self.by_place = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(11, 4))
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.register_buffer("places", torch.arange(6)[:, None] - torch.arange(6)[None] + 5)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.tables(features).values().view(-1, 4, 6)
        return {name: (rows * made(self)).flatten(1) for name, made in WEIGHTS.items()}


def exported(path: Path, model: nn.Module, **options: Any) -> tuple[LoadedArtifact, LoadedArtifact]:
    """Return the program and the graph."""
    export_model(model.eval(), path, ExportConfig(**options))
    return load_artifact(path), load_artifact(path, scripted=True)


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name in WEIGHTS:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("target", [("cpu",), ("cpu", "cpu")], ids=",".join)
def test_each_row_costs_the_steps_that_read_it_alone(tmp_path: Path, target: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = Weighted()
    own, plain = exported(tmp_path / "a", model, targets=(target,))
    assert isinstance(own.graphs, ProgramGraphs)
    inputs = batch_of(own.signature, 60, seed=1).inputs()
    counts = Counter(step.kind for step in own.graphs.profile(0, inputs))
    assert counts == {"inputs": 1, "lookup": 1, "broadcast": len(WEIGHTS)}
    before = own.forward(*inputs)
    assert_near(before, plain.forward(*inputs))
    changed = {
        f"model.{name}": torch.rand_like(tensor) + 0.1
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and not name.startswith("tables")
    }
    changed["model.places"] = model.places.flip(0)
    for artifact, name in ((own, "own"), (plain, "plain")):
        write_delta(tmp_path / name, artifact, changed)
        apply(prepare(artifact.rows, tmp_path / name))
    after = own.forward(*inputs)
    assert_near(after, plain.forward(*inputs))
    assert not any(same({name: after[name]}, {name: before[name]}) for name in WEIGHTS)


def test_ranking_forms_cost_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    own, plain = exported(tmp_path / "a", Weighted(), context=("f",))
    assert isinstance(own.graphs, ProgramGraphs)
    inputs = ranking_inputs(own, (50, 3))
    counts = Counter(step.kind for step in own.graphs.profile(1, inputs))
    assert counts["broadcast"] == len(WEIGHTS)
    assert not set(counts) & {"region", "take", "linear", "contract"}
    assert_near(own.forward_ranking(*inputs), plain.forward_ranking(*inputs))


class ByOneNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 12, ["f"])])
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.tables(features).values() * self.scale.item()


def test_deltas_change_numbers_that_the_code_reads(tmp_path: Path) -> None:
    own, plain = exported(tmp_path / "a", ByOneNumber())
    inputs = batch_of(own.signature, 5, seed=1).inputs()
    before = own.forward(*inputs)["default"]
    for artifact, name in ((own, "own"), (plain, "plain")):
        write_delta(tmp_path / name, artifact, {"model.scale": torch.tensor([4.0])})
        apply(prepare(artifact.rows, tmp_path / name))
        torch.testing.assert_close(artifact.forward(*inputs)["default"], 2 * before)
