"""Every hour: train on the hour's clicks, export a delta, and have a running server apply it under load.

    python examples/hourly.py --dir hourly

Clicks are made up: sites come and go in favour, so that a model of an hour ago is worse than one of now. Hour 0 trains
and exports a model. Each later hour starts from the last one's weights (``--init-from``), trains the tables alone
(``--freeze-dense``), exports the rows that changed (``--delta``) into a folder that the server follows, and measures
the server's AUC on the hour's held-out rows before and after. Requests run all the while; none may fail.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from recsys.metrics.exact import auc
from serve.client import Client
from serve.client.errors import PredictError

BIN = Path(sys.executable).parent
NUM_SITES, NUM_DEVICES = 300, 2_000
HELD_OUT_SHARE = 0.2
ROWS_PER_REQUEST = 50
APPLY_TIMEOUT_S = 60.0
POLL_S = 0.5

SCHEMA = f"""
held_out = {HELD_OUT_SHARE}
[[labels]]
name = "click"
[[dense]]
name = "price"
missing = 3
log1p = true
[[tables]]
name = "site"
features = ["site"]
rows = 4096
ids = "hash"
strings = "xxh64"
[[tables]]
name = "device"
features = ["device"]
rows = 16384
ids = "hash"
strings = "xxh64"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the hours; 0 where every delta was applied and no request failed."""
    args = _parser().parse_args(argv)
    folder: Path = args.dir
    if folder.exists() and any(folder.iterdir()) and not (folder / "schema.toml").exists():
        raise SystemExit(f"{folder} is not empty and holds no earlier run")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "deltas").mkdir(parents=True)
    (folder / "schema.toml").write_text(SCHEMA)
    tables = [write_hour(folder / f"hour-{hour}.csv", hour, args.rows) for hour in range(args.hours + 1)]
    console = Console(stderr=args.json)
    model = folder / "hour-0.pt"
    train = ["recsys-train", "--embedding-dim", "16", "--over-layers", "64,32", "--epochs", "2"]
    run(
        console,
        *train,
        "--data",
        str(tables[0]),
        "--schema",
        str(folder / "schema.toml"),
        "--out",
        str(model),
    )
    artifact = folder / "model.artifact"
    run(console, "recsys-export", str(model), "--out", str(artifact))
    results: list[dict[str, Any]] = []
    applied: list[Path] = []
    with (
        server(console, artifact, folder / "deltas") as address,
        Load(address, tables[0], args.pause_s) as load,
    ):
        for hour, table in enumerate(tables[1:], start=1):
            held_out = held_out_rows(table)
            with Client(address) as client:
                before = served_auc(client, held_out)
                new = folder / f"hour-{hour}.pt"
                start = ["--init-from", str(model), "--freeze-dense", "--epochs", "2"]
                run(console, "recsys-train", "--data", str(table), *start, "--out", str(new))
                delta = folder / "deltas" / f"hour-{hour}.delta"
                chain = [word for one in applied for word in ("--after", str(one))]
                export = ["recsys-export", "--delta", str(model), str(new), "--artifact", str(artifact)]
                run(console, *export, *chain, "--out", str(delta))
                wait_for_deltas(client, hour)
                after = served_auc(client, held_out)
            applied.append(delta)
            model = new
            num_bytes = delta.stat().st_size
            results.append({"hour": hour, "before": before, "after": after, "delta_bytes": num_bytes})
    return report(console, results, load, as_json=args.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("hourly"), help="where everything goes; emptied first"
    )
    parser.add_argument("--hours", type=int, default=5, help="hours after the first (default 5)")
    parser.add_argument("--rows", type=int, default=20_000, help="clicks an hour (default 20000)")
    parser.add_argument(
        "--pause-s", type=float, default=0.0, metavar="S", help="between two requests of the load (default 0)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def write_hour(path: Path, hour: int, num_rows: int) -> Path:
    """Write an hour's clicks; a site's favour changes by a random step every hour."""
    favour = sum(
        np.random.default_rng([1, h]).normal(0, 1.0 if h == 0 else 0.8, NUM_SITES) for h in range(hour + 1)
    )
    generator = np.random.default_rng([2, hour])
    site = np.minimum(generator.zipf(1.3, num_rows) - 1, NUM_SITES - 1)
    device = generator.integers(0, NUM_DEVICES, num_rows)
    price = generator.lognormal(3, 1, num_rows)
    log_odds = -1.0 + np.asarray(favour)[site] - 0.3 * (np.log1p(price) - 3)
    clicks = generator.random(num_rows) < 1 / (1 + np.exp(-log_odds))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "site", "device", "price"])
        for i in range(num_rows):
            shown = "" if i % 50 == 0 else f"{price[i]:.2f}"
            writer.writerow([int(clicks[i]), f"site-{site[i]}.example", f"device-{device[i]}", shown])
    return path


def held_out_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows that recsys-train holds out: the last ones."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows[len(rows) - int(len(rows) * HELD_OUT_SHARE) :]


def request(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Return rows of the file as a request: texts as they are, NaN for a missing price."""
    price = [[float(row["price"]) if row["price"] else math.nan] for row in rows]
    sparse = {name: [[row[name]] for row in rows] for name in ("site", "device")}
    return {"dense": {"dense_features": price}, "sparse": sparse}


