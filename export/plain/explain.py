"""What an export would make of a model: tables, inputs, outputs, and what stands in the way. Nothing is written.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from export.artifact.writing import make_graphs
from export.config import ExportConfig
from export.graph.tracing.source_location import source_locations
from export.plain.check import Converted
from export.plain.convert import Whole, converted, is_plain
from export.plain.plan import COMPUTED
from export.prepare import prepare
from export.source.torchrec_modules import patch_torchrec_names
from export.verify.float_model import check_independence, run_float_model
from export.verify.reference import float_model
from export.verify.samples import check_warm_up
from recsys.base.terminal import whole_table
from recsys.errors import ExportError
from recsys.inputs.signature import Signature, SparseInput


@dataclass(frozen=True, kw_only=True)
class ExplainedTable:
    """A weight that IDs read.

    Attributes:
        name: Its path in the model.
        rows: R.
        dim: D.
        stored: The names of the stored tables; none if it stays dense.
        why: Why it stays dense, or that the model computes its IDs.
    """

    name: str
    rows: int
    dim: int
    stored: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What an export would make of a model.

    Attributes:
        tables: The tables, and the weights that stay dense although IDs read them.
        inputs: By name what requests give.
        outputs: By name the shape of a row.
        problem: What stands in the way; empty if nothing does.
    """

    tables: tuple[ExplainedTable, ...]
    inputs: dict[str, str]
    outputs: dict[str, tuple[int, ...]]
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def explained(model: nn.Module, config: ExportConfig, whole: Whole | None = None) -> Explanation:
    """Return what an export would make of a model; nothing is written.

    Args:
        model: A model of plain PyTorch, or one that holds collections.
        config: The options.
        whole: What it is a part of.
    """
    found = Explanation(tables=(), inputs={}, outputs={})
    try:
        with patch_torchrec_names(model), source_locations():
            if is_plain(model, config.plain, whole):
                made = converted(model, config.plain, whole)
                found = replace(found, tables=_tables(made), inputs=_inputs(made))
                model = made.model
            prepared = prepare(model, config, lambda *_: None)
            trained = float_model(prepared)
            prepared, _ = run_float_model(prepared, trained)
            found = replace(
                found,
                tables=found.tables or _stored(prepared.weights),
                inputs=found.inputs or _of_signature(prepared.signature),
                outputs={one.name: one.shape for one in prepared.signature.outputs},
            )
            check_independence(prepared, trained)
            check_warm_up(prepared, trained)
            for target in prepared.stored.envs:
                make_graphs(prepared, target, is_scripted=config.is_scripted)
    except (ExportError, ValueError) as error:
        return replace(found, problem=str(error))
    return found


def _tables(made: Converted) -> tuple[ExplainedTable, ...]:
    plans = {id(plan.table): plan for plan in made.plans}
    found = []
    for table in made.tables:
        plan = plans.get(id(table))
        why = table.stays_dense
        if plan is not None and plan.kind == COMPUTED:
            why = "the model computes its IDs: they are checked in the graph"
        found.append(
            ExplainedTable(
                name=table.path,
                rows=table.weight.shape[0],
                dim=table.weight.shape[1],
                stored=() if plan is None else tuple(part.name for part in plan.parts),
                why=why,
            )
        )
    return tuple(found)


def _inputs(made: Converted) -> dict[str, str]:
    found = {}
    for feature in made.inputs.features:
        if feature.is_padded:
            said = f"up to {feature.num_ids} IDs, padded on the {feature.side} with {feature.padding}"
        else:
            said = _ids(feature.num_ids)
        found[feature.name] = said
    return {**found, **{one.name: _numbers(len(one.places)) for one in made.inputs.dense}}


def _of_signature(signature: Signature) -> dict[str, str]:
    def said(use: SparseInput) -> str:
        return "any number of IDs" if use.num_ids is None else _ids(use.num_ids)

    sparse = {use.name: said(use) for use in signature.sparse}
    return {**sparse, **{one.name: _numbers(one.width) for one in signature.dense}}


def _stored(weights: Mapping[str, Tensor]) -> tuple[ExplainedTable, ...]:
    return tuple(
        ExplainedTable(name=name, rows=weight.shape[0], dim=weight.shape[1], stored=(name,))
        for name, weight in weights.items()
    )


def _ids(count: int) -> str:
    return f"{count} ID{'s' if count > 1 else ''}"


def _numbers(count: int) -> str:
    return f"{count} number{'s' if count > 1 else ''}"


def print_explanation(found: Explanation, console: Console) -> None:
    """Print it for people."""
    tables = [
        (one.name, f"{one.rows:,}", str(one.dim), ", ".join(one.stored) or "dense", one.why)
        for one in found.tables
    ]
    outputs = [(name, str(list(shape)) if shape else "one number") for name, shape in found.outputs.items()]
    for title, columns, rows in (
        ("tables", ("weight", "rows", "dim", "stored as", ""), tables),
        ("inputs", ("input", "a row of a request"), list(found.inputs.items())),
        ("outputs", ("output", "a row"), outputs),
    ):
        if rows:
            console.print(whole_table(title, columns, rows, left={*range(len(columns))}))
    console.print(
        f"in the way: {found.problem}"
        if found.problem
        else "nothing stands in the way of its graphs; the export compares the artifact's answers with the model's too",
        markup=False,
    )
