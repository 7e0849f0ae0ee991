"""Batches to dicts and back, and whether two are equal, by TorchRec's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor


class ComputeKJTToJTDict(nn.Module):
    """``KeyedJaggedTensor.to_dict`` as a module."""

    def forward(self, keyed_jagged_tensor: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return one jagged tensor per key."""
        return keyed_jagged_tensor.to_dict()


class ComputeJTDictToKJT(nn.Module):
    """``KeyedJaggedTensor.from_jt_dict`` as a module."""

    def forward(self, jt_dict: dict[str, JaggedTensor]) -> KeyedJaggedTensor:
        """Return a batch of one jagged tensor per key."""
        return KeyedJaggedTensor.from_jt_dict(jt_dict)


def maybe_td_to_kjt(features: Any, keys: Sequence[str] | None = None) -> KeyedJaggedTensor:
    """Return a batch as it is, and a TensorDict of jagged tensors as a batch.

    Args:
        features: A ``KeyedJaggedTensor``, or a ``tensordict.TensorDict`` of ``torch.nested`` jagged tensors.
        keys: The keys to take, in this order; None takes all.
    """
    if not type(features).__module__.startswith("tensordict."):
        given: KeyedJaggedTensor = features
        return given
    names = list(features.keys()) if keys is None else list(keys)
    lengths = [features[name].offsets().diff() for name in names]
    return KeyedJaggedTensor(
        names, torch.cat([features[name].values() for name in names]), lengths=torch.cat(lengths)
    )


def jt_is_equal(jt_1: JaggedTensor, jt_2: JaggedTensor) -> bool:
    """Return whether two jagged tensors have close values and weights and equal lengths. Reads the tensors."""
    if not isinstance(jt_1, JaggedTensor) or not isinstance(jt_2, JaggedTensor):
        return False
    return _have_close_contents(jt_1, jt_2)


def kjt_is_equal(kjt_1: KeyedJaggedTensor, kjt_2: KeyedJaggedTensor) -> bool:
    """Return whether two batches have equal keys, sizes and lengths, close values and weights. Reads the tensors."""
    if not isinstance(kjt_1, KeyedJaggedTensor) or not isinstance(kjt_2, KeyedJaggedTensor):
        return False
    if kjt_1.keys() != kjt_2.keys() or kjt_1.stride() != kjt_2.stride():
        return False
    return kjt_1.stride_per_key() == kjt_2.stride_per_key() and _have_close_contents(kjt_1, kjt_2)


def _have_close_contents(
    one: JaggedTensor | KeyedJaggedTensor, other: JaggedTensor | KeyedJaggedTensor
) -> bool:
    pairs: list[tuple[Tensor | None, Tensor | None]] = [
        (one.values(), other.values()),
        (one.weights_or_none(), other.weights_or_none()),
        (one.lengths(), other.lengths()),
    ]
    return all(_are_close(a, b) for a, b in pairs)


def _are_close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.allclose(one, other.to(one.dtype))


def validate_keyed_jagged_tensor(kjt: KeyedJaggedTensor, configs: Sequence[Any] | None = None) -> bool:
    """Check a batch's contents, and the IDs of the features of tables. Reads the tensors.

    Args:
        kjt: The batch.
        configs: Tables, whose features' IDs must be their rows. None checks no IDs.

    Returns:
        Whether the IDs are rows of their tables.

    Raises:
        ValueError: The contents are wrong, as ``KeyedJaggedTensor.validate`` says.
    """
    kjt.validate()
    jagged = kjt.to_dict()
    for config in configs or ():
        for name in config.feature_names:
            ids = jagged[name].values() if name in jagged else None
            if (
                ids is not None
                and ids.numel()
                and not 0 <= int(ids.min()) <= int(ids.max()) < config.num_embeddings
            ):
                return False
    return True
