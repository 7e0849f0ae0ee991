"""The models of torch-rechub: a dict of tensors by feature."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models import matching, multi_task, ranking

from benchmarks.plain_models.catalogue import HISTORY, NUM_EXAMPLES, NUM_ROWS, PublicModel, histories, ids

_DIM = 8
_MLP = {"dims": [16, 8]}
_TOWERS = {"dims": [16, 8], "activation": "prelu"}
_TASKS = ["classification", "classification"]
# A line that makes a matching model give one tower, as the library's own trainer does.
_USER_TOWER = ('model.mode = "user"',)


def public_models() -> list[PublicModel]:
    """Return the models that answer requests: generative ones and those of pairs in training alone are left out."""
    found: dict[str, Callable[[], Any]] = {
        "AFM": lambda: _flat(ranking.AFM, _sparse(), _DIM),
        "AutoInt": lambda: _flat(ranking.AutoInt, _sparse(), _dense(), mlp_params=_MLP),
        "BST": lambda: _sequence(ranking.BST, mlp_params=_MLP, nhead=2),
        "DCN": lambda: _flat(ranking.DCN, _both(), 2, _MLP),
        "DCNv2": lambda: _flat(ranking.DCNv2, _both(), 2, _MLP),
        "DIEN": _dien,
        "DIN": lambda: _sequence(ranking.DIN, mlp_params=_MLP, attention_mlp_params={"dims": [8]}),
        "DeepFFM": partial(_field_aware, ranking.DeepFFM),
        "FatDeepFFM": partial(_field_aware, ranking.FatDeepFFM, reduction_ratio=1),
        "DeepFM": lambda: _flat(ranking.DeepFM, _both(), _sparse(), _MLP),
        "EDCN": lambda: _flat(ranking.EDCN, _sparse(), 2, {"dims": [], "dropout": 0.1}),
        "FiBiNet": lambda: _flat(ranking.FiBiNet, _sparse(), _MLP),
        "WideDeep": lambda: _flat(ranking.WideDeep, _dense(), _both(), _MLP),
        "AITM": lambda: _flat(multi_task.AITM, _both(), 2, _MLP, [_MLP, _MLP]),
        "ESMM": lambda: _flat(multi_task.ESMM, _sparse()[:2], _sparse()[2:], _MLP, _MLP),
        "MMOE": lambda: _flat(multi_task.MMOE, _both(), _TASKS, 3, _MLP, [_MLP, _MLP]),
        "PLE": lambda: _flat(multi_task.PLE, _both(), _TASKS, 2, 1, 1, _MLP, [_MLP, _MLP]),
        "SharedBottom": lambda: _flat(multi_task.SharedBottom, _both(), _TASKS, _MLP, [_MLP, _MLP]),
        "DSSM": lambda: _flat(matching.DSSM, _sparse()[:2], _sparse()[2:], _TOWERS, _TOWERS),
        "FaceBookDSSM": lambda: _flat(
            matching.FaceBookDSSM, _sparse()[:2], _sparse()[2:3], _sparse()[3:], _TOWERS, _TOWERS
        ),
    }
    towers: dict[str, Callable[[], Any]] = {
        "YoutubeDNN": lambda: _tower(
            matching.YoutubeDNN, [*_users(), _history("mean")], [_item()], [_negatives()], _TOWERS
        ),
        "GRU4Rec": lambda: _tower(
            matching.GRU4Rec, _users(), [_history("concat")], [_item()], [_negatives()], _TOWERS
        ),
        "MIND": lambda: _tower(
            matching.MIND, _users(), [_history("concat")], [_item()], [_negatives()], HISTORY
        ),
        "ComirecDR": lambda: _tower(
            matching.ComirecDR, _users(), [_history("concat")], [_item()], [_negatives()], HISTORY
        ),
        "ComirecSA": lambda: _tower(
            matching.ComirecSA, _users(), [_history("concat")], [_item()], [_negatives()]
        ),
        "SASRec": lambda: _tower(
            matching.SASRec,
            [_history("concat", "seq"), *(_history("concat", name, "seq") for name in ("pos", "neg"))],
            HISTORY,
        ),
        "STAMP": lambda: _tower(matching.STAMP, _history("concat"), 0.1, 0.1),
        "NARM": lambda: _tower(matching.NARM, _history("concat"), 8, 0.1, 0.1),
    }
    return [
        *(PublicModel(library="torch-rechub", name=name, make=make) for name, make in found.items()),
        *(
            PublicModel(library="torch-rechub", name=name, make=make, glue=_USER_TOWER)
            for name, make in towers.items()
        ),
    ]


def _sparse() -> list[Any]:
    return [SparseFeature(name, NUM_ROWS, embed_dim=_DIM) for name in ("user", "item", "category", "hour")]


def _dense() -> list[Any]:
    return [DenseFeature("price"), DenseFeature("age")]


def _both() -> list[Any]:
    return [*_dense(), *_sparse(), _history("mean", "genres")]


def _users() -> list[Any]:
    return [SparseFeature("user", NUM_ROWS, embed_dim=_DIM)]


def _item() -> Any:
    return SparseFeature("item", NUM_ROWS, embed_dim=_DIM)


def _history(pooling: str, name: str = "hist_item", shared: str | None = None) -> Any:
    return SequenceFeature(name, NUM_ROWS, embed_dim=_DIM, pooling=pooling, shared_with=shared, padding_idx=0)


def _negatives() -> Any:
    return SequenceFeature("neg_items", NUM_ROWS, embed_dim=_DIM, pooling="concat", shared_with="item")


def _batch(features: list[Any]) -> dict[str, torch.Tensor]:
    """Return what the library's DataGenerator gives: int64 IDs, float numbers, padded histories."""
    found = {}
    for feature in features:
        if isinstance(feature, DenseFeature):
            found[feature.name] = torch.rand(NUM_EXAMPLES)
        elif isinstance(feature, SequenceFeature):
            found[feature.name] = histories()
        else:
            found[feature.name] = ids(NUM_EXAMPLES)
    return found


