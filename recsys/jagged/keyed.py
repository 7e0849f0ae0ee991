"""KeyedTensor: dense columns of several features in one tensor, addressed by key.

Shape letters: B batch, D embedding dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from recsys.jagged.recorded import Recorded, call_later
from recsys.jagged.variable_batch import check_caches
from recsys.ops import is_traced


class KeyedTensor(Recorded):
    """Concatenated columns of several features: the output of embedding bag collections.

    Args:
        keys: The features' names, each once.
        length_per_key: The width of each key along ``key_dim``.
        values: ``[B, sum(length_per_key)]`` if ``key_dim`` is 1.
        key_dim: The dimension that the keys share.
        offset_per_key: The start of each key's columns, and the end; must be those of ``length_per_key``.
        index_per_key: Each key's position; must be that in ``keys``.

    Raises:
        ValueError: The widths disagree with the values' shape or with the offsets, or a key occurs twice.
    """

    _looked_into: ClassVar[Mapping[str, int]] = {"keys": 0, "length_per_key": 1}

    def __init__(
        self,
        keys: Sequence[str],
        length_per_key: Sequence[int],
        values: Tensor,
        key_dim: int = 1,
        offset_per_key: Sequence[int] | None = None,
        index_per_key: Mapping[str, int] | None = None,
    ) -> None:
        self._keys = list(keys)
        self._length_per_key = list(length_per_key)
        self._values = values
        self._key_dim = key_dim
        if len(self._keys) != len(self._length_per_key):
            raise ValueError(
                f"length_per_key: got {len(self._length_per_key)} for {len(self._keys)} keys, expected one each"
            )
        if len(set(self._keys)) != len(self._keys):
            doubled = sorted({k for k in self._keys if self._keys.count(k) > 1})
            raise ValueError(f"keys: got {doubled} more than once, expected each key once")
        check_caches(self._keys, self._length_per_key, offset_per_key, index_per_key)
        if not isinstance(values, Tensor) or (not self._keys and values.numel() == 0):
            return
        if values.shape[key_dim] != sum(self._length_per_key):
            raise ValueError(
                f"values: got {values.shape[key_dim]} along dimension {key_dim}, "
                f"expected the sum of length_per_key, {sum(self._length_per_key)}"
            )

    @staticmethod
    def from_tensor_list(
        keys: Sequence[str], tensors: Sequence[Tensor], key_dim: int = 1, cat_dim: int = 1
    ) -> KeyedTensor:
        """Return a KeyedTensor of one tensor per key, concatenated along ``cat_dim``."""
        lengths = [t.shape[key_dim] for t in tensors]
        return KeyedTensor(keys, lengths, torch.cat(list(tensors), dim=cat_dim), key_dim)

    def keys(self) -> list[str]:
        """Return the features' names."""
        return self._keys

    def values(self) -> Tensor:
        """Return ``[B, sum(length_per_key)]``."""
        return self._values

    def key_dim(self) -> int:
        """Return the dimension that the keys share."""
        return self._key_dim

    def device(self) -> torch.device:
        """Return the device of the values."""
        return self._values.device

    def length_per_key(self) -> list[int]:
        """Return the width of each key."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Return the start of each key's columns, and the end."""
        return list(accumulate(self._length_per_key, initial=0))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> KeyedTensor:
        """Return a copy on another device."""
        moved = self._values.to(device=device, non_blocking=non_blocking)
        return KeyedTensor(self._keys, self._length_per_key, moved, self._key_dim)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the values' memory until the work now queued on ``stream`` is done."""
        self._values.record_stream(stream)

    def size_in_bytes(self) -> int:
        """Return the size of the values."""
        return self._values.element_size() * self._values.numel()

    def _arguments(self) -> dict[str, Any]:
        return {
            "keys": self._keys,
            "length_per_key": self._length_per_key,
            "values": self._values,
            "key_dim": self._key_dim,
        }

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(f"key {key!r} is not in the KeyedTensor; it has {self._keys}")
        at = self._keys.index(key)
        start = sum(self._length_per_key[:at])
        return self._values.narrow(self._key_dim, start, self._length_per_key[at])

    def to_dict(self) -> dict[str, Tensor]:
        """Return one tensor per key: views of the values."""
        if not self._keys:
            return {}
        parts = torch.split(self._values, self._length_per_key, dim=self._key_dim)
        return {key: parts[i] for i, key in enumerate(self._keys)}

    @staticmethod
    def regroup(keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return for each group its keys' columns side by side, from any of the tensors.

        Raises:
            KeyError: A key is in none of the tensors.
            ValueError: A key of a group is in several of the tensors.
        """
        if is_traced(keyed_tensors, groups) or is_traced(*keyed_tensors):
            made: Any = call_later(_regroup, keyed_tensors, groups)
            return made if is_traced(groups) else [made[i] for i in range(len(groups))]
        columns: dict[str, Tensor] = {}
        wanted = {key for group in groups for key in group}
        for keyed in keyed_tensors:
            for key, tensor in keyed.to_dict().items():
                if key in columns and key in wanted:
                    raise ValueError(f"groups: key {key!r} is in more than one KeyedTensor, expected in one")
                columns[key] = tensor
        missing = sorted(wanted - set(columns))
        if missing:
            raise KeyError(
                f"groups: keys {missing} are in none of the KeyedTensors; they have {sorted(columns)}"
            )
        dim = keyed_tensors[0].key_dim() if keyed_tensors else 1
        return [
            torch.cat([columns[key] for key in group], dim=dim)
            if group
            else keyed_tensors[0].values().narrow(dim, 0, 0)
            for group in groups
        ]

    @staticmethod
    def regroup_as_dict(
        keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]], keys: Sequence[str]
    ) -> dict[str, Tensor]:
        """Regroup as ``regroup`` does, and name each group.

        Raises:
            ValueError: The numbers of names and groups differ.
        """
        if len(groups) != len(keys):
            raise ValueError(f"keys: got {len(keys)} for {len(groups)} groups, expected one per group")
        return dict(zip(keys, KeyedTensor.regroup(keyed_tensors, groups), strict=True))

    def __str__(self) -> str:
        if not self._keys:
            return "KeyedTensor()\n"
        rows = [f'    "{key}": {tensor.tolist()}' for key, tensor in self.to_dict().items()]
        return "KeyedTensor({\n" + ",\n".join(rows) + "\n})\n"

    def __repr__(self) -> str:
        return f"KeyedTensor(keys={self._keys}, length_per_key={self._length_per_key})"


def _regroup(keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]) -> list[Tensor]:
    return KeyedTensor.regroup(keyed_tensors, groups)
