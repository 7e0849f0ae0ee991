"""What a converted plain model is, and whether it predicts what the model does.

Shape letters: B batch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isfunction, signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from export.graph.inputs.forward import DEFAULT_OUTPUT
from export.graph.modules import replace_modules
from export.graph.tracing.source_location import line_of_caller, place_of
from export.graph.tracing.tracer import LINE
from export.plain.exported import changed_buffer
from export.plain.features import Inputs, numbers_of
from export.plain.given import Given, with_rows
from export.plain.lookups import Table
from export.plain.model import PlainModel
from export.plain.plan import Plan
from export.plain.traced import PlainGraph, outputs_of
from recsys.errors import ExportError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor

# What methods that predict are called.
_PREDICTS = re.compile("^(predict|score|infer|rank|recommend)|_(predict|score)$")
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


def predicted(model: nn.Module, given: Given) -> Any:
    """Return what the model predicts for the example inputs.

    Raises:
        ExportError: It fails, or changes its weights.
    """
    try:
        with torch.no_grad(), _Guard(model):
            return outputs_of(given.call(replace_modules(model, {})))
    except ExportError:
        raise
    except Exception as error:  # user code can raise anything
        shown = ", ".join(f"{leaf.name} {list(leaf.tensor.shape)} {leaf.dtype}" for leaf in given.leaves)
        place = place_of(error)
        raise ExportError(
            f"inputs: {type(model).__name__}.{given.method} failed on the example inputs ({shown}): "
            f"{type(error).__name__}: {error}{f'. At {place}' if place else ''}. Nothing is traced yet: it fails in "
            f"plain PyTorch too, when eval() mode and torch.no_grad() call it with these inputs{_advice(model, given)}"
        ) from error


def _advice(model: nn.Module, given: Given) -> str:
    """Return which other methods take the example inputs and may be what predicts; empty without any."""
    takers = [name for name in _names_of_methods(type(model)) if _takes(getattr(model, name), given)]
    if given.method != "forward" or not takers:
        return ""
    options = " or ".join(f"--method {name}" for name in takers)
    return f". If another of its methods predicts: {options}"


def _names_of_methods(kind: type) -> list[str]:
    """Return the methods of a class whose names say that they predict, those that say so first."""
    names = {
        name: None
        for base in kind.__mro__
        if base is not nn.Module
        for name, one in vars(base).items()
        if isfunction(one)
    }
    return sorted((name for name in names if _PREDICTS.search(name)), key=lambda name: name != "predict")


def _takes(method: Any, given: Given) -> bool:
    try:
        signature(method).bind(*given.args, **given.kwargs)
    except TypeError:
        return False
    return True


class _Guard(TorchDispatchMode):
    """Refuses what a forward writes to the weights of its model, before it does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = [(name, one, one.data) for name, one in model.named_parameters()]
        self._names = {_memory(one): name for name, one, _ in self._held}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator.

        Raises:
            ExportError: It writes to a weight.
        """
        del types
        # max_norm is refused where the table is known.
        if func._schema.is_mutable and func is not torch.ops.aten.embedding_renorm_.default:
            given = {
                **dict(zip([one.name for one in func._schema.arguments], args, strict=False)),
                **(kwargs or {}),
            }
            for argument in func._schema.arguments:
                written = given.get(argument.name)
                if (
                    argument.alias_info is not None
                    and argument.alias_info.is_write
                    and isinstance(written, Tensor)
                ):
                    self._check(self._names.get(_memory(written)))
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        """End, and give weights back what ``weight.data = …`` has taken from them.

        Raises:
            ExportError: It has.
        """
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        moved = [name for name, one, before in self._held if one.data_ptr() != before.data_ptr()]
        for _, one, before in self._held:
            one.data = before
        if error[0] is None:
            self._check(moved[0] if moved else None)

    def _check(self, name: str | None) -> None:
        if name is not None:
            line = line_of_caller(sys._getframe(2))
            raise ExportError(
                f"model: forward changes the weight {name!r}{f' at {line}' if line else ''}, expected a forward that "
                "changes none, so that answers do not depend on the calls before: change it once in the factory, or "
                "only `if self.training`; or compute another tensor from it"
            )


def _memory(tensor: Tensor) -> int:
    is_held = tensor.layout is torch.strided and tensor.device.type != "meta"
    return tensor.untyped_storage().data_ptr() if is_held else id(tensor)


def problem_of(found: Converted, model: nn.Module, expected: Any) -> str:
    """Return what is wrong with a converted model on the example inputs; empty if nothing is.

    Args:
        found: It.
        model: The model.
        expected: What the model predicts.
    """
    problem = _wrong_id(found)
    if problem:
        return problem
    name = _different(found, found.given, expected)
    return f"output {name!r}: {_why_different(model, found)}" if name else ""


def _wrong_id(found: Converted) -> str:
    """Return what to say of an ID of the example that is no row of its table; empty without one."""
    numbers = numbers_of(found.given).long()
    for plan in found.plans:
        for segment in (one for segments in plan.segments.values() for one in segments):
            feature, num_rows = segment.feature, len(segment.part.weight)
            ids = numbers[:, list(feature.places)]
            wrong = (ids < 0) | (ids >= num_rows)
            if feature.is_padded:
                wrong &= ids != feature.padding
            if bool(wrong.any()):
                return (
                    f"inputs: {feature.name}: got ID {int(ids[wrong][0])}, expected IDs from 0 to {num_rows - 1}, the "
                    f"rows of {segment.part.name!r}: IDs that count from the table's end, or from elsewhere, must be "
                    "made so in forward, such as by ids % num_rows"
                )
    return ""


def _other_dtype(model: nn.Module) -> str:
    """Return what to say of a parameter that is no float32; empty without one."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            return f"got the parameter {name!r} in {str(parameter.dtype).removeprefix('torch.')}, expected float32"
    return ""


