"""A row must not depend on the others of its batch, unless the user says that a batch is one request.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from export.cli import main
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.configs import DataType
from recsys.errors import ExportError, VerificationError
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import batch_of, exported, predicted


class _Rows(nn.Module):
    """What it does to the rows ``[B, 8]`` is the case; ``own`` depends on each row alone."""

    def __init__(self, case: str) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.case = case
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.ebc(features).values()
        made: dict[str, Callable[[], Tensor]] = {
            "mean": lambda: rows - rows.mean(dim=0),
            "softmax": lambda: torch.softmax(rows, dim=0),
            "largest": lambda: rows / rows.abs().amax(dim=0).clamp(min=1e-3),
            "batch norm": lambda: self.norm(rows),
            "neighbour": lambda: rows.roll(1, dims=0),
            "attention": lambda: cast(Tensor, self.attention(rows.unsqueeze(0))).squeeze(0),
        }
        return {"own": rows, "score": made[self.case]()}


DEPENDENT = ("mean", "softmax", "largest", "batch norm", "neighbour", "attention")


@pytest.mark.parametrize("case", DEPENDENT)
def test_rows_that_depend_on_others_are_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(
        VerificationError,
        match=r"output 'score', row \d+ of the samples: .* expected .* because of "
        rf"tests/export/verify/test_rows.py:\d+ in _Rows.*`\"{case}\": lambda.* --batch request",
    ):
        export_model(_Rows(case), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("case", ["mean", "softmax", "neighbour"])
def test_a_batch_may_be_one_request(tmp_path: Path, case: str) -> None:
    model = _Rows(case)
    _, artifact = exported(model, tmp_path / "a", batch="request", targets=(("cpu",), ("cpu", "cpu")))
    assert artifact.signature.by_request
    assert artifact.manifest.format_version == 3
    batch = batch_of(artifact.signature, 5)
    features = KeyedJaggedTensor(["f"], batch.values, lengths=batch.lengths)
    found = artifact.forward(*batch.inputs())
    for name, want in predicted(model, {"features": features}).items():
        torch.testing.assert_close(found[name], want, rtol=0.05, atol=0.05)


class _Best(nn.Module):
    """Whole numbers: the columns of the largest numbers, of the rows themselves or of their distance to the mean."""

    def __init__(self, *, is_dependent: bool) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.is_dependent = is_dependent
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.ebc(features).values()
        rows = rows - rows.mean(dim=0) if self.is_dependent else rows
        # Columns that tie are no rows' own: empty bags are told apart.
        return {"best": torch.topk(rows + torch.arange(8) * 1e-3, 3, dim=1).indices}


def test_whole_numbers_are_held_to_it_too(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="output 'best', row"):
        export_model(_Best(is_dependent=True), tmp_path / "a", ExportConfig(data_type=DataType.FP32))
    exported(_Best(is_dependent=False), tmp_path / "a", data_type=DataType.FP32)


def test_rows_that_depend_on_nothing_need_no_option(tmp_path: Path) -> None:
    _, artifact = exported(EmbeddingBagCollection([bag("t", 33, 8, ["f"])]), tmp_path / "a")
    assert not artifact.signature.by_request
    assert artifact.manifest.format_version == 1


def test_one_sample_is_no_company(tmp_path: Path) -> None:
    (tmp_path / "one").write_text('{"sparse": {"f": [[3, 4]]}}')
    config = ExportConfig(samples=tmp_path / "one")
    with pytest.raises(VerificationError, match="output 'score'"):
        export_model(_Rows("mean"), tmp_path / "a", config)
    export_model(EmbeddingBagCollection([bag("t", 33, 8, ["f"])]), tmp_path / "a", config)


class _ConstantSize(nn.Module):
    """An output whose shape is that of one number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 33, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.ec(features)["f"].to_padded_dense(4).view(256, 32)


def test_a_shape_of_one_number_of_rows_is_refused(tmp_path: Path) -> None:
    message = r"forward failed on 128 rows: .* Expected it to take any number of rows, as it took 256"
    with pytest.raises(ExportError, match=message):
        export_model(_ConstantSize(), tmp_path / "a")


def test_the_command_takes_the_option(tmp_path: Path) -> None:
    torch.save(_Rows("mean").state_dict(), tmp_path / "model.pt")
    command = [str(tmp_path / "model.pt"), "--factory", "tests.export.verify.test_rows:mean_over_the_batch"]
    assert main(command) == 1
    assert main([*command, "--batch", "request"]) == 0
    assert load_artifact(tmp_path / "model.artifact").signature.by_request
    with pytest.raises(ExportError, match="batch: got 'user', expected rows or request"):
        ExportConfig(batch="user")


def mean_over_the_batch() -> nn.Module:
    """For the command."""
    return _Rows("mean")
