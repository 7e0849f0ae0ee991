"""The formats of graphs side by side: size, time to load, time of a batch. Of the DLRM of ``benchmarks.models.dlrm``.

Shape letters: B batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from rich.table import Table

from benchmarks.measure.machine import prepare, wide_console
from benchmarks.models.dlrm import build, requests
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.compiled import ISAS, lacking_features
from recsys.artifact.load import LoadedArtifact, load_artifact, load_compiled_artifact
from recsys.artifact.parts import read_manifest
from recsys.artifact.targets import CompiledGraph
from recsys.kernels import operators
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds

Load = Callable[[], LoadedArtifact]


def main() -> None:
    """Export, load and call each format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=100_000, help="of each of the 26 tables (default: 100000)"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 128, 512])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--turn-seconds", type=float, default=0.3)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    machine = prepare()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        with torch.inference_mode(False):
            loads, sizes = _exported(Path(folder), arguments.rows)
        loading_s = _loading(loads, arguments.rounds)
        config = RoundsConfig(num_rounds=arguments.rounds, turn_s=arguments.turn_seconds, clock="cpu")
        calls_s = {size: _calls(loads, size, arguments.rows, config) for size in arguments.batch_sizes}
    _print(sizes, loading_s, calls_s)
    if arguments.json is not None:
        data = {"machine": asdict(machine), "sizes": sizes, "loading_s": loading_s, "calls_s": calls_s}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")


def _exported(folder: Path, num_rows: int) -> tuple[dict[str, Load], dict[str, int]]:
    """Return how each format is loaded, and the bytes of its graph."""
    model = build(num_rows)
    loads: dict[str, Load] = {}
    sizes: dict[str, int] = {}
    for isa in [isa for isa in ISAS if not lacking_features(isa)]:
        path = folder / isa
        export_model(model, path, ExportConfig(graph_format="both", pt2_isa=isa))
        target = read_manifest(path).targets[0]
        compiled: CompiledGraph | None = target.compiled
        assert compiled is not None
        assert target.skeleton is not None
        loads[f"pt2, {isa}"] = partial(
            load_compiled_artifact, path, verify_checksums=False, own_operators=False
        )
        sizes[f"pt2, {isa}"] = (path / compiled.package).stat().st_size
        sizes["TorchScript"] = (path / target.skeleton).stat().st_size
        sizes["ExportedProgram"] = (path / compiled.exported).stat().st_size
        loads["TorchScript"] = partial(load_artifact, path, verify_checksums=False, own_operators=False)
        if not operators.why_missing():
            loads["TorchScript, own operators"] = partial(load_artifact, path, verify_checksums=False)
            assert target.program is not None
            sizes["pt2, own operators"] = (path / target.program).stat().st_size
            loads["pt2, own operators"] = partial(load_compiled_artifact, path, verify_checksums=False)
    return loads, sizes


def _loading(loads: dict[str, Load], num_rounds: int) -> dict[str, float]:
    """Return the median processor time of a load, in a process that has loaded before."""
    seconds: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(num_rounds + 1):
        for name, load in loads.items():
            began = time.process_time()
            load()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def _calls(loads: dict[str, Load], batch_size: int, num_rows: int, config: RoundsConfig) -> dict[str, float]:
    """Return the median processor time of a call."""
    batches = [(r.dense, r.lengths, r.values) for r in requests(batch_size, num_rows)]
    loaded = {name: load() for name, load in loads.items()}
    found = run_rounds({name: Contestant(one.forward, batches) for name, one in loaded.items()}, config)
    return {name: timing.median_s for name, timing in found.items()}


def _print(sizes: dict[str, int], loading_s: dict[str, float], calls_s: dict[int, dict[str, float]]) -> None:
    table = Table(title="formats of graphs")
    for heading in ("format", "graph", "load", *(f"batch {size}" for size in calls_s)):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for name in ("TorchScript", *(name for name in loading_s if name != "TorchScript")):
        size = sizes.get(name, sizes["TorchScript"])
        cells = [f"{found[name] * 1e6:,.0f} µs" for found in calls_s.values()]
        table.add_row(name, f"{size / 1e6:.2f} MB", f"{loading_s[name] * 1e3:.1f} ms", *cells)
    wide_console().print(table)
    wide_console().print(f"The ExportedProgram beside it: {sizes['ExportedProgram'] / 1e6:.2f} MB.")


if __name__ == "__main__":
    main()
