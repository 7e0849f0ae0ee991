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
    ("cast", "dtype"),
    [
        (lambda x: x.argmax(dim=1), "int64"),
        (lambda x: x.to(torch.int32), "int32"),
        (lambda x: x > 0, "bool"),
        (lambda x: x.to(torch.uint8), "uint8"),
    ],
    ids=["argmax", "int32", "bool", "uint8"],
)
@pytest.mark.parametrize("dense_dtype", ["float32", "bfloat16"])
def test_outputs_of_integers_are_named(
    tmp_path: Path, cast: Callable[[Tensor], Tensor], dtype: str, dense_dtype: str
) -> None:
    with pytest.raises(
        ExportError, match=rf"outputs\['cast'\]: got dtype torch.{dtype}, expected floating point numbers"
    ):
        exported(_Casting(cast), tmp_path / "a", dense_dtype=dense_dtype)
    assert list(tmp_path.iterdir()) == []


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
