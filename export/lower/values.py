"""What the steps of a program compute: tensors of which row b depends on row b of others alone.

Shape letters: B rows, Q contexts, D embedding dim, V vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, partialmethod
from itertools import count
from math import prod
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, fx

from export.graph.tracing.tracer import LINE
from export.lower.kinds import ElementwiseKind

F = TypeVar("F", bound=Callable[..., Any])
_PATH = "path_of_weight"
#: Numbers values, in the order in which they are made.
next_number = count().__next__
#: By name, what becomes of a function or a method of torch that is called with values.
OPERATORS: dict[str, Callable[..., Any]] = {}
#: Those of them that take views of any strides.
_OF_VIEWS: set[Callable[..., Any]] = set()


def operator(*names: str, views: bool = False) -> Callable[[F], F]:
    """Say which functions of torch a function stands for, and whether it takes views of any strides."""

    def add(function: F) -> F:
        OPERATORS.update(dict.fromkeys(names, function))
        if views:
            _OF_VIEWS.add(function)
        return function

    return add


def path_of(weight: Any) -> str | None:
    """Return the path of a dense weight; None for anything else."""
    found: str | None = getattr(weight, _PATH, None)
    return found


def set_path(weight: Tensor, path: str | None) -> None:
    """Let a tensor be known as a dense weight."""
    vars(weight)[_PATH] = path


class NotLoweredError(Exception):
    """A model does something that no step does; the message says what, and where."""

    def at(self, node: fx.Node) -> NotLoweredError:
        """Return the error with a node, its layer and the line of the model's code, unless it names one already."""
        why = str(self)
        if " (node '" in why:
            return self
        paths, line = list(node.meta.get("nn_module_stack") or {}), node.meta.get(LINE)
        parts = [f"node {node.name!r}{f' of {paths[-1]!r}' if paths else ''}", *([str(line)] if line else [])]
        return NotLoweredError(f"{why} ({', '.join(parts)})")


class _Writing:
    is_refused = False


@contextmanager
def writes_refused(is_refused: bool) -> Iterator[None]:
    """Refuse operators that write to values within, if so: what else knows the value would not see it."""
    before, _Writing.is_refused = _Writing.is_refused, is_refused
    try:
        yield
    finally:
        _Writing.is_refused = before


@dataclass(frozen=True)
class Space:
    """Which rows a value has: those of the batch, contexts, or those of a class below. Each exists once."""

    name: str
    ROWS: ClassVar[Space]
    CONTEXTS: ClassVar[Space]


Space.ROWS, Space.CONTEXTS = Space("rows"), Space("contexts")


