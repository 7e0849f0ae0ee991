"""Awaitables: results that may not be available yet.

The first wait gets the result; later waits return the same one. A lazy awaitable is waited for at the first
use of its result, so that a model's other layers can run until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import torch

W = TypeVar("W", covariant=True)
V = TypeVar("V")

_PENDING = object()


class Awaitable(ABC, Generic[W]):
    """A result that may not be available yet."""

    def __init__(self) -> None:
        self._result: Any = _PENDING

    def wait(self) -> W:
        """Return the result; every rank of a process group must wait for the same things in the same order."""
        if self._result is _PENDING:
            self._result = self._wait_impl()
        return cast(W, self._result)

    @abstractmethod
    def _wait_impl(self) -> W: ...


class NoWait(Awaitable[W]):
    """A result that is available."""

    def __init__(self, result: W) -> None:
        super().__init__()
        self._result = result

    def _wait_impl(self) -> W:
        return cast(W, self._result)


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


class LazyAwaitable(Deferred[W]):
    """A stand-in for its result: access to an attribute or item, or a torch function, waits for it.

    Args:
        finish: Returns the result; called once, at the first use.
    """

    def __getattr__(self, name: str) -> Any:
        # Called only for names that the awaitable itself lacks.
        if name.startswith("__"):
            raise AttributeError(name)
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


def _waited(value: Any) -> Any:
    if isinstance(value, LazyAwaitable):
        return value.wait()
    if isinstance(value, Mapping):
        return {key: _waited(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return type(value)(_waited(item) for item in value)
    return value
