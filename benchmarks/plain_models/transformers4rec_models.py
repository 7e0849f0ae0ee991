"""Models of Transformers4Rec: a dict of histories ``[B, L]``, padded with zeros."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers4rec.torch as tr
from merlin.schema import ColumnSchema, Schema, Tags
from torch import nn

from benchmarks.plain_models.catalogue import HISTORY, NUM_ROWS, PublicModel, histories

_COLUMNS = {"item_id": [Tags.CATEGORICAL, Tags.ITEM_ID, Tags.LIST], "category": [Tags.CATEGORICAL, Tags.LIST]}


def public_models() -> list[PublicModel]:
    """Return encoders for the next item, and for a click."""
    found: dict[str, Callable[[], Any]] = {
        "GPT2 next item": partial(_next_item, tr.GPT2Config, "causal"),
        "XLNet next item": partial(_next_item, tr.XLNetConfig, "mlm"),
        "Albert next item": partial(_next_item, tr.AlbertConfig, "mlm"),
        "GPT2 click": partial(_click, tr.GPT2Config),
        "XLNet click": partial(_click, tr.XLNetConfig),
        "GRU click": _click_of_gru,
    }
    return [PublicModel(library="transformers4rec", name=name, make=make) for name, make in found.items()]


def _schema() -> Schema:
    return Schema(
        [
            ColumnSchema(
                name,
                dtype="int64",
                is_list=True,
                is_ragged=False,
                tags=tags,
                properties={
                    "domain": {"min": 0, "max": NUM_ROWS - 1, "name": name},
                    "value_count": {"min": HISTORY, "max": HISTORY},
                },
            )
            for name, tags in _COLUMNS.items()
        ]
    )


def _batch() -> dict[str, torch.Tensor]:
    items = histories()
    return {"item_id": items, "category": (items * 7) % NUM_ROWS}


def _features(**options: Any) -> Any:
    return tr.TabularSequenceFeatures.from_schema(
        _schema(), max_sequence_length=HISTORY, d_output=16, aggregation="concat", **options
    )


def _encoder(config: Any) -> Any:
    return config.build(d_model=16, n_head=2, n_layer=2, total_seq_length=HISTORY)


def _next_item(config: Any, masking: str) -> tuple[nn.Module, tuple[Any, ...]]:
    features = _features(masking=masking)
    body = tr.SequentialBlock(
        features, tr.MLPBlock([16]), tr.TransformerBlock(_encoder(config), masking=features.masking)
    )
    head = tr.Head(body, tr.NextItemPredictionTask(weight_tying=True), inputs=features)
    return _run(tr.Model(head))


def _click(config: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    features = _features()
    body = tr.SequentialBlock(features, tr.MLPBlock([16]), tr.TransformerBlock(_encoder(config)))
    head = tr.Head(body, tr.BinaryClassificationTask("click", summary_type="mean"), inputs=features)
    return _run(tr.Model(head))


def _click_of_gru() -> tuple[nn.Module, tuple[Any, ...]]:
    features = _features()
    body = tr.SequentialBlock(features, tr.Block(nn.GRU(16, 16, batch_first=True), [None, HISTORY, 16]))
    head = tr.Head(body, tr.BinaryClassificationTask("click", summary_type="mean"), inputs=features)
    return _run(tr.Model(head))


def _run(model: nn.Module) -> tuple[nn.Module, tuple[Any, ...]]:
    return model, (_batch(),)
