"""The models of FuxiCTR 1.2: a tensor ``[B, columns]`` of IDs, numbers and histories, and labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fuxictr import features
from fuxictr.pytorch import models
from torch import nn

from benchmarks.plain_models.catalogue import HISTORY, NUM_EXAMPLES, NUM_ROWS, PublicModel, histories, ids

_IDS = ("user", "item", "category", "hour")
_HIDDEN = {"dnn_hidden_units": [16, 8]}
_UNITS = {"hidden_units": [16, 8]}
# By class, arguments that are not the default. DLRM, FFMv2, FiGNN, FwFM, HFM, InterHAt, LorentzFM, ONNv2 and PNN call
# what torch 2 has taken out, such as masks of bytes.
_FLAT: dict[str, dict[str, Any]] = {
    "AFM": {},
    "AFN": {**_HIDDEN, "afn_hidden_units": [16, 8]},
    "AOANet": {**_HIDDEN, "num_interaction_layers": 2},
    "AutoInt": _HIDDEN,
    "DCN": _HIDDEN,
    "DCNv2": {"parallel_dnn_hidden_units": [16, 8]},
    "DESTINE": _HIDDEN,
    "DNN": _UNITS,
    "DeepCrossing": {},
    "DeepFM": _UNITS,
    "DeepIM": _UNITS,
    "EDCN": {},
    "FFM": {},
    "FM": {},
    "FiBiNET": _UNITS,
    "FmFM": {},
    "HOFM": {},
    "LR": {},
    "MaskNet": _HIDDEN,
    "NFM": _UNITS,
    "ONN": _UNITS,
    "SAM": {},
    "WideDeep": _UNITS,
    "xDeepFM": _HIDDEN,
}


def public_models() -> list[PublicModel]:
    """Return the models of the package."""
    found: dict[str, Callable[[], Any]] = {
        name: partial(_made, name, **options) for name, options in _FLAT.items()
    }
    found["DIN"] = partial(_made, "DIN", din_target_field=["item"], din_sequence_field=["clicked"], **_HIDDEN)
    found["DSSM"] = partial(_made, "DSSM", user_tower_units=[16, 8], item_tower_units=[16, 8])
    return [PublicModel(library="fuxictr", name=name, make=make) for name, make in found.items()]


def _made(name: str, **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    has_history, has_numbers = name in ("DIN",), name in ("DSSM", "DeepFM", "WideDeep")
    feature_map = _feature_map(has_history=has_history, has_numbers=has_numbers)
    batch = [ids(NUM_EXAMPLES, len(_IDS)).float()]
    batch += [torch.rand(NUM_EXAMPLES, 1)] if has_numbers else []
    # The last row is the padding there.
    batch += [_padded_by_last(histories(num_rows=NUM_ROWS - 1)).float()] if has_history else []
    model = getattr(models, name)(
        feature_map,
        embedding_dim=8,
        model_root=tempfile.gettempdir(),
        metrics=["AUC"],
        verbose=0,
        optimizer="adam",
        loss="binary_crossentropy",
        **options,
    )
    return model, ([torch.cat(batch, 1), torch.zeros(NUM_EXAMPLES)],)


def _padded_by_last(items: torch.Tensor) -> torch.Tensor:
    return torch.where(items > 0, items, NUM_ROWS - 1)


def _feature_map(*, has_history: bool, has_numbers: bool) -> features.FeatureMap:
    found = features.FeatureMap("tiny", tempfile.gettempdir())
    for name in _IDS:
        source = "user" if name in ("user", "hour") else "item"
        found.feature_specs[name] = {"source": source, "type": "categorical", "vocab_size": NUM_ROWS}
    if has_numbers:
        found.feature_specs["age"] = {"source": "user", "type": "numeric"}
    if has_history:
        found.feature_specs["clicked"] = {
            "source": "user",
            "type": "sequence",
            "vocab_size": NUM_ROWS,
            "max_len": HISTORY,
            "padding_idx": NUM_ROWS - 1,
            "share_embedding": "item",
            "encoder": None,
        }
    found.num_fields = len(found.feature_specs)
    found.num_features = sum(spec.get("vocab_size", 1) for spec in found.feature_specs.values())
    found.set_feature_index()
    return found