def _flatten(arguments: Any) -> list[Any]:
    if isinstance(arguments, (list, tuple)):
        return [feature for argument in arguments for feature in _flatten(argument)]
    return [arguments] if isinstance(arguments, (DenseFeature, SparseFeature, SequenceFeature)) else []


def _flat(kind: Callable[..., nn.Module], *arguments: Any, **options: Any) -> Any:
    """Construct a model, and a batch of all features in its arguments."""
    return kind(*arguments, **options), (_batch(_flatten(arguments)),)


def _sequence(kind: Callable[..., nn.Module], **options: Any) -> Any:
    """Construct a model of a user, a history and a target item, which share a table."""
    return _flat(kind, _users(), [_history("concat", shared="item")], [_item()], **options)


def _dien() -> Any:
    history, negatives = _history("concat", shared="item"), _history("concat", "neg_hist_item", "item")
    return _flat(ranking.DIEN, _users(), [history], [negatives], [_item()], _MLP)


def _field_aware(kind: Callable[..., nn.Module], **options: Any) -> Any:
    linear = [SparseFeature(f"{feature.name}", NUM_ROWS, embed_dim=1) for feature in _sparse()]
    cross = [SparseFeature(feature.name, NUM_ROWS * 4, embed_dim=_DIM) for feature in _sparse()]
    batch = _batch(linear)
    return kind(linear, cross, _DIM, mlp_params=_MLP, **options), (batch,)


def _tower(kind: Callable[..., nn.Module], *arguments: Any) -> Any:
    """Construct a matching model that gives its user's tower."""
    model, (batch,) = _flat(kind, *arguments)
    model.mode = "user"
    return model, (batch,)
