"""The door: a plain model as one that the pipeline exports.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.graph.inputs.forward import DEFAULT_OUTPUT
from export.graph.modules.tree import replace_modules
from export.graph.tracing.tracer import LINE
from export.plain.features import Inputs, make_inputs
from export.plain.given import EXAMPLE_INPUTS, Given, example_of, given_inputs, module_of, with_rows
from export.plain.lookups import Table, find_tables
from export.plain.model import PlainModel, with_forward
from export.plain.moved import moved_nodes
from export.plain.options import PlainOptions
from export.plain.plan import Plan, plan_of
from export.plain.traced import outputs_of, traced
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import ExportError
from recsys.inputs.example_rows import EXAMPLE_ROWS, ExampleRows
from recsys.inputs.signature import Signature
from recsys.jagged.keyed_jagged import KeyedJaggedTensor

# Of the example inputs.
_MOST_ROWS = 256
_RANDOM = {
    "rand",
    "randn",
    "randint",
    "rand_like",
    "randn_like",
    "bernoulli",
    "multinomial",
    "normal",
    "uniform",
}
_RANDOM |= {"dropout", "randperm", "gumbel_softmax", "alpha_dropout", "exponential"}
# Relative to an output's largest number: sums in another order.
_TOLERANCE = 2.0**-14


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted model, and what was decided.

    Attributes:
        model: What the pipeline exports.
        given: The example inputs.
        inputs: The features and dense inputs.
        tables: What forward looks IDs up in.
        plans: How the tables among them are stored.
    """

    model: PlainModel
    given: Given
    inputs: Inputs
    tables: tuple[Table, ...]
    plans: tuple[Plan, ...]


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
    whole = whole or Whole(model=model)
    example = whole.example(options.inputs)
    if example is None:
        raise ExportError(_wanted(model, whole.factory))
    given = given_inputs(model, example, options.method)
    given = with_rows(given, torch.arange(max(2, min(given.num_rows, _MOST_ROWS))) % given.num_rows)
    expected = _predicted(model, given)
    plain = traced(model, given, options.outputs)
    moved = moved_nodes(plain)
    tables = find_tables(plain, moved, options.tables, options.dense)
    kept = [table for table in tables if not table.stays_dense]
    if not kept:
        why = "; ".join(f"{one.path!r} stays dense: {one.stays_dense}" for one in tables)
        raise ExportError(
            f"model: {type(model).__name__} looks no IDs of its inputs up{f' ({why})' if why else ''}, expected a "
            "table: a model without tables has nothing to quantize or to shard; torch.export and any server of plain "
            "models do for it"
        )
    inputs = make_inputs(plain, kept, moved, options.padding)
    plans = tuple(plan_of(table, inputs, moved) for table in kept)
    made = with_forward(PlainModel(plain, inputs, plans, moved))
    rows = inputs.request(given)
    setattr(made, EXAMPLE_ROWS, _Examples(num_rows=given.num_rows, dense={}, sparse={}, rows=rows))
    found = Converted(model=made, given=given, inputs=inputs, tables=tuple(tables), plans=plans)
    _check_same(found, rows, expected)
    return found


def _predicted(model: nn.Module, given: Given) -> Any:
    """Return what the model predicts for the example inputs.

    Raises:
        ExportError: It fails.
    """
    try:
        with torch.no_grad():
            return outputs_of(given.call(replace_modules(model, {})))
    except Exception as error:  # user code can raise anything
        shown = ", ".join(f"{leaf.name} {list(leaf.tensor.shape)} {leaf.dtype}" for leaf in given.leaves)
        raise ExportError(
            f"inputs: {type(model).__name__}.{given.method} failed on the example inputs ({shown}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_same(found: Converted, rows: Mapping[str, Any], expected: Any) -> None:
    """Check that the converted model predicts what the model does, for the example inputs."""
    dense = {name: torch.tensor(of) for name, of in rows["dense"].items()}
    bags: Mapping[str, list[list[int]]] = rows["sparse"]
    features = KeyedJaggedTensor(
        list(bags),
        torch.tensor([i for of in bags.values() for bag in of for i in bag], dtype=torch.int64),
        lengths=torch.tensor([len(bag) for of in bags.values() for bag in of], dtype=torch.int64),
    )
    copy: Any = replace_modules(found.model, {})
    with torch.no_grad():
        got = copy.run(dense, features)
    if not isinstance(expected, dict):
        expected, got = {DEFAULT_OUTPUT: expected}, {DEFAULT_OUTPUT: got}
    for name, one in expected.items():
        if name in got and isinstance(one, Tensor) and not _is_close(one, got[name]):
            drawn = _random_line(found)
            raise ExportError(
                f"output {name!r}: the exporter's graph of the model predicts other numbers for the "
                f"example inputs than the model{f', because of {drawn}' if drawn else ''}; expected a forward that "
                "draws no random numbers, such as functional.dropout without training=self.training, and keeps nothing "
                "between calls"
            )


def _random_line(found: Converted) -> str:
    """Return the line that draws random numbers; empty without one."""
    for node in found.model.recipe.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and name.rstrip("_") in _RANDOM and LINE in node.meta:
            return str(node.meta[LINE])
    return ""


def _is_close(expected: Tensor, got: Tensor) -> bool:
    finite = expected.double().nan_to_num(0.0, 0.0, 0.0)
    largest = float(finite.abs().max()) if expected.numel() else 0.0
    bound = _TOLERANCE * max(largest, 2.0**-10)
    return expected.shape == got.shape and torch.allclose(
        got.double(), expected.double(), rtol=0, atol=bound, equal_nan=True
    )


def _wanted(model: nn.Module, factory: str | None) -> str:
    where = module_of(factory or "") or type(model).__module__
    return (
        f"inputs: {type(model).__name__} is a model of plain PyTorch, whose inputs are known by an example, expected "
        f"a function in {where}: def {EXAMPLE_INPUTS}(): return (…what forward is called with, 8 real rows or more…), "
        "or --inputs FILE with the same as torch.save writes it"
    )
