"""Compares what a name is here with what it is in TorchRec: signatures, members, fields and values."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Collection, Iterator
from inspect import Parameter
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BASES = (nn.Module, Optimizer, Dataset, Exception, tuple)
_PLAIN = (bool, int, float, str, bytes, type(None))


def differences(ours: Any, theirs: Any, without: Collection[str] = ()) -> Iterator[str]:
    """Yield what a caller of TorchRec's would find different.

    Ours may have further keyword-only parameters, and further ones at the end that have defaults.

    Args:
        ours: What the name is here.
        theirs: What it is in TorchRec.
        without: The methods of a class that are left out.
    """
    if ours is theirs:
        return
    if inspect.isclass(theirs) and inspect.isclass(ours):
        yield from _of_classes(ours, theirs, without)
    elif inspect.isclass(theirs) != inspect.isclass(ours):
        yield f"ours is {_kind(ours)}, TorchRec's is {_kind(theirs)}"
    elif callable(theirs) and inspect.isroutine(theirs):
        yield from _of_calls(ours, theirs, "")
    elif _is_plain(theirs) and not _same(ours, theirs):
        yield f"ours is {ours!r}, TorchRec's is {theirs!r}"


def _of_classes(ours: type, theirs: type, without: Collection[str]) -> Iterator[str]:
    if issubclass(theirs, enum.Enum):
        got = {member.name: member.value for member in ours} if issubclass(ours, enum.Enum) else {}
        for member in theirs:
            if member.name not in got or not _same(got[member.name], member.value):
                yield f"member {member.name}: ours is {got.get(member.name)!r}, TorchRec's is {member.value!r}"
        return
    for base in _BASES:
        if issubclass(theirs, base) and not issubclass(ours, base):
            yield f"is no {base.__name__}, as TorchRec's is"
    want, got = (len(getattr(cls, "__parameters__", ())) for cls in (theirs, ours))
    if want != got and want:
        yield f"takes {got} types in brackets, TorchRec's {want}"
    fields = _fields(theirs)
    if fields is not None:
        mine = (_fields(ours) or [])[: len(fields)]
        if mine != fields:
            yield f"fields: ours are {mine}, TorchRec's are {fields}"
    if not getattr(theirs, "_is_protocol", False):
        yield from _of_calls(_constructor(ours), _constructor(theirs), "__init__", skip_first=True)
    for name, member in _methods(theirs).items():
        if name in without:
            continue
        mine = _static(ours, name)
        if mine is None:
            if getattr(_function(member), "__doc__", None):
                yield f".{name}: ours is missing"
        elif isinstance(member, property) or isinstance(mine, property):
            if callable(_static_value(mine)) != callable(_static_value(member)):
                yield f".{name}: ours is {_kind(mine)}, TorchRec's is {_kind(member)}"
        elif callable(_function(member)):
            bound = not isinstance(member, staticmethod)
            if isinstance(mine, staticmethod) == bound and not isinstance(member, classmethod):
                yield f".{name}: ours is {_kind(mine)}, TorchRec's is {_kind(member)}"
                continue
            yield from _of_calls(_function(mine), _function(member), f".{name}", skip_first=bound)


def _of_calls(ours: Any, theirs: Any, where: str, *, skip_first: bool = False) -> Iterator[str]:
    try:
        want, got = (list(inspect.signature(f).parameters.values()) for f in (theirs, ours))
    except (TypeError, ValueError):
        return
    if skip_first:
        want, got = want[1:], got[1:]
    if want and all(p.kind in _VARIABLE for p in want):
        return
    for problem in _of_parameters(got, want):
        yield f"{where}({problem})"


def _of_parameters(got: list[Parameter], want: list[Parameter]) -> Iterator[str]:
    positional = [p for p in got if p.kind in _POSITIONAL]
    by_name = {p.name: p for p in got}
    for i, theirs in enumerate(p for p in want if p.kind in _POSITIONAL):
        ours = positional[i] if i < len(positional) else None
        if ours is None or ours.name != theirs.name:
            yield f"parameter {i + 1}: ours is {ours.name if ours else 'missing'}, TorchRec's is {theirs.name}"
            if theirs.name not in by_name:
                continue
            ours = by_name[theirs.name]
        if ours.kind is Parameter.POSITIONAL_ONLY is not theirs.kind:
            yield f"{ours.name}: ours is taken by position only"
        yield from _of_defaults(ours, theirs)
    for theirs in (p for p in want if p.kind is Parameter.KEYWORD_ONLY):
        if theirs.name not in by_name:
            yield f"keyword {theirs.name}: ours is missing"
        else:
            yield from _of_defaults(by_name[theirs.name], theirs)
    for kind in _VARIABLE:
        if any(p.kind is kind for p in want) and not any(p.kind is kind for p in got):
            yield f"{next(str(p) for p in want if p.kind is kind)}: ours is missing"
    known = {p.name for p in want}
    for ours in got:
        if ours.name not in known and ours.kind not in _VARIABLE and ours.default is Parameter.empty:
            yield f"{ours.name}: ours is required, TorchRec has none"


def _of_defaults(ours: Parameter, theirs: Parameter) -> Iterator[str]:
    if theirs.default is Parameter.empty:
        return
    if ours.default is Parameter.empty:
        yield f"{ours.name}: ours is required, TorchRec's has a default"
    elif _is_plain(theirs.default) and not _same(ours.default, theirs.default):
        yield f"{ours.name}: ours is {ours.default!r} by default, TorchRec's {theirs.default!r}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return isinstance(value, (*_PLAIN, enum.Enum)) or type(value).__module__ == "torch"


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, enum.Enum):
        return isinstance(ours, enum.Enum) and ours.name == theirs.name and _same(ours.value, theirs.value)
    if isinstance(theirs, (list, tuple)):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _fields(cls: type) -> list[str] | None:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    names = getattr(cls, "_fields", None)
    return list(names) if issubclass(cls, tuple) and names else None


def _constructor(cls: type) -> Any:
    return (
        cls.__init__ if cls.__init__ is not object.__init__ or cls.__new__ is object.__new__ else cls.__new__
    )


def _methods(cls: type) -> dict[str, Any]:
    """The public methods and properties that TorchRec's own classes define."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "torchrec":
            found |= {
                name: value
                for name, value in vars(base).items()
                if not name.startswith("_")
                and (inspect.isroutine(value) or isinstance(value, (property, staticmethod, classmethod)))
            }
    return found


def _static(cls: type, name: str) -> Any:
    return inspect.getattr_static(cls, name, None)


def _function(member: Any) -> Any:
    return getattr(member, "__func__", member)


def _static_value(member: Any) -> Any:
    return None if isinstance(member, property) else _function(member)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
