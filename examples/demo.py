"""The whole road on one machine: train, export, serve, predict, and compare with the float model.

Run by ``make demo``. Every step is a command that you can run yourself; the demo prints them as it goes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from recsys import KeyedJaggedTensor
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.artifact.parts import read_manifest
from recsys.checkpoint import build_model, load_checkpoint
from recsys.inputs.signature import Signature
from serve.client import Client

BIN = Path(sys.executable).parent
NUM_REQUESTS = 8
ROWS_PER_REQUEST = 2
READY_TIMEOUT_S = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 where the served scores agree with the float model's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where the model goes; emptied first")
    folder: Path = parser.parse_args(argv).dir
    if folder.exists() and not (folder / "model.pt").exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty and holds no model of an earlier demo")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console = Console()
    started = time.monotonic()
    checkpoint, artifact = folder / "model.pt", folder / "model.artifact"
    run(console, "recsys-train", "--data", "synthetic", "--out", str(checkpoint))
    run(console, "recsys-export", str(checkpoint), "--dtype", "int8", "--target", "cpu,cpu")
    signature = read_manifest(artifact).signature
    batches = [
        random_batch(signature, ROWS_PER_REQUEST, torch.Generator().manual_seed(seed))
        for seed in range(NUM_REQUESTS)
    ]
    with server(console, artifact) as address:
        console.rule(f"{NUM_REQUESTS} requests of {ROWS_PER_REQUEST} rows to {address}")
        with Client(address) as client:
            served = [client.predict(**request(batch, signature))["score"] for batch in batches]
    scores = torch.cat([torch.from_numpy(scores.copy()) for scores in served])
    expected = torch.cat([float_scores(checkpoint, batch, signature) for batch in batches])
    return compare(console, scores, expected, time.monotonic() - started)


def run(console: Console, *command: str) -> None:
    """Run one of our commands."""
    console.rule(" ".join(command))
    subprocess.run([BIN / command[0], *command[1:]], check=True)


@contextmanager
def server(console: Console, artifact: Path) -> Iterator[str]:
    """A server for the artifact on a port that the system chooses; its address."""
    command = ["recsys-serve", str(artifact), "--port", "0", "--metrics-port", "0", "--json"]
    console.rule(" ".join(command))
    with subprocess.Popen([BIN / command[0], *command[1:]], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = json.loads(line or "{}")
            if ready.get("event") != "ready":
                raise SystemExit("the server did not start")
            console.print(line.strip(), markup=False, soft_wrap=True)
            yield f"{ready['host']}:{ready['port']}"
        finally:
            process.send_signal(signal.SIGTERM)
            stopped, _ = process.communicate(timeout=READY_TIMEOUT_S)
            console.print(stopped.strip())


def request(batch: Batch, signature: Signature) -> dict[str, Any]:
    """A batch as named plain lists, the way a caller has them."""
    sparse: dict[str, list[list[float]]] = {}
    ids = torch.split(batch.values, batch.lengths.tolist())
    for i, feature in enumerate(signature.sparse):
        bags = ids[i * batch.num_rows : (i + 1) * batch.num_rows]
        sparse[feature.name] = [bag.tolist() for bag in bags]
    dense = {d.name: tensor.tolist() for d, tensor in zip(signature.dense, batch.dense, strict=True)}
    return {"dense": dense, "sparse": sparse}


def float_scores(checkpoint: Path, batch: Batch, signature: Signature) -> torch.Tensor:
    """What the trained float model says of the same rows."""
    model = build_model(load_checkpoint(checkpoint)).eval()
    features = KeyedJaggedTensor([f.name for f in signature.sparse], batch.values, lengths=batch.lengths)
    with torch.no_grad():
        scores: torch.Tensor = model(*batch.dense, features)["score"]
    return scores


def compare(console: Console, served: torch.Tensor, expected: torch.Tensor, seconds: float) -> int:
    """Print the scores side by side."""
    table = Table(title="scores", title_justify="left")
    for name in ("row", "float model", "served (INT8, 2 devices)", "difference"):
        table.add_column(name, justify="right")
    for i, (got, want) in enumerate(zip(served.tolist(), expected.tolist(), strict=True)):
        table.add_row(str(i), f"{want:.6f}", f"{got:.6f}", f"{got - want:+.6f}")
    console.print(table)
    worst = float((served - expected).abs().max())
    console.print(f"largest difference {worst:.6f}; the whole road took {seconds:.0f} s")
    # INT8 rows move a probability in the third digit; more means that something is wrong.
    return 0 if worst < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
