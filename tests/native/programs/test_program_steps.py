"""What steps of programs compute, beside the same graph on torch's operators.

Shape letters: B batch, S places, D width of a place.
"""

from __future__ import annotations

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
from tests.export.lower.test_interleaved import JOINED, Joined
from tests.export.lower.test_lowering import Transformed
from tests.native import program_models
from tests.native.programs.test_programs import last_row, write_delta
from tests.recsys.artifact.damage import same
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels


def _odd(x: Tensor) -> Tensor:
    """Return some numbers as they are, and others as infinity, its negative or NaN."""
    return torch.cat([x[:, :1], x[:, 1:2] * 1e38 * 1e38, x[:, 2:3].log2(), x[:, 3:]], dim=1)


def _with_sums(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return vectors and sums of them, also of a sum and of one with itself, in any order."""
    both = a - b
    return torch.cat([both + c, a, both, a * b, b, b + b, c, c - a], dim=1)


#: From a module and its pooled rows as ``[B, 4, 6]``.
STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "sums": lambda _, x: x.sum(2),
    "sums_of_both": lambda _, x: x.sum((1, 2)).unsqueeze(1),
    "means": lambda _, x: x.mean(1, keepdim=True).flatten(1),
    "lengths": lambda _, x: functional.normalize(x, dim=2).flatten(1),
    "shares": lambda _, x: torch.softmax(x, dim=2).flatten(1),
    "shares_of_columns": lambda _, x: torch.softmax(x, dim=1).flatten(1),
    "norm": lambda m, x: m.norm(x).flatten(1),
    "norm_without_weights": lambda _, x: functional.layer_norm(x, (6,)).flatten(1),
    "norm_over_both": lambda _, x: functional.layer_norm(x, (4, 6)).flatten(1),
    "vectors_and_sums": lambda m, x: m.sums(_with_sums(x[:, 0], x[:, 1], x[:, 2])),
    "a_sum_of_others": lambda m, x: (
        m.turned(x.transpose(1, 2)[:, 0]) + m.pair(torch.cat([x[:, 0] + x[:, 1], x[:, 0]], dim=1))
    ),
    "batch_norm": lambda m, x: m.columns(m.counted(x.flatten(1))),
    "batch_norm_of_channels": lambda m, x: m.channels(x).flatten(1),
    "batch_norm_without_weights": lambda m, x: m.plain_channels(x).flatten(1),
    "layer_of_places": lambda m, x: m.layer(x).relu().flatten(1),
    "turned": lambda m, x: m.turned(x.transpose(1, 2)).flatten(1),
    "products": lambda _, x: torch.bmm(x, x.transpose(1, 2)).flatten(1),
    "products_with_weights": lambda m, x: (m.left @ x @ m.right).flatten(1),
    "products_of_vectors": lambda _, x: torch.matmul(x[:, :1], x[:, 1:].mT).flatten(1),
    "heads": lambda _, x: torch.einsum("bshd,bthd->bhst", x.view(-1, 4, 2, 3), x.view(-1, 4, 2, 3)).flatten(
        1
    ),
    "outer": lambda _, x: torch.einsum("bsd,btd->bstd", x, x[:, :2]).flatten(1),
    "outer_of_weights": lambda m, x: torch.einsum("bsd,td->bst", x, m.rows).flatten(1),
    "convolution": lambda m, x: m.convolution(x).flatten(1),
    "repeated": lambda _, x: (x.unsqueeze(2) * x.unsqueeze(1)).sum(3).flatten(1),
    "added_weights": lambda m, x: (x + m.rows[:1] - m.rows[1:2]).flatten(1),
    "joined": lambda _, x: torch.cat([x, 2 * x[:, :, 1:3]], dim=2).flatten(1),
    "stacked": lambda _, x: torch.stack([x[:, 0], x[:, 2]], dim=2).flatten(1),
    "moved": lambda _, x: x.permute(0, 2, 1)[:, 1:4].reshape(x.shape[0], -1),
    "functions": lambda _, x: torch.cat(
        [functional.gelu(x), functional.gelu(x, approximate="tanh"), functional.silu(x), torch.tanh(x)], dim=1
    ).flatten(1),
    "bounds": lambda _, x: functional.leaky_relu(x.clamp(-0.5, 0.4), 0.2).flatten(1) - 1,
    "powers": lambda _, x: (x.exp() + x**2 + torch.square(x)).flatten(1),
    "chosen": lambda _, x: torch.where(x < 0.1, x, torch.zeros_like(x)).flatten(1),
    "filled": lambda _, x: x.masked_fill((x > 0.1) & ~(x > 0.5) | (x < -0.4), -2.0).flatten(1),
    "missing": lambda _, x: (
        torch.where(torch.isnan(_odd(x)), x + 2, _odd(x)).nan_to_num(7.0, 8.0, -9.0).flatten(1)
    ),
    "missing_numbers": lambda _, x: _odd(x).nan_to_num(posinf=3.0, neginf=-4.0).flatten(1),
    "compared_missing": lambda _, x: torch.cat(
        [
            found.float()
            for found in (
                _odd(x) == x,
                _odd(x) != x,
                _odd(x) != _odd(x),
                _odd(x) >= 0.1,
                _odd(x) <= x,
                x == 0,
            )
        ],
        dim=1,
    ).flatten(1),
    "logarithms": lambda _, x: (
        torch.sign(x) * torch.log1p(x.abs() * 1e-6) * 1e6 + torch.log1p(x.abs())
    ).flatten(1),
    "chosen_of_two": lambda m, x: torch.where(m.mask, x.minimum(m.rows[:1]), x * 2).flatten(1),
    "extremes": lambda _, x: torch.cat(
        [x.max(dim=2).values, x.amin(1), x.min(dim=1)[0], torch.amax(x, dim=-1, keepdim=True).flatten(1)],
        dim=1,
    ),
    "extremes_of_missing": lambda _, x: torch.amax(_odd(x), dim=1).nan_to_num(5.0, 6.0, 7.0),
    "extremes_of_two": lambda _, x: torch.max(x, 0.2 * x).flatten(1) + torch.min(x, x[:, :1]).flatten(1),
    "bounded": lambda _, x: functional.hardtanh(x, -0.3, 0.4).flatten(1) + functional.relu6(9 * x).flatten(1),
    "cosines": lambda _, x: torch.cat(
        [
            functional.cosine_similarity(x, x[:, :1], dim=2),
            torch.cosine_similarity(x[:, 0], x[:, 1]).unsqueeze(1),
        ],
        dim=1,
    ),
    "compared": lambda m, x: ((x < x[:, :1]) | m.mask).float().flatten(1),
}


class Steps(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 12, ["f", "g"])])
        self.norm, self.layer, self.turned = nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(4, 7)
        self.left, self.right = nn.Parameter(torch.rand(3, 4)), nn.Parameter(torch.rand(6, 18))
        self.rows = nn.Parameter(torch.rand(5, 6))
        self.convolution = nn.Conv1d(4, 3, 1)
        self.sums, self.pair = nn.Linear(48, 7), nn.Linear(12, 7)
        self.columns, self.counted = nn.BatchNorm1d(24), nn.BatchNorm1d(24, eps=0.1)
        self.channels, self.plain_channels = nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)
        for norm in (self.columns, self.counted, self.channels, self.plain_channels):
            for numbers in (*norm.parameters(), norm.running_mean, norm.running_var):
                nn.init.uniform_(numbers, 0.2, 1.5)
        self.register_buffer("mask", torch.eye(6, dtype=torch.bool)[:4])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.tables(features).values().view(-1, 4, 6)
        return {name: step(self, rows) for name, step in STEPS.items()}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedArtifact, LoadedArtifact]:
    """The program and the graph."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("steps") / "a"
    export_model(Steps().eval(), path, ExportConfig())
    own = load_artifact(path)
    assert isinstance(own.graphs, ProgramGraphs)
    assert b"regions." not in (path / "program.safetensors").read_bytes()
    return own, load_artifact(path, scripted=True)


@pytest.mark.parametrize("num_rows", [1, 2, 49, 130])
def test_steps_compute_what_torch_does(loaded: tuple[LoadedArtifact, LoadedArtifact], num_rows: int) -> None:
    inputs = batch_of(loaded[0].signature, num_rows, seed=num_rows).inputs()
    found, expected = (model.forward(*inputs) for model in loaded)
    for name in STEPS:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_row_has_the_same_bits_beside_any_others(loaded: tuple[LoadedArtifact, LoadedArtifact]) -> None:
    own, _ = loaded
    batch = batch_of(own.signature, 130, seed=1)
    whole = own.forward(*batch.inputs())
    assert same({name: rows[-1:] for name, rows in whole.items()}, own.forward(*last_row(batch)))


def test_deltas_change_the_weights_of_all_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Steps().eval()
    export_model(model, tmp_path / "a", ExportConfig())
    own, plain = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "a", scripted=True)
    inputs = batch_of(own.signature, 60, seed=2).inputs()
    before = own.forward(*inputs)
    changed = {
        f"model.{name}": torch.rand_like(tensor) + 0.1
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and not name.startswith("tables")
    }
    assert {"model.columns.running_mean", "model.channels.running_var", "model.columns.bias"} <= set(changed)
    for artifact, name in ((own, "own"), (plain, "plain")):
        write_delta(tmp_path / name, artifact, changed)
        apply(prepare(artifact.rows, tmp_path / name))
    found, expected = own.forward(*inputs), plain.forward(*inputs)
    for name in STEPS:
        torch.testing.assert_close(
            found[name], expected[name], rtol=2e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert not same({"batch_norm": found["batch_norm"]}, {"batch_norm": before["batch_norm"]})


#: Functions of a number, which any of them may be.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.3),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "elu": functional.elu,
    "elu_of_another_size": lambda x: functional.elu(x, 0.25),
    "elu_layer": nn.ELU(2),
    "bool": lambda x: x.bool().float(),
    "to_bool": lambda x: x.to(torch.bool).float(),
}
_LARGEST = torch.finfo(torch.float32).max
_NUMBERS = [0.0, -0.0, 1e-30, -1e-30, -1e-7, -1e-3, 0.6, -0.6, 5.0, -5.0, 88.0, -88.0, 104.0, -104.0]
_NUMBERS += [1e9, -1e9, _LARGEST, -_LARGEST, torch.inf, -torch.inf, torch.nan]


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 3, ["f"])])

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.tables(features).values()
        return {"rows": rows, **{name: function(dense) for name, function in FUNCTIONS.items()}}


