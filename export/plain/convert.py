"""The door: a plain model as one that the pipeline exports.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from export.config import PlainOptions
from export.graph.modules import replace_modules
from export.graph.tracing.source_location import explained
from export.plain.check import Converted, check_parts, predicted, problem_of
from export.plain.features import make_inputs
from export.plain.given import EXAMPLE_INPUTS, example_of, given_inputs, module_of, with_rows
from export.plain.lookups import computed_weight, find_tables
from export.plain.model import PlainModel, with_forward
from export.plain.moved import moved_nodes
from export.plain.plan import plan_of
from export.plain.recipe import Recipe
from export.plain.traced import PlainGraph, traced, traced_by_export
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import ExportError
from recsys.inputs.example_rows import EXAMPLE_ROWS, ExampleRows
from recsys.inputs.signature import Signature

# Of the example inputs.
_MOST_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class _Examples(ExampleRows):
    """The example inputs, as a request."""

    rows: Mapping[str, Any]
    origin = "example inputs"

    def request(self, signature: Signature) -> dict[str, Any] | None:
        """Return the rows as a request in JSON; None if a model with this signature takes other inputs."""
        wanted = {
            "dense": [one.name for one in signature.dense],
            "sparse": [one.name for one in signature.sparse],
        }
        if any(name not in self.rows[kind] for kind, names in wanted.items() for name in names):
            return None
        return {kind: {name: self.rows[kind][name] for name in names} for kind, names in wanted.items()}


def is_plain(model: nn.Module, options: PlainOptions, whole: Whole | None = None) -> bool:
    """Return whether a model holds no collections, but ``nn.Embedding``s, or has example inputs."""
    kinds = {type(module) for module in model.modules()}
    if any(issubclass(kind, (EmbeddingBagCollection, EmbeddingCollection)) for kind in kinds):
        return False
    if options.inputs is not None or any(issubclass(kind, (nn.Embedding, nn.EmbeddingBag)) for kind in kinds):
        return True
    return whole is not None and example_of(whole.model, whole.factory) is not None


def convert_plain(model: nn.Module, options: PlainOptions, whole: Whole | None = None) -> nn.Module:
    """Return a plain model as one that the pipeline exports, and any other as it is.

    Args:
        model: The model, which is not changed.
        options: What the user says.
        whole: What it is a part of.

    Raises:
        ExportError: It cannot be converted.
    """
    return converted(model, options, whole).model if is_plain(model, options, whole) else model


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What a model is a part of, and where its example inputs are.

    Attributes:
        model: The whole model.
        path: The path of the part; empty for the whole.
        factory: ``package.module:function`` that made it; None without one.
    """

    model: nn.Module
    path: str = ""
    factory: str | None = None

    def example(self, inputs: Any) -> Any:
        """Return the example inputs of the part.

        Args:
            inputs: Those of the whole; None for those that its factory's module or itself has.
        """
        found = inputs if inputs is not None else example_of(self.model, self.factory)
        if found is None or not self.path:
            return found
        return _inputs_of_part(self.model, self.path, found)


def _inputs_of_part(model: nn.Module, path: str, example: Any) -> Any:
    """Return what a part of a model is called with when the model runs.

    Raises:
        ExportError: It is not called.
    """
    calls: list[Any] = []
    copy = replace_modules(model, {})

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((*args, kwargs) if kwargs else args)

    copy.get_submodule(path).register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        given_inputs(model, example).call(copy)
    if not calls:
        raise ExportError(
            f"submodule: {path!r} is not called for the example inputs of {type(model).__name__}, expected a part that "
            "its forward calls"
        )
    return calls[0]


def converted(model: nn.Module, options: PlainOptions, whole: Whole | None = None) -> Converted:
    """Return a plain model as one that the pipeline exports.

    Args:
        model: The model, which is not changed.
        options: What the user says.
        whole: What it is a part of.

    Raises:
        ExportError: There are no example inputs, its code cannot be followed, or it has no tables.
    """
    try:
        return _checked(model, options, whole)
    except ExportError:
        raise
    except Exception as error:  # torch's and the model's, while parts of it run
        raise ExportError(f"model: {type(model).__name__} cannot be followed: {explained(error)}") from error


def _checked(model: nn.Module, options: PlainOptions, whole: Whole | None) -> Converted:
    """Return a converted model that predicts what the model does."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError(
            "model: got a module under TorchScript, expected the Python model that it was made of: it is read as Python"
        )
    whole = whole or Whole(model=model)
    example = whole.example(options.inputs)
    if example is None:
        raise ExportError(_wanted(model, whole.factory))
    given = given_inputs(model, example, options.method)
    given = with_rows(given, torch.arange(max(2, min(given.num_rows, _MOST_ROWS))) % given.num_rows)
    expected = predicted(model, given)
    plain = traced(model, given, options.outputs)
    found = _converted(model, plain, options)
    problem = problem_of(found, model, expected)
    if problem and not plain.is_exported:
        # Changes in place, which torch.fx does not always see.
        with suppress(Exception):  # torch's, and the model's
            plain = traced_by_export(model, given, options.outputs)
            again = _converted(model, plain, options)
            if not problem_of(again, model, expected):
                found, problem = again, ""
    if problem:
        raise ExportError(problem)
    check_parts(found, model)
    return found


def _converted(model: nn.Module, plain: PlainGraph, options: PlainOptions) -> Converted:
    """Return what a graph becomes.

    Raises:
        ExportError: It has no tables.
    """
    given = plain.given
    moved = moved_nodes(plain)
    tables = find_tables(plain, moved, options.tables, options.dense)
    kept = [table for table in tables if not table.stays_dense]
    if not kept:
        why = "; ".join(f"{one.path!r} stays dense: {one.stays_dense}" for one in tables) or computed_weight(
            plain
        )
        raise ExportError(
            f"model: {type(model).__name__} looks no IDs of its inputs up{f' ({why})' if why else ''}, expected a "
            "table: a model without tables has nothing to quantize or to shard; torch.export and any server of plain "
            "models do for it"
        )
    inputs = make_inputs(plain, tables, moved, options.padding)
    plans = tuple(plan_of(table, inputs, moved) for table in kept)
    made = with_forward(PlainModel(Recipe(plain, inputs, plans, moved, tables), plans))
    rows = inputs.request(given)
    setattr(made, EXAMPLE_ROWS, _Examples(num_rows=given.num_rows, dense={}, sparse={}, rows=rows))
    return Converted(model=made, given=given, inputs=inputs, tables=tuple(tables), plans=plans)


def _wanted(model: nn.Module, factory: str | None) -> str:
    where = module_of(factory or "") or type(model).__module__
    return (
        f"inputs: {type(model).__name__} is a model of plain PyTorch, whose inputs are known by an example, expected "
        f"a function in {where}: def {EXAMPLE_INPUTS}(): return (…what forward is called with, 8 real rows or more…), "
        "or --inputs FILE with the same as torch.save writes it"
    )
