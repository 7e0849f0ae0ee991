"""Cost of a delta for a served model: preparation during lookups, and application while they wait.

The peer is the reload of the whole artifact, which is what an update costs without deltas. Each round reloads
the artifact, because the first write to a page of mapped rows is the expensive one.

Shape letters: R rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.rows.format import quantize_rows

_DIM = 64
T = TypeVar("T")
_EPILOG = """\
examples:
  python -m benchmarks.delta
  python -m benchmarks.delta --rows 100000 --changed 100,1000 --rounds 3 --json

Exit codes: 0 measured, 1 rows were not what the delta says, 2 bad usage.
"""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Medians over all rounds of one delta.

    Attributes:
        num_rows: changed rows, spread over the table at random.
        delta_bytes: size of the file.
        prepare_s: time to read and check it, during lookups.
        apply_s: time to write the rows, while lookups wait.
        revert_s: time to restore the old rows.
        reload_s: time to load the artifact and verify its checksums, in the same rounds.
    """

    num_rows: int
    delta_bytes: int
    prepare_s: float
    apply_s: float
    revert_s: float
    reload_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = make_parser("delta", __doc__, _EPILOG)
    parser.add_argument(
        "--rows", type=int, default=4_000_000, help="of an INT8 table of dim 64 (default: 4000000)"
    )
    parser.add_argument("--changed", default="1000,40000,400000", help="default: 1000,40000,400000")
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    return run(parser, argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    artifact = folder / "artifact"
    table = EmbeddingBagConfig(name="t", num_embeddings=args.rows, embedding_dim=_DIM, feature_names=["f"])
    export_model(EmbeddingBagCollection([table]), artifact)
    results = []
    for num_changed in map(int, args.changed.split(",")):
        delta = folder / f"{num_changed}.delta"
        _write(delta, load_artifact(artifact), num_changed)
        results.append(_measure(artifact, delta, num_changed, args.rounds))
    rows = [
        {
            "changed rows": f"{one.num_rows:,}",
            "file, MB": f"{one.delta_bytes / 1e6:.2f}",
            "prepare, ms": f"{one.prepare_s * 1e3:.2f}",
            "apply, ms": f"{one.apply_s * 1e3:.2f}",
            "million rows/s": f"{one.num_rows / one.apply_s / 1e6:.1f}",
            "revert, ms": f"{one.revert_s * 1e3:.2f}",
            "reload, ms": f"{one.reload_s * 1e3:.2f}",
            "reload / apply": f"{one.reload_s / one.apply_s:,.0f}",
        }
        for one in results
    ]
    return Measured(
        data={"results": [asdict(result) for result in results]},
        shown=[table_of(f"INT8, {args.rows:,} rows of dim {_DIM}", rows)],
    )


def _write(path: Path, artifact: LoadedArtifact, num_changed: int) -> None:
    """Write a delta of random rows at random places."""
    generator = torch.Generator().manual_seed(num_changed)
    table = artifact.manifest.tables[0].table
    numbers = torch.randperm(table.num_embeddings, generator=generator)[:num_changed].sort().values
    floats = torch.randn(num_changed, _DIM, generator=generator)
    header = DeltaHeader(model=artifact.manifest.name, artifact=artifact.digest, base=artifact.digest)
    writer = DeltaWriter(path, header)
    writer.add(table, numbers, quantize_rows(floats, table.data_type))
    writer.finish()


def _measure(artifact: Path, delta: Path, num_changed: int, num_rounds: int) -> Costs:
    """Return the medians.

    Raises:
        StepError: The rows of a round are wrong.
    """
    times: dict[str, list[float]] = {"reload_s": [], "prepare_s": [], "apply_s": [], "revert_s": []}

    def timed(name: str, call: Callable[..., T], *arguments: Any) -> T:
        started = time.perf_counter()
        result = call(*arguments)
        times[name].append(time.perf_counter() - started)
        return result

    for _ in range(num_rounds):
        loaded = timed("reload_s", load_artifact, artifact)
        prepared = timed("prepare_s", prepare, loaded.rows, delta)
        undo = timed("apply_s", apply, prepared)
        (change,) = prepared.changes
        is_new = torch.equal(change.target[change.places], change.rows)
        timed("revert_s", apply, undo)
        if not (is_new and torch.equal(change.target[change.places], change.replaced)):
            raise StepError("the rows are not those of the delta")
    return Costs(
        num_rows=num_changed,
        delta_bytes=delta.stat().st_size,
        **{name: median(found) for name, found in times.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
