"""A model's ``forward``: its arguments, dense, sparse or a batch of both, and models that are given another one.

A ``forward`` that takes a batch object or inputs with defaults, or returns more than is to be served, is replaced by
one that takes and returns what the signature says. The module tree stays as it is.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.graph.inputs.computed import RequestFeatures
from export.graph.modules import Copies, shallow_copy
from export.graph.tracing.source_location import place_of_forward
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor

DENSE, SPARSE = "dense", "sparse"
#: The name of an unnamed single output, as in TorchRec's server.
DEFAULT_OUTPUT = "default"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of ``forward``.

    Attributes:
        name: Its name.
        kind: ``DENSE``, ``SPARSE``, or None for anything else.
        batch: The dataclass or NamedTuple that it is; None for others.
        fields: Of a batch, each field's kind, as above, by name.
        has_default: Whether ``forward`` can be called without it.
        is_untold: Whether nothing tells what it is: it has no annotation, and no default but None.
        annotation: As it was found.
    """

    name: str
    kind: str | None
    batch: Any
    fields: Mapping[str, str | None]
    has_default: bool
    is_untold: bool
    annotation: object


def parameters(model: nn.Module, said: Mapping[str, str] | None = None) -> list[Parameter]:
    """Return the parameters of a model's ``forward``.

    Args:
        model: Any module.
        said: The kinds of parameters as the user says, for those without an annotation.
    """
    forward = type(model).forward
    hints = _hints(forward)
    found = []
    for name, parameter in list(inspect.signature(forward).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = _unwrapped(hints.get(name))
        is_untold = annotation is None and any(
            parameter.default is one for one in (None, inspect.Parameter.empty)
        )
        batch = annotation if _is_batch(annotation) else None
        found.append(
            Parameter(
                name=name,
                kind=(said or {}).get(name) if is_untold else _kind(annotation),
                batch=batch,
                fields={} if batch is None else _fields(batch),
                has_default=parameter.default is not inspect.Parameter.empty,
                is_untold=is_untold,
                annotation=annotation,
            )
        )
    return found


def arguments(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of ``forward``'s dense and sparse arguments, by their annotations.

    Raises:
        ExportError: An argument without a default is annotated neither Tensor nor KeyedJaggedTensor.
    """
    taken = [parameter for parameter in parameters(model) if not parameter.has_default]
    foreign = [parameter for parameter in taken if parameter.kind is None]
    if foreign:
        names = [parameter.name for parameter in foreign]
        got = ", ".join(str(_shown(parameter.annotation)) for parameter in foreign)
        expected = (
            "torch.Tensor (float32, [B, width]), KeyedJaggedTensor, or a dataclass or NamedTuple of these"
        )
        options = [
            f"--dense-width {one.name}=N or --features {one.name}=F1,F2" for one in foreign if one.is_untold
        ]
        say = f", or say what it is: {'; '.join(options)}" if options else ""
        raise ExportError(
            f"forward({', '.join(names)}): got annotation {got}, expected {expected}. At {place_of_forward(model)}: "
            f"annotate it so{say}; what the model takes otherwise, such as a dict, make of these in the forward of a "
            "subclass, and export that"
        )
    return (
        [parameter.name for parameter in taken if parameter.kind == DENSE],
        [parameter.name for parameter in taken if parameter.kind == SPARSE],
    )


def _shown(annotation: object) -> object:
    return annotation.__qualname__ if type(annotation) is type else annotation


def _hints(of: Any) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(of)
    except (NameError, TypeError, AttributeError):
        return dict(getattr(of, "__annotations__", {}))


def _fields(batch: Any) -> dict[str, str | None]:
    hints = _hints(batch)
    names = getattr(batch, "_fields", None) or list(batch.__dataclass_fields__)
    return {name: _kind(_unwrapped(hints.get(name))) for name in names}


def _is_batch(annotation: object) -> bool:
    if not isinstance(annotation, type) or _kind(annotation) is not None:
        return False
    return is_dataclass(annotation) or (issubclass(annotation, tuple) and hasattr(annotation, "_fields"))


def _kind(annotation: object) -> str | None:
    if annotation is Tensor or annotation in ("Tensor", "torch.Tensor"):
        return DENSE
    # Ours, TorchRec's, or the name of one.
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return SPARSE if name.rpartition(".")[2] == KeyedJaggedTensor.__name__ else None


def _unwrapped(annotation: object) -> object:
    """Return the type within ``Optional``; other types unchanged."""
    inner = [t for t in typing.get_args(annotation) if t is not type(None)]
    optional = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return inner[0] if optional and len(inner) == 1 else annotation


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """What ``forward`` gets for an input that requests do not give: zeros, or bags without IDs.

    Attributes:
        width: Of a dense input; None for a sparse one.
        features: Of a sparse one.
        is_weighted: Whether it has weights.
    """

    width: int | None = None
    features: Sequence[str] = ()
    is_weighted: bool = False

    def made(self, num_rows: int) -> Tensor | KeyedJaggedTensor:
        """Return it for a batch."""
        if self.width is not None:
            return torch.zeros(num_rows, self.width)
        lengths = torch.zeros(num_rows * len(self.features), dtype=torch.int64)
        return RequestFeatures(
            list(self.features),
            lengths[:0],
            weights=lengths[:0].to(torch.float32) if self.is_weighted else None,
            lengths=lengths,
            stride=num_rows,
            length_per_key=[0] * len(self.features),
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user wants of a model's ``forward``.

    Attributes:
        kinds: Inputs that are taken although they have defaults or no annotation, and the kind of each.
        defaults: Inputs that are left at their defaults.
        without: Fields of batches that are None.
        outputs: The names of the outputs to keep; all if it is empty.
        absent: Inputs that requests do not give because no output that is kept descends from them.
        flat: Dense inputs that ``forward`` takes as ``[B]``; they are ``[B, 1]`` outside.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    defaults: Collection[str] = ()
    without: Collection[str] = ()
    outputs: Sequence[str] = ()
    absent: Mapping[str, StandIn] = field(default_factory=dict)
    flat: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class _Field:
    """A field of a batch, or a whole argument: the parameter, the field, the input's name and its kind."""

    parameter: str
    field: str | None
    name: str
    kind: str | None


def adapted(model: nn.Module, wanted: Wanted) -> nn.Module:
    """Return a model whose ``forward`` takes only tensors and KeyedJaggedTensors without defaults.

    Args:
        model: Any module, which is not changed; it is returned itself if its ``forward`` does so already.
        wanted: What the user wants of it.

    Raises:
        ExportError: An input has a default and nobody said whether it is taken, two inputs would have one name, or a
            name of ``wanted.outputs`` is unknown (when the model is called).
    """
    found = parameters(model, wanted.kinds)
    is_told = all(not p.is_untold or p.has_default for p in found)
    is_plain = is_told and all(p.batch is None and not (p.kind is not None and p.has_default) for p in found)
    is_foreign = any(p.kind is None and p.batch is None and not p.has_default for p in found)
    _check_defaults(found, wanted)
    if is_foreign or (is_plain and not wanted.outputs and not wanted.absent and not wanted.flat):
        return model
    taken = list(_inputs(found, wanted.kinds))
    names = [one.name for one in taken]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ExportError(f"forward: got {doubled[0]!r} as a field of two batches, expected different names")
    batches = {p.name: p.batch for p in found if p.batch is not None}
    taken = [one for one in taken if one.name not in wanted.without]

    def call(self: nn.Module, given: dict[str, Any]) -> Any:
        arguments: dict[str, Any] = {
            name: dict.fromkeys(p.fields) for p in found if (name := p.name) in batches
        }
        if wanted.absent:
            num_rows = _num_rows(next(iter(given.values())))
            given = {**given, **{name: absent.made(num_rows) for name, absent in wanted.absent.items()}}
        given = {name: one.squeeze(1) if name in wanted.flat else one for name, one in given.items()}
        for one in taken:
            if one.field is None:
                arguments[one.parameter] = given[one.name]
            else:
                arguments[one.parameter][one.field] = given[one.name]
        for name, batch in batches.items():
            arguments[name] = batch(**arguments[name])
        return _kept(type(model).forward(self, **arguments), wanted.outputs)

    return _with_forward(model, [one for one in taken if one.name not in wanted.absent], call)


def _num_rows(argument: Any) -> int:
    num_rows: int = argument.stride() if isinstance(argument, KeyedJaggedTensor) else argument.size(0)
    return num_rows


def _check_defaults(found: Sequence[Parameter], wanted: Wanted) -> None:
    with_default = {
        p.name: p
        for p in found
        if p.has_default and (p.kind is not None or p.batch is not None or p.is_untold)
    }
    unknown = sorted(set(wanted.defaults) - set(with_default))
    if unknown:
        raise ExportError(
            f"defaults: got {unknown}, expected inputs of forward that have one: {list(with_default)}"
        )
    open_ = [p for name, p in with_default.items() if name not in {*wanted.kinds, *wanted.defaults}]
    if open_:
        what, them = ("inputs", "their defaults") if len(open_) > 1 else ("an input", "its default")
        takes = {DENSE: "--dense-width {}=N", SPARSE: "--features {}=F1,F2"}
        takes_any = " or ".join(takes.values())
        make = "; ".join(takes.get(p.kind or "", takes_any).format(p.name, p.name) for p in open_)
        leave = " ".join(f"--default {p.name}" for p in open_)
        raise ExportError(
            f"forward({', '.join(p.name for p in open_)}): got {what} with a default, expected to know whether "
            f"requests give it: {make} makes it an input, {leave} leaves it at {them}"
        )


def batch_fields(model: nn.Module) -> set[str]:
    """Return the names of the inputs that are fields of a batch."""
    return {one.name for one in _inputs(parameters(model), ()) if one.field is not None}


def _inputs(found: Sequence[Parameter], named: Collection[str]) -> Iterator[_Field]:
    plain = {p.name for p in found if p.batch is None}
    for p in found:
        if p.batch is not None and not p.has_default:
            for part, kind in p.fields.items():
                if kind is not None:
                    name = f"{p.name}_{part}" if part in plain else part
                    yield _Field(parameter=p.name, field=part, name=name, kind=kind)
        elif not p.has_default or p.name in named:
            yield _Field(parameter=p.name, field=None, name=p.name, kind=p.kind)


def _with_forward(model: nn.Module, taken: Sequence[_Field], call: Any) -> nn.Module:
    """Return a copy of a model, with its modules, whose class has another ``forward``."""
    scope: dict[str, Any] = {"call": call, "Tensor": Tensor, "KeyedJaggedTensor": KeyedJaggedTensor}
    annotated = [
        f"{one.name}: {'None' if one.kind is None else 'KeyedJaggedTensor' if one.kind == SPARSE else 'Tensor'}"
        for one in taken
    ]
    given = ", ".join(f"{one.name!r}: {one.name}" for one in taken)
    exec(f"def forward(self, {', '.join(annotated)}):\n    return call(self, {{{given}}})\n", scope)
    new = shallow_copy(model)
    copies = Copies()
    copies.add(model, new)
    copies.refer_to_copies()
    new.__class__ = type(type(new).__name__, (type(new),), {"forward": scope["forward"]})
    return new


def _kept(outputs: Any, names: Sequence[str]) -> Any:
    if not names:
        return outputs
    found = dict(flat_outputs(outputs))
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ExportError(f"outputs: got {unknown[0]!r}, expected some of {', '.join(found)}")
    return {name: found[name] for name in names}


def flat_outputs(output: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return the outputs within an output by their names: keys and fields, joined by dots."""
    parts = parts_of(output, "" if name else "output_")
    if parts is None:
        yield name or DEFAULT_OUTPUT, output
        return
    for part, value in parts.items():
        yield from flat_outputs(value, f"{name}.{part}" if name else str(part))


def parts_of(output: Any, prefix: str = "output_") -> dict[Any, Any] | None:
    """Return what a container of outputs holds, by key or field; None for anything else, tensors among it.

    Args:
        output: What ``forward`` returned, or a part of it.
        prefix: Before the numbers of what has no names.
    """
    if isinstance(output, KeyedTensor):
        return dict(output.to_dict())
    if isinstance(output, dict):
        return dict(output)
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return dict(zip(output._fields, output, strict=True))
    if isinstance(output, (tuple, list)):
        return {f"{prefix}{i}": part for i, part in enumerate(output)}
    if is_dataclass(output) and not isinstance(output, type):
        return {f.name: getattr(output, f.name) for f in fields(output)}
    return None
