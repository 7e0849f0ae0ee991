"""Outputs come out as float32 or int64, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.configs import DataType
from recsys.errors import ExportError
from tests.support.helpers import bag
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted, rounded


class _Casting(nn.Module):
    """What its numbers are cast to is the case."""

    def __init__(self, cast: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.cast = cast

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.ebc(features).values()
        return {"score": found, "cast": self.cast(found)}


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.argmax(dim=1),
        lambda x: x.topk(3, dim=1)[1].to(torch.int32),
        lambda x: x > 0,
        lambda x: (x > 0).to(torch.uint8),
    ],
    ids=["argmax", "int32", "bool", "uint8"],
)
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu")], ids=",".join)
def test_whole_numbers_come_out_as_int64(
    tmp_path: Path, cast: Callable[[Tensor], Tensor], devices: tuple[str, ...]
) -> None:
    model = _Casting(cast)
    _, artifact = exported(model, tmp_path / "a", targets=(devices,), data_type=DataType.FP32)
    batch = batch_of(artifact.signature, 9)
    found = artifact.forward(*batch.inputs())
    expected = predicted(model, arguments(artifact.signature, batch))
    assert [output.dtype for output in artifact.signature.outputs] == ["float32", "int64"]
    assert artifact.manifest.format_version == 3
    assert found["cast"].dtype == torch.int64
    assert torch.equal(found["cast"], expected["cast"].to(torch.int64))
    assert artifact.forward(*batch_of(artifact.signature, 0).inputs())["cast"].dtype == torch.int64


class _Scaled(_Casting):
    """Whole numbers, which follow from the number of IDs."""

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.ebc(features).values()
        whole = features.lengths().unsqueeze(1).to(torch.int64) + 2**53
        return {"score": found, "cast": self.cast(whole)}


@pytest.mark.parametrize(
    "options",
    [{}, {"dense_dtype": "bfloat16"}, {"single_file": True}, {"graph_format": "both"}],
    ids=["plain", "bfloat16", "single file", "both"],
)
def test_whole_numbers_are_exact(tmp_path: Path, options: dict[str, Any]) -> None:
    _, artifact = exported(_Scaled(lambda x: -x), tmp_path / "a", **options)
    found = artifact.forward(torch.tensor([4, 5]), torch.arange(9))["cast"]
    assert found.tolist() == [[-(2**53) - 4], [-(2**53) - 5]]
    assert found.dtype == torch.int64


def test_complex_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"outputs\['cast'\]: got torch.complex64, expected real numbers"):
        export_model(_Casting(lambda x: torch.complex(x, x)), tmp_path / "a")


@pytest.mark.parametrize("devices", [("cuda:0",), ("cuda:0", "cuda:1")], ids=",".join)
def test_a_target_of_other_devices_keeps_whole_numbers(tmp_path: Path, devices: tuple[str, ...]) -> None:
    """No copy to host memory puts them together with floats."""
    report = export_model(
        _Scaled(lambda x: x.to(torch.int64)), tmp_path / "a", ExportConfig(targets=(devices,))
    )
    assert report.differences[",".join(devices)]["cast"].max_abs == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu")], ids=",".join)
def test_other_floats_come_out_as_float32(
    tmp_path: Path, dtype: torch.dtype, devices: tuple[str, ...]
) -> None:
    model = _Casting(lambda x: x.to(dtype))
    _, artifact = exported(model, tmp_path / "a", targets=(devices,))
    batch = batch_of(artifact.signature, 9)
    found = artifact.forward(*batch.inputs())
    assert {name: output.dtype for name, output in found.items()} == {
        "score": torch.float32,
        "cast": torch.float32,
    }
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch))
    assert expected["cast"].dtype == dtype
    assert_close(
        found, {n: o.float() for n, o in expected.items()}, 2.0**-7 if dtype != torch.float64 else 2.0**-16
    )


@pytest.mark.parametrize("devices", [("cuda:0",), ("cuda:0", "cuda:1")], ids=",".join)
def test_a_target_of_other_devices_takes_float64_outputs_too(
    tmp_path: Path, devices: tuple[str, ...]
) -> None:
    report = export_model(
        _Casting(lambda x: x.double()), tmp_path / "a", ExportConfig(targets=(("cpu",), devices))
    )
    found = report.differences[",".join(devices)]
    assert found["cast"] == found["score"] == report.differences["cpu"]["cast"]


class _Tasks(NamedTuple):
    click: Tensor
    watch: list[Tensor]


class _Nested(nn.Module):
    """Heads in containers within containers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.heads = nn.ModuleDict({name: nn.Linear(8, 1) for name in ("click", "watch")})

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Any]:
        found = self.ebc(features).values()
        logits = {name: head(found).squeeze(1) for name, head in self.heads.items()}
        return {
            "logits": logits,
            "tasks": _Tasks(click=logits["click"].sigmoid(), watch=[logits["watch"].exp(), found]),
            "sum": logits["click"] + logits["watch"],
        }


def test_outputs_within_others_have_names_with_dots(tmp_path: Path) -> None:
    model = _Nested()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
    batch = batch_of(artifact.signature, 9)
    with torch.no_grad():
        expected = model(**arguments(artifact.signature, batch))
    flat = {
        "logits.click": expected["logits"]["click"],
        "logits.watch": expected["logits"]["watch"],
        "tasks.click": expected["tasks"].click,
        "tasks.watch.0": expected["tasks"].watch[0],
        "tasks.watch.1": expected["tasks"].watch[1],
        "sum": expected["sum"],
    }
    assert_close(artifact.forward(*batch.inputs()), flat)
