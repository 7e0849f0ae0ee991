"""KeyedJaggedTensor: jagged rows of several features, one batch.

Shape letters: B batch, F features, N number of IDs.

Like JaggedTensor it holds tensors (or, under FX, proxies) and does not read their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from recsys.jagged.checks import (
    TensorLike,
    check_contents,
    check_shapes,
    empty_maker,
    moved,
    printed_rows,
    printed_shape,
)
from recsys.jagged.keyed_jagged_parts import (
    arguments_from_jts,
    arguments_from_kjts,
    arguments_of_keys,
    ids_per_key,
    jagged_by_key,
    read_ids_per_key,
)
from recsys.jagged.recorded import call_later
from recsys.jagged.tensor import JaggedBase, JaggedTensor
from recsys.jagged.variable_batch import (
    InverseIndices,
    StridePerKeyPerRank,
    VariableBatch,
    check_caches,
    check_inverse_contents,
    check_keys,
    checked_length_per_key,
    checked_stride,
    checked_variable_batch,
    checked_variable_stride,
    copied_variable,
    listed_keys,
    moved_variable,
    with_stride_per_key,
)
from recsys.ops import is_traced


class KeyedJaggedTensor(JaggedBase):
    """Jagged rows of several features, one batch: the input of embedding collections.

    The lengths are key-major: the B lengths of the first key, then those of the second, ``F * B`` in all. With a
    variable batch (``stride_per_key_per_rank``) each key has one length per row of its own batch.

    Args:
        keys: The features' names, each once.
        values: ``[N]``, the values of the first key's rows, then those of the second key's, and so on.
        weights: ``[N]``, one per value, or None.
        lengths: ``[F * B]`` (``[F, B]`` is flattened), int32 or int64.
        offsets: ``[F * B + 1]``, the start of each row, and the end of the last one.
        stride: B, if it does not follow from the shapes (no keys; a variable batch without inverse indices,
            where it defaults to the largest batch).
        stride_per_key_per_rank: The batch size of each key on each rank (one rank before any exchange);
            lists, or an integer tensor ``[F, ranks]`` in host memory.
        stride_per_key: The batch size of each key; an alternative to ``stride_per_key_per_rank`` for one rank.
        length_per_key: Number of values of each key, if known; otherwise they are read when first needed,
            which requires tensors in host memory (see ``sync``).
        lengths_offset_per_key: The start of each key's lengths, ``F + 1`` numbers; must be what the batch sizes say.
        offset_per_key: The start of each key's values, ``F + 1`` numbers; an alternative to
            ``length_per_key``.
        index_per_key: Each key's position; must be that in ``keys``.
        jt_dict: What ``to_dict`` returns, if it is known; it is not checked.
        inverse_indices: Keys, and for each of them ``[B]`` int64 of ``[F, B]``: for each row of the full
            batch its row in the key's batch. ``recsys.jagged.dedup`` makes such batches.

    Raises:
        ValueError: The shapes disagree or a key occurs twice. ``validate()`` also checks the contents.
    """

    _looked_into: ClassVar[Mapping[str, int]] = {"keys": 0}
    # Missing on batches that come out of TorchScript (``recsys.scripting.scripted``), which sets only the others.
    _variable: VariableBatch | None = None
    _jt_dict: dict[str, JaggedTensor] | None = None

    def __init__(
        self,
        keys: Sequence[str],
        values: TensorLike,
        weights: TensorLike | None = None,
        lengths: TensorLike | None = None,
        offsets: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: StridePerKeyPerRank | None = None,
        stride_per_key: Sequence[int] | None = None,
        length_per_key: Sequence[int] | None = None,
        lengths_offset_per_key: Sequence[int] | None = None,
        offset_per_key: Sequence[int] | None = None,
        index_per_key: Mapping[str, int] | None = None,
        jt_dict: dict[str, JaggedTensor] | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> None:
        self._keys = listed_keys(keys)
        if lengths is None and offsets is None and not self._keys:
            lengths = torch.empty(0, dtype=torch.int64, device=getattr(values, "device", None))
        super().__init__(values, weights, lengths, offsets)
        if isinstance(self._lengths, Tensor) and self._lengths.dim() == 2:
            self._lengths = self._lengths.reshape(-1)
        check_keys(self._keys)
        check_shapes(self._values, self._weights, self._lengths, self._offsets)
        per_rank = with_stride_per_key(stride_per_key_per_rank, stride_per_key)
        self._variable = checked_variable_batch(self._keys, per_rank, inverse_indices)
        self._stride: int | None = None
        self._stride = self._checked_stride(stride)
        self._length_per_key = checked_length_per_key(self._keys, length_per_key, offset_per_key)
        self._jt_dict = jt_dict
        if lengths_offset_per_key is not None or index_per_key is not None:
            strides = self.stride_per_key()
            check_caches(self._keys, strides, lengths_offset_per_key, index_per_key, "lengths_offset_per_key")

    @staticmethod
    def from_lengths(
        keys: Sequence[str],
        values: TensorLike,
        lengths: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: StridePerKeyPerRank | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> KeyedJaggedTensor:
        """Make one from key-major lengths ``[F * B]``. Reads nothing. The arguments are the constructor's."""
        return KeyedJaggedTensor(
            keys,
            values,
            weights,
            lengths,
            None,
            stride,
            stride_per_key_per_rank,
            inverse_indices=inverse_indices,
        )

    @staticmethod
    def from_offsets(
        keys: Sequence[str],
        values: TensorLike,
        offsets: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: StridePerKeyPerRank | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> KeyedJaggedTensor:
        """Make one from key-major offsets ``[F * B + 1]``. Reads nothing. The arguments are the constructor's."""
        return KeyedJaggedTensor(
            keys,
            values,
            weights,
            None,
            offsets,
            stride,
            stride_per_key_per_rank,
            inverse_indices=inverse_indices,
        )

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str],
        values: TensorLike,
        lengths: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: StridePerKeyPerRank | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> KeyedJaggedTensor:
        """Call ``from_lengths``, then ``sync``, which reads the lengths."""
        return KeyedJaggedTensor.from_lengths(
            keys, values, lengths, weights, stride, stride_per_key_per_rank, inverse_indices
        ).sync()

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str],
        values: TensorLike,
        offsets: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: StridePerKeyPerRank | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> KeyedJaggedTensor:
        """Call ``from_offsets``, then ``sync``, which reads the offsets."""
        return KeyedJaggedTensor.from_offsets(
            keys, values, offsets, weights, stride, stride_per_key_per_rank, inverse_indices
        ).sync()

    @staticmethod
    def from_jt_dict(
        jt_dict: dict[str, JaggedTensor], force_variable_stride: bool = False
    ) -> KeyedJaggedTensor:
        """Return one of a jagged tensor per feature. Lengths per key follow from shapes: no tensor is read.

        Args:
            jt_dict: The features. Those of different batch sizes make a variable batch.
            force_variable_stride: Whether features of one batch size make a variable batch too.

        Raises:
            ValueError: There are no features, or some have weights and some have none.
        """
        if is_traced(jt_dict):
            made: KeyedJaggedTensor = call_later(_from_jt_dict, jt_dict, force_variable_stride)
            return made
        return KeyedJaggedTensor(**arguments_from_jts(jt_dict, force_variable_stride))

    @staticmethod
    def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """Return all features of several batches of the same size, or of several variable batches.

        Raises:
            ValueError: No batches, different (full) batch sizes, duplicate keys, or weights, batch sizes per
                key or inverse indices in only some of them.
        """
        if is_traced(kjt_list) or is_traced(*kjt_list):
            made: KeyedJaggedTensor = call_later(_concat, kjt_list)
            return made
        return KeyedJaggedTensor(**arguments_from_kjts(kjt_list))

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> KeyedJaggedTensor:
        """Return a KeyedJaggedTensor without features."""
        jt = JaggedTensor.empty(is_weighted, device, values_dtype, weights_dtype, lengths_dtype)
        return KeyedJaggedTensor(
            [], jt.values(), weights=jt.weights_or_none(), lengths=jt.lengths(), stride=0
        )

    def keys(self) -> list[str]:
        """Return the features' names."""
        return self._keys

    def stride(self) -> int:
        """Return B, the batch size; of a variable batch the full batch's, or the largest if that is not known."""
        if self._stride is None:
            self._stride = self._checked_stride(None)
        return self._stride

    def _checked_stride(self, stride: int | None) -> int:
        if self._variable is None:
            return checked_stride(self._keys, self._lengths, self._offsets, stride)
        return checked_variable_stride(self._variable, self._lengths, self._offsets, stride)

    def stride_per_key(self) -> list[int]:
        """Return the batch size of each key, of all ranks together."""
        if self._variable is None:
            return [self.stride()] * len(self._keys)
        return self._variable.stride_per_key

    def stride_per_key_per_rank(self) -> list[list[int]]:
        """Return the batch size of each key on each rank; empty if all keys share one batch."""
        return [] if self._variable is None else self._variable.stride_per_key_per_rank

    def variable_stride_per_key(self) -> bool:
        """Return whether each key has its own batch size."""
        return self._variable is not None

    def lengths_offset_per_key(self) -> list[int]:
        """Return the start of each key's lengths, and the end: ``F + 1`` numbers."""
        return list(accumulate(self.stride_per_key(), initial=0))

    def inverse_indices(self) -> tuple[list[str], Tensor]:
        """Return keys, and for each the row of its batch for every row of the full batch, ``[F, B]`` int64.

        Raises:
            ValueError: There are none.
        """
        inverse = self.inverse_indices_or_none()
        if inverse is None:
            raise ValueError("inverse_indices: this KeyedJaggedTensor has none")
        return inverse

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        """Return ``inverse_indices``, or None."""
        return None if self._variable is None else self._variable.inverse_indices

    def index_per_key(self) -> dict[str, int]:
        """Return each key's position."""
        return {key: i for i, key in enumerate(self._keys)}

    def length_per_key(self) -> list[int]:
        """Return the number of values of each key.

        On the meta device they are not known; equal shares stand for them, the first one taking the rest.

        Raises:
            ValueError: They are not known and would need a hidden synchronization.
        """
        if self._length_per_key is None:
            if is_traced(self._lengths, self._offsets):
                raise ValueError("length_per_key: not known under a tracer; give it to the constructor")
            given = cast(Tensor, self._lengths if self._lengths is not None else self._offsets)
            if given.device.type not in ("cpu", "meta"):
                raise ValueError(
                    f"length_per_key: not known for tensors on {given.device}; make the KeyedJaggedTensor in "
                    "host memory or with length_per_key, or call sync(), which waits for the device"
                )
            self.sync()
        return cast(list[int], self._length_per_key)

    def length_per_key_or_none(self) -> list[int] | None:
        """Return the number of values of each key if known, or None."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Return where each key's values start, and the end: ``F + 1`` numbers. Raises as ``length_per_key``."""
        return list(accumulate(self.length_per_key(), initial=0))

    def offset_per_key_or_none(self) -> list[int] | None:
        """Return ``offset_per_key`` if it is known, or None."""
        return None if self._length_per_key is None else list(accumulate(self._length_per_key, initial=0))

    def sync(self) -> KeyedJaggedTensor:
        """Read the lengths per key if they are not known. Waits for the device that holds them; not under a tracer."""
        if self._length_per_key is None and not is_traced(self._lengths, self._offsets):
            self._length_per_key = read_ids_per_key(self)
        return self

    def unsync(self) -> KeyedJaggedTensor:
        """Drop the lengths per key."""
        self._length_per_key = None
        self._jt_dict = None
        return self

    def to(
        self, device: torch.device | str, non_blocking: bool = False, dtype: torch.dtype | None = None
    ) -> KeyedJaggedTensor:
        """Return a copy on another device, with the lengths per key; ``dtype`` is that of the weights."""
        remade = self._moved(lambda t: t.to(device=device, non_blocking=non_blocking))
        if dtype is not None and remade._weights is not None:
            remade._weights = remade._weights.to(dtype)
        return remade

    def pin_memory(self) -> KeyedJaggedTensor:
        """Return a copy in page-locked host memory, from which copies to a device are asynchronous."""
        return self._moved(lambda t: t.pin_memory())

    def _tensors(self) -> list[Tensor]:
        inverse = self.inverse_indices_or_none()
        return [*super()._tensors(), *([] if inverse is None else [inverse[1]])]

    @staticmethod
    def empty_like(kjt: KeyedJaggedTensor, device: torch.device | None = None) -> KeyedJaggedTensor:
        """Return a batch without features, of the same batch size and dtypes.

        On a given device, return one of the same features and shapes whose contents are not set.
        """
        if is_traced(kjt):
            made: KeyedJaggedTensor = call_later(_empty_like, kjt, device)
            return made
        if device is not None:
            return kjt._moved(empty_maker(device))
        tensors = moved(kjt, empty_maker(None)) | {"offsets": None, "lengths": kjt.lengths().new_empty(0)}
        return KeyedJaggedTensor([], **tensors, stride=kjt.stride())

    def copy_(self, kjt: KeyedJaggedTensor, non_blocking: bool = False) -> KeyedJaggedTensor:
        """Copy another batch of the same features and shapes into this one's tensors, and return this one."""
        self._copy_tensors(kjt, non_blocking)
        self._variable = copied_variable(self._variable, kjt._variable, non_blocking)
        self._stride, self._length_per_key, self._jt_dict = kjt.stride(), kjt._length_per_key, None
        return self

    def flatten_lengths(self) -> KeyedJaggedTensor:
        """Return the same batch with one-dimensional lengths, known lengths per key and no inverse indices."""
        return KeyedJaggedTensor(
            self._keys,
            self._values,
            self._weights,
            self.lengths().view(-1),
            stride=self.stride(),
            stride_per_key_per_rank=self.stride_per_key_per_rank() or None,
            length_per_key=self.length_per_key(),
        )

    def _moved(self, move: Callable[[Tensor], Tensor]) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(**self._moved_arguments(move))

    def _moved_arguments(self, move: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        return {
            "keys": self._keys,
            **moved(self, move),
            **moved_variable(self._variable, move),
            "stride": self.stride(),
            "length_per_key": self._length_per_key,
        }

    def _arguments(self) -> dict[str, Any]:
        return self._moved_arguments(lambda t: t)

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Split into parts of ``segments[i]`` keys each.

        Raises:
            ValueError: The segments do not sum to the number of keys.
        """
        if sum(segments) != len(self._keys) or any(n < 0 for n in segments):
            raise ValueError(
                f"segments: got {list(segments)}, expected numbers that sum to the {len(self._keys)} keys"
            )
        ends = list(accumulate(segments, initial=0))
        return [self._select(list(range(a, b))) for a, b in pairwise(ends)]

    def permute(self, indices: Sequence[int], indices_tensor: Tensor | None = None) -> KeyedJaggedTensor:
        """Return the keys at ``indices``, in that order. ``indices_tensor`` (the same on the device) is not needed.

        A key may be taken several times; ``to_dict`` has it once.

        Raises:
            ValueError: An index is out of range.
        """
        del indices_tensor
        wrong = [i for i in indices if not 0 <= i < len(self._keys)]
        if wrong:
            raise ValueError(f"indices: got {wrong}, expected positions of the {len(self._keys)} keys")
        return self._select(list(indices))

    def _select(self, indices: list[int]) -> KeyedJaggedTensor:
        if indices == list(range(len(self._keys))):
            return self._moved(lambda t: t)
        return KeyedJaggedTensor(**arguments_of_keys(self, indices))

    def __getitem__(self, key: str) -> JaggedTensor:
        if key not in self._keys:
            raise KeyError(f"key {key!r} is not in the KeyedJaggedTensor; it has {self._keys}")
        return self.to_dict()[key]

    def to_dict(self, compute_offsets: bool = True) -> dict[str, JaggedTensor]:
        """Return one jagged tensor per key: views of the values. ``compute_offsets`` is for TorchRec's callers only.

        Raises:
            ValueError: As ``length_per_key``.
        """
        del compute_offsets
        if self._jt_dict is None:
            self._jt_dict = jagged_by_key(self)
        return self._jt_dict

    def validate(self) -> KeyedJaggedTensor:
        """Check the contents (which reads them) and return the KeyedJaggedTensor itself.

        Raises:
            ValueError: As ``JaggedTensor.validate``, or lengths per key that disagree with the lengths, or
                inverse indices that are not rows of their key's batch.
        """
        check_contents(self._values, self._lengths, self._offsets)
        if self._length_per_key is not None and self._keys:
            read = ids_per_key(self).tolist()
            if read != self._length_per_key:
                raise ValueError(f"length_per_key: got {self._length_per_key}, but the lengths say {read}")
        if self._variable is not None:
            check_inverse_contents(self._keys, self._variable)
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
        strides = "" if self._variable is None else f", stride_per_key={self._variable.stride_per_key}"
        values = printed_shape(self._values)
        return f"KeyedJaggedTensor(keys={self._keys}, values={values}, stride={self.stride()}{strides})"


def _from_jt_dict(jt_dict: dict[str, JaggedTensor], force_variable_stride: bool) -> KeyedJaggedTensor:
    return KeyedJaggedTensor.from_jt_dict(jt_dict, force_variable_stride)


def _concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    return KeyedJaggedTensor.concat(kjt_list)


def _empty_like(kjt: KeyedJaggedTensor, device: torch.device | None) -> KeyedJaggedTensor:
    return KeyedJaggedTensor.empty_like(kjt, device)
