"""The report of an export, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleRenderable
from rich.table import Table

from export.graph.prepared import PreparedModel
from export.lower.spaces.report import SpacesReport
from export.verify.compare import Checked, Difference
from export.verify.linear_dtypes import LinearTrial
from recsys.artifact.manifest import TableInfo
from recsys.base.terminal import size_text, whole_table
from recsys.kernels.operators import StepCounts
from recsys.rows.quantize import QuantizationError


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """One table.

    Attributes:
        bytes_before: Size as float numbers.
        bytes_after: Size as stored rows.
        sqnr_db: Signal to quantization noise in dB; None if nothing was lost.
        placement: For each target, the sharding type and the ranks.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    data_type: str
    bytes_before: int
    bytes_after: int
    sqnr_db: float | None
    max_abs_error: float
    placement: dict[str, str]


# With more of them, layers are shown by what they are parts of.
_MOST_LAYERS = 20


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """One export.

    Attributes:
        path: The artifact.
        name: The model's name on the wire.
        tables: In the order of their rows.
        differences: For each target and output, the artifact against the float model.
        checked: For each target and output, the artifact against the float model's layers on the stored rows, with the
            bound that the verification passed: of all formats and the program the largest in proportion to its bound;
            without integers, which are equal.
        ranking_differences: The ranking form against the plain form of the expanded batch; empty without a context.
        verified_on: The device on which each target was verified.
        steps: By target, how many steps its program has, which the native kernels run here; empty without these.
        without_program: Why there is no program; empty if there is one.
        spaces: What its ranking form computes for contexts and what for rows; None without.
        num_samples: Rows that were compared.
        samples: In words where they come from.
        hardly_varying: The outputs that are so equal for all of them that their differences prove nothing.
        linear_dtypes: What each type of linear layers gives, where the export has chosen it; else empty.
        peak_rss_bytes: The process's largest resident set so far.
        seconds: The duration of the whole export.
        notes: What was done that nobody asked for, such as by which rule weights were found.
    """

    path: str
    name: str
    tables: tuple[TableReport, ...]
    differences: dict[str, dict[str, Difference]]
    checked: dict[str, dict[str, Checked]]
    ranking_differences: dict[str, dict[str, Difference]]
    verified_on: dict[str, str]
    steps: dict[str, StepCounts]
    without_program: str
    spaces: SpacesReport | None
    num_samples: int
    samples: str
    hardly_varying: tuple[str, ...]
    linear_dtypes: tuple[LinearTrial, ...]
    artifact_bytes: int
    peak_rss_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def table_reports(
    prepared: PreparedModel, tables: Sequence[TableInfo], errors: Mapping[str, QuantizationError]
) -> tuple[TableReport, ...]:
    """Return the reports of the tables.

    Args:
        prepared: The model.
        tables: Those of the manifest, in the order of their rows.
        errors: What quantization lost, by table.
    """
    weights = prepared.weights
    placements: dict[str, dict[str, str]] = {name: {} for name in prepared.stored.stored}
    for target, plan in prepared.stored.plans.items():
        for path, group in plan.plan.items():
            for name, sharding in group.items():
                ranks = ",".join(str(rank) for rank in dict.fromkeys(sharding.ranks))
                kind = sharding.sharding_type.replace("_", "-")
                placements[prepared.stored.paths[path][name]][target] = f"{kind} {ranks}"
    return tuple(
        TableReport(
            name=name,
            num_embeddings=info.table.num_embeddings,
            embedding_dim=info.table.embedding_dim,
            data_type=info.table.data_type.value,
            bytes_before=weights[name].numel() * weights[name].element_size(),
            bytes_after=prepared.stored.layout.table_bytes[name],
            sqnr_db=info.sqnr_db,
            max_abs_error=errors[name].max_abs,
            placement=placements[name],
        )
        for info in tables
        for name in [info.table.name]
    )


