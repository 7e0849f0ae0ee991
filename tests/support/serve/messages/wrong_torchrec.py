"""Wrong messages of TorchRec's wire, each with what its error must say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from serve.wire import predictor_pb2 as wire


def _set(part: str, **values: Any) -> Callable[[wire.PredictionRequest], None]:
    def spoil(message: wire.PredictionRequest) -> None:
        target = getattr(message, part) if part else message
        for name, value in values.items():
            setattr(target, name, value)

    return spoil


def good() -> wire.PredictionRequest:
    """Two rows: three IDs of 'user', 'genres' and 'item' each, two of 'tags'."""
    lengths = np.array([1, 2], "<i4").tobytes()
    return wire.PredictionRequest(
        batch_size=2,
        float_features=wire.FloatFeatures(num_features=4, values=bytes(32)),
        id_list_features=wire.SparseFeatures(
            num_features=3, lengths=lengths * 3, values=np.arange(9, dtype="<i4").tobytes()
        ),
        id_score_list_features=wire.SparseFeatures(
            num_features=1,
            lengths=np.array([1, 1], "<i4").tobytes(),
            values=np.array([4, 5], "<i4").tobytes(),
            weights=np.ones(2, "<f4").tobytes(),
        ),
    )


WRONG: dict[str, tuple[Callable[[wire.PredictionRequest], object], str]] = {
    "negative-batch": (_set("", batch_size=-1), "batch_size: got -1, expected 0 or more"),
    "other-batch": (_set("", batch_size=3), "float_features.values: got 32 bytes, expected 48"),
    "endless-batch": (_set("", batch_size=(1 << 31) - 1), "got 2147483647"),
    "fewer-floats": (
        _set("float_features", num_features=3),
        "float_features.num_features: got 3, expected 4 (in this order: 'context [3]', 'price [1]')",
    ),
    "short-floats": (_set("float_features", values=bytes(31)), "float_features.values: got 31 bytes, expected 32"),
    "no-floats": (lambda m: m.ClearField("float_features"), "float_features.num_features: got 0, expected 4"),
    "nan": (
        _set("float_features", values=np.full(8, np.nan, "<f4").tobytes()),
        "dense['context'].values: got nan in row 0",
    ),
    "more-features": (
        _set("id_list_features", num_features=4),
        "id_list_features.num_features: got 4, expected 3 (in this order: 'user', 'genres', 'item')",
    ),
    "no-lengths": (_set("id_list_features", lengths=b""), "id_list_features.lengths: got 0 bytes, expected 24"),
    "negative-length": (
        _set("id_list_features", lengths=np.array([1, 2, 1, -1, 0, 3], "<i4").tobytes()),
        "id_list_features.lengths: got -1 for 'genres' in row 1",
    ),
    "huge-length": (
        _set("id_list_features", lengths=np.array([1, 2, 1, 2, 0, 1 << 62], "<i8").tobytes()),
        "id_list_features.lengths: got 4611686018427387904 for 'item' in row 1",
    ),
    "fewer-ids": (_set("id_list_features", values=bytes(35)), "id_list_features.values: got 35 bytes, expected 36"),
    "an-id-beyond": (
        _set("id_list_features", values=np.full(9, 50, "<i4").tobytes()),
        "sparse['user'].values: got ID 50 in row 0",
    ),
    "weights-of-plain-features": (
        _set("id_list_features", weights=bytes(36)),
        "id_list_features.weights: got 36 bytes, expected none",
    ),
    "no-weights": (
        _set("id_score_list_features", weights=b""),
        "id_score_list_features.weights: got 0 bytes, expected 8",
    ),
    "no-scores": (
        lambda m: m.ClearField("id_score_list_features"),
        "id_score_list_features.num_features: got 0, expected 1 (in this order: 'tags')",
    ),
    "embeddings": (_set("embedding_features", num_features=1), "embedding_features: got 1 features, expected none"),
    "unary": (_set("unary_features", num_features=2), "unary_features: got 2 features, expected none"),
    "unary-values": (_set("unary_features", values=bytes(4)), "unary_features"),
}  # fmt: skip


def spoiled(name: str) -> tuple[wire.PredictionRequest, str]:
    """Return one of the wrong messages, and the text."""
    spoil, text = WRONG[name]
    message = good()
    spoil(message)
    return message, text
