"""Throughput of the scripted model in one process without a server: requests per second at its best batch.

Run by ``benchmarks.serving`` in a process of its own; prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys.artifact.load import LoadedArtifact
from recsys.base.allocator import tune_malloc
from serve.bench.load.requests import Shape, draw_requests, parse_mix
from serve.config.models import BatchLimits, ModelSettings
from serve.engine.reference.engine import load_model
from serve.engine.reference.executor import collate
from serve.engine.reference.request_check import RequestChecker
from serve.rpc.metadata import model_metadata
from serve.wire import predict_pb2 as wire

#: Requests of a batch: single samples, and ranking requests.
SINGLE_BATCHES = (1, 8, 16, 32, 64, 128, 256, 512)
RANKING_BATCHES = (1, 2, 4)
# Batches in rotation, so that no cache holds the rows of one.
_NUM_BATCHES = 32
_WARM_UP_CALLS = 20
# One dense input, lengths, values: what the benchmark's model takes; the ranking form takes more.
_PLAIN_INPUTS = 3

Batches = list[tuple[Tensor, ...]]


def make_batches(
    artifact: LoadedArtifact, metadata: wire.ModelMetadata, candidates: int, num_requests: int
) -> Batches:
    """Batches of random requests, laid out as the server lays them out.

    Args:
        artifact: the model.
        metadata: what a server says of it.
        candidates: of each ranking request; 0 for single samples.
        num_requests: of each batch.
    """
    shape = Shape(rows=parse_mix(str(candidates or 1)), ranking=candidates > 0)
    checker = RequestChecker(artifact.signature, BatchLimits())
    generator = np.random.default_rng(num_requests)
    made = []
    for _ in range(_NUM_BATCHES):
        requests = [request for request, _ in draw_requests(metadata, shape, num_requests, generator)]
        made.append(collate([checker.check(request) for request in requests]))
    return made


def requests_per_s(
    artifact: LoadedArtifact, batches: Batches, num_requests: int, num_threads: int, seconds: float
) -> float:
    """How many requests all threads compute in a second, each calling the model batch after batch."""
    forward = artifact.forward_ranking if len(batches[0]) > _PLAIN_INPUTS else artifact.forward
    counts = [0] * num_threads
    start = threading.Barrier(num_threads + 1)
    end_s = [0.0]

    def run(which: int) -> None:
        with torch.inference_mode():
            for i in range(_WARM_UP_CALLS):
                forward(*batches[i % len(batches)])
            start.wait()
            i = which
            while time.perf_counter() < end_s[0]:
                forward(*batches[i % len(batches)])
                counts[which] += 1
                i += 1

    threads = [threading.Thread(target=run, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    # Set while all threads wait at the barrier, so that each sees it afterwards.
    while start.n_waiting < num_threads:
        time.sleep(0.001)
    began_s = time.perf_counter()
    end_s[0] = began_s + seconds
    start.wait()
    for thread in threads:
        thread.join()
    return sum(counts) * num_requests / (time.perf_counter() - began_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every batch size and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.serving_ceiling", description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--candidates", type=int, default=0, help="of ranking requests; 0 for single samples")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each batch size")
    args = parser.parse_args(argv)
    tune_malloc()
    torch.set_num_threads(1)
    artifact, info = load_model(args.artifact, ModelSettings(verify_checksums=False))
    metadata = model_metadata(
        artifact.signature,
        info,
        limits=BatchLimits(),
        max_message_bytes=1 << 22,
    )
    found = {}
    for size in RANKING_BATCHES if args.candidates else SINGLE_BATCHES:
        batches = make_batches(artifact, metadata, args.candidates, size)
        found[size] = requests_per_s(artifact, batches, size, args.threads, args.seconds)
    print(json.dumps({"requests_per_s": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
