"""What a steady stream of deltas costs requests: latencies of an open loop with and without it, in turns.

A machine's own work beside the server (its kernel's threads, its hypervisor) takes a processor away for some
milliseconds about once a second, which is where p99 lies. So there are many short turns of each, side by side, and the
median of their ratios is what counts. The first turns of each warm up the server and are not counted.
"""

from __future__ import annotations

import math
import statistics
import threading
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.measure.bars import Bar
from benchmarks.measure.processes import StepError, module, run_json, started
from benchmarks.measure.ratios import Ratio
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig
from recsys.artifact.delta.file import DeltaFile, DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import load_artifact
from recsys.artifact.manifest import Manifest
from recsys.rows.format import quantize_rows

MOST_SLOWER = 1.2
_DIM = 64
_NUM_TABLES = 8
_EVERY_S = 1.0
# The share of a closed loop's rate that is sent.
_SHARE_OF_RATE = 0.4


@dataclass(frozen=True, kw_only=True)
class DeltaCost:
    """What was measured, medians of the rounds.

    Attributes:
        rate: requests per second that were sent.
        p50_ms: without deltas.
        p99_ms: without deltas.
        p99_with_ms: with a delta each second.
        slower: the median of the rounds' ratios of both.
        slower_from: the lower end of its 90 % bootstrap interval.
        slower_to: the upper end.
        num_deltas: applied while requests ran.
        rows_per_delta: changed rows, over all tables.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    p99_with_ms: float
    slower: float
    slower_from: float
    slower_to: float
    num_deltas: int
    rows_per_delta: int


def bars_of(result: DeltaCost) -> list[Bar]:
    """Return the bars of what was measured."""
    return [Bar("p99 under deltas / without", MOST_SLOWER, result.slower, is_most=True)]


class _Deltas:
    """Lets a chain of deltas of random rows appear in a folder, one a second. A context manager.

    They are written before anything is measured, and then renamed: making and copying them is the work of another
    machine.
    """

    def __init__(self, artifact: Path, folder: Path, num_rows: int) -> None:
        loaded = load_artifact(artifact)
        self._manifest: Manifest = loaded.manifest
        self._artifact = self._state = loaded.digest
        self._folder, self._num_rows = folder, num_rows
        self._random = torch.Generator().manual_seed(0)
        self._stop = threading.Event()
        self._made: list[Path] = []
        self._thread = threading.Thread()
        self.num_published = 0

    def make(self, count: int) -> None:
        """Write deltas."""
        for _ in range(count):
            path = self._folder.with_name(f"made-{self._state}.delta")
            header = DeltaHeader(model=self._manifest.name, artifact=self._artifact, base=self._state)
            writer = DeltaWriter(path, header)
            for info in self._manifest.tables:
                size = info.table.num_embeddings
                numbers = torch.randint(size, (self._num_rows,), generator=self._random).unique()
                floats = torch.randn(len(numbers), _DIM, generator=self._random)
                writer.add(info.table, numbers, quantize_rows(floats, info.table.data_type))
            writer.finish()
            with DeltaFile(path) as file:
                self._state = file.digest
            self._made.append(path)

    def __enter__(self) -> _Deltas:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="deltas")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while self._made and not self._stop.wait(_EVERY_S):
            path = self._made.pop(0)
            path.rename(self._folder / path.name)
            self.num_published += 1


def measure_serving(folder: Path, num_rows: int, changed: int, rounds: int, seconds: float) -> DeltaCost:
    """Measure a native server that follows a folder.

    Args:
        folder: where the artifact and deltas go.
        num_rows: of each of eight tables.
        changed: rows of a table that a delta changes.
        rounds: turns of each, beside the first.
        seconds: of a turn.

    Raises:
        StepError: the server or a request failed.
    """
    artifact, deltas_folder = folder / "served.artifact", folder / "served-deltas"
    deltas_folder.mkdir(parents=True)
    names = [f"f{i}" for i in range(_NUM_TABLES)]
    export_model(
        EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name, num_embeddings=num_rows, embedding_dim=_DIM, feature_names=[name]
                )
                for name in names
            ]
        ),
        artifact,
    )
    options = ["--engine", "native", "--port", "0", "--json", "--deltas", str(deltas_folder)]
    with ExitStack() as stack:
        server = stack.enter_context(
            started(module("serve.app.cli", str(artifact), *options, "--poll-deltas-s", "0.2"))
        )
        deltas = _Deltas(artifact, deltas_folder, changed)

        def measured(*load: str) -> dict[str, float]:
            command = module("serve.bench", server.address, *load, "--duration-s", str(seconds), "--json")
            made = run_json(command, good_codes=(0, 1, 3))["measurement"]
            if made["num_failed"]:
                raise StepError(f"requests failed: {made['errors']}")
            return {**made["latency_ms"], "rate": made["requests_per_s"]}

        rate = _SHARE_OF_RATE * measured("--in-flight", "8")["rate"]
        deltas.make((rounds + 1) * math.ceil(seconds / _EVERY_S))
        alone: list[dict[str, float]] = []
        beside: list[dict[str, float]] = []
        for number in range(rounds + 1):
            for is_beside in (False, True) if number % 2 == 0 else (True, False):
                with deltas if is_beside else nullcontext():
                    found = measured("--rate", str(rate))
                if number:
                    (beside if is_beside else alone).append(found)
    slower = Ratio.of([one["p99"] for one in beside], [one["p99"] for one in alone])
    return DeltaCost(
        rate=rate,
        p50_ms=statistics.median(one["p50"] for one in alone),
        p99_ms=statistics.median(one["p99"] for one in alone),
        p99_with_ms=statistics.median(one["p99"] for one in beside),
        slower=slower.median,
        slower_from=slower.least,
        slower_to=slower.most,
        num_deltas=deltas.num_published,
        rows_per_delta=changed * _NUM_TABLES,
    )
