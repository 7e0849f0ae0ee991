"""Awaitables: results that may not be available yet.

The first wait gets the result; later waits return the same one. A lazy awaitable is waited for at the first
use of its result, so that a model's other layers can run until then.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, Generic, TypeVar, cast

import torch

W = TypeVar("W", covariant=True)
V = TypeVar("V")
K = TypeVar("K")
P = TypeVar("P")

_PENDING = object()


class Awaitable(ABC, Generic[W]):
    """A result that may not be available yet. Subclasses define ``_wait_impl``."""

    # Attributes of the class, so that a subclass need not call this constructor.
    _result: Any = _PENDING
    _waiting_thread: int | None = None

    def __init__(self) -> None: ...

    def wait(self) -> W:
        """Return the result; every rank of a process group must wait for the same things in the same order."""
        if self._result is _PENDING:
            self._waiting_thread = get_ident()
            try:
                result: Any = self._wait_impl()
                for callback in self.callbacks:
                    result = callback(result)
            finally:
                self._waiting_thread = None
            self._result = result
        return cast(W, self._result)

    @property
    def callbacks(self) -> list[Callable[[Any], Any]]:
        """Functions to append to; each is given the result at the first wait and returns what takes its place."""
        found: list[Callable[[Any], Any]] = vars(self).setdefault("_callbacks", [])
        return found

    @abstractmethod
    def _wait_impl(self) -> W: ...

    def __fx_create_arg__(self, tracer: Any) -> Any:
        # In a graph, the result takes the awaitable's place.
        return tracer.create_arg(self.wait())


class NoWait(Awaitable[W]):
    """A result that is available."""

    def __init__(self, obj: W) -> None:
        super().__init__()
        self._obj = obj

    def _wait_impl(self) -> W:
        return self._obj


class Deferred(Awaitable[W]):
    """A result that a function computes at the first wait."""

    def __init__(self, finish: Callable[[], W]) -> None:
        super().__init__()
        self._finish: Callable[[], W] | None = finish

    def _wait_impl(self) -> W:
        assert self._finish is not None
        result = self._finish()
        self._finish = None  # frees the objects that it refers to
        return result


class LazyAwaitable(Awaitable[W]):
    """A stand-in for its result: access to an attribute or item, an operator or a torch function waits for it.

    A subclass that defines ``_wait_impl`` needs no argument.

    Args:
        finish: Returns the result; called once, at the first use.
    """

    _finish: Callable[[], W] | None = None

    def __init__(self, finish: Callable[[], W] | None = None) -> None:
        super().__init__()
        self._finish = finish

    def _wait_impl(self) -> W:
        if self._finish is None:
            raise NotImplementedError(
                f"{type(self).__name__}: got no finish, expected a function that returns the result, or a subclass "
                "that defines _wait_impl"
            )
        result = self._finish()
        self._finish = None  # frees the objects that it refers to
        return result

    def __getattr__(self, name: str) -> Any:
        # Called only for names that the awaitable itself lacks; waiting for itself would never end.
        if name.startswith("__") or self._waiting_thread == get_ident():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wait(), name)

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self.wait())[key]

    def __iter__(self) -> Any:
        return iter(cast(Any, self.wait()))

    def __len__(self) -> int:
        return len(cast(Any, self.wait()))

    def __contains__(self, key: object) -> bool:
        return key in cast(Any, self.wait())

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        return func(*_waited(args), **_waited(kwargs or {}))


class LazyNoWait(LazyAwaitable[W]):
    """A stand-in for a result that is available."""

    def __init__(self, obj: W) -> None:
        super().__init__(lambda: obj)


class LazyGetItemMixin(Generic[K, V]):
    """Makes items of a lazy awaitable lazy too; it comes before ``LazyAwaitable`` in the list of bases."""

    def __getitem__(self, key: K) -> LazyAwaitable[V]:
        return GetItemLazyAwaitable(cast(Any, self), key)


class GetItemLazyAwaitable(LazyAwaitable[W], Generic[W, P, K]):
    """An item of a lazy awaitable's result."""

    def __init__(self, parent: LazyAwaitable[P], key: K) -> None:
        super().__init__(lambda: cast(Any, parent.wait())[key])


def _waited(value: Any) -> Any:
    if isinstance(value, LazyAwaitable):
        return value.wait()
    if isinstance(value, Mapping):
        return {key: _waited(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return type(value)(_waited(item) for item in value)
    return value


_UNARY = ("neg", "pos", "invert", "abs")
_COMPARISONS = ("eq", "ne", "lt", "gt", "le", "ge")
_REFLECTED = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)


def _with_operators(names: Sequence[str], *, reflected: bool = False) -> None:
    """Define operators of a LazyAwaitable, which wait for their operands."""

    def define(name: str) -> None:
        apply = getattr(operator, f"__{name}__")

        def method(self: Any, *others: Any) -> Any:
            operands = [_waited(self), *[_waited(other) for other in others]]
            return apply(*(reversed(operands) if reflected else operands))

        method.__name__ = f"__r{name}__" if reflected else f"__{name}__"
        setattr(LazyAwaitable, method.__name__, method)

    for name in names:
        define(name)


_with_operators([*_UNARY, *_COMPARISONS, *_REFLECTED])
_with_operators(_REFLECTED, reflected=True)
