"""What a ranking form computes once for each context, and what for each row.

Shape letters: B rows, L vectors, K what is summed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from torch import fx

from export.graph.tracing.tracer import LINE
from export.lower.bags import OfIds
from export.lower.formed import Contract
from export.lower.plan import Plan
from export.lower.values import Expand, Join, Linear, Products, Space, Value, View, Weight


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """What a layer computes.

    Attributes:
        layer: Its path; empty for the model's own ``forward``.
        once: Multiply-adds for each context.
        each_row: The same for each row.
    """

    layer: str
    once: int
    each_row: int


@dataclass(frozen=True, kw_only=True)
class SpacesReport:
    """What a ranking form computes in each of its spaces.

    Attributes:
        layers: In the order of the model's code.
        meetings: Where rows first meet what was computed of contexts: a function, and the line of the model's code.
        kept: What is computed for each row although it depends on contexts alone: where, and why.
    """

    layers: tuple[LayerWork, ...]
    meetings: tuple[str, ...]
    kept: tuple[str, ...]

    def shortened(self, most: int) -> tuple[LayerWork, ...]:
        """Return the layers, or those that they are parts of if they are more than ``most``."""
        layers = self.layers
        for depth in range(max([0, *(layer.layer.count(".") for layer in layers)]), -1, -1):
            if len(layers) <= most:
                break
            layers = _merged(layers, depth + 1)
        return layers

    @property
    def once(self) -> int:
        """Multiply-adds for each context."""
        return sum(layer.once for layer in self.layers)

    @property
    def each_row(self) -> int:
        """Multiply-adds for each row."""
        return sum(layer.each_row for layer in self.layers)


@dataclass(kw_only=True)
class Journal:
    """What is noted while a ranking form is evaluated.

    Attributes:
        begun: For each node, the number of the first value that was made for it.
        meetings: The nodes that read both rows and what is expanded from contexts.
        kept: The nodes that read contexts alone and are computed for each row, and why.
    """

    begun: list[tuple[int, fx.Node]] = field(default_factory=list)
    meetings: list[fx.Node] = field(default_factory=list)
    kept: list[tuple[fx.Node, str]] = field(default_factory=list)


def report_of(steps: Iterable[object], journal: Journal) -> SpacesReport:
    """Return the report of a ranking form.

    Args:
        steps: Those of its program.
        journal: What was noted while it was evaluated.
    """
    numbers = [number for number, _ in journal.begun]
    once: dict[str, int] = {}
    each_row: dict[str, int] = {}
    computed = [value for step in steps if isinstance(step, Plan) for value in step.values]
    for value in sorted(computed, key=lambda one: one.number):
        node = journal.begun[max(bisect_right(numbers, value.number) - 1, 0)][1]
        layer = _layer_of(node)
        of_space = once if value.space is Space.CONTEXTS else each_row
        once.setdefault(layer, 0)
        each_row.setdefault(layer, 0)
        of_space[layer] += _work_of(value)
    return SpacesReport(
        layers=tuple(
            LayerWork(layer=layer, once=once[layer], each_row=each_row[layer])
            for layer in once
            if once[layer] or each_row[layer]
        ),
        meetings=tuple(dict.fromkeys(map(_place_of, journal.meetings))),
        kept=tuple(dict.fromkeys(f"{_place_of(node)}: {why}" for node, why in journal.kept)),
    )


def _merged(layers: Sequence[LayerWork], depth: int) -> tuple[LayerWork, ...]:
    """Return layers whose paths have at most so many parts, each with all that it consists of."""
    merged: dict[str, LayerWork] = {}
    for layer in layers:
        path = ".".join(layer.layer.split(".")[:depth])
        known = merged.get(path, LayerWork(layer=path, once=0, each_row=0))
        merged[path] = replace(known, once=known.once + layer.once, each_row=known.each_row + layer.each_row)
    return tuple(merged.values())


def _work_of(value: Value) -> int:
    """Return about how many multiply-adds, or numbers moved, a value takes."""
    if isinstance(value, (View, Join, Weight, Expand)):
        return 0
    if isinstance(value, Linear):
        num_inputs = value.source.dims[-1] if value.source.dims else 1
        return value.width * num_inputs
    if isinstance(value, Contract):
        return prod(value.sizes)
    if isinstance(value, Products):
        return value.width * value.source.dims[-1]
    if isinstance(value, OfIds):
        size = value.dims[0] if value.dims else 1
        return value.width + size * _total(value.within)
    return value.width


def _total(values: Sequence[Value]) -> int:
    return sum(map(_work_of, values))


def _layer_of(node: fx.Node) -> str:
    paths = list(node.meta.get("nn_module_stack") or {})
    if node.op == "call_module":
        paths.append(str(node.target))
    return paths[-1].removeprefix("model.") if paths and paths[-1] != "model" else ""


def _place_of(node: fx.Node) -> str:
    """Return what a node calls, and where the model's code does."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    line = node.meta.get(LINE)
    return f"{name} ({line})" if line else name
