"""The example inputs of a plain model: where they come from, and the tensors within them by name.

Shape letters: B batch.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.errors import ExportError

#: The function or value of a factory's module, and the attributes of a model, that hold example inputs.
EXAMPLE_INPUTS = "example_inputs"
_ATTRIBUTES = (EXAMPLE_INPUTS, "example_input_array", "dummy_inputs")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor within the example inputs.

    Attributes:
        name: Its name, unlike that of any other.
        path: The keys, fields and numbers that lead to it, the argument's name first.
        tensor: ``[B, ...]``.
    """

    name: str
    path: tuple[Any, ...]
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return tuple(self.tensor.shape[1:])

    @property
    def width(self) -> int:
        """The numbers of a row."""
        return self.tensor[0].numel()

    @property
    def dtype(self) -> str:
        """The type of its numbers, as text."""
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def is_float(self) -> bool:
        """Whether its numbers are floats."""
        return self.tensor.is_floating_point()


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a model is called with.

    Attributes:
        method: The method that is called, ``forward`` for most.
        args: The positional arguments.
        kwargs: The keyword arguments.
        leaves: The tensors within them whose rows are those of the batch.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    leaves: tuple[Leaf, ...]

    @property
    def num_rows(self) -> int:
        """B."""
        return self.leaves[0].tensor.shape[0]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The leaves' tensors by name."""
        return {leaf.name: leaf.tensor for leaf in self.leaves}

    def cloned(self) -> dict[str, Tensor]:
        """Return copies of the leaves' tensors by name, which a call may change."""
        return {name: tensor.clone() for name, tensor in self.tensors.items()}

    @property
    def places(self) -> dict[str, range]:
        """By leaf the places of its numbers among all numbers of a row of the inputs."""
        found, at = {}, 0
        for leaf in self.leaves:
            found[leaf.name] = range(at, at + leaf.width)
            at += leaf.width
        return found

    def call(self, model: nn.Module, value_of: Callable[[str], Any] | None = None) -> Any:
        """Call a model.

        Args:
            model: The model, or a copy.
            value_of: Returns what takes a leaf's place, by name; None for copies of the leaves.
        """
        args, kwargs = self.filled(value_of or self.cloned().__getitem__)
        called = model if self.method == "forward" else getattr(model, self.method)
        return called(*args, **kwargs)

    def filled(self, value_of: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other values for the leaves, by name."""
        names = {leaf.path: leaf.name for leaf in self.leaves}

        def fill(value: Any, path: tuple[Any, ...]) -> Any:
            if path in names:
                found = value_of(names[path])
                is_array = isinstance(value, np.ndarray) and type(found) is Tensor
                return found.numpy() if is_array else found
            parts = _parts(value)
            if parts is None:
                return value
            return _rebuilt(value, {key: fill(part, (*path, key)) for key, part in parts.items()})

        args = tuple(fill(value, (i,)) for i, value in enumerate(self.args))
        return args, {key: fill(value, (key,)) for key, value in self.kwargs.items()}


def given_inputs(model: nn.Module, example: Any, method: str = "forward") -> Given:
    """Return what a model is called with.

    Args:
        model: The model.
        method: The method that is called.
        example: A tensor, an array or another object for ``forward``'s only argument, a tuple of positional arguments,
            or a dict of keyword arguments. A dict whose keys are no parameters of ``forward`` is its only argument.

    Raises:
        ExportError: It holds no tensors, or none with rows.
    """
    if not callable(getattr(model, method, None)):
        raise ExportError(
            f"method: {type(model).__name__} has no {method!r}, expected the method that predicts"
        )
    parameters, wanted, takes_others = _parameters(model, method)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    keys = {*example} if isinstance(example, dict) else set()
    takes_names = keys <= {*parameters}
    if takes_others and {*wanted} <= keys and (not parameters or keys & {*parameters}):
        takes_names = True
    if type(example) in (tuple, list):
        args = tuple(example)
        if args and isinstance(args[-1], dict) and set(args[-1]) <= {*parameters[len(args) - 1 :]}:
            args, kwargs = args[:-1], args[-1]
    elif isinstance(example, dict) and example and takes_names:
        kwargs = example
    else:
        args = (example,)
    found = [
        (path, tensor)
        for key, value in [*enumerate(args), *kwargs.items()]
        for path, tensor in _tensors(value, (key,))
    ]
    sizes = [tensor.shape[0] for _, tensor in found if tensor.dim()]
    if not sizes or not sizes[0]:
        raise ExportError(
            f"inputs: got {_shown(example)} for {type(model).__name__}.{method}({', '.join(parameters)}), expected "
            "tensors whose first dimension is the batch: one, a tuple of positional ones, or a dict of named ones"
        )
    _check_no_offsets([tensor for _, tensor in found])
    num_rows = max(set(sizes), key=sizes.count)
    names = _names(
        [path for path, tensor in found if tensor.dim() and tensor.shape[0] == num_rows], parameters
    )
    leaves = [
        Leaf(name=names[path], path=path, tensor=tensor.detach().cpu())
        for path, tensor in found
        if path in names
    ]
    return Given(method=method, args=args, kwargs=kwargs, leaves=tuple(leaves))


def _check_no_offsets(tensors: Sequence[Tensor]) -> None:
    """Check that no two tensors are IDs side by side and where the bag of each row begins.

    Raises:
        ExportError: They are.
    """
    flat = [one for one in tensors if one.dim() == 1 and not one.is_floating_point() and one.numel()]
    for offsets in flat:
        if int(offsets[0]) or len(offsets) < 2 or bool((offsets.diff() < 0).any()) or not int(offsets[-1]):
            continue
        for ids in flat:
            if len(ids) != len(offsets) and int(offsets[-1]) <= len(ids) > len(offsets):
                raise ExportError(
                    f"inputs: got IDs [{len(ids)}] and offsets [{len(offsets)}], expected IDs as [B, L], the bag of "
                    "each row padded to L: flat IDs have no rows to put a batch together of. An nn.EmbeddingBag "
                    "takes such IDs without offsets, with padding_idx=ID for an ID that stands for none; or take "
                    "recsys.EmbeddingBagCollection, whose features are such bags"
                )


def with_rows(given: Given, rows: Tensor) -> Given:
    """Return inputs with some rows of each leaf."""
    leaves = tuple(replace(leaf, tensor=leaf.tensor[rows]) for leaf in given.leaves)
    return replace(given, leaves=leaves)


def example_of(model: nn.Module, factory: str | None = None) -> Any:
    """Return the example inputs of a model: those of its factory's module, or an attribute; None without any.

    Args:
        model: The model.
        factory: ``package.module:function`` that made it.

    Raises:
        ExportError: The function that makes them fails.
    """
    module = sys.modules.get(module_of(factory or ""))
    for holder in (module, sys.modules.get(type(model).__module__)):
        if hasattr(holder, EXAMPLE_INPUTS):
            return _called(getattr(holder, EXAMPLE_INPUTS), model)
    for name in _ATTRIBUTES:
        found = getattr(model, name, None)
        if found is not None:
            return found() if inspect.ismethod(found) or inspect.isfunction(found) else found
    return None


def module_of(factory: str) -> str:
    """Return the name of a factory's module, of ``package.module:function`` or ``file.py:function``."""
    name = factory.rpartition(":")[0]
    return Path(name).stem if name.endswith(".py") else name


def read_inputs(path: Path) -> Any:
    """Return the example inputs of a file that ``torch.save`` wrote.

    Raises:
        ExportError: It cannot be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        raise ExportError(
            f"inputs: {path.name!r} cannot be read: {str(error).splitlines()[0]}; expected a tensor, or a tuple or "
            "dict of tensors, as torch.save writes it"
        ) from None


def _called(found: Any, model: nn.Module) -> Any:
    if not callable(found):
        return found
    try:
        return found(*([model] if inspect.signature(found).parameters else []))
    except Exception as error:  # user code can raise anything
        raise ExportError(f"inputs: {EXAMPLE_INPUTS} failed: {type(error).__name__}: {error}") from error


def _parameters(model: nn.Module, method: str) -> tuple[list[str], list[str], bool]:
    """Return a method's parameters, those without defaults, and whether it takes any other names (``**kwargs``)."""
    inner: Any = model
    # What stands around a model, such as torch.compile, takes any arguments.
    while isinstance(inner, (nn.DataParallel, nn.parallel.DistributedDataParallel)) or hasattr(
        inner, "_orig_mod"
    ):
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.module
    found = inspect.signature(getattr(inner, method)).parameters.values()
    named = [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    wanted = [one.name for one in named if one.default is one.empty]
    return [one.name for one in named], wanted, any(one.kind is one.VAR_KEYWORD for one in found)


def _names(paths: Sequence[tuple[Any, ...]], parameters: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """Return a name for each path: its last key, and as many before it as tell it from others."""

    def part(path: tuple[Any, ...], at: int) -> str:
        if at == 0 and isinstance(path[0], int):
            return parameters[path[0]] if path[0] < len(parameters) else f"input_{path[0]}"
        return str(path[at])

    texts = {path: [part(path, at) for at in range(len(path))] for path in paths}
    # A number alone is no name.
    least = {path: 2 if len(path) > 1 and isinstance(path[-1], int) else 1 for path in paths}
    for _ in range(max(map(len, paths), default=0)):
        names = {path: re.sub(r"\W", "_", "_".join(texts[path][-least[path] :])) for path in paths}
        found = list(names.values())
        for path, name in names.items():
            if found.count(name) > 1:
                least[path] = min(least[path] + 1, len(path))
    return names


def _tensors(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield path, torch.from_numpy(value)
    for key, part in (_parts(value) or {}).items():
        yield from _tensors(part, (*path, key))


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return what a container holds, by key; None for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return parts
    if isinstance(value, Mapping):
        new = value.copy() if hasattr(value, "copy") else dict(value)  # such as OrderedDict
        new.update(parts)
        return new
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(**parts)
    if isinstance(value, (list, tuple)):
        return type(value)(parts.values())
    new = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(new, name, part)  # of frozen ones too
    return new


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return type(value).__name__
