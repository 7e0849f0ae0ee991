"""The data types in TorchScript: what ``torch.jit.script`` reads where code names one of ours.

TorchScript knows no base classes, so each type has a plain class here with the methods that models call. The fields
have the names of ours: torch copies them into a script's argument, and out of its result, which is one of ours again.
Batches whose keys have batch sizes of their own (``stride_per_key``) cannot be passed.

``know_types`` registers them. Shape letters: B batch, F features, N number of IDs.
"""

# ruff: noqa: D102, PLR0913  (the methods are those of ours)
# Annotations are not deferred: TorchScript cannot read them as texts.

import functools
from typing import Any

import torch
from torch import Tensor
from torch._jit_internal import FunctionModifiers, _qualified_name, createResolutionCallbackForClassMethods
from torch.jit import _state
from torch.jit._recursive import _compile_and_register_class

from recsys.embedding import expand_to_full_batch
from recsys.jagged.keyed import KeyedTensor, _regroup
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.scripting.torchscript import quiet


class ScriptedJaggedTensor:
    """``JaggedTensor`` in TorchScript."""

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        self._values = values
        self._weights: Tensor | None = weights
        self._lengths: Tensor | None = lengths
        self._offsets: Tensor | None = offsets

    def values(self) -> Tensor:
        return self._values

    def weights(self) -> Tensor:
        weights = self._weights
        if weights is None:
            raise ValueError("weights: this JaggedTensor has none")
        return weights

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def lengths(self) -> Tensor:
        lengths = self._lengths
        if lengths is None:
            offsets = self._offsets
            assert offsets is not None
            lengths = offsets[1:] - offsets[:-1]
        return lengths

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets(self) -> Tensor:
        offsets = self._offsets
        if offsets is None:
            lengths = self._lengths
            assert lengths is not None
            offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)
        return offsets

    def offsets_or_none(self) -> Tensor | None:
        return self._offsets

    def to_dense(self) -> list[Tensor]:
        lengths: list[int] = self.lengths().tolist()
        return list(torch.split(self._values, lengths))