def served_auc(client: Client, rows: Sequence[dict[str, str]]) -> float:
    """Return the AUC of the server's answers."""
    scores = [
        client.predict(**request(rows[first : first + ROWS_PER_REQUEST]))["score"]
        for first in range(0, len(rows), ROWS_PER_REQUEST)
    ]
    found = auc(np.concatenate(scores), np.array([float(row["click"]) for row in rows]))
    assert found is not None
    return found


def wait_for_deltas(client: Client, number: int) -> None:
    """Wait until the server has applied so many deltas."""
    started = time.monotonic()
    while len(client.metadata().deltas) < number:
        if time.monotonic() > started + APPLY_TIMEOUT_S:
            raise SystemExit(f"the server has not applied delta {number} within {APPLY_TIMEOUT_S:.0f} s")
        time.sleep(0.1)


@dataclass
class Load:
    """Requests all the while, from a thread of its own. A context manager.

    Attributes:
        address: The server's.
        table: The file whose rows are sent.
        pause_s: Between two requests.
        num_answered: Requests that were answered.
        errors: What failed.
    """

    address: str
    table: Path
    pause_s: float = 0.0
    num_answered: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rows = held_out_rows(self.table)
        requests = [request(rows[first : first + 5]) for first in range(0, 500, 5)]
        with Client(self.address) as client:
            while not self._stop.wait(self.pause_s):
                try:
                    client.predict(**requests[self.num_answered % len(requests)])
                    self.num_answered += 1
                except PredictError as error:
                    self.errors.append(str(error))


def run(console: Console, *command: str) -> None:
    """Run one of our commands."""
    console.rule(" ".join(command))
    subprocess.run(
        [BIN / command[0], *command[1:]], check=True, stdout=None if not console.stderr else sys.stderr
    )


@contextmanager
def server(console: Console, artifact: Path, deltas: Path) -> Iterator[str]:
    """Yield the address of a server that follows a folder of deltas."""
    command = ["recsys-serve", str(artifact), "--deltas", str(deltas), "--poll-deltas-s", str(POLL_S)]
    command += ["--port", "0", "--metrics-port", "0", "--json"]
    console.rule(" ".join(command))
    with subprocess.Popen([BIN / command[0], *command[1:]], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline() or "{}")
            if ready.get("event") != "ready":
                raise SystemExit("the server did not start")
            yield f"{ready['host']}:{ready['port']}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def report(console: Console, results: Sequence[dict[str, Any]], load: Load, *, as_json: bool) -> int:
    """Print each hour's AUC; return 1 where a request failed."""
    if as_json:
        print(json.dumps({"hours": list(results), "answered": load.num_answered, "failed": len(load.errors)}))
    table = Table("hour", "AUC before", "AUC after", "delta", title="served AUC on the hour's clicks")
    for result in results:
        table.add_row(
            str(result["hour"]),
            f"{result['before']:.4f}",
            f"{result['after']:.4f}",
            f"{result['delta_bytes'] / 1000:.0f} KB",
        )
    console.print(table)
    console.print(f"{load.num_answered} requests answered meanwhile, {len(load.errors)} failed")
    for error in load.errors[:3]:
        console.print(error)
    return 1 if load.errors else 0


if __name__ == "__main__":
    sys.exit(main())