def test_functions_of_any_number_are_those_of_torch(tmp_path: Path) -> None:
    width = len(_NUMBERS)
    export_model(Functions().eval(), tmp_path / "a", ExportConfig(dense_widths={"dense": width}))
    own = load_artifact(tmp_path / "a")
    assert isinstance(own.graphs, ProgramGraphs)
    _, *rest = batch_of(own.signature, width, seed=1).inputs()
    # Each number in each place of a row, so in each lane of a vector.
    dense = torch.stack([torch.tensor(_NUMBERS).roll(i) for i in range(width)])
    found = own.forward(dense, *rest)
    for name, function in FUNCTIONS.items():
        torch.testing.assert_close(
            found[name],
            function(dense),
            rtol=1e-6,
            atol=1e-37,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("num_rows", [1, 50])
def test_missing_numbers_are_filled_as_in_the_graph(tmp_path: Path, num_rows: int) -> None:
    torch.manual_seed(0)
    export_model(Transformed().eval(), tmp_path / "a", ExportConfig(dense_widths={"dense": 4}))
    own = load_artifact(tmp_path / "a")
    assert isinstance(own.graphs, ProgramGraphs)
    dense, *rest = batch_of(own.signature, num_rows, seed=num_rows).inputs()
    dense = dense * 3
    dense[torch.rand_like(dense) < 0.4] = torch.nan
    dense[:, 3] *= 10.0 ** torch.arange(-9, num_rows - 9).clamp(max=9)
    expected = load_artifact(tmp_path / "a", scripted=True).forward(dense, *rest)["default"]
    assert not expected.isnan().any()
    torch.testing.assert_close(own.forward(dense, *rest)["default"], expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", JOINED)
def test_joined_vectors_are_those_of_torch(tmp_path: Path, name: str) -> None:
    join, width, *_ = JOINED[name]
    plain, own = program_models.loaded(tmp_path / "a", Joined(join, width))
    assert own.runs_program
    for num_rows in (0, 1, 3, 49):
        batch = batch_of(own.signature, num_rows, seed=num_rows).inputs()
        expected = plain.forward(*batch)["default"]
        program_models.assert_near(own.forward(*batch)["default"], expected, "float32")
