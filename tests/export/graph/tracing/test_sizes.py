"""Code that decides by sizes, which are the same in every batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.batches.ranking import picked
from recsys.errors import ExportError
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"]), bag("u", 30, 4, ["g"])])
        self.layer = nn.Linear(3, 8)
        self.over = nn.Linear(8, 1)
        self.norm = nn.BatchNorm1d(8)
        self.scales = nn.Parameter(torch.rand(8))

    def rows(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        return found


class _Decides(_Model):
    """Asserts, raises, and branches."""

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        if dense.dim() == 1:
            dense = dense.unsqueeze(1)
        found = self.rows(dense, features)
        assert found.shape == (dense.shape[0], 8), found.shape
        if found.size(-1) != self.over.in_features or found.dtype != torch.float32:
            raise ValueError(f"got {found.shape}")
        return found if found.ndim == 2 and not found.is_sparse else found[0]


class _Sets(_Model):
    """Looks sizes up in sets and dictionaries."""

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.rows(dense, features)
        if dense.dim() not in {2, 3} or found.dtype not in {torch.float32, torch.float64}:
            raise ValueError("dense")
        if len({dense.shape[0], found.shape[0]}) > 1 or len({dense.shape[:1], found.shape[:-1]}) > 1:
            raise ValueError("rows")
        if len({(dense.size(0), dense.size(1)), found.shape, torch.Size([3])}) != 3:
            raise ValueError("shapes")
        scale = {3: 1.0, 8: 2.0}[found.size(1)] + {self.scales: 1.0}[self.scales]
        return {"sums": found.sum(1) * scale, "fewer": found[:, : min({found.size(1), 5})]}


class _Squeezes(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.norm(self.rows(dense, features))
        logits = self.over(found).squeeze()
        sums = torch.squeeze(found.view(-1, 1, 8, 1)).sum(dim=1)
        return {"logits": torch.sigmoid(logits), "sums": sums + logits, "rows": found.squeeze()}


class _Loops(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found = self.rows(dense, features)
        num_rows, width = found.shape
        total = torch.zeros(num_rows)
        for i in range(width):
            total = total + found[:, i] * self.scales[i] / int(width)
        for part in found.chunk(4, dim=1):
            total = total + part.sum(dim=1) / math.sqrt(part.shape[1])
        for column in found.unbind(1):
            total = total + column
        for scale in self.scales:
            total = total + scale
        first, *rest = found.split(2, dim=1)
        total = total + first.sum(dim=1) * float(width)
        return total + torch.stack([part.amax(dim=1) for part in rest]).sum(dim=0)


class _Histories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"]), bag("u", 30, 4, ["g"])])
        self.ec = EmbeddingCollection([sequence("s", 20, 4, ["h"])])
        self.tower = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)


class _Sequences(_Histories):
    """Sizes behind lookups of sequences, and layers that call layers."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        padded: Tensor = self.tower(self.ec(features)["h"].to_padded_dense(5))
        if padded.dim() != 3 or padded.size(2) != 4:
            raise ValueError("expected three dimensions")
        steps = [padded[:, i] for i in range(padded.size(1))]
        return torch.stack(steps, dim=1).sum(dim=1, keepdim=True).squeeze() * self.ebc(features)["f"]


class _TwoArguments(_Histories):
    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        together: Tensor = self.ebc(KeyedJaggedTensor.concat([user, item])).values()
        rows = self.ec(user)["h"].to_padded_dense(2)
        assert together.shape[1] == 2 * rows.shape[2]
        return together * rows.view(-1, together.shape[1]).squeeze()


_TARGETS = (("cpu",), ("cpu", "cpu"))


_SPLIT = {"user": {"f": "f", "h": "h"}, "item": {"g": "g"}}


@pytest.mark.parametrize(
    ("make", "split"),
    [
        (_Decides, None),
        (_Sets, None),
        (_Squeezes, None),
        (_Loops, None),
        (_Sequences, None),
        (_TwoArguments, _SPLIT),
    ],
)
def test_sizes_that_are_constants_are_known(
    tmp_path: Path, make: Callable[[], nn.Module], split: dict[str, dict[str, str]] | None
) -> None:
    model = make().eval()
    features = {argument: tuple(names) for argument, names in (split or {}).items()}
    _, artifact = exported(
        model, tmp_path / "artifact", data_type=DataType.FP32, targets=_TARGETS, features=features
    )
    signature = artifact.manifest.signature
    batch = batch_of(signature, 17)
    expected = predicted(model, arguments(signature, batch, split))
    assert_close(artifact.forward(*batch.inputs()), expected)
    alone = picked(signature, batch, torch.tensor([3]))
    assert_close(artifact.forward(*alone.inputs()), {name: values[3:4] for name, values in expected.items()})


def test_with_layers_of_another_type(tmp_path: Path) -> None:
    export_model(_Loops(), tmp_path / "a", ExportConfig(dense_dtype="bfloat16"))


def test_the_ranking_form(tmp_path: Path) -> None:
    config = ExportConfig(context=("dense", "f"))
    report = export_model(_Squeezes(), tmp_path / "a", config)
    assert report.ranking_differences["cpu"]


