"""The line of a model's code where rows begin to depend on others is named.

Shape letters: B batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.errors import VerificationError
from tests.support.helpers import bag, sequence


class _Placed(nn.Module):
    """Code around what is to blame, which reads the batch too and is not."""

    def __init__(self, case: str) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.case = case
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        rows = self.ebc(features).values()
        numbers = torch.arange(rows.size(0), device=rows.device)
        scores = rows[numbers] * 2
        if self.case == "random":
            noise = torch.rand_like(scores)  # here
            scores = torch.minimum(scores + noise, torch.where(scores > 0, 1e30, -1e30))
        elif self.case == "in place":
            scores = scores.clone()
            scores -= scores.mean(dim=0)  # here
        return {"score": scores.sigmoid()}


class _Longest(nn.Module):
    """Pads to the longest sequence of the batch, which is right, and divides by its length, which is not."""

    def __init__(self, *, is_padded: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.is_padded = is_padded
        self.ec = EmbeddingCollection([sequence("t", 33, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        history = self.ec(features)["f"]
        longest = history.lengths().max()  # here
        padded = _padded(history.values() * 2, history.offsets(), longest)
        if self.is_padded:
            return padded.sum(dim=2)
        rows = padded.sum(dim=1)
        return rows / longest


class _Heads(nn.Module):
    """Puts heads behind one another in two orders."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.ebc = EmbeddingBagCollection([bag("t", 33, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows = self.ebc(features).values()
        heads = torch.cat(rows.split(4, dim=1), dim=0) * 2
        others = rows.view(rows.size(0) * 2, 4).sigmoid()
        found = heads + others  # here
        return torch.cat(found.split(rows.size(0), dim=0), dim=1)


@torch.fx.wrap
def _padded(values: Tensor, offsets: Tensor, longest: Tensor) -> Tensor:
    return torch.ops.fbgemm.jagged_to_padded_dense(values, [offsets], [int(longest.item())], 0.0)


def test_padding_is_not_to_blame_for_what_is_done_with_it(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"because of .*test_mixing.py:\d+ in .*# here`"):
        export_model(_Longest(is_padded=False), tmp_path / "a")
    with pytest.raises(
        VerificationError, match=r"got shape .*, because of .*`return torch.ops.*jagged_to_padded_dense"
    ):
        export_model(_Longest(is_padded=True), tmp_path / "a")


def test_rows_and_heads_in_two_orders_are_to_blame_where_they_meet(tmp_path: Path) -> None:
    message = (
        r"row \d+ of the samples: changes by .*because of .*in _Heads\.forward: `[^`]*# here`.*train again"
    )
    with pytest.raises(VerificationError, match=message):
        export_model(_Heads(), tmp_path / "a")


@pytest.mark.parametrize("case", ["random", "in place"])
def test_the_line_that_is_to_blame_is_named(tmp_path: Path, case: str) -> None:
    expected = {
        "random": "must not draw random numbers",
        "in place": "--batch request",
    }
    with pytest.raises(
        VerificationError, match=rf"because of .*test_mixing.py:\d+ in .*# here`.*{expected[case]}"
    ):
        export_model(_Placed(case), tmp_path / "a")
