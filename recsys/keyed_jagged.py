"""KeyedJaggedTensor: jagged rows of several features, one batch.

Shape letters: B batch, F features, N number of IDs.

Like JaggedTensor it holds tensors (or, under FX, proxies) and never looks at what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch import Tensor

from recsys.jagged import JaggedTensor
from recsys.jagged_base import JaggedBase
from recsys.jagged_checks import (
    TensorLike,
    check_contents,
    check_shapes,
    moved,
    printed_rows,
    printed_shape,
)
from recsys.ops import is_traced, joined


class KeyedJaggedTensor(JaggedBase):
    """Jagged rows of several features, one batch: the input of embedding collections.

    The lengths are key-major: the B lengths of the first key, then those of the second, ``F * B`` in all.

    Args:
        keys: the features' names, each once.
        values: ``[N]``, the values of the first key's rows, then those of the second key's, and so on.
        weights: ``[N]``, one per value, or None.
        lengths: ``[F * B]`` (``[F, B]`` is flattened), int32 or int64.
        offsets: ``[F * B + 1]``, where each row starts, and the end of the last one.
        stride: B, where it cannot be seen from the shapes (no keys).
        length_per_key: number of values of each key, where the caller knows them; otherwise they are read
            when first needed, which only a tensor in host memory allows (see ``sync``).
        offset_per_key: where each key's values start, ``F + 1`` numbers; an alternative to ``length_per_key``.

    Raises:
        ValueError: the shapes disagree or a key is doubled. ``validate()`` checks the contents too.
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: TensorLike,
        weights: TensorLike | None = None,
        lengths: TensorLike | None = None,
        offsets: TensorLike | None = None,
        stride: int | None = None,
        length_per_key: Sequence[int] | None = None,
        offset_per_key: Sequence[int] | None = None,
    ) -> None:
        self._keys = list(keys)
        super().__init__(values, weights, lengths, offsets)
        if isinstance(self._lengths, Tensor) and self._lengths.dim() == 2:
            self._lengths = self._lengths.reshape(-1)
        if len(set(self._keys)) != len(self._keys):
            doubled = sorted({k for k in self._keys if self._keys.count(k) > 1})
            raise ValueError(f"keys: got {doubled} more than once, expected each key once")
        check_shapes(self._values, self._weights, self._lengths, self._offsets)
        self._stride = self._checked_stride(stride)
        if length_per_key is None and offset_per_key is not None:
            length_per_key = [b - a for a, b in pairwise(offset_per_key)]
        if length_per_key is not None and len(length_per_key) != len(self._keys):
            raise ValueError(
                f"length_per_key: got {len(length_per_key)} for {len(self._keys)} keys, expected one per key"
            )
        self._length_per_key = None if length_per_key is None else list(length_per_key)
        self._jt_dict: dict[str, JaggedTensor] | None = None

    def _checked_stride(self, stride: int | None) -> int:
        given = self._lengths if self._lengths is not None else self._offsets
        num_keys = len(self._keys)
        if is_traced(given) or is_traced(stride):
            if stride is not None:
                return stride
            num_rows = cast(Tensor, given).size(0) - (1 if self._lengths is None else 0)
            return num_rows // num_keys if num_keys else 0
        num_rows = cast(Tensor, given).numel() - (1 if self._lengths is None else 0)
        if num_keys == 0:
            return stride or 0
        if stride is not None and num_rows == stride * num_keys:
            return stride
        name = "lengths" if self._lengths is not None else "offsets"
        extra = 1 if self._lengths is None else 0
        expected = f"keys × batch{' + 1' if extra else ''}"
        if stride is not None:
            expected += f" = {num_keys} × {stride}{' + 1' if extra else ''} = {num_keys * stride + extra}"
        if stride is not None or num_rows % num_keys:
            lacks_end = extra and (num_rows + 1) % num_keys == 0
            hint = ": the end of the last row belongs to the offsets" if lacks_end else ""
            raise ValueError(f"{name}: got {num_rows + extra} for {num_keys} keys, expected {expected}{hint}")
        return num_rows // num_keys

    @staticmethod
    def from_lengths(
        keys: Sequence[str],
        values: TensorLike,
        lengths: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        """From key-major lengths ``[F * B]``. Reads nothing."""
        return KeyedJaggedTensor(keys, values, weights=weights, lengths=lengths, stride=stride)

    @staticmethod
    def from_offsets(
        keys: Sequence[str],
        values: TensorLike,
        offsets: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        """From key-major offsets ``[F * B + 1]``. Reads nothing."""
        return KeyedJaggedTensor(keys, values, weights=weights, offsets=offsets, stride=stride)

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str],
        values: TensorLike,
        lengths: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        """``from_lengths``, then ``sync``: reads the lengths."""
        return KeyedJaggedTensor.from_lengths(keys, values, lengths, weights, stride).sync()

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str],
        values: TensorLike,
        offsets: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        """``from_offsets``, then ``sync``: reads the offsets."""
        return KeyedJaggedTensor.from_offsets(keys, values, offsets, weights, stride).sync()

    @staticmethod
    def from_jt_dict(jt_dict: dict[str, JaggedTensor]) -> KeyedJaggedTensor:
        """From one jagged tensor per feature. The lengths per key are the shapes of their values: nothing is read.

        Raises:
            ValueError: the features have different batch sizes, or some have weights and some have none.
        """
        if not jt_dict:
            raise ValueError("jt_dict: got no features, expected at least one")
        jts = list(jt_dict.values())
        lengths = [jt.lengths() for jt in jts]
        traced = is_traced(*lengths, *(jt.values() for jt in jts))
        if not traced and len({n.numel() for n in lengths}) > 1:
            sizes = {k: n.numel() for k, n in zip(jt_dict, lengths, strict=True)}
            raise ValueError(f"jt_dict: got batch sizes {sizes}, expected the same for every feature")
        weights = [jt.weights_or_none() for jt in jts]
        if any(w is None for w in weights) and any(w is not None for w in weights):
            without = [k for k, w in zip(jt_dict, weights, strict=True) if w is None]
            raise ValueError(
                f"jt_dict: got no weights for {without}, expected weights for all features or none"
            )
        return KeyedJaggedTensor(
            keys=list(jt_dict),
            values=torch.cat([jt.values() for jt in jts]),
            weights=None if weights[0] is None else torch.cat([w for w in weights if w is not None]),
            lengths=torch.cat(lengths),
            stride=lengths[0].size(0),
            length_per_key=[jt.values().size(0) for jt in jts],
        )

    @staticmethod
    def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """All features of several batches of the same size.

        Raises:
            ValueError: no batches, different batch sizes, doubled keys, or weights in some only.
        """
        if not kjt_list:
            raise ValueError("kjt_list: got no KeyedJaggedTensors, expected at least one")
        strides = [kjt.stride() for kjt in kjt_list]
        if not is_traced(*strides) and len(set(strides)) > 1:
            raise ValueError(f"kjt_list: got batch sizes {strides}, expected the same for all")
        weights = [kjt.weights_or_none() for kjt in kjt_list]
        if any(w is None for w in weights) and any(w is not None for w in weights):
            raise ValueError("kjt_list: got weights in some, expected weights in all or in none")
        known = [kjt.length_per_key_or_none() for kjt in kjt_list]
        per_key = None if any(k is None for k in known) else [n for k in known if k is not None for n in k]
        return KeyedJaggedTensor(
            keys=[key for kjt in kjt_list for key in kjt._keys],
            values=torch.cat([kjt.values() for kjt in kjt_list]),
            weights=None if weights[0] is None else torch.cat([w for w in weights if w is not None]),
            lengths=torch.cat([kjt.lengths() for kjt in kjt_list]),
            stride=strides[0],
            length_per_key=per_key,
        )

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> KeyedJaggedTensor:
        """No features."""
        jt = JaggedTensor.empty(is_weighted, device, values_dtype, weights_dtype, lengths_dtype)
        return KeyedJaggedTensor(
            [], jt.values(), weights=jt.weights_or_none(), lengths=jt.lengths(), stride=0
        )

    def keys(self) -> list[str]:
        """The features' names."""
        return self._keys

    def stride(self) -> int:
        """B, the batch size."""
        return self._stride

    def stride_per_key(self) -> list[int]:
        """B for each key."""
        return [self._stride] * len(self._keys)

    def index_per_key(self) -> dict[str, int]:
        """Each key's position."""
        return {key: i for i, key in enumerate(self._keys)}

    def length_per_key(self) -> list[int]:
        """Number of values of each key.

        Raises:
            ValueError: they are not known, and cannot be had without a hidden synchronization.
        """
        if self._length_per_key is None:
            if is_traced(self._lengths, self._offsets):
                raise ValueError("length_per_key: not known under a tracer; give it to the constructor")
            given = cast(Tensor, self._lengths if self._lengths is not None else self._offsets)
            if given.device.type != "cpu":
                raise ValueError(
                    f"length_per_key: not known for tensors on {given.device}; make the KeyedJaggedTensor in "
                    "host memory or with length_per_key, or call sync(), which waits for the device"
                )
            self.sync()
        return cast(list[int], self._length_per_key)

    def length_per_key_or_none(self) -> list[int] | None:
        """Number of values of each key where known, or None."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Where each key's values start, and the end: ``F + 1`` numbers. Raises as ``length_per_key``."""
        return list(accumulate(self.length_per_key(), initial=0))

    def offset_per_key_or_none(self) -> list[int] | None:
        """``offset_per_key`` where known, or None."""
        return None if self._length_per_key is None else list(accumulate(self._length_per_key, initial=0))

    def sync(self) -> KeyedJaggedTensor:
        """Read the lengths per key, where they are not known. Waits for the device that holds them."""
        if self._length_per_key is None:
            per_key = self._ids_per_key()
            self._length_per_key = per_key.tolist()
        return self

    def _ids_per_key(self) -> Tensor:
        return self.lengths().view(len(self._keys), self._stride).sum(dim=1)

    def unsync(self) -> KeyedJaggedTensor:
        """Forget the lengths per key."""
        self._length_per_key = None
        self._jt_dict = None
        return self

    def to(
        self, device: torch.device | str, non_blocking: bool = False, dtype: torch.dtype | None = None
    ) -> KeyedJaggedTensor:
        """The same on another device, the lengths per key included; ``dtype`` is that of the weights."""
        tensors = moved(self, lambda t: t.to(device=device, non_blocking=non_blocking))
        if dtype is not None and tensors["weights"] is not None:
            tensors["weights"] = tensors["weights"].to(dtype)
        return self._like(tensors)

    def pin_memory(self) -> KeyedJaggedTensor:
        """The same in page-locked host memory, from which copies to a device need not wait."""
        return self._like(moved(self, lambda t: t.pin_memory()))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the tensors' memory until the work now queued on ``stream`` is done."""
        for tensor in (self._values, self._weights, self._lengths, self._offsets):
            if tensor is not None:
                tensor.record_stream(stream)

    def _like(self, tensors: dict[str, Any]) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            self._keys, **tensors, stride=self._stride, length_per_key=self._length_per_key
        )

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Cut after every ``segments[i]`` keys.

        Raises:
            ValueError: the segments do not sum to the number of keys.
        """
        if sum(segments) != len(self._keys) or any(n < 0 for n in segments):
            raise ValueError(
                f"segments: got {list(segments)}, expected numbers that sum to the {len(self._keys)} keys"
            )
        ends = list(accumulate(segments, initial=0))
        return [self._select(list(range(a, b))) for a, b in pairwise(ends)]

    def permute(self, indices: Sequence[int], indices_tensor: Tensor | None = None) -> KeyedJaggedTensor:
        """The keys at ``indices``, in that order. ``indices_tensor`` (the same on the device) is not needed.

        Raises:
            ValueError: an index is doubled or is no key's position.
        """
        del indices_tensor
        wrong = [i for i in indices if not 0 <= i < len(self._keys)]
        if wrong:
            raise ValueError(f"indices: got {wrong}, expected positions of the {len(self._keys)} keys")
        return self._select(list(indices))

    def _select(self, indices: list[int]) -> KeyedJaggedTensor:
        keys = [self._keys[i] for i in indices]
        if indices == list(range(len(self._keys))):
            return self._like(moved(self, lambda t: t))
        if not indices:
            return KeyedJaggedTensor(
                [],
                self._values[:0],
                weights=None if self._weights is None else self._weights[:0],
                lengths=self.lengths()[:0],
                stride=self._stride,
                length_per_key=[],
            )
        parts = self.to_dict()
        weights = [parts[key].weights_or_none() for key in keys]
        return KeyedJaggedTensor(
            keys,
            values=joined([parts[key].values() for key in keys]),
            weights=None if weights[0] is None else joined([w for w in weights if w is not None]),
            lengths=joined([parts[key].lengths() for key in keys]),
            stride=self._stride,
            length_per_key=None
            if self._length_per_key is None
            else [self._length_per_key[i] for i in indices],
        )

    def __getitem__(self, key: str) -> JaggedTensor:
        if key not in self._keys:
            raise KeyError(f"key {key!r} is not in the KeyedJaggedTensor; it has {self._keys}")
        return self.to_dict()[key]

    def to_dict(self, compute_offsets: bool = True) -> dict[str, JaggedTensor]:
        """One jagged tensor per key: views of the values. ``compute_offsets`` is for TorchRec's callers only.

        Raises:
            ValueError: as ``length_per_key``.
        """
        del compute_offsets
        if self._jt_dict is None:
            values = self._split_by_key(self._values)
            weights = None if self._weights is None else self._split_by_key(self._weights)
            lengths = self.lengths()
            self._jt_dict = {
                key: JaggedTensor(
                    values[i],
                    weights=None if weights is None else weights[i],
                    lengths=lengths[i * self._stride : (i + 1) * self._stride],
                )
                for i, key in enumerate(self._keys)
            }
        return self._jt_dict

    def _split_by_key(self, data: Tensor) -> Sequence[Tensor]:
        if self._length_per_key is not None:
            return torch.split(data, self._length_per_key)
        if not is_traced(self._lengths, self._offsets) and self.lengths().device.type != "cpu":
            self.length_per_key()  # raises with the reason
        # tensor_split takes the bounds as a host tensor, so that they are read neither here nor in a graph.
        per_key = self._ids_per_key()
        return torch.tensor_split(data, per_key.cumsum(dim=0)[:-1])

    def validate(self) -> KeyedJaggedTensor:
        """Check the contents (which reads them) and return the KeyedJaggedTensor itself.

        Raises:
            ValueError: as ``JaggedTensor.validate``, or lengths per key that disagree with the lengths.
        """
        check_contents(self._values, self._lengths, self._offsets)
        if self._length_per_key is not None and self._keys:
            read = self._ids_per_key().tolist()
            if read != self._length_per_key:
                raise ValueError(f"length_per_key: got {self._length_per_key}, but the lengths say {read}")
        return self

    def __str__(self) -> str:
        if not self._keys:
            return "KeyedJaggedTensor()\n"
        weighted = self._weights is not None
        rows = []
        for key, jt in self.to_dict().items():
            text = printed_rows(jt.values(), jt.weights_or_none(), jt.offsets(), indent=8)
            rows.append(f'    "{key}": ' + (f"{{\n        {text}\n    }}" if weighted else text))
        return "KeyedJaggedTensor({\n" + ",\n".join(rows) + "\n})\n"

    def __repr__(self) -> str:
        return f"KeyedJaggedTensor(keys={self._keys}, values={printed_shape(self._values)}, stride={self._stride})"