@dataclass(frozen=True)
class NumRows:
    """A number that is so many times the rows of a space."""

    space: Space
    times: int = 1

    def __mul__(self, other: int) -> NumRows:
        return NumRows(self.space, self.times * other)

    __rmul__ = __mul__

    def __sub__(self, other: int) -> NumRows:
        if other != 0:
            raise NotLoweredError("it counts with the number of rows")
        return self

    def __floordiv__(self, other: int) -> NumRows:
        if self.times % other:
            raise NotLoweredError("it counts with the number of rows")
        return NumRows(self.space, self.times // other)


class Called:
    """What functions of torch are called with."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Several[type],
        args: Several[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        return apply(func.__name__, *args, **(kwargs or {}))

    def settled(self) -> Any:
        """Return what steps read that take no views."""
        return self

    # What torch's layers ask a tensor for.
    is_nested = False
    is_sparse = False

    @property
    def shape(self) -> tuple[NumRows | int, ...]:
        """The sizes."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Host memory."""
        return torch.device("cpu")

    @property
    def ndim(self) -> int:
        """The number of dimensions, B included."""
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of dimensions, B included."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        if name.rstrip("_") not in OPERATORS:
            raise AttributeError(name)
        return partial(apply, name, self)

    @property
    def mT(self) -> Any:
        """The matrices with their dimensions swapped."""
        return apply("t", self)

    T = mT


#: By operator of Python, the function of torch that it calls.
_OF_PYTHON = {
    "add": "add", "radd": "add", "iadd": "add_", "sub": "sub", "rsub": "rsub", "isub": "sub_", "mul": "mul",
    "rmul": "mul", "imul": "mul_", "truediv": "div", "itruediv": "div_", "matmul": "matmul", "rmatmul": "rmatmul",
    "pow": "pow", "neg": "neg", "invert": "logical_not", "and": "and", "rand": "and", "or": "or", "ror": "or",
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "getitem": "getitem",
}  # fmt: skip
for _name, _function in _OF_PYTHON.items():
    setattr(
        Called, f"__{_name}__", partialmethod(lambda one, name, *others: apply(name, one, *others), _function)
    )


@dataclass(eq=False, kw_only=True)
class Value(Called):
    """A tensor ``[B, *dims]``, which steps hold in float32.

    Attributes:
        dims: Those of a row.
        space: Which rows it has.
        dtype: float32; of whole numbers and truth values, which are computed of the request, theirs.
        number: Larger than that of every value that it is computed of.
    """

    dims: tuple[int, ...]
    space: Space = Space.ROWS
    dtype: torch.dtype = torch.float32
    number: int = field(default_factory=next_number, init=False)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return prod(self.dims)

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return []

    @property
    def shape(self) -> tuple[NumRows | int, ...]:
        """B and the dimensions."""
        return (NumRows(self.space), *self.dims)


def apply(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return what a function of torch makes of values.

    Raises:
        NotLoweredError: No step does it.
    """
    found = OPERATORS.get(name.strip("_"))
    writes = (name.endswith("_") and not name.startswith("_")) or kwargs.get("inplace")
    if writes and _Writing.is_refused:
        raise NotLoweredError(f"it calls {name} for its effect")
    if found is None:
        raise NotLoweredError(f"no step computes {name}")
    if found not in _OF_VIEWS:
        args = tuple(map(_settled, args))
        kwargs = {key: _settled(value) for key, value in kwargs.items()}
    return found(*args, **kwargs)


def _settled(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_settled, value))
    return value.settled() if isinstance(value, Called) else value


@dataclass(eq=False, kw_only=True)
class Input(Value):
    """Numbers of the request: the input at a position."""

    index: int


@dataclass(eq=False, kw_only=True)
class Weight(Value):
    """Numbers that are the same for every row: a dense weight by path, or a constant of the model's code."""

    path: str | None = None
    numbers: Tensor | None = None
    #: What it was made of.
    tensor: Tensor | None = None

    def is_same(self, other: Weight) -> bool:
        """Return whether another one holds the same numbers."""
        if self.path is not None or other.path is not None:
            return self.path == other.path
        assert self.numbers is not None
        assert other.numbers is not None
        return torch.equal(self.numbers, other.numbers)


@dataclass(eq=False, kw_only=True)
class OfOne(Value):
    """What is computed of one value."""

    source: Value

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [self.source]


#: Columns of a layer's weights, which are added up: to where, from where, how many, and their sign.
Columns = tuple[tuple[int, int, int, int], ...]


@dataclass(eq=False, kw_only=True)
class Linear(OfOne):
    """A linear layer.

    Attributes:
        columns: Those of the weight that it takes; empty for all as they are.
    """

    weight: str
    bias: str | None
    columns: Columns = ()


@dataclass(eq=False, kw_only=True)
class Products(OfOne):
    """The product of each pair of a row's V vectors ``[V, D]``: pairs (i, j), i < j, by i and then by j."""


@dataclass(eq=False, kw_only=True)
class View(OfOne):
    """Columns of another value, from ``offset`` on, perhaps with other dimensions."""

    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Part:
    """Columns of a value."""

    value: Value
    offset: int
    width: int


@dataclass(eq=False, kw_only=True)
class Join(Value):
    """Columns of values side by side."""

    parts: tuple[Part, ...]

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [part.value for part in self.parts]


@dataclass(eq=False, kw_only=True)
class Elementwise(Value):
    """Numbers computed one by one.

    Attributes:
        kind: How.
        operands: One to three values.
        count: How often each number of the first operand is taken, or how many vectors are summed.
        factor: The number that the kind takes, if it takes one; ``count`` is then not used.
    """

    kind: ElementwiseKind
    operands: list[Value] = field(default_factory=list)
    count: int = 1
    factor: float | None = None

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return self.operands


@dataclass(eq=False, kw_only=True)
class Take(Value):
    """Vectors by their numbers.

    Attributes:
        numbers: Whole numbers of those that are there.
        vectors: They follow each other.
        each: Numbers of a vector.
    """

    numbers: Value
    vectors: Value
    each: int

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [self.numbers, self.vectors]


@dataclass(eq=False, kw_only=True)
class Expand(OfOne):
    """Rows of contexts, each repeated for the rows that share it."""
