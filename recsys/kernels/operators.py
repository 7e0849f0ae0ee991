"""The native kernels, where ``make native`` has built them: for artifacts' programs, and training in host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.base.native_module import NotBuiltError, load_native
from recsys.data_type import LINEAR_DTYPES as LINEAR_DTYPES
from recsys.inputs.signature import Signature

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """How many steps a program has.

    Attributes:
        num_linear: Linear layers.
        num_dot: Interactions.
        num_lookup: Lookups.
        num_steps: All steps.
    """

    num_linear: int
    num_dot: int
    num_lookup: int
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """What a step of a program did in one call.

    Attributes:
        kind: ``lookup``, ``linear`` and so on, as ``export.lower.kinds`` names it; ``inputs`` for reading the inputs of
            several steps, ``gather`` for rows that are repeated between these, ``region`` for TorchScript.
        of: What becomes of numbers that are taken one by one, such as ``multiply``; empty for other kinds.
        num_rows: Rows of the batch, or IDs, that it ran over.
        in_width: Numbers that it reads for each.
        out_width: Numbers that it writes for each.
        num_ids: Rows of tables that it read.
        flops: Additions and multiplications of its products.
        dtype: The type of their factors; empty without any.
        num_bytes: Bytes that it reads at least, besides rows of tables.
        us: Its time.
        space: ``contexts`` of a ranking form's steps that run once for each context, ``rows`` of its others; empty in a
            plain form.
    """

    kind: str
    of: str
    num_rows: int
    in_width: int
    out_width: int
    num_ids: int
    flops: int
    dtype: str
    num_bytes: int
    us: float
    space: str = ""


@functools.cache
def _loaded() -> tuple[Any, str]:
    """Return the native module, or None and why it cannot be used."""
    try:
        return load_native("recsys.kernels._ops", _FOLDER, "the library of native kernels"), ""
    except NotBuiltError as error:
        # Not the error itself: its traceback holds the first caller's frames, and so a whole model.
        return None, str(error)


def why_missing() -> str:
    """Return why the operators cannot be used, and what to do; empty if they can."""
    return _loaded()[1]


def instructions() -> str:
    """Return the instruction set that the operators use: ``plain``, ``avx2``, ``avx512`` or ``amx``.

    Raises:
        NotBuiltError: They cannot be used.
        RuntimeError: The environment variable ``RECSYS_ISA`` names one that cannot be used here.
    """
    name: str = _usable().isa()
    return name


def why_no_tiles() -> str:
    """Return why the operators do not use the processor's AMX tiles, though ``RECSYS_ISA`` names no other set.

    Empty if they use them, or the processor has none.

    Raises:
        NotBuiltError: They cannot be used.
    """
    why: str = _usable().why_no_tiles()
    return why


def multiplies_in(linear_dtype: str) -> str:
    """Return the type in which linear layers of a type multiply on this processor.

    Those in bfloat16 multiply in float32, with weights that are rounded to bfloat16, where no instruction multiplies
    bfloat16 faster: they are never slower than float32.

    Raises:
        NotBuiltError: They cannot be used.
    """
    dtype: str = _usable().multiplies_in(linear_dtype)
    return dtype


def read_rows(data: Any, offsets: Any, sizes: Any, ahead: int) -> int:
    """Read rows as fast as one thread can, a byte of each cache line: the limit of every lookup.

    Args:
        data: A buffer of bytes.
        offsets: int64 ``[N]``, where rows begin.
        sizes: int64 ``[N]``, their bytes.
        ahead: Rows between the prefetch of a row and its use; 0 for no prefetch.

    Returns:
        The exclusive or of the bytes that were read.

    Raises:
        NotBuiltError: The operators cannot be used.
        ValueError: A row is not within the data.
    """
    read: int = _usable().read_rows(data, offsets, sizes, ahead)
    return read


def delta_packer() -> Callable[[Any], bytes] | None:
    """Return a function of contiguous int32 or int64 ``[N]`` that encodes it as Parquet's ``DELTA_BINARY_PACKED``.

    None if the operators cannot be used.
    """
    module = _loaded()[0]
    return None if module is None else module.delta_packed


def text_hasher() -> Callable[[Any, Any, bytes, bytes], bytes] | None:
    """Return a function that hashes many texts by BLAKE2b: offsets int32 ``[N + 1]``, texts, key, personalization.

    It returns digests of 8 bytes, as ``hashlib.blake2b`` computes them. None if the operators cannot be used.
    """
    module = _loaded()[0]
    return None if module is None else module.keyed_hashes


def rows_looker() -> Callable[[Any], Tensor] | None:
    """Return a function that does what ``recsys.kernels.rowwise.RowWiseStep.look_up`` does, with a step.

    None if the operators cannot be used.
    """
    module = _loaded()[0]
    return None if module is None else module.look_up_rows


def rows_updater() -> Callable[[Any, Tensor], None] | None:
    """Return a function that does what ``recsys.kernels.rowwise.RowWiseStep.update`` does, with a step and a gradient.

    None if the operators cannot be used.
    """
    module = _loaded()[0]
    return None if module is None else module.update_rows


@functools.cache
def interaction() -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the interaction of a DLRM: ``[B, D]`` and ``[B, F, D]`` to ``[B, D + F (F + 1) / 2]``, without gradients.

    The dense vectors are followed by the products of all pairs of vectors. None if the operators cannot be used.
    """
    if _loaded()[0] is None:
        return None
    operator: Callable[[Tensor, Tensor], Tensor] = torch.ops.recsys_ops.dot_interaction.default
    return operator


