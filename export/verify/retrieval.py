"""Verification of retrieved items: those that nearly tie may change places, but no wrong item passes.

Positions are no quantities, and where scores nearly tie rounding changes their order. So positions are not compared.
Each is replaced by the score that a reference, such as the model's layers on the stored rows, gives to the item at that
position. An answer whose scores, and whose items' reference scores, are both those of the reference's K best holds the
K best items, up to the tolerance.

Shape letters: B batch, D width of the towers' vectors, K items of an answer, N number of items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from recsys.errors import ExportError, VerificationError
from recsys.models.retrieval import RetrievalModel

# Numbers of scores that the verification's random samples take together: 1 GiB.
_MAX_SCORES = 2**28


@dataclass(frozen=True, kw_only=True)
class ItemScores:
    """The scores that a reference gives to each item for the samples.

    Attributes:
        users: float32 ``[B, D]``.
        items: float32 ``[N, D]``.
    """

    users: Tensor
    items: Tensor

    def of(self, positions: Tensor) -> Tensor:
        """Return the scores ``[B, K]`` of the items at positions ``[B, K]``.

        Raises:
            VerificationError: A position is no item's, or is in a row twice.
        """
        is_item = (positions >= 0) & (positions < len(self.items))
        in_order = positions.sort(dim=1).values
        for wrong, expected in (
            (~is_item, f"whole numbers from 0 to {len(self.items) - 1}, rows of the items' vectors"),
            (in_order[:, 1:] == in_order[:, :-1], "each item once"),
        ):
            rows = wrong.any(dim=1)
            if bool(rows.any()):
                at = int(rows.int().argmax())
                raise VerificationError(
                    f"output 'items', row {at} of the samples: got {positions[at].tolist()[:8]}, expected {expected}"
                )
        return torch.einsum("bd,bkd->bk", self.users, self.items[positions])


def item_scores(model: nn.Module, arguments: Mapping[str, Any]) -> ItemScores | None:
    """Return the scores of a reference model for the samples; None if it retrieves no items."""
    if not isinstance(model, RetrievalModel):
        return None
    with torch.no_grad():
        return ItemScores(users=model.user_vectors(**arguments), items=model.vectors)


def comparable(outputs: Mapping[str, Tensor], reference: ItemScores | None) -> dict[str, Tensor]:
    """Return outputs that may be compared number by number: positions are replaced by the reference's scores.

    Raises:
        VerificationError: A position is wrong in itself; see ``ItemScores.of``.
    """
    if reference is None:
        return dict(outputs)
    return {**outputs, "items": reference.of(outputs["items"])}


def check_options(model: nn.Module, config: ExportConfig) -> None:
    """Check the options for a model that retrieves items.

    Raises:
        ExportError: An option does not go with it.
    """
    if not isinstance(model, RetrievalModel):
        return
    if config.context:
        raise ExportError(
            f"context: got {list(config.context)}, expected none with top_k: a request holds users alone"
        )
    for name in ("dense_dtype", "linear_dtype"):
        dtype = getattr(config, name)
        if dtype != "float32":
            raise ExportError(
                f"{name}: got {dtype!r}, expected 'float32' with top_k: rounded scores tie, and ties hide the best "
                "items"
            )


def num_samples(model: nn.Module, wanted: int) -> int:
    """Return the number of random samples; fewer than wanted where their scores of all items take too much memory."""
    if not isinstance(model, RetrievalModel):
        return wanted
    return max(1, min(wanted, _MAX_SCORES // len(model.vectors)))
