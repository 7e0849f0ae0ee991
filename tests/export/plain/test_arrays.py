"""Plain models that take arrays, and call torch by names that TorchScript does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig, PlainOptions
from export.pipeline import export_model
from export.plain.convert import converted
from recsys.artifact.parts import read_manifest
from recsys.errors import ExportError

_ROWS, _PLACES = 12, 5


class Arrays(nn.Module):
    """A history of items by way of NumPy, and scores of some items."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(40, 8, padding_idx=0)
        self.places = nn.Embedding(_PLACES + 1, 8, padding_idx=0)
        self.pairs = ((0, 0, 1), (1, 2, 2))

    def predict(self, history: npt.NDArray[np.int64], candidates: npt.NDArray[np.int64]) -> Tensor:
        """Return scores, ``[B, 3]``."""
        places = np.tile(np.arange(1, history.shape[1] + 1), [history.shape[0], 1])
        found = self.items(torch.LongTensor(history)) + self.places(torch.LongTensor(places * (history != 0)))
        scores = self.items(torch.LongTensor(candidates)) * found.sum(axis=1, keepdims=True)
        first, second = self.pairs
        pairs = scores[:, first, :] * scores[:, second, :] + torch.ones(1, requires_grad=False)
        return pairs.sum(axis=-1)


class Scores(nn.Module):
    """A product, whose last dimension is the rows'; without items there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(40, 8, padding_idx=0)

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        """Return scores ``[B]``, NaN for an empty history."""
        mean = self.items(history).sum(1) / (history != 0).sum(1, keepdim=True)
        return (mean * self.items(item)).sum(-1).squeeze(-1)


def _histories() -> Tensor:
    lengths = torch.arange(_ROWS) % _PLACES + 1
    return torch.randint(1, 40, (_ROWS, _PLACES)) * (torch.arange(_PLACES) >= _PLACES - lengths.unsqueeze(1))


def test_arrays_are_traced_through(tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = (_histories().numpy(), torch.randint(1, 40, (_ROWS, 3)).numpy())
    export_model(Arrays(), tmp_path / "a", ExportConfig(plain=PlainOptions(inputs=example, method="predict")))
    assert {use.name for use in read_manifest(tmp_path / "a").signature.sparse} == {"history", "candidates"}


class _Named(Scores):
    """A model whose ``forward`` takes other inputs than what predicts from a dict of them."""

    def predict(self, rows: dict[str, Tensor]) -> Tensor:
        return self(rows["history"], rows["item"])

    def full_sort_predict(self, rows: dict[str, Tensor]) -> Tensor:
        return self(rows["history"], rows["item"])

    def predict_one(self, history: Tensor, item: Tensor, place: int) -> Tensor:
        return self(history, item)[place]


def test_methods_that_may_predict_are_suggested() -> None:
    example = {"history": _histories(), "item_id": torch.randint(1, 40, (_ROWS,))}
    with pytest.raises(ExportError) as refused:
        converted(_Named(), PlainOptions(inputs=example))
    advice = "If another of its methods predicts: --method predict or --method full_sort_predict"
    assert str(refused.value).endswith(advice)


def test_rows_of_a_single_row_stay_and_nan_of_random_rows_is_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = (_histories(), torch.randint(1, 40, (_ROWS,)))
    report = export_model(Scores(), tmp_path / "a", ExportConfig(plain=PlainOptions(inputs=example)))
    assert "answers NaN or infinity for random ones" in report.samples