def context_cache(max_bytes: int) -> Any:
    """Return a cache of what programs compute of contexts alone, by the content of the context. Threads may share it.

    Args:
        max_bytes: Memory that it may hold; those used least recently make room.

    Returns:
        An object with ``clear()``, to be called after rows have changed, ``reset_counts()`` and ``counts()``: ``hits``
        and ``misses`` of contexts, equal ones of a batch once, those ``grown``, ``evictions``, and the present
        ``entries`` and ``bytes``.

    Raises:
        NotBuiltError: The operators cannot be used.
    """
    return _usable().ContextCache(max_bytes)


def context_inputs(signature: Signature, cache: Any) -> Any:
    """Return which inputs of a ranking form are of contexts, as ``bind`` of a stored program takes it.

    Args:
        signature: The signature of the form.
        cache: What ``context_cache`` has returned; None for none.

    Raises:
        NotBuiltError: The operators cannot be used.
    """
    dense = [at for at, one in enumerate(signature.dense) if one.name in signature.context]
    return _usable().ContextInputs(
        dense=dense,
        lengths=len(signature.dense),
        num_features=len(signature.context_sparse),
        is_weighted=signature.is_weighted,
        cache=cache,
    )


def stored_program(part: bytes) -> Any:
    """Return a program that ``export.lower.part`` has written.

    Returns:
        An object with ``bind(rows, weights, linear_dtype, contexts=None)``, which returns a call that any thread may
        make, over these rows, with these dense weights instead of those of the same paths; ``contexts`` is what
        ``context_inputs`` has returned, for a ranking form, which then computes equal contexts once.
        ``dense()`` are the model's dense weights by path, each its type and shape; ``counts()`` the numbers of linear
        layers, interactions, lookups, and all steps.

    Raises:
        NotBuiltError: The operators cannot be used.
        RuntimeError: The part holds no program; so does ``bind``, if rows or weights do not fit it.
    """
    return _usable().StoredProgram(part)


def why_not_cached(program: Any) -> str:
    """Return why a ranking form has nothing for a context cache; empty if it has.

    Args:
        program: What ``bind`` of a stored program has returned.
    """
    why: str = program.why_not_cached()
    return why


def profile(program: Any, inputs: Sequence[Tensor]) -> tuple[StepTime, ...]:
    """Call a program on one thread, and return its steps in their order.

    Args:
        program: What ``bind`` of a stored program has returned.
        inputs: Those of a call.

    Raises:
        RuntimeError: The inputs do not fit the program.
    """
    return tuple(StepTime(**step) for step in program.profile(list(inputs)))


def _usable() -> Any:
    module, reason = _loaded()
    if module is None:
        raise NotBuiltError(reason)
    return module
