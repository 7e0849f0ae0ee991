"""Counts whatever makes Python wait for a tensor's contents: on an accelerator each is a synchronization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READING_METHODS = {
    getattr(Tensor, name): name
    for name in (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__array__",
        "__contains__",
    )
}

aten = torch.ops.aten
# Operators whose result is a Python number, or whose output's shape depends on contents.
READING_OPERATORS = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
}


def _names_host(value: object) -> bool:
    return value == "cpu" or (isinstance(value, torch.device) and value.type == "cpu")


class _Functions(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in READING_METHODS:
            self.found.append(READING_METHODS[func])
        if func is Tensor.to and any(map(_names_host, [*args[1:], *kwargs.values()])):
            self.found.append("to('cpu')")
        return func(*args, **kwargs)


class _Dispatch(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        sized = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None
        masked = func is aten.index.Tensor and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if masked or (func in READING_OPERATORS and not sized):
            self.found.append(str(func))
        return func(*args, **kwargs)


class CountReads:
    """``with CountReads() as reads: ...``, then ``reads.found`` names every read, in order."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> CountReads:
        self._stack.enter_context(_Dispatch(self.found))
        self._stack.enter_context(_Functions(self.found))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
