"""A DLRM on a GPU: lookups ÷ bandwidth of its memory, how often a batch waits, latency with CUDA graphs and without.

Shape letters: B batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.gpu import (
    Bandwidth,
    Latency,
    LookupShape,
    bandwidth,
    latencies,
    lookup_rate,
    num_synchronizations,
)
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import EMBEDDING_DIM, NUM_TABLES, add_options, build, requests
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.cuda.graphs import CudaGraphOptions
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.base.cli import count
from recsys.sharding.plan.env import num_cuda_devices

_DESCRIPTION = """\
An exported DLRM (13-512-256-64, 26 INT8 tables of width 64, 512-256-1) on the first CUDA device: the bytes per second
that lookups of random rows need, as a share of the memory's bandwidth, which is measured in the same run; how often a
batch waits for the device; and the latency of calls, from inputs in host memory to outputs there, with CUDA graphs and
without.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.gpu
  python -m benchmarks.gpu --json --check

exit codes: 0 measured, 1 no CUDA device or the measurement failed, 2 bad usage, {MISSED_TEXT}
"""
_TARGET = "cuda:0"
_BATCH_SIZES = (1, 8, 32, 128, 512)
_NUM_ROUNDS = 21
_PLAIN, _RECORDED = "forward", "CUDA graphs"
# Batch size and IDs of each bag: many bags, and long ones.
_LOOKUPS = ((512, 20), (4096, 20), (65536, 1))
_LOOKUP_BAR = 0.5
_NUM_CALLS = 64


@dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements.

    Attributes:
        gpu: the device's name.
        memory: bandwidth of the device's memory.
        lookups: for each shape the bytes per second that lookups need.
        waits: how often a batch waits for the device, by contestant.
        latencies: by batch size and contestant.
    """

    gpu: str
    memory: Bandwidth
    lookups: dict[LookupShape, float]
    waits: dict[str, int]
    latencies: dict[int, dict[str, Latency]]

    @property
    def bars(self) -> list[Bar]:
        """The bars."""
        best = max(self.lookups.values()) / self.memory.best
        found = [Bar("INT8 lookups ÷ bandwidth of the memory", _LOOKUP_BAR, best)]
        found += [
            Bar(f"{name}: waits of a batch", 1, waits, is_most=True) for name, waits in self.waits.items()
        ]
        for batch_size, by_name in self.latencies.items():
            ratio = by_name[_PLAIN].p50_us / by_name[_RECORDED].p50_us
            found.append(Bar(f"batch {batch_size}, p50: forward ÷ CUDA graphs", 1.0, ratio))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "gpu": self.gpu,
            "memory": self.memory.to_json(),
            "lookups": [
                {**asdict(shape), "bytes_per_s": rate, "of_memory": rate / self.memory.best}
                for shape, rate in self.lookups.items()
            ],
            "waits": self.waits,
            "latencies": [
                {"batch_size": batch_size, "contestant": name, **asdict(latency)}
                for batch_size, by_name in self.latencies.items()
                for name, latency in by_name.items()
            ],
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {OSError: 1, RuntimeError: 1})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    if not num_cuda_devices():
        raise StepError("devices: got no CUDA device, expected one: run it where there is a GPU")
    report = _measure(args, folder)
    return Measured(data=report.to_json(), shown=_shown(report), bars=report.bars)


def _measure(args: argparse.Namespace, folder: Path) -> Report:
    device = torch.device(_TARGET)
    num_rounds = args.rounds or (2 if args.quick else _NUM_ROUNDS)
    num_rows = args.rows or (1_000 if args.quick else 100_000)
    batch_sizes = args.batch_sizes or _BATCH_SIZES
    memory = bandwidth(device, num_rounds)
    shapes = [
        LookupShape(
            batch_size=batch_size,
            num_ids=num_ids,
            num_tables=NUM_TABLES,
            num_rows=args.lookup_rows or (10_000 if args.quick else 1_000_000),
            dim=EMBEDDING_DIM,
        )
        for batch_size, num_ids in _LOOKUPS
    ]
    lookups = {shape: lookup_rate(shape, device, num_rounds) for shape in shapes}
    artifacts = _artifacts(folder / "a", num_rows, batch_sizes)
    found = {}
    for batch_size in batch_sizes:
        batches = [(r.dense, r.lengths, r.values) for r in requests(batch_size, num_rows)[:_NUM_CALLS]]
        calls = {name: artifact.forward for name, artifact in artifacts.items()}
        found[batch_size] = latencies(calls, batches, num_rounds)
    one = requests(batch_sizes[0], num_rows)[0]
    waits = {
        name: num_synchronizations(partial(artifact.forward, one.dense, one.lengths, one.values))
        for name, artifact in artifacts.items()
    }
    return Report(
        gpu=torch.cuda.get_device_name(device),
        memory=memory,
        lookups=lookups,
        waits=waits,
        latencies=found,
    )


def _artifacts(path: Path, num_rows: int, batch_sizes: Sequence[int]) -> dict[str, LoadedArtifact]:
    export_model(build(num_rows), path, ExportConfig(targets=((_TARGET,),)))
    options = CudaGraphOptions(rows=tuple(batch_sizes), ids_per_row=NUM_TABLES)
    return {_PLAIN: load_artifact(path), _RECORDED: load_artifact(path, cuda_graphs=options)}


def _shown(report: Report) -> list[str | Table]:
    memory = report.memory
    lookups = [
        {
            "batch": str(shape.batch_size),
            "IDs of a bag": str(shape.num_ids),
            "tables": str(shape.num_tables),
            "GB/s needed": f"{rate / 1e9:,.0f}",
            "of the memory's": f"{rate / memory.best:.0%}",
        }
        for shape, rate in report.lookups.items()
    ]
    calls = [
        {
            "batch": str(batch_size),
            "contestant": name,
            "p50 µs": f"{latency.p50_us:,.0f}",
            "p99 µs": f"{latency.p99_us:,.0f}",
        }
        for batch_size, by_name in report.latencies.items()
        for name, latency in by_name.items()
    ]
    return [
        f"{report.gpu}; memory: {memory.copied / 1e9:,.0f} GB/s copied, {memory.read / 1e9:,.0f} GB/s read",
        table_of("INT8 lookups of random rows", lookups),
        table_of("calls, one after the other", calls, texts=("contestant",)),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("gpu", _DESCRIPTION, _EPILOG, has_bars=True)
    add_options(parser, _BATCH_SIZES, _NUM_ROUNDS)
    parser.add_argument(
        "--lookup-rows", type=count, metavar="R", help="rows of each table of the lookups (default 1000000)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
