"""Cost of making a delta: by touched rows, by comparing floats first, and with every row quantized twice.

One table, of which a training touched some rows. Each is one call of the exporter with mapped checkpoints, in this
process, one after the other. The three deltas must hold the same bytes.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from export.source.load import Source, load_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig
from recsys.artifact.delta.file import DeltaFile

_FACTORY = "benchmarks.touched:make"
# A delta by touched rows must cost at most this share of one with every row quantized.
_BAR = 1 / 50
_EPILOG = f"""\
examples:
  python -m benchmarks.touched --check
  python -m benchmarks.touched --rows 1000000 --touched 100 --json

Exit codes: 0 measured, 1 the deltas differ, 2 bad usage, {MISSED_TEXT}
"""


def make(rows: int, dim: int) -> nn.Module:
    """Return the model: one table."""
    table = EmbeddingBagConfig(name="t", num_embeddings=rows, embedding_dim=dim, feature_names=["f"])
    return EmbeddingBagCollection([table])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = make_parser("touched", __doc__, _EPILOG, has_bars=True)
    parser.add_argument("--rows", type=int, default=10_000_000, help="default: 10000000")
    parser.add_argument("--dim", type=int, default=16, help="default: 16")
    parser.add_argument("--touched", type=int, default=1000, help="default: 1000")
    return run(parser, argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    (folder / "first").mkdir()
    _costs(folder / "first", 10_000, args.dim, 10)  # first calls import and allocate
    found = _costs(folder, args.rows, args.dim, args.touched)
    every = found["every row"]
    share = found["touched"]["processor_s"] / every["processor_s"]
    rows = [
        {
            "rows that are read": name,
            "processor s": f"{cost['processor_s']:.3f}",
            "wall s": f"{cost['wall_s']:.3f}",
            "every row / this": f"{every['processor_s'] / cost['processor_s']:.0f}",
        }
        for name, cost in found.items()
    ]
    title = f"{args.touched:,} of {args.rows:,} rows of dim {args.dim}, INT8"
    what = "processor time of touched rows, as a share of that of every row"
    return Measured(
        data={"results": found}, shown=[table_of(title, rows)], bars=[Bar(what, _BAR, share, is_most=True)]
    )


def _costs(folder: Path, rows: int, dim: int, num_touched: int) -> dict[str, dict[str, float]]:
    """Return the costs of each way.

    Raises:
        StepError: The deltas differ.
    """
    model = make(rows, dim)
    weight = model.get_parameter("embedding_bags.t.weight")
    torch.save(model.state_dict(), folder / "old.pt")
    export_model(model, folder / "artifact")
    generator = torch.Generator().manual_seed(0)
    touched = torch.randperm(rows, generator=generator)[:num_touched].sort().values
    with torch.no_grad():
        weight[touched] += 0.1 * torch.randn(num_touched, dim, generator=generator)
    torch.save(model.state_dict(), folder / "new.pt")
    del model, weight
    ways: dict[str, dict[str, Any]] = {
        "touched": {"touched": {"t": touched}},
        "all floats": {},
        "every row": {"check_all": True},
    }
    found, digests = {}, set()
    for name, options in ways.items():
        out = folder / f"{name}.delta"
        started, used = time.perf_counter(), time.process_time()
        old, new = (
            load_model(
                Source(path=folder / f"{one}.pt", factory=_FACTORY, arguments={"rows": rows, "dim": dim})
            )
            for one in ("old", "new")
        )
        export_delta(old, new, out, DeltaConfig(artifact=folder / "artifact", **options))
        found[name] = {
            "processor_s": time.process_time() - used,
            "wall_s": time.perf_counter() - started,
        }
        with DeltaFile(out) as file:
            digests.add(tuple(table.rows.sha256 + table.numbers.sha256 for table in file.header.tables))
    if len(digests) > 1:
        raise StepError("the deltas differ")
    return found


if __name__ == "__main__":
    sys.exit(main())