def _different(found: Converted, given: Given, expected: Any, *, with_shapes: bool = True) -> str:
    """Return the name of an output that the converted model predicts otherwise than the model; empty without one.

    Args:
        found: The converted model.
        given: Rows.
        expected: What the model predicts for them.
        with_shapes: Whether an output of another number of dimensions differs.
    """
    rows = found.inputs.request(given)
    dense = {name: torch.tensor(of) for name, of in rows["dense"].items()}
    bags: Mapping[str, list[list[int]]] = rows["sparse"]
    features = KeyedJaggedTensor(
        list(bags),
        torch.tensor([i for of in bags.values() for bag in of for i in bag], dtype=torch.int64),
        lengths=torch.tensor([len(bag) for of in bags.values() for bag in of], dtype=torch.int64),
    )
    copy: Any = replace_modules(found.model, {})
    try:
        with torch.no_grad():
            got = copy.run(dense, features)
    except Exception as error:  # torch's
        kind = _other_dtype(found.model)
        if kind:
            raise ExportError(f"model: {kind}: call .float() on it in the factory") from error
        raise ExportError(
            f"model: the exporter's graph of it failed on the example inputs: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}. At {place_of(error)}. No size may follow from what tensors hold, as those "
            "of torch.unique and torch.nonzero do"
        ) from error
    if not isinstance(expected, dict):
        expected, got = {DEFAULT_OUTPUT: expected}, {DEFAULT_OUTPUT: got}
    for name, one in expected.items():
        if name not in got or not isinstance(one, Tensor) or _is_close(one, got[name]):
            continue
        if with_shapes or one.dim() == got[name].dim():
            return str(name)
    return ""


