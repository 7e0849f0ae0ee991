"""Outputs whose shape is not one row per row of the batch: where a batch is one request, and nowhere else.

Shape letters: B batch, D width, I items.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.delta.dense import dense_changes
from export.pipeline import export_model
from export.verify.float_model import request_outputs, signature_outputs
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.exported import load_exported_artifact
from recsys.artifact.parts import read_manifest
from recsys.configs import DataType
from recsys.errors import ExportError
from recsys.inputs.signature import Output
from tests.support.helpers import bag
from tests.support.models.export_models import assert_close, batch_of, exported, predicted

_NUM_ITEMS = 256  # as many as the samples of the verification


class _InBatch(nn.Module):
    """Two towers as they are trained: the logits of all users and items of the batch, and the candidates."""

    items: Tensor

    def __init__(self, kept: tuple[str, ...] = ("logits", "items", "rows", "best", "last")) -> None:
        super().__init__()
        torch.manual_seed(16)
        self.kept = kept
        self.ebc = EmbeddingBagCollection([bag("u", 40, 4, ["user"]), bag("i", 30, 4, ["item"])])
        self.register_buffer("items", torch.randn(_NUM_ITEMS, 4))

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        users, items = self.ebc(features).values().split([4, 4], dim=1)
        logits = users @ items.T
        every = {
            "logits": logits,
            "items": self.items,
            "rows": users,
            "best": logits.argmax(dim=1).unsqueeze(0).expand(3, -1),
            "last": items.T,
        }
        return {name: every[name] for name in self.kept}


_OUTPUTS = (
    Output(name="logits", shape=(), batch_dims=(0, 1)),
    Output(name="items", shape=(_NUM_ITEMS, 4), batch_dims=()),
    Output(name="rows", shape=(4,)),
    Output(name="best", shape=(3,), dtype="int64", batch_dims=(1,)),
    Output(name="last", shape=(4,), batch_dims=(1,)),
)


@pytest.mark.parametrize(
    "options",
    [{"targets": (("cpu",), ("cpu", "cpu"))}, {"single_file": True}, {"graph_format": "both"}],
    ids=["targets", "single file", "both"],
)
def test_a_request_may_be_answered_in_other_shapes(tmp_path: Path, options: dict[str, Any]) -> None:
    model = _InBatch()
    _, artifact = exported(model, tmp_path / "a", batch="request", data_type=DataType.FP32, **options)
    assert artifact.signature.outputs == _OUTPUTS
    assert artifact.manifest.format_version == 3
    artifacts = [artifact]
    if "graph_format" in options:
        artifacts.append(load_exported_artifact(tmp_path / "a"))
    for num_rows in (2, 7, 300):
        batch = batch_of(artifact.signature, num_rows)
        features = KeyedJaggedTensor(["user", "item"], batch.values, lengths=batch.lengths)
        expected = predicted(model, {"features": features})
        for loaded in artifacts:
            found = loaded.forward(*batch.inputs())
            for output in _OUTPUTS:
                assert tuple(found[output.name].shape) == output.dims(num_rows)
            assert found["best"].dtype == torch.int64
            floats = [name for name in expected if name != "best"]
            assert_close({n: found[n] for n in floats}, {n: expected[n] for n in floats})


def test_without_rows_nothing_is_known_of_what_has_none(tmp_path: Path) -> None:
    _, artifact = exported(_InBatch(("logits", "last")), tmp_path / "a", batch="request")
    empty = artifact.forward(*batch_of(artifact.signature, 0).inputs())
    assert {name: tuple(output.shape) for name, output in empty.items()} == {"logits": (0, 0), "last": (4, 0)}
    _, artifact = exported(_InBatch(("rows", "items")), tmp_path / "b", batch="request")
    with pytest.raises(RuntimeError, match="rows: got none, expected at least one: output 'items'"):
        artifact.forward(*batch_of(artifact.signature, 0).inputs())


@pytest.mark.parametrize("kept", ["logits", "items", "best", "last"])
def test_others_are_told_of_the_option(tmp_path: Path, kept: str) -> None:
    with pytest.raises(ExportError, match=rf"output.*'{kept}'.*--batch request"):
        export_model(_InBatch(("rows", kept)), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("shape", [(), (3,), (7, 1)])
def test_outputs_without_rows_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ExportError, match=r"outputs\['x'\]: got shape .* for a batch of 5 rows.*--batch request"
    ):
        signature_outputs({"x": torch.zeros(shape)}, 5)


@pytest.mark.parametrize(
    ("shape", "more", "message"),
    [
        ((), (), "got a number without dimensions, expected at least one: unsqueeze"),
        ((5, 10), (6, 12), r"got shape \[5, 10\] for 5 rows and \[6, 12\] for 6, expected each size to be"),
        ((5,), (6, 1), r"got shape \[5\] for 5 rows and \[6, 1\] for 6"),
        ((5, 1), (6,), r"got shape \[5, 1\] for 5 rows and \[6\] for 6"),
    ],
    ids=["scalar", "twice as many", "one more", "one less"],
)
def test_shapes_that_no_request_tells_are_refused(
    shape: tuple[int, ...], more: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        request_outputs({"x": torch.zeros(shape)}, 5, lambda: {"x": torch.zeros(more)})


def test_a_delta_keeps_the_shapes(tmp_path: Path) -> None:
    """Its dense weights are those of the same export again."""
    model = _InBatch()
    export_model(model, tmp_path / "a", ExportConfig(batch="request"))
    with torch.no_grad():
        model.items += 1
    changed = dense_changes(model, tmp_path / "a", read_manifest(tmp_path / "a"), {})
    assert [tuple(weight.shape) for weight in changed.values()] == [(_NUM_ITEMS, 4)]
