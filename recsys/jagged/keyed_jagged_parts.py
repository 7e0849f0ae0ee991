"""Concatenation and splitting of KeyedJaggedTensors.

The functions return arguments of the constructor.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from recsys.jagged.tensor import JaggedTensor
from recsys.jagged.variable_batch import RepeatedKeys, inverse_rows
from recsys.ops import is_traced, joined


def arguments_from_jts(jt_dict: Mapping[str, JaggedTensor], force_variable: bool = False) -> dict[str, Any]:
    """Combine one jagged tensor per key. Features of different batch sizes make a variable batch.

    Args:
        jt_dict: The features.
        force_variable: Whether those of one batch size make a variable batch too.

    Raises:
        ValueError: There are no features, or some have weights and some have none, or a variable batch is traced.
    """
    if not jt_dict:
        raise ValueError("jt_dict: got no features, expected at least one")
    jts = list(jt_dict.values())
    lengths = [jt.lengths() for jt in jts]
    weights = [jt.weights_or_none() for jt in jts]
    if any(w is None for w in weights) and any(w is not None for w in weights):
        without = [k for k, w in zip(jt_dict, weights, strict=True) if w is None]
        raise ValueError(f"jt_dict: got no weights for {without}, expected weights for all features or none")
    traced = is_traced(*lengths, *(jt.values() for jt in jts))
    if traced and force_variable:
        raise ValueError("force_variable_stride: got True for traced features, expected False")
    variable = force_variable or (not traced and len({n.numel() for n in lengths}) > 1)
    return {
        "keys": list(jt_dict),
        "values": torch.cat([jt.values() for jt in jts]),
        "weights": _joined_weights(weights),
        "lengths": torch.cat(lengths),
        "stride": None if variable else lengths[0].size(0),
        "stride_per_key_per_rank": [[n.numel()] for n in lengths] if variable else None,
        "length_per_key": [jt.values().size(0) for jt in jts],
    }


def arguments_from_kjts(kjts: Sequence[Any]) -> dict[str, Any]:
    """Combine all keys of several KeyedJaggedTensors.

    Raises:
        ValueError: No batches, different (full) batch sizes, or weights, batch sizes per key or inverse indices in
            some only.
    """
    if not kjts:
        raise ValueError("kjt_list: got no KeyedJaggedTensors, expected at least one")
    variable = _all_or_none([kjt.variable_stride_per_key() for kjt in kjts], "batch sizes per key")
    inverses = [kjt.inverse_indices_or_none() for kjt in kjts]
    inverted = _all_or_none([inverse is not None for inverse in inverses], "inverse indices")
    strides = [kjt.stride() for kjt in kjts]
    if (inverted or not variable) and not is_traced(*strides) and len(set(strides)) > 1:
        raise ValueError(f"kjt_list: got batch sizes {strides}, expected the same for all")
    weights = [kjt.weights_or_none() for kjt in kjts]
    _all_or_none([w is not None for w in weights], "weights")
    known = [kjt.length_per_key_or_none() for kjt in kjts]
    keys = [key for keys in (kjt.keys() for kjt in kjts) for key in keys]
    arguments: dict[str, Any] = {
        "keys": RepeatedKeys(keys) if any(isinstance(kjt.keys(), RepeatedKeys) for kjt in kjts) else keys,
        "values": torch.cat([kjt.values() for kjt in kjts]),
        "weights": _joined_weights(weights),
        "lengths": torch.cat([kjt.lengths() for kjt in kjts]),
        "stride": None if variable else strides[0],
        "length_per_key": None
        if any(k is None for k in known)
        else [n for k in known if k is not None for n in k],
    }
    if variable:
        arguments["stride_per_key_per_rank"] = [
            ranks for kjt in kjts for ranks in kjt.stride_per_key_per_rank()
        ]
    if inverted:
        rows = [inverse_rows(kjt.inverse_indices(), kjt.keys())[1] for kjt in kjts]
        arguments["inverse_indices"] = (arguments["keys"], torch.cat(rows))
    return arguments


def arguments_of_keys(kjt: Any, indices: Sequence[int]) -> dict[str, Any]:
    """Return the keys at these positions of a KeyedJaggedTensor, with their inverse indices."""
    all_keys, known = kjt.keys(), kjt.length_per_key_or_none()
    keys = [all_keys[i] for i in indices]
    if len(set(keys)) != len(keys):
        keys = RepeatedKeys(keys)
    arguments: dict[str, Any] = {
        "keys": keys,
        "stride": kjt.stride(),
        "length_per_key": None if known is None else [known[i] for i in indices],
    }
    if kjt.variable_stride_per_key():
        per_rank, inverse = kjt.stride_per_key_per_rank(), kjt.inverse_indices_or_none()
        arguments["stride_per_key_per_rank"] = [per_rank[i] for i in indices]
        arguments["inverse_indices"] = None if inverse is None else inverse_rows(inverse, keys)
    if not keys:
        weights = kjt.weights_or_none()
        return arguments | {
            "values": kjt.values()[:0],
            "weights": None if weights is None else weights[:0],
            "lengths": kjt.lengths()[:0],
            "length_per_key": [],
        }
    parts = [kjt.to_dict()[key] for key in keys]
    weights_of_parts = [part.weights_or_none() for part in parts]
    return arguments | {
        "values": joined([part.values() for part in parts]),
        "weights": None if weights_of_parts[0] is None else joined(weights_of_parts),
        "lengths": joined([part.lengths() for part in parts]),
    }


def ids_per_key(kjt: Any) -> Tensor:
    """Return the number of values of each key, ``[F]``."""
    if kjt.variable_stride_per_key():
        offsets: Tensor = kjt.offsets()
        bounds = torch.tensor(kjt.lengths_offset_per_key(), dtype=torch.int64, device=offsets.device)
        return offsets[bounds].diff()
    lengths: Tensor = kjt.lengths()
    return lengths.view(len(kjt.keys()), kjt.stride()).sum(dim=1)


def read_ids_per_key(kjt: Any) -> list[int]:
    """Read the number of values of each key; on the meta device, return shares of the values."""
    num_keys = len(kjt.keys())
    if num_keys == 0:
        return []
    if kjt.lengths().is_meta:
        share, rest = divmod(kjt.values().shape[0], num_keys)
        return [share + rest, *[share] * (num_keys - 1)]
    found: list[int] = ids_per_key(kjt).tolist()
    if torch.compiler.is_compiling():
        # torch.export: numbers that only a run tells.
        for number in found:
            torch._check(number >= 0)
        torch._check(sum(found) == kjt.values().shape[0])
    return found


def jagged_by_key(kjt: Any) -> dict[str, JaggedTensor]:
    """Return one jagged tensor per key: views.

    Raises:
        ValueError: The lengths per key are not known and are on a device.
    """
    given = kjt.weights_or_none()
    values = _split_by_key(kjt, kjt.values())
    weights = None if given is None else _split_by_key(kjt, given)
    lengths = _lengths_by_key(kjt)
    return {
        key: JaggedTensor(values[i], weights=None if weights is None else weights[i], lengths=lengths[i])
        for i, key in enumerate(kjt.keys())
    }


def _lengths_by_key(kjt: Any) -> Sequence[Tensor]:
    lengths = kjt.lengths()
    if kjt.variable_stride_per_key():
        return torch.split(lengths, kjt.stride_per_key())
    stride = kjt.stride()
    return [lengths[i * stride : (i + 1) * stride] for i in range(len(kjt.keys()))]


def _split_by_key(kjt: Any, data: Tensor) -> Sequence[Tensor]:
    known = kjt.length_per_key_or_none()
    if known is None and not is_traced(kjt.lengths_or_none(), kjt.offsets_or_none()):
        if torch.compiler.is_compiling() or kjt.lengths().device.type != "cpu":
            known = kjt.length_per_key()  # raises with the reason on a device
        elif not kjt.keys():
            return []
    if known is not None:
        if not is_traced(data) and not torch.compiler.is_compiling() and sum(known) != data.shape[0]:
            raise ValueError(
                f"lengths: got {sum(known)} in all for {data.shape[0]} values or weights, expected them to be equal; "
                "validate() says more"
            )
        return torch.split(data, known) if known else []
    # tensor_split takes the bounds as a host tensor, so that they are read neither here nor in a graph.
    return torch.tensor_split(data, ids_per_key(kjt).cumsum(dim=0)[:-1])


def _all_or_none(have: list[bool], name: str) -> bool:
    if any(have) and not all(have):
        raise ValueError(f"kjt_list: got {name} in some, expected {name} in all or in none")
    return all(have)


def _joined_weights(weights: Sequence[Tensor | None]) -> Tensor | None:
    return None if weights[0] is None else torch.cat([w for w in weights if w is not None])