def check_parts(found: Converted, model: nn.Module) -> None:
    """Check that the converted model predicts what the model does for a few rows of the example inputs, and for one.

    What the model does not take, such as one row where it squeezes, is left out.

    Raises:
        ExportError: It does not.
    """
    given, numbers = found.given, numbers_of(found.given)
    lengths = torch.zeros(given.num_rows)
    for one in found.inputs.features:
        lengths += (numbers[:, list(one.places)] != one.padding).sum(dim=1)
    order = lengths.argsort()
    for rows in (order[:2], order[:1], order[-1:]):
        part = with_rows(given, rows)
        try:
            expected = predicted(model, part)
        except ExportError:
            continue
        name = _different(found, part, expected, with_shapes=False)
        if name:
            raise ExportError(
                f"output {name!r}: {type(model).__name__} predicts other numbers for {len(rows)} of the example's rows "
                "than for the same among the others, expected numbers that follow from a row alone: a server puts "
                "batches together of the rows of any requests. Forward must not decide by the number of rows, such as "
                "`if x.size(0) == 1`, nor cut by the longest row of a batch, as pad_packed_sequence does without "
                "total_length"
            )


def _why_different(model: nn.Module, found: Converted) -> str:
    """Return what to say of a model whose graph predicts other numbers than it does."""
    said = "the exporter's graph of the model predicts other numbers for the example inputs than the model"
    copy = replace_modules(model, {})
    before = {name: one.clone() for name, one in copy.named_buffers()}
    with torch.no_grad():
        first, second = (outputs_of(found.given.call(copy)) for _ in range(2))
    for name, one in copy.named_buffers():
        if name in before and not torch.equal(one, before[name]):
            return f"{said}: {changed_buffer(name)}"
    if copy.training and not model.training:
        return f"{said}, because forward calls self.train(): expected it to stay as eval() has left it"
    kind = _other_dtype(model)
    if kind:
        return f"{said}; {kind}: call .float() on it in the factory"
    if _is_same(first, second):
        return (
            f"{said}, although two calls of it agree; expected no change in place that torch.fx and torch.export do "
            "not both see, such as x[:, 0] = … or x += … where another tensor is a view of x, and no decision by what "
            "Python keeps between calls"
        )
    drawn = _drawing_lines(found.model.recipe.plain)
    if not drawn:
        return f"{said}, and two calls of it differ; expected a forward that keeps nothing between calls"
    return (
        f"forward draws random numbers when it predicts, so two calls give different scores: {' and '.join(drawn)}. "
        "Dropout: F.dropout(x, p, training=self.training). A random start, as by torch.randn: draw it once in __init__ "
        "for one row, register_buffer it, and expand it to the batch; zeros may make equal what it makes differ"
    )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_is_same(part, other[name]) for name, part in one.items())
    return not isinstance(one, Tensor) or _is_close(one, other)


def _drawing_lines(plain: PlainGraph) -> list[str]:
    """Return the lines that draw random numbers, in the order of the graph."""
    drawing = _Drawing(plain)
    with torch.no_grad():
        drawing.run({name: tensor.clone() for name, tensor in plain.given.tensors.items()})
    return list(dict.fromkeys(drawing.lines))


class _Drawing(fx.Interpreter):
    """Runs a graph, and keeps the lines of the nodes that draw random numbers.

    Args:
        plain: The graph.

    Attributes:
        lines: These lines.
    """

    def __init__(self, plain: PlainGraph) -> None:
        super().__init__(plain.root, graph=plain.graph)
        self.lines: list[str] = []

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and see whether torch's generator is another then."""
        before = torch.get_rng_state()
        result = super().run_node(n)
        if LINE in n.meta and not torch.equal(before, torch.get_rng_state()):
            self.lines.append(str(n.meta[LINE]))
        return result


def _is_close(expected: Tensor, got: Tensor) -> bool:
    finite = expected.double().nan_to_num(0.0, 0.0, 0.0)
    largest = float(finite.abs().max()) if expected.numel() else 0.0
    bound = _TOLERANCE * max(largest, 2.0**-10)
    return expected.shape == got.shape and torch.allclose(
        got.double(), expected.double(), rtol=0, atol=bound, equal_nan=True
    )
