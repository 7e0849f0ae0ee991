"""Outputs come out as float32, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.configs import DataType
from recsys.errors import ExportError
from tests.support.export_models import arguments, assert_close, batch_of, exported, predicted, rounded
from tests.support.helpers import bag


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
def test_whole_numbers_come_out_as_float32(
    tmp_path: Path, cast: Callable[[Tensor], Tensor], devices: tuple[str, ...]
) -> None:
    model = _Casting(cast)
    _, artifact = exported(model, tmp_path / "a", targets=(devices,), data_type=DataType.FP32)
    batch = batch_of(artifact.signature, 9)
    found = artifact.forward(*batch.inputs())
    expected = predicted(model, arguments(artifact.signature, batch))
    assert found["cast"].dtype == torch.float32
    assert torch.equal(found["cast"], expected["cast"].float())


class _Scaled(_Casting):
    """Whole numbers, which grow with the number of IDs."""

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.ebc(features).values()
        whole = features.lengths().unsqueeze(1).to(torch.int64) * 2**22
        return {"score": found, "cast": self.cast(whole)}


def test_whole_numbers_that_float32_does_not_represent_are_infinite(tmp_path: Path) -> None:
    model = _Scaled(lambda x: x)
    _, artifact = exported(model, tmp_path / "a")
    found = artifact.forward(torch.tensor([4, 5]), torch.arange(9))["cast"]
    assert found[0] == 2**24
    assert found[1] == torch.inf
    with pytest.raises(
        ExportError, match=r"outputs\['cast'\]: got 33554432, expected whole numbers up to 16777216"
    ):
        exported(_Scaled(lambda x: x * 2), tmp_path / "b")


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
