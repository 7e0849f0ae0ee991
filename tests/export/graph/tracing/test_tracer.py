"""What code a model may have around its lookups."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor, KeyedTensor
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted


@fx.wrap
def columns(found: KeyedTensor, name: str) -> Tensor:
    return found[name] if len(found.keys()) else found.values()


@fx.wrap
def scaled(x: Tensor, by: float) -> Tensor:
    if x.size(0) > 10**6:
        return x
    return x * by


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"]), bag("u", 30, 4, ["g"])])
        self.identity = nn.Identity()
        self.layer = nn.Linear(4, 4)


class _Wrapped(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return scaled(columns(self.ebc(features), "g"), 2.0)


class _Identity(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: KeyedTensor = self.identity(self.ebc(self.identity(features)))
        return found["g"] - found["f"]


class _Hooks(_Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer.register_forward_hook(_doubled)
        self.ebc.register_forward_pre_hook(_the_second_first)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.layer(self.ebc(features)["f"])
        return found


def _doubled(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output * 2


def _the_second_first(_: nn.Module, args: tuple[KeyedJaggedTensor]) -> tuple[KeyedJaggedTensor]:
    return (args[0].permute([1, 0]),)


class _Synced(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        made = KeyedJaggedTensor.from_lengths_sync(features.keys(), features.values(), features.lengths())
        return self.ebc(made).values()


class _Factories(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.ebc(features).values()
        return found + torch.zeros(found.size(0), 8) + torch.ones((found.size(0), 1)) + torch.arange(8)


class _Counting(_Model):
    """Takes the number of rows by ``len``."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        num_rows = len(features.lengths()) // len(features.keys())
        return self.ebc(features).values().view(num_rows, 2, -1).sum(dim=1)


class _Asking(_Model):
    """Asks the collection for its tables."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found, width = self.ebc(features), self.ebc.embedding_bag_configs()[0].embedding_dim
        names = [name for table in self.ebc.embedding_bag_configs() for name in table.feature_names]
        return sum((found[name] for name in names[1:]), found[names[0]]) * width**0.5


class _AskingWhatItTakes(nn.Module):
    """Asks a weighted collection, one of sequences and the batch for what the signature tells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f", "g"], "MEAN")], is_weighted=True)
        self.ec = EmbeddingCollection([sequence("s", 20, 4, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        assert self.ebc.is_weighted() == (features.weights_or_none() is not None)
        assert self.ec.embedding_names_by_table() == [["f"]]
        assert features.stride_per_key_per_rank() == []
        assert not features.variable_stride_per_key()
        assert features.inverse_indices_or_none() is None
        lengths = features.lengths_or_none()
        assert lengths is not None
        found = self.ebc(features).values() + features.index_per_key()["g"] + len(features.keys())
        per_row = lengths.view(len(features.stride_per_key()), features.stride()).sum(dim=0)
        rows = self.ec(features)["f"].to_padded_dense(2).sum(dim=1)
        starts = features.offsets()[: features.stride()] * 0 + torch.ones(features.stride())
        needs = 1 if self.ec.need_indices() else 2
        return found * per_row.unsqueeze(1) * starts.unsqueeze(1) + torch.cat([rows, rows], dim=1) * needs


class _SequencesWithHook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 20, 4, ["f"])])
        self.ec.register_forward_hook(_first_only)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.ec(features)["f"].to_padded_dense(3).sum(dim=1)
        return found


def _first_only(_: nn.Module, __: Any, output: dict[str, Any]) -> dict[str, Any]:
    return {"f": output["f"]}


@pytest.mark.parametrize(
    "make",
    [
        _Wrapped,
        _Identity,
        _Hooks,
        _Synced,
        _Factories,
        _Counting,
        _Asking,
        _AskingWhatItTakes,
        _SequencesWithHook,
    ],
)
def test_code_around_lookups(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    targets = (("cpu",), ("cpu", "cpu"))
    _, artifact = exported(model, tmp_path / "artifact", data_type=DataType.FP32, targets=targets)
    signature = artifact.manifest.signature
    batch = batch_of(signature, 7)
    assert_close(artifact.forward(*batch.inputs()), predicted(model, arguments(signature, batch)))


def test_len_is_put_back(tmp_path: Path) -> None:
    exported(_Counting(), tmp_path / "artifact")
    assert "len" not in globals()


def test_functions_under_wrap_are_put_back(tmp_path: Path) -> None:
    before = columns
    exported(_Wrapped(), tmp_path / "artifact")
    assert columns is before
    assert any(key[1] == "columns" for key in fx._symbolic_trace._wrapped_fns_to_patch)


def test_functions_of_one_name_in_two_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\n\n\n@torch.fx.wrap\ndef changed(x: torch.Tensor) -> torch.Tensor:\n    return {}\n"
    monkeypatch.syspath_prepend(tmp_path)
    modules = []
    for name, changed in (("doubling_one", "x * 2"), ("adding_one", "x + 1")):
        (tmp_path / f"{name}.py").write_text(code.format(changed))
        modules.append(importlib.import_module(name))
    double, add = (module.changed for module in modules)

    class Both(_Model):
        def forward(self, features: KeyedJaggedTensor) -> Tensor:
            found = self.ebc(features)["f"]
            return double(found) - add(found) + double(add(found))

    model = Both().eval()
    _, artifact = exported(model, tmp_path / "artifact", data_type=DataType.FP32)
    signature = artifact.manifest.signature
    batch = batch_of(signature, 7)
    assert_close(artifact.forward(*batch.inputs()), predicted(model, arguments(signature, batch)))
