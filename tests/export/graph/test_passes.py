"""Rewrites of traced graphs change no number.

Shape letters: B batch, F features, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

from export.graph.passes import flatten_cats
from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.scripting.torchscript import operators
from tests.support.helpers import bag
from tests.support.models.export_models import arguments, assert_close, dlrm, exported, predicted
from tests.support.models.export_models import batch_of as export_batch_of
from tests.support.models.export_ranking import BATCHES, assert_equal_forms, batch_of, ranked

D = 4
Case = Callable[[Tensor, Tensor], Tensor]


def _parts(values: Tensor) -> list[Tensor]:
    return [values.narrow(1, 0, 2 * D), values.narrow(1, 2 * D, D), values.narrow(1, 3 * D, 2 * D)]


def _behind(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat((x, torch.cat(_parts(values), dim=1).reshape(-1, 5, D)), dim=1)


def _positional(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat([torch.cat(_parts(values), 1).reshape(-1, 5, D), x], 1)


def _twice(x: Tensor, values: Tensor) -> Tensor:
    first = torch.cat(_parts(values), dim=1).reshape(-1, 5, D)
    second = torch.cat(_parts(values * 2), dim=1).reshape(-1, 5, D)
    return torch.cat((first, x, second), dim=1)


def _read_elsewhere(x: Tensor, values: Tensor) -> Tensor:
    pooled = torch.cat(_parts(values), dim=1)
    return torch.cat((x, pooled.reshape(-1, 5, D)), dim=1) + pooled.sum()


def _reshape_read_elsewhere(x: Tensor, values: Tensor) -> Tensor:
    pooled = torch.cat(_parts(values), dim=1).reshape(-1, 5, D)
    return torch.cat((x, pooled), dim=1) + pooled.sum()


def _same_twice(x: Tensor, values: Tensor) -> Tensor:
    pooled = torch.cat(_parts(values), dim=1).reshape(-1, 5, D)
    return torch.cat((x, pooled, pooled), dim=1)


def _other_dim(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat((x.transpose(1, 2), torch.cat(_parts(values), dim=1).reshape(-1, D, 5)), dim=2)


def _across_features(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat((x.reshape(-1, 2, 10), torch.cat(_parts(values), dim=1).reshape(-1, 2, 10)), dim=1)


def _other_shape(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat((x, torch.cat(_parts(values), dim=1).reshape(x.size(0), 5, D)), dim=1)


def _not_narrowed(x: Tensor, values: Tensor) -> Tensor:
    return torch.cat((x, torch.cat([values, values], dim=1).reshape(-1, 10, D)), dim=1)


# For each case how many cats are left, and the rows of x.
CASES: dict[str, tuple[Case, int, int]] = {
    "the part behind": (_behind, 1, 3),
    "the part in front": (_positional, 1, 3),
    "two parts": (_twice, 1, 3),
    "read elsewhere": (_read_elsewhere, 2, 3),
    "its reshape read elsewhere": (_reshape_read_elsewhere, 2, 3),
    "the same one twice": (_same_twice, 1, 3),
    "along another dimension": (_other_dim, 2, 3),
    "across features": (_across_features, 2, 5),
    "rows of another shape": (_other_shape, 2, 3),
    "parts of unknown width": (_not_narrowed, 2, 3),
}


class Wrapped(nn.Module):
    """A function of two tensors, with a check that returns nothing in front."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.register_buffer("rows", torch.tensor([2]))
        self.register_buffer("counter", torch.tensor([0]))

    # No annotations: as texts, FX would hand them on to TorchScript, which cannot read them.
    def forward(self, x, values, ids):  # type: ignore[no-untyped-def]
        torch.ops.fbgemm.bounds_check_indices(self.rows, ids, torch.tensor([0, 1]), 0, self.counter)
        return self.case(x, values)


