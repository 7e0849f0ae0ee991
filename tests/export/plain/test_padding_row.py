"""Deltas of the row of padding: training changes it only where nothing calls it padding, and artifacts follow.

Shape letters: B batch, L IDs of a history.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig, PlainOptions
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from export.plain.convert import convert_plain
from recsys import DataType
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError
from tests.export.plain.models import DIM, LENGTH, NUM_ITEMS, history


class Mean(nn.Module):
    """The mean of a history's rows, of its padding too.

    Args:
        padding_idx: Of the table.
    """

    def __init__(self, padding_idx: int | None) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=padding_idx)

    def forward(self, history: Tensor) -> Tensor:
        return self.items(history).mean(dim=1)


def _trained(model: nn.Module) -> nn.Module:
    """Return the model after two steps."""
    later = copy.deepcopy(model)
    optimizer = torch.optim.Adagrad(later.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        later(history("right")).sum().backward()
        optimizer.step()
    return later


@pytest.mark.parametrize("padding_idx", [0, None])
def test_a_delta_holds_the_row_of_padding_where_training_changes_it(
    padding_idx: int | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    before = Mean(padding_idx).eval()
    after = _trained(before)
    assert torch.equal(before.items.weight[0], after.items.weight[0]) is (padding_idx == 0)  # type: ignore[union-attr, index]
    options = PlainOptions(inputs=history("right"))
    export_model(before, tmp_path / "a", ExportConfig(data_type=DataType.FP32, plain=options))
    old, new = convert_plain(before, options), convert_plain(after, options)
    export_delta(old, new, tmp_path / "1.delta", DeltaConfig(artifact=tmp_path / "a"))
    artifact = load_artifact(tmp_path / "a")
    apply(prepare(artifact.rows, tmp_path / "1.delta"))
    for bag in ([5, 7], [], list(range(1, LENGTH + 1))):
        padded = torch.tensor([bag + [0] * (LENGTH - len(bag))])
        values = torch.tensor(bag, dtype=torch.int64)
        found = artifact.forward(torch.tensor([len(bag)]), values)["default"]
        with torch.no_grad():
            torch.testing.assert_close(found, after(padded))


def test_a_delta_that_trains_a_row_of_zeros_for_padding_is_refused(tmp_path: Path) -> None:
    """The artifact reads no row for padding; the model now does."""
    torch.manual_seed(0)
    before = Mean(None).eval()
    nn.init.zeros_(before.items.weight.data[0])
    after = _trained(before)
    options = PlainOptions(inputs=history("right"))
    export_model(before, tmp_path / "a", ExportConfig(data_type=DataType.FP32, plain=options))
    old, new = convert_plain(before, options), convert_plain(after, options)
    with pytest.raises(ExportError, match="padding"):
        export_delta(old, new, tmp_path / "1.delta", DeltaConfig(artifact=tmp_path / "a"))
