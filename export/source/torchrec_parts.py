"""TorchRec's small modules around collections as ours: weights by position, and groups of columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from recsys.configs import DataType
from recsys.modules import feature_processors, position_weighted
from recsys.modules.regroup import KTRegroupAsDict


def _by_position(path: str, theirs: Any) -> nn.Module:
    del path
    length = theirs.position_weight.numel()
    ours = feature_processors.PositionWeightedModule(length, device=torch.device("meta"))
    ours.position_weight = theirs.position_weight
    return ours


def _by_position_and_feature(kind: Callable[..., Any], path: str, theirs: Any) -> nn.Module:
    del path
    ours: nn.Module = kind(dict(theirs.max_feature_lengths), device=torch.device("meta"))
    weights: Any = ours.position_weights
    for name, weight in theirs.position_weights.items():
        weights[name] = weight
    return ours


def _regrouping(path: str, theirs: Any) -> KTRegroupAsDict:
    del path
    dtype = theirs._emb_dtype
    return KTRegroupAsDict(
        theirs._groups, theirs._keys, emb_dtype=None if dtype is None else DataType[dtype.name]
    )


#: Where TorchRec defines its modules, and how ours, which share their weights, are made of them.
MAKERS: dict[str, dict[type[nn.Module], Callable[[str, Any], nn.Module]]] = {
    "torchrec.modules.feature_processor_": {
        feature_processors.PositionWeightedModule: _by_position,
        feature_processors.PositionWeightedModuleCollection: partial(
            _by_position_and_feature, feature_processors.PositionWeightedModuleCollection
        ),
    },
    "torchrec.modules.feature_processor": {
        kind: partial(_by_position_and_feature, kind)
        for kind in (position_weighted.PositionWeightedModule, position_weighted.PositionWeightedProcessor)
    },
    "torchrec.modules.regroup": {KTRegroupAsDict: _regrouping},
}