@torch.fx.wrap
def _without_torch(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2)


_NUMBERS = {2, 4}
_IN_SETS = ("set", "in", "set with 4", "get", "intersection", "named set", "held set", "method", "shape in")


class _Rows(_Model):
    """Decides by the number of rows, and by numbers in tensors."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.numbers = case, {2: "two", 4: "four"}

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found = self.rows(dense, features)
        if self.case == "rows":
            return found if found.size(0) % 2 else -found  # here
        if self.case == "set":
            return found if len({dense.size(0), 1}) == 1 else -found  # here
        if self.case == "in":
            return found if dense.size(0) in {2, 4} else -found  # here
        if self.case == "set with 4":
            return found if len({dense.size(0), 4}) == 1 else -found  # here
        if self.case == "get":
            return found * {4: 2, 8: 3}.get(dense.size(0), 1)  # here
        if self.case == "intersection":
            return found if {dense.size(0)} & {2, 4} else -found  # here
        if self.case == "named set":
            return found if {dense.size(0)} & _NUMBERS else -found  # here
        if self.case == "held set":
            return found if self.numbers.get(dense.size(0)) else -found  # here
        if self.case == "method":
            return found if _NUMBERS.isdisjoint([dense.size(0)]) else -found  # here
        if self.case == "shape in":
            return found if (dense.size(0), 3) in {(2, 3): 1} else -found  # here
        if self.case == "values":
            return found if self.scales.sum() > 0 else -found  # here
        if self.case == "number of IDs":
            return found if features.values().numel() == 0 else -found  # here
        if self.case == "squeezed":
            return _without_torch(found).squeeze()  # here
        return found.sum(dim=1) if len(list(found)) == 3 else found  # here


@pytest.mark.parametrize("case", ["rows", *_IN_SETS, "values", "number of IDs", "squeezed", "parts"])
def test_what_differs_between_batches_is_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(ExportError, match=r"(?s)At \S*test_sizes.py:\d+ in _Rows.forward: `.*# here`"):
        export_model(_Rows(case), tmp_path / "a")


class _Training(_Model):
    """Layers that change when they run."""

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return torch.squeeze(self.norm(self.rows(dense, features)).unsqueeze(1))


def test_the_model_is_not_changed(tmp_path: Path) -> None:
    model = _Training().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export_model(model, tmp_path / "a")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.norm.running_mean) is Tensor


class _Widths(_Model):
    """Layers and checks that tell the width of ``dense``, or do not."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case
        self.layer, self.over = nn.Linear(11, 8), nn.Linear(8, 1)
        self.narrow = nn.Linear(2, 8)
        self.norm = nn.BatchNorm1d(3)
        self.convolution = nn.Conv1d(3, 8, 1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.ebc(features).values()
        made: dict[str, Callable[[], Tensor]] = {
            "joined": lambda: self.layer(torch.cat([dense, found], dim=1)),
            "checked": lambda: self.layer(torch.cat([self._checked(dense), found], dim=1)),
            "special": lambda: self.layer(
                torch.cat([dense[:, :1] if dense.size(1) == 1 else dense, found], 1)
            ),
            "scaled": lambda: (torch.log1p(dense.clamp_min(0)) - self.mean).sum(dim=1, keepdim=True) * found,
            "norm": lambda: self.norm(dense).sum(dim=1, keepdim=True) * found,
            "sliced": lambda: self.narrow(dense[:, 1:]) + found,
            "split": lambda: self.narrow(dense.split([1, 2], dim=1)[1]) + found,
            "viewed": lambda: dense.view(-1, 3, 1).sum(dim=1) * found,
            "convolution": lambda: self.convolution(dense.unsqueeze(2)).squeeze() + found,
            "einsum": lambda: torch.einsum("bi,io->bo", dense, self.scales.view(1, 8).expand(3, 8)) + found,
            "product": lambda: torch.bmm(dense.unsqueeze(1), found[:, :6].view(-1, 3, 2)).sum(dim=2) + found,
            "column": lambda: dense * found,
            "any": lambda: dense.mean(dim=1, keepdim=True) * found,
            "half": lambda: self.narrow(dense.chunk(2, dim=1)[0]) + found,
        }
        return made[self.case]()

    def _checked(self, dense: Tensor) -> Tensor:
        if dense.dim() != 2 or dense.shape[1] != 3:
            raise ValueError(f"got {dense.shape}")
        return dense


_TOLD = ("joined", "checked", "special", "scaled", "norm", "sliced", "split", "viewed", "convolution")


@pytest.mark.parametrize("case", [*_TOLD, "einsum", "product"])
def test_what_does_not_fit_tells_the_width(tmp_path: Path, case: str) -> None:
    _, artifact = exported(_Widths(case).eval(), tmp_path / "a")
    assert [(one.name, one.width) for one in artifact.signature.dense] == [("dense", 3)]


@pytest.mark.parametrize("case", ["column", "any", "half"])
def test_a_width_is_asked_for_where_several_fit(tmp_path: Path, case: str) -> None:
    with pytest.raises(ExportError, match=r"cannot tell its width .* --dense-width dense=N"):
        export_model(_Widths(case), tmp_path / "a")