def print_report(report: ExportReport, console: Console) -> None:
    """Print the report as tables that do not wrap numbers on a narrow terminal."""
    last_names = [table.name.rsplit(".", 1)[-1] for table in report.tables]
    names = [
        last_name if last_names.count(last_name) == 1 else table.name
        for table, last_name in zip(report.tables, last_names, strict=True)
    ]
    rows = [
        (
            name,
            f"{table.num_embeddings:,}",
            str(table.embedding_dim),
            table.data_type,
            size_text(table.bytes_before),
            size_text(table.bytes_after),
            "lossless" if table.sqnr_db is None else f"{table.sqnr_db:.1f} dB",
            f"{table.max_abs_error:.2g}",
        )
        for name, table in zip(names, report.tables, strict=True)
    ]
    before = sum(table.bytes_before for table in report.tables)
    after = sum(table.bytes_after for table in report.tables)
    rows.append(("all", "", "", "", size_text(before), size_text(after), "", ""))
    headings = ("table", "rows", "dim", "type", "before", "after", "SQNR", "max error")
    console.print(whole_table("tables", headings, rows, left=(0, 3)))
    targets = list(report.differences)
    placement = [
        (name, *(table.placement[target] for target in targets))
        for name, table in zip(names, report.tables, strict=True)
    ]
    console.print(
        whole_table("shards and their ranks", ("table", *targets), placement, left=range(1 + len(targets)))
    )
    console.print(_compared("artifact against the float model", report.differences, report.verified_on))
    for target, outputs in report.checked.items():
        for output, checked in outputs.items():
            console.print(
                f"verified {output} on {target}: largest difference {checked.max_abs:.3g} from the model on the stored "
                f"rows (bound {checked.bound:.3g}): passed",
                soft_wrap=True,
            )
    console.print(
        "verified lookups: stored rows against the float tables, within what their scales imply: passed"
    )
    if report.ranking_differences:
        title = "ranking form against the plain form"
        console.print(_compared(title, report.ranking_differences, report.verified_on))
    if report.linear_dtypes:
        console.print(_linear_table(report.linear_dtypes))
    for target, steps in report.steps.items():
        console.print(
            f"program on {target}: {steps.num_steps} steps, with {steps.num_linear} linear layers, {steps.num_dot} "
            f"interactions, {steps.num_lookup} lookups",
            soft_wrap=True,
        )
    if report.without_program:
        console.print(f"no program: {report.without_program}", soft_wrap=True)
    if report.spaces is not None:
        _print_spaces(report.spaces, console)
    if report.hardly_varying:
        console.print(
            f"outputs {list(report.hardly_varying)} hardly vary over these rows: their differences prove nothing",
            style="bold",
            soft_wrap=True,
        )
    for note in report.notes:
        console.print(note, soft_wrap=True)
    console.print(
        f"verified on {report.samples}; {report.seconds:.1f} s, peak RSS "
        f"{size_text(report.peak_rss_bytes)}; wrote {size_text(report.artifact_bytes)}"
    )
    console.print(f"model {report.name!r}, as requests and servers name it", soft_wrap=True)
    console.print(report.path, style="bold", soft_wrap=True)


def _print_spaces(spaces: SpacesReport, console: Console) -> None:
    """Print what is computed once for each context, and what for each row."""
    rows = [
        (layer.layer or "forward", f"{layer.once:,}", f"{layer.each_row:,}")
        for layer in spaces.shortened(_MOST_LAYERS)
    ]
    rows.append(("all", f"{spaces.once:,}", f"{spaces.each_row:,}"))
    headings = ("multiply-adds of", "once per context", "for each row")
    console.print(whole_table("ranking form", headings, rows, left=(0,)))
    for meeting in spaces.meetings:
        console.print(f"rows meet the context in {meeting}", soft_wrap=True)
    for kept in spaces.kept:
        console.print(f"computed for each row, although the context alone decides it: {kept}", soft_wrap=True)


def _linear_table(trials: Sequence[LinearTrial]) -> ConsoleRenderable:
    labels = list(trials[0].auc)
    headings = ("type", "µs per row", "max difference", *(f"AUC {label}" for label in labels), "")
    rows = [
        (
            trial.dtype,
            f"{trial.us_per_row:.2f}",
            f"{trial.max_difference:.2g}",
            *(f"{trial.auc[label]:.5f}" for label in labels),
            _note(trial),
        )
        for trial in trials
    ]
    return whole_table("types of linear layers, against float32", headings, rows, left=(0, len(headings) - 1))


def _note(trial: LinearTrial) -> str:
    if trial.multiplies_in != trial.dtype:
        return f"multiplies in {trial.multiplies_in} on this processor"
    return "chosen" if trial.is_chosen else "" if trial.is_within else "beyond the bound"


def _compared(
    title: str, differences: dict[str, dict[str, Difference]], verified_on: dict[str, str]
) -> Table:
    outputs = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("target", "output", "max difference", "mean difference", "verified on"):
        outputs.add_column(name, justify="right" if "difference" in name else "left")
    for target, found in differences.items():
        for output, difference in found.items():
            outputs.add_row(
                target,
                output,
                f"{difference.max_abs:.3g}",
                f"{difference.mean_abs:.3g}",
                verified_on[target],
            )
    return outputs
