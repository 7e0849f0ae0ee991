"""The steps of ``benchmarks.rows`` that need a fresh process each; run by it, one JSON object a line.

Shape letters: B batch, R rows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.measure.cgroup import limited_memory
from benchmarks.measure.machine import prepare
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.configs import DataType
from recsys.rows.memory import RowsMemory
from serve.profiler.rounds import CLOCKS

NUM_TABLES = 26
DIM = 64
#: Bytes of a stored INT8 row.
ROW_BYTES = DIM + 4
BATCH_SIZE = 128
_NUM_BATCHES = 200
# linux/prctl.h
_PR_SET_THP_DISABLE = 41
# Odd, so that multiplying by it modulo 2^63 spreads the frequent IDs over a table.
_SPREAD = 2654435761


def main(argv: list[str] | None = None) -> None:
    """``export``, ``turns`` or ``load``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("export", "turns", "load"))
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--small-pages", action="store_true")
    parser.add_argument("--copy-rows", action="store_true")
    parser.add_argument("--random-access", action=argparse.BooleanOptionalAction)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--zipf", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    {"export": _export, "turns": _turns, "load": _load}[args.step](args)


def _say(data: Mapping[str, object]) -> None:
    print(json.dumps(data), flush=True)


def _export(args: argparse.Namespace) -> None:
    """Export tables whose float rows overlap in memory, so that they take next to none."""
    num_rows = args.bytes // (ROW_BYTES * NUM_TABLES)
    tables = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=num_rows, embedding_dim=DIM, feature_names=[f"f{i}"])
        for i in range(NUM_TABLES)
    ]
    model = EmbeddingBagCollection(tables, device=torch.device("meta"))
    values = torch.randn(num_rows + DIM)
    for table in model.embedding_bags.values():
        rows = values.as_strided((num_rows, DIM), (1, 1))
        table.weight = nn.Parameter(rows, requires_grad=False)
    report = export_model(model, args.artifact, ExportConfig(data_type=DataType.INT8))
    _say({"artifact_bytes": report.artifact_bytes, "num_rows": num_rows})


def _turns(args: argparse.Namespace) -> None:
    """Load, and time the batches once for each line of standard input."""
    if args.small_pages and ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise OSError("the kernel does not turn huge pages off for one process")
    prepare()
    artifact = load_artifact(args.artifact, memory=RowsMemory(copy_rows=args.copy_rows))
    batches = [next(_batches(artifact, args.zipf, seed)) for seed in range(_NUM_BATCHES)]
    _say(asdict(artifact.rows.pages()))
    clock = CLOCKS["cpu"]
    with torch.inference_mode():
        while sys.stdin.readline():
            began = clock()
            for batch in batches:
                artifact.forward(*batch)
            _say({"rows_per_s": _NUM_BATCHES * BATCH_SIZE * NUM_TABLES / (clock() - began)})


def _load(args: argparse.Namespace) -> None:
    """Answer batches for some time, the second half of which counts, with bounded memory."""
    with limited_memory(args.memory_bytes) as group:
        prepare()
        memory = RowsMemory(random_access=args.random_access)
        artifact = load_artifact(args.artifact, verify_checksums=False, memory=memory)
        counted_from = time.perf_counter() + args.seconds / 2
        until = counted_from + args.seconds / 2
        seconds: list[float] = []

        def answer(seed: int) -> None:
            with torch.inference_mode():
                for batch in _batches(artifact, args.zipf, seed):
                    began = time.perf_counter()
                    artifact.forward(*batch)
                    ended = time.perf_counter()
                    if began > counted_from:
                        seconds.append(ended - began)
                    if ended > until and seconds:
                        return

        threads = [threading.Thread(target=answer, args=(seed,)) for seed in range(args.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        latencies = np.array(seconds)
        # Making the batches is not part of the work: a thread is busy only while it answers.
        samples_per_s = BATCH_SIZE * len(latencies) / latencies.sum() * args.threads
        _say(
            {
                "num_batches": len(latencies),
                "samples_per_s": float(samples_per_s),
                "p50_ms": float(np.quantile(latencies, 0.5)) * 1e3,
                "p99_ms": float(np.quantile(latencies, 0.99)) * 1e3,
                "is_random": memory.reads_at_random(artifact.manifest.layout.num_bytes),
                "peak_bytes": group.peak_bytes(),
            }
        )


def _batches(artifact: LoadedArtifact, zipf: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield lengths and values: int64 ``[26 * B]`` each, one ID per bag."""
    num_rows = artifact.manifest.tables[0].table.num_embeddings
    generator = np.random.default_rng(seed)
    lengths = torch.ones(NUM_TABLES * BATCH_SIZE, dtype=torch.int64)
    while True:
        values = zipf_ids(generator, NUM_TABLES * BATCH_SIZE, num_rows, zipf)
        yield lengths, torch.from_numpy(values)


def zipf_ids(generator: np.random.Generator, num_ids: int, num_rows: int, zipf: float) -> NDArray[np.int64]:
    """Return IDs whose frequency falls with this power of their rank; uniform ones for 0.

    Ranks are drawn from the continuous distribution. Frequent IDs are spread over the table, as hashing does.
    """
    uniform = generator.random(num_ids)
    if zipf == 1.0:
        ranks = num_rows**uniform
    else:
        ranks = ((num_rows ** (1.0 - zipf) - 1.0) * uniform + 1.0) ** (1.0 / (1.0 - zipf))
    return (np.minimum(ranks.astype(np.int64), num_rows) - 1) * _SPREAD % num_rows


if __name__ == "__main__":
    main()
