"""The share of the machine's limits that an exported DLRM reaches: lookups, linear layers, and the whole batch.

Shape letters: B batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import add_options, build, export_and_load
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.kernels import operators
from recsys.models.click import ClickModel
from serve.profiler.batches import Shape, draw, grouped, num_batches
from serve.profiler.limits import ROWS_OF_CALL, Limits, gather_ways
from serve.profiler.report.texts import limit_rows, percent, time_text
from serve.profiler.result import Profile, SizeProfile, linear_layers, lookups
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds
from serve.profiler.run import Options, measure

_DESCRIPTION = """\
The share of the machine's limits that an exported DLRM (13-512-256-64, 26 tables of width 64, 512-256-1) reaches: rows
gathered, and products of the linear layers' type. Limits and the steps of programs are measured in turns in one
process; one intra-op thread, one ID per feature. The lookups of a batch are compared with reads of the very same rows,
which a probe in C++ touches and does nothing with: by themselves, as the probe is, and within the batch, where linear
layers before them have fetched many of the rows. recsys-profile measures any artifact so, within batches.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.limits
  python -m benchmarks.limits --batch-sizes 128 --json
  python -m benchmarks.limits --check

exit codes: 0 measured, 2 bad usage, {MISSED_TEXT}
"""
_BATCH_SIZES = (128, 512)
_NUM_ROUNDS = 11
#: The share of the gather limit that own lookups should reach.
_LOOKUP_BAR = 0.8


@dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements.

    Attributes:
        num_table_rows: Rows of each table.
        profiles: By variant, as ``benchmarks.models.dlrm.export_and_load`` names it.
        lookups_alone: By batch size, the share of the gather limit that own lookups reach by themselves; empty without
            native kernels.
    """

    num_table_rows: int
    profiles: dict[str, Profile]
    lookups_alone: dict[int, float]

    @property
    def bars(self) -> list[Bar]:
        """The bars of the own lookups, by themselves and within each batch."""
        alone = [
            Bar(f"batch {size}, own lookups by themselves ÷ gather limit", _LOOKUP_BAR, reached)
            for size, reached in self.lookups_alone.items()
        ]
        return alone + [
            Bar(f"batch {size.batch_size}, {name}: lookups ÷ gather limit", _LOOKUP_BAR, reached)
            for name, profile in self.profiles.items()
            if name.startswith("own")
            for size in profile.sizes
            if (reached := lookup_share(size)) is not None
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "num_table_rows": self.num_table_rows,
            "limits": next(iter(self.profiles.values())).limits.to_json(),
            "results": [
                {
                    "variant": name,
                    "batch_size": size.batch_size,
                    "us": size.us,
                    "lookup": lookup_share(size),
                    "linear": linear_share(size),
                    "all": least_us(size) / size.us,
                }
                for name, profile in self.profiles.items()
                for size in profile.sizes
            ],
            "lookups_alone": {str(size): share for size, share in self.lookups_alone.items()},
        }


def lookup_share(size: SizeProfile) -> float | None:
    """Return the share of the gather limit that lookups reach."""
    row = lookups(size.operators)
    return None if row is None else row.of_limit


def linear_share(size: SizeProfile) -> float | None:
    """Return the share of the limit of products and reads that linear layers reach."""
    row = linear_layers(size.operators)
    return None if row is None else row.of_limit


def least_us(size: SizeProfile) -> float:
    """Return the time that the limits leave for all operators of a batch."""
    return sum(row.least_us or 0.0 for row in size.operators)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {OSError: 2})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    report = _measure(args, folder)
    return Measured(data=report.to_json(), shown=_shown(report), bars=report.bars)


def _measure(args: argparse.Namespace, folder: Path) -> Report:
    num_rows = args.rows or (1_000 if args.quick else 100_000)
    model = build(num_rows)
    artifacts = export_and_load(model, folder)
    rounds = RoundsConfig(
        num_rounds=args.rounds or (1 if args.quick else _NUM_ROUNDS),
        turn_s=0.002 if args.quick else 0.05,
        clock="cpu",
        num_warm_up_calls=2 if args.quick else 20,
    )
    sizes = args.batch_sizes or _BATCH_SIZES
    profiles: dict[str, Profile] = {}
    limits: Limits | None = None
    for name, artifact in track(
        artifacts.items(), "variants", disable=not sys.stderr.isatty(), transient=True
    ):
        options = Options(
            artifact=folder / name.replace(" ", "-"),
            mix={size: 1 / len(sizes) for size in sizes},
            scripted=not name.startswith("own"),
            rounds=rounds,
        )
        profiles[name] = measure(artifact, options, limits=limits)
        limits = profiles[name].limits
    alone = {}
    if not operators.why_missing():
        tables = _export_lookups(model, folder / "lookups")
        alone = {size: _lookups_alone(tables, size, rounds) for size in sizes}
    return Report(num_table_rows=num_rows, profiles=profiles, lookups_alone=alone)


class _Lookups(nn.Module):
    """The lookups of a model: ``[B, sum of the widths]``."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        values: Tensor = self.tables(features).values()
        return {"vectors": values}


def _export_lookups(model: ClickModel, folder: Path) -> LoadedArtifact:
    """Return an artifact whose program looks up the rows of the model, and does nothing with them."""
    (tables,) = (module for module in model.modules() if isinstance(module, EmbeddingBagCollection))
    export_model(_Lookups(tables), folder, ExportConfig())
    return load_artifact(folder)


def _lookups_alone(artifact: LoadedArtifact, batch_size: int, rounds: RoundsConfig) -> float:
    """Return the share of the gather limit that own lookups reach in turns with the probe."""
    drawn = draw(artifact.manifest, batch_size, Shape(), np.random.default_rng(0), num_batches(batch_size))
    groups = grouped([batch.reads for batch in drawn], ROWS_OF_CALL)
    contestants = {
        "lookup": Contestant(artifact.graphs.calls[0], [batch.inputs for batch in drawn]),
        **gather_ways(artifact.rows.ranks[0].rows, groups),
    }
    with torch.inference_mode():
        timings = run_rounds(contestants, rounds)
    looked_up = drawn[0].reads.num_rows / timings.pop("lookup").median_s
    read = sum(each.num_rows for each in groups) / len(groups)
    return looked_up * min(timing.median_s for timing in timings.values()) / read


def _shown(report: Report) -> list[str | Table]:
    limits = [
        dict(zip(("limit", "rate", "bytes", "how"), row, strict=True))
        for row in limit_rows(next(iter(report.profiles.values())))
    ]
    shares = [
        {
            "batch": str(size.batch_size),
            "variant": name,
            "µs": time_text(size.us),
            "lookups": percent(lookup_share(size)),
            "linear layers": percent(linear_share(size)),
            "all": percent(least_us(size) / size.us),
        }
        for name, profile in report.profiles.items()
        for size in profile.sizes
    ]
    return [
        f"26 tables of {report.num_table_rows:,} rows, dim 64, INT8; one ID per feature; processor time",
        table_of("limits of one thread", limits, texts=("limit", "how")),
        table_of("share of the limits", shares, texts=("variant",)),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("limits", _DESCRIPTION, _EPILOG, has_bars=True)
    add_options(parser, _BATCH_SIZES, _NUM_ROUNDS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
