"""The plain models that tests export, and what they are called with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from export.config import PlainOptions
from export.plain.convert import converted
from export.plain.given import given_inputs
from recsys.configs import DataType
from recsys.inputs.signature import IdPolicy, Signature
from recsys.rows.format import RowFormat, dequantize_rows, quantize_rows
from tests.models.plain import columns, fields, interactions, positional


@dataclass(frozen=True, kw_only=True)
class PlainCase:
    """A model.

    Attributes:
        make: Constructs it.
        batch: Returns the arguments of ``forward`` for a number of rows and a seed: a tuple, or its only one.
        context: The inputs that a ranking request gives once.
        options: Fields of ``ExportConfig``.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int, int], Any]
    context: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


_USER = ("user", "hour", "clicked")
_HASHED = {"table_id_policies": {"user": IdPolicy.HASH}, "strings": {"user": "xxh64"}}
_HISTORY = ("item_id_list", "item_length")

CASES = {
    "wide_and_deep": PlainCase(make=columns.WideAndDeep, batch=columns.batch),
    "deepfm": PlainCase(make=columns.DeepFM, batch=columns.batch),
    "xdeepfm": PlainCase(make=columns.XDeepFM, batch=columns.batch),
    "afm": PlainCase(make=columns.AFM, batch=columns.batch),
    "din": PlainCase(make=columns.DIN, batch=columns.batch),
    "dcnv2": PlainCase(make=fields.DCNv2, batch=fields.batch, context=_USER, options=_HASHED),
    "autoint": PlainCase(make=fields.AutoInt, batch=fields.batch, context=_USER),
    "afn": PlainCase(make=fields.AFN, batch=fields.batch),
    "finalmlp": PlainCase(make=fields.FinalMLP, batch=fields.batch),
    "masknet": PlainCase(make=fields.MaskNet, batch=fields.batch),
    "mmoe": PlainCase(make=fields.MMoE, batch=fields.batch, context=_USER),
    "bpr": PlainCase(make=interactions.BPR, batch=interactions.batch),
    "neumf": PlainCase(make=interactions.NeuMF, batch=interactions.batch, context=("user_id",)),
    "sasrec": PlainCase(make=interactions.SASRec, batch=interactions.batch, context=_HISTORY),
    "gru4rec": PlainCase(make=interactions.GRU4Rec, batch=interactions.batch, context=_HISTORY),
    "bert4rec": PlainCase(make=interactions.Bert4Rec, batch=interactions.batch, context=_HISTORY[:1]),
    "fm": PlainCase(make=positional.FM, batch=positional.fields_batch),
    "dcn": PlainCase(make=positional.DCN, batch=positional.fields_batch),
    "wukong": PlainCase(make=positional.WuKong, batch=positional.fields_batch),
    "user_tower": PlainCase(make=positional.UserTower, batch=positional.tower_batch),
}


def made(case: PlainCase) -> nn.Module:
    """Return the model with rows that matter: normal with a deviation of .3, and zeros for padding."""
    torch.manual_seed(7)
    model = case.make().eval()
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            nn.init.normal_(module.weight, std=0.3)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight.data[module.padding_idx])
    return model


def called(model: nn.Module, arguments: Any) -> Any:
    """Call the model."""
    with torch.no_grad():
        return model(*arguments) if isinstance(arguments, tuple) else model(arguments)


def stored(model: nn.Module, arguments: Any, data_type: DataType = DataType.INT8) -> nn.Module:
    """Return the model with every table's numbers rounded to what rows of the type hold."""
    rounded = copy.deepcopy(model)
    for table in converted(model, PlainOptions(inputs=arguments)).tables:
        if not table.stays_dense:
            weight = rounded.get_parameter(table.path).data
            rows = quantize_rows(weight, data_type)
            weight.copy_(dequantize_rows(rows, RowFormat(data_type=data_type, dim=weight.shape[1])))
    return rounded


def request(model: nn.Module, arguments: Any, rows: Any, signature: Signature) -> dict[str, dict[str, Any]]:
    """Return rows as a request.

    Args:
        model: The model.
        arguments: What it was exported with.
        rows: What ``forward`` is called with for them.
        signature: The artifact's: it has no inputs that ``forward`` does not read.
    """
    made = converted(model, PlainOptions(inputs=arguments)).inputs.request(given_inputs(model, rows))
    return {
        "dense": {one.name: made["dense"][one.name] for one in signature.dense},
        "sparse": {one.name: made["sparse"][one.name] for one in signature.sparse},
    }
