"""The models that rank, the bars of each, its forms, and random requests.

All forms compute with the same numbers: rows of tables lie on a grid that INT8 rows hold without rounding.

Shape letters: B candidates, D embedding dim, F features, R rows of a table, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.peer import TensorDict
from benchmarks.models.sequences import Pointwise, SelfAttentive
from benchmarks.models.zoo import NUM_DENSE, InterestNetwork, script_peer
from benchmarks.ranking import by_hand
from benchmarks.ranking.models import Interacting, TwoTowers
from export.config import ExportConfig
from export.pipeline import export_model

NUM_CANDIDATES = 200
_NUM_REQUESTS = 16
# Rows of INT8 hold -0.25 to 0.248046875 in steps of 1 / 512, which FP16 and thus a row's scale and bias hold too.
_STEP, _LEAST = 2.0**-9, -0.25
_DENSE = "dense"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that ranks.

    Attributes:
        make: Makes it of a library's collections and the rows of each table.
        by_hand: Makes the module by hand of it.
        context: The sparse features of the context, in the order of the signature; the dense input is of it too.
        rows: Those of the candidates, of one ID each.
        ids: IDs of each feature of the context.
        bar: How many times faster than for repeated rows a request is to be.
    """

    make: Callable[[ModuleType, int], nn.Module]
    by_hand: Callable[[Any], nn.Module]
    context: tuple[str, ...]
    rows: tuple[str, ...]
    ids: tuple[int, ...]
    bar: float

    @property
    def features(self) -> list[str]:
        """All features by name."""
        return [*self.context, *self.rows]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs of the context."""
        return (_DENSE, *self.context)


def _of_history(
    make: Callable[..., nn.Module], by_hand: Callable[[Any], nn.Module], size: int, bar: float
) -> Case:
    made = partial(make, size=size)
    return Case(make=made, by_hand=by_hand, context=("history",), rows=("item",), ids=(size,), bar=bar)


CASES = {
    "SASRec-like 100": _of_history(SelfAttentive, by_hand.SelfAttentiveByHand, 100, 80.0),
    "SASRec-like 200": _of_history(SelfAttentive, by_hand.SelfAttentiveByHand, 200, 160.0),
    "HSTU-like 200": _of_history(partial(Pointwise, num_layers=4), by_hand.PointwiseByHand, 200, 80.0),
    "two towers": Case(
        make=TwoTowers,
        by_hand=by_hand.TwoTowersByHand,
        context=TwoTowers.context,
        rows=("item", "category"),
        ids=(1,) * 7,
        bar=12.0,
    ),
    "DIN-like 50": Case(
        make=partial(InterestNetwork, size=50),
        by_hand=by_hand.InterestByHand,
        context=("history", *InterestNetwork.features[2:]),
        rows=("item",),
        ids=(50, 1, 1, 1, 1, 1, 1),
        bar=1.5,
    ),
    "DLRM": Case(
        make=Interacting,
        by_hand=by_hand.InteractingByHand,
        context=Interacting.context,
        rows=Interacting.features[len(Interacting.context) :],
        ids=(1,) * len(Interacting.context),
        bar=1.5,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """A request.

    Attributes:
        dense: Numbers of the context, ``[1, 13]``.
        context_ids: Those of each feature of the context, one after the other, ``[N]``.
        context_lengths: How many each feature has, ``[Fc]``.
        items: The IDs of the candidates by feature, ``[Fr, B]``.
    """

    dense: Tensor
    context_ids: Tensor
    context_lengths: Tensor
    items: Tensor

    def as_ranking(self) -> tuple[Tensor, ...]:
        """Return the inputs of the ranking form."""
        return (
            self.dense,
            self.context_lengths,
            self.context_ids,
            torch.ones(self.items.numel(), dtype=torch.int64),
            self.items.flatten(),
            torch.zeros(self.items.size(1), dtype=torch.int64),
        )

    def as_rows(self, case: Case, features: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs of the plain form: numbers, lengths and IDs, with the context repeated for each row.

        Args:
            case: That of the request.
            features: In the order of the inputs.
        """
        num_rows = self.items.size(1)
        of_context = dict(
            zip(case.context, self.context_ids.split(self.context_lengths.tolist()), strict=True)
        )
        of_rows = dict(zip(case.rows, self.items, strict=True))
        lengths = [len(of_context[name]) if name in of_context else 1 for name in features]
        ids = [
            of_context[name].repeat(num_rows) if name in of_context else of_rows[name] for name in features
        ]
        return (
            self.dense.repeat(num_rows, 1),
            torch.tensor(lengths).repeat_interleave(num_rows),
            torch.cat(ids),
        )

    def as_peer(self, case: Case, features: Sequence[str]) -> tuple[TensorDict]:
        """Return the same as TorchRec's model takes it."""
        return (dict(zip(("dense", "lengths", "values"), self.as_rows(case, features), strict=True)),)

    def by_hand(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs of the module by hand."""
        return self.dense, self.context_ids, self.items


def build(case: Case, num_rows: int) -> nn.Module:
    """Return the model over our collections, with random weights."""
    torch.manual_seed(0)
    model = case.make(recsys, num_rows)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".embedding" in name:
                steps = torch.randint(256, parameter.shape, generator=generator)
                steps[:, 0], steps[:, 1] = 0, 255
                parameter.copy_(steps * _STEP + _LEAST)
    return model.eval()


def requests(
    case: Case, num_rows: int, num_candidates: int = NUM_CANDIDATES, num_requests: int = _NUM_REQUESTS
) -> list[Ranking]:
    """Return distinct requests with uniform IDs and full histories."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor(case.ids)
    return [
        Ranking(
            dense=torch.randn(1, NUM_DENSE, generator=generator) / NUM_DENSE,
            context_ids=torch.randint(num_rows, (int(lengths.sum()),), generator=generator),
            context_lengths=lengths,
            items=torch.randint(num_rows, (len(case.rows), num_candidates), generator=generator),
        )
        for _ in range(num_requests)
    ]


def export(case: Case, model: nn.Module, path: Path, *, with_context: bool = True) -> Path:
    """Export the model for rankings, or for whole rows alone."""
    context = case.inputs if with_context else ()
    export_model(model, path, ExportConfig(dense_widths={_DENSE: NUM_DENSE}, context=context))
    return path


def peer(
    case: Case, model: nn.Module, num_rows: int, sample: Ranking
) -> tuple[Callable[[TensorDict], TensorDict], list[str]]:
    """Return TorchRec's model with the same weights, quantized and scripted, and the order of its features."""
    theirs = case.make(import_module("torchrec"), num_rows)
    theirs.load_state_dict(model.state_dict())
    features = case.features
    return script_peer(theirs, features, *sample.as_peer(case, features)), features