@pytest.mark.parametrize(("case", "num_cats", "num_vectors"), CASES.values(), ids=CASES)
def test_a_cat_of_a_cat(case: Case, num_cats: int, num_vectors: int) -> None:
    module = fx.symbolic_trace(Wrapped(case))
    flatten_cats(module)
    module.recompile()
    module.graph.lint()
    assert sum(node.target is torch.cat for node in module.graph.nodes) == num_cats
    good, bad = torch.tensor([1]), torch.tensor([7])
    for num_rows in (0, 1, 6):
        generator = torch.Generator().manual_seed(num_rows)
        x = torch.randn(num_rows, num_vectors, D, generator=generator)
        values = torch.randn(num_rows, 5 * D, generator=generator)
        if num_rows == 0 and case in (_other_dim, _across_features):
            continue
        assert torch.equal(module(x, values, good), case(x, values))
        # The checks of IDs stay.
        with pytest.raises(RuntimeError):
            module(x, values, bad)


class _Adaptive(nn.Module):
    """A linear layer that a batch norm and a product read, as activations that adapt to their data do."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.ebc = EmbeddingBagCollection([bag("t", 30, 8, ["f"])])
        self.layer, self.norm = nn.Linear(8, 6), nn.BatchNorm1d(6)
        self.norm.running_mean = torch.randn(6)
        self.norm.running_var = torch.rand(6) + 0.5
        self.call = call

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows = self.layer(self.ebc(features).values())
        return rows * self.call(self.norm, rows).sigmoid()


@pytest.mark.parametrize(
    "call",
    [
        lambda norm, x: norm(x),
        lambda norm, x: nn.functional.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias
        ),
    ],
    ids=["layer", "function"],
)
def test_a_linear_layer_keeps_its_weights_beside_a_batch_norm(
    tmp_path: Path, call: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    model = _Adaptive(call).eval()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
    batch = export_batch_of(artifact.signature, 9)
    assert_close(artifact.forward(*batch.inputs()), predicted(model, arguments(artifact.signature, batch)))


def test_a_ranking_form_copies_pooled_embeddings_once(tmp_path: Path) -> None:
    artifact = ranked(dlrm(), tmp_path / "a", ("f0", "f2"))
    assert artifact.ranking is not None
    # Those of the interaction: before the products, and of the products.
    assert operators(artifact.ranking)["aten::cat"] == 2
    for rows_per_context in BATCHES.values():
        assert_equal_forms(artifact, batch_of(artifact, rows_per_context))


class _WholeNumbers(nn.Module):
    """Whole numbers where functions of torch take floats."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 6, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.ebc(features).values()
        normal = nn.functional.normalize(found, 2, dim=-1, eps=1)
        other = nn.functional.normalize(found, p=1, dim=1)
        clipped = nn.functional.hardtanh(found, -1, 1) + nn.functional.leaky_relu(found, 0)
        joined = torch.einsum("bi,bi->b", normal, other)
        return {"normal": normal, "other": other, "clipped": clipped, "joined": joined}


class _Norms(nn.Module):
    """Norms as people write them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 6, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.ebc(features).values()
        return {
            "plain": found.norm(dim=1),
            "named": found.norm("fro", 1),
            "other": found.norm(1, -1, True),
            "infinite": found.norm(p=float("inf"), dim=(1,), keepdim=True),
            "wider": found.norm(dim=1, dtype=torch.float64).float(),
            "function": torch.norm(found, dim=1),
            "divided": found / found.norm(2, dim=1, keepdim=True).clamp(min=1e-6),
        }


class _Views(nn.Module):
    """Bits read as numbers of another type, as copies to devices do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 6, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.ebc(features).values()
        signs = found.view(torch.int32) >> 31
        sizes = (found.view(dtype=torch.int32) & 0x7FFFFFFF).view(torch.float32)
        return {"signs": signs.float(), "sizes": sizes, "reshaped": sizes.view(-1, 3, 2).sum(1)}


@pytest.mark.parametrize("kind", [_WholeNumbers, _Norms, _Views])
def test_functions_are_those_of_torch(tmp_path: Path, kind: type[nn.Module]) -> None:
    model = kind().eval()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
    batch = export_batch_of(artifact.signature, 9)
    expected = predicted(model, arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)