class ScriptedKeyedJaggedTensor:
    """``KeyedJaggedTensor`` in TorchScript."""

    def __init__(
        self,
        keys: list[str],
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        stride: int | None = None,
        length_per_key: list[int] | None = None,
    ) -> None:
        self._keys = keys
        self._values = values
        self._weights: Tensor | None = weights
        self._lengths: Tensor | None = lengths
        self._offsets: Tensor | None = offsets
        self._length_per_key: list[int] | None = length_per_key
        rows = 0
        if lengths is not None:
            rows = lengths.numel()
        elif offsets is not None:
            rows = offsets.numel() - 1
        self._stride: int = rows // max(len(keys), 1) if stride is None else stride

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def weights(self) -> Tensor:
        weights = self._weights
        if weights is None:
            raise ValueError("weights: this KeyedJaggedTensor has none")
        return weights

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def lengths(self) -> Tensor:
        lengths = self._lengths
        if lengths is None:
            offsets = self._offsets
            assert offsets is not None
            lengths = offsets[1:] - offsets[:-1]
        return lengths

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets(self) -> Tensor:
        offsets = self._offsets
        if offsets is None:
            lengths = self._lengths
            assert lengths is not None
            offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)
        return offsets

    def offsets_or_none(self) -> Tensor | None:
        return self._offsets

    def stride(self) -> int:
        return self._stride

    def length_per_key(self) -> list[int]:
        known = self._length_per_key
        if known is None:
            by_key = self.lengths().view(len(self._keys), self._stride).sum(dim=1)
            counts: list[int] = by_key.tolist()
            known = counts
        return known

    def offset_per_key(self) -> list[int]:
        ends = [0]
        for length in self.length_per_key():
            ends.append(ends[-1] + length)
        return ends

    def index_per_key(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for i, key in enumerate(self._keys):
            found[key] = i
        return found

    def to_dict(self) -> dict[str, ScriptedJaggedTensor]:
        found: dict[str, ScriptedJaggedTensor] = {}
        ends = self.offset_per_key()
        lengths = self.lengths()
        weights = self._weights
        for i, key in enumerate(self._keys):
            part: Tensor | None = None
            if weights is not None:
                part = weights[ends[i] : ends[i + 1]]
            rows = lengths[i * self._stride : (i + 1) * self._stride]
            found[key] = ScriptedJaggedTensor(self._values[ends[i] : ends[i + 1]], part, rows)
        return found

    def __getitem__(self, key: str) -> ScriptedJaggedTensor:
        return self.to_dict()[key]


class ScriptedKeyedTensor:
    """``KeyedTensor`` in TorchScript."""

    def __init__(self, keys: list[str], length_per_key: list[int], values: Tensor, key_dim: int = 1) -> None:
        self._keys = keys
        self._length_per_key = length_per_key
        self._values = values
        self._key_dim = key_dim

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def key_dim(self) -> int:
        return self._key_dim

    def length_per_key(self) -> list[int]:
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        ends = [0]
        for length in self._length_per_key:
            ends.append(ends[-1] + length)
        return ends

    def to_dict(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        parts = torch.split(self._values, self._length_per_key, dim=self._key_dim)
        for i, key in enumerate(self._keys):
            found[key] = parts[i]
        return found

    def __getitem__(self, key: str) -> Tensor:
        return self.to_dict()[key]


def _regrouped(keyed_tensors: list[KeyedTensor], groups: list[list[str]]) -> list[Tensor]:
    columns: dict[str, Tensor] = {}
    for keyed in keyed_tensors:
        for key, part in keyed.to_dict().items():
            columns[key] = part
    joined: list[Tensor] = []
    for group in groups:
        parts: list[Tensor] = []
        for key in group:
            parts.append(columns[key])
        joined.append(torch.cat(parts, dim=keyed_tensors[0].key_dim()))
    return joined


def _from_lengths(
    keys: list[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None, stride: int | None = None
) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(keys, values, weights, lengths, None, stride)


def _from_offsets(
    keys: list[str], values: Tensor, offsets: Tensor, weights: Tensor | None = None, stride: int | None = None
) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(keys, values, weights, None, offsets, stride)


def _same(pooled: list[Tensor], names: list[str], features: KeyedJaggedTensor) -> list[Tensor]:  # noqa: ARG001
    return pooled


_TYPES: dict[type[Any], type[Any]] = {
    ScriptedJaggedTensor: JaggedTensor,
    ScriptedKeyedJaggedTensor: KeyedJaggedTensor,
    ScriptedKeyedTensor: KeyedTensor,
}


@functools.cache
def know_types() -> None:
    """Let ``torch.jit.script`` read ``JaggedTensor``, ``KeyedJaggedTensor`` and ``KeyedTensor``."""
    by_name = {scripted.__name__: ours for scripted, ours in _TYPES.items()}
    for scripted, ours in _TYPES.items():
        others = createResolutionCallbackForClassMethods(scripted)
        # TorchScript looks a class up by the name of the Python class that is called: ours.
        _compile_and_register_class(
            scripted, lambda name, others=others: by_name.get(name) or others(name), _qualified_name(ours)
        )
        _state._add_script_class(ours, _state._get_script_class(scripted))
        ours._torchscript_modifier = FunctionModifiers.DEFAULT
    for function, scripted_function in (
        (expand_to_full_batch, _same),
        (_regroup, _regrouped),
        (KeyedTensor.regroup, _regrouped),
        (KeyedJaggedTensor.from_lengths, _from_lengths),
        (KeyedJaggedTensor.from_lengths_sync, _from_lengths),
        (KeyedJaggedTensor.from_offsets, _from_offsets),
        (KeyedJaggedTensor.from_offsets_sync, _from_offsets),
    ):
        with quiet():
            _state._set_jit_function_cache(function, torch.jit.script(scripted_function))
