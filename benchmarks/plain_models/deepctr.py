"""The models of deepctr-torch: one float tensor ``[B, columns]`` holds IDs, numbers and histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from deepctr_torch import inputs, models
from torch import nn

from benchmarks.plain_models.catalogue import (
    HISTORY,
    NUM_EXAMPLES,
    NUM_ROWS,
    PublicModel,
    histories,
    ids,
    lengths_of,
)

_SPARSE = ("user", "item", "category", "hour")
_DENSE = ("price", "age")
_HIDDEN = (16, 8)


def public_models() -> list[PublicModel]:
    """Return all models of the package."""
    both = _of_both
    found: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
        "AFM": partial(_of_ids, models.AFM),
        "AFN": partial(both, models.AFN, ltl_hidden_size=8, afn_dnn_hidden_units=_HIDDEN),
        "AutoInt": partial(both, models.AutoInt, dnn_hidden_units=_HIDDEN),
        "CCPM": partial(_of_ids, models.CCPM, dnn_hidden_units=_HIDDEN),
        "DCN": partial(both, models.DCN, dnn_hidden_units=_HIDDEN),
        "DCN matrix": partial(both, models.DCN, dnn_hidden_units=_HIDDEN, cross_parameterization="matrix"),
        "DCNMix": partial(both, models.DCNMix, dnn_hidden_units=_HIDDEN, low_rank=4),
        "DIFM": partial(both, models.DIFM, dnn_hidden_units=_HIDDEN),
        "DIEN": partial(_of_histories, models.DIEN, dnn_hidden_units=_HIDDEN),
        "DIN": partial(_of_histories, models.DIN, dnn_hidden_units=_HIDDEN, att_weight_normalization=True),
        "DeepFM": partial(both, models.DeepFM, dnn_hidden_units=_HIDDEN),
        "FiBiNET": partial(both, models.FiBiNET, dnn_hidden_units=_HIDDEN),
        "IFM": partial(both, models.IFM, dnn_hidden_units=_HIDDEN),
        "MLR": partial(_of_columns, models.MLR),
        "NFM": partial(both, models.NFM, dnn_hidden_units=_HIDDEN),
        "ONN": partial(both, models.ONN, dnn_hidden_units=_HIDDEN),
        "PNN": partial(_of_columns, models.PNN, dnn_hidden_units=_HIDDEN, use_outter=True),
        "WDL": partial(both, models.WDL, dnn_hidden_units=_HIDDEN),
        "xDeepFM": partial(both, models.xDeepFM, dnn_hidden_units=_HIDDEN, cin_layer_size=(8, 8)),
        "ESMM": partial(_of_columns, models.ESMM, tower_dnn_hidden_units=_HIDDEN),
        "MMOE": partial(_of_columns, models.MMOE, expert_dnn_hidden_units=_HIDDEN),
        "PLE": partial(_of_columns, models.PLE, expert_dnn_hidden_units=_HIDDEN),
        "SharedBottom": partial(_of_columns, models.SharedBottom, bottom_dnn_hidden_units=_HIDDEN),
    }
    return [PublicModel(library="deepctr-torch", name=name, make=make) for name, make in found.items()]


def _columns(dense: Sequence[str] = _DENSE) -> list[Any]:
    sparse = [inputs.SparseFeat(name, NUM_ROWS, embedding_dim=8) for name in _SPARSE]
    genres = inputs.VarLenSparseFeat(
        inputs.SparseFeat("genres", NUM_ROWS, embedding_dim=8), maxlen=HISTORY, combiner="mean"
    )
    return [*sparse, *(inputs.DenseFeat(name, 1) for name in dense), genres]


def _batch(num_dense: int = len(_DENSE)) -> torch.Tensor:
    """Return X as ``BaseModel.predict`` makes it."""
    return torch.cat(
        [ids(NUM_EXAMPLES, len(_SPARSE)), torch.rand(NUM_EXAMPLES, num_dense), histories()], 1
    ).float()


def _of_both(kind: Callable[..., nn.Module], **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """Construct a model whose wide and deep parts read the same columns."""
    return kind(_columns(), _columns(), **options), (_batch(),)


def _of_ids(kind: Callable[..., nn.Module], **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """Construct a model that takes no numbers."""
    return kind(_columns(()), _columns(()), **options), (_batch(0),)


def _of_columns(kind: Callable[..., nn.Module], **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    return kind(_columns(), **options), (_batch(),)


def _of_histories(kind: Callable[..., nn.Module], **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """Construct a model of a history of items with its length."""
    columns = [
        *(inputs.SparseFeat(name, NUM_ROWS, embedding_dim=8) for name in ("user", "item")),
        inputs.DenseFeat("price", 1),
        inputs.VarLenSparseFeat(
            inputs.SparseFeat("hist_item", NUM_ROWS, embedding_dim=8, embedding_name="item"),
            maxlen=HISTORY,
            length_name="seq_length",
        ),
    ]
    batch = [ids(NUM_EXAMPLES, 2), torch.rand(NUM_EXAMPLES, 1), histories(), lengths_of().unsqueeze(1)]
    return kind(columns, ["item"], **options), (torch.cat(batch, 1).float(),)
