"""From a click to a served row in seconds: clicks on Kafka, a trainer that publishes deltas, two servers that follow.

    python examples/fresh.py --dir fresh

Users look at items, and what they click goes to a topic. ``examples/fresh_trainer.py`` learns from it and publishes
what it changes every second, to another topic; two servers apply it between two batches. Every second a new item
appears, whose raw ID no table knows: the time until all servers answer for it with a row of its own is measured. The
servers log what they answered; at the end it is joined with the clicks, and a model is trained on it.

Kafka is a cluster in this process, by librdkafka, unless ``--broker`` names one.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from recsys.metrics.exact import auc
from serve.client import Client

BIN = Path(sys.executable).parent
NUM_USERS, NUM_ITEMS = 500, 300
FIRST_NEW_ITEM = 1_000_000
UNKNOWN_ITEM = -1
SHOWN_PER_NEW_ITEM = 24
CANDIDATES = 20
NEW_ITEM_EVERY_S = 1.0
SIZES = ["--embedding-dim", "8", "--over-layers", "32", "--epochs", "3", "--row-learning-rate", "0.2"]
SIZES += ["--admission-interval", "1"]

SCHEMA = """
held_out = 0.2
[[labels]]
name = "click"
[[tables]]
name = "user"
features = ["user"]
rows = 1024
ids = "zero_collision"
[[tables]]
name = "item"
features = ["item"]
rows = 4096
ids = "zero_collision"
"""


class World:
    """Who likes what. Items have a general appeal and suit some users more than others; new ones are loved or hated."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._users = self._random.normal(size=(NUM_USERS, 4)) * 0.7
        self._items = {item: self._drawn(1.0) for item in range(NUM_ITEMS)}

    def _drawn(self, scale: float) -> tuple[float, NDArray[np.float64]]:
        return float(self._random.normal()) * scale, self._random.normal(size=4) * 0.7

    def add_item(self, item: int) -> None:
        """Add an item."""
        appeal, taste = self._drawn(1.0)
        self._items[item] = (2.0 if appeal > 0 else -2.0, taste)

    def candidates(self, count: int) -> list[int]:
        """Draw items; recent ones are drawn more often."""
        items = list(self._items)
        places = len(items) - 1 - np.minimum(self._random.geometric(0.01, count), len(items) - 1)
        return [items[place] for place in places]

    def user(self) -> int:
        """Draw a user."""
        return int(self._random.integers(NUM_USERS))

    def clicks(self, user: int, item: int) -> bool:
        """Draw whether a user clicks on an item."""
        appeal, taste = self._items[item]
        return bool(self._random.random() < 1 / (1 + np.exp(1 - appeal - self._users[user] @ taste)))


@dataclass
class Watcher:
    """Asks a server for new items until its answer differs from that for an item that it cannot know.

    Attributes:
        address: The server's.
        seen_s: By item, when its own row answered, by ``time.monotonic``.
    """

    address: str
    seen_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher")

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def watch(self, item: int) -> None:
        """Begin to ask for an item."""
        self._waiting = self._waiting | {item}

    def _run(self) -> None:
        with Client(self.address) as client:
            while not self._stop.wait(0.02):
                items = sorted(self._waiting)
                if not items:
                    continue
                rows = [[UNKNOWN_ITEM], *([item] for item in items)]
                unknown, *scores = client.predict(sparse={"user": [[0]] * len(rows), "item": rows})["score"]
                now = time.monotonic()
                found = {item for item, score in zip(items, scores, strict=True) if score != unknown}
                self.seen_s |= dict.fromkeys(found, now)
                self._waiting = self._waiting - found


class Shop:
    """Shows items to users, and tells what they click.

    Args:
        world: Who likes what.
        addresses: The servers', asked in turn.
        producer: Of clicks.
        labels: The file of labels.
    """

    def __init__(self, world: World, addresses: Sequence[str], producer: Producer, labels: Path) -> None:
        self._world, self._producer = world, producer
        self._clients = [Client(address) for address in addresses]
        self._labels = labels.open("w", newline="")
        self._writer = csv.writer(self._labels)
        self._writer.writerow(["request_id", "row", "click", "time"])
        self.num_requests = 0
        self.scores: list[float] = []
        self.clicked: list[bool] = []
        self.pairs: list[tuple[int, int]] = []

    def close(self) -> None:
        """Close the file and the connections."""
        self._labels.close()
        for client in self._clients:
            client.close()

    def visit(self, items: Sequence[int] | None = None) -> None:
        """Let a user look at items, those that are given or any."""
        user = self._world.user()
        items = self._world.candidates(CANDIDATES) if items is None else items
        client = self._clients[self.num_requests % len(self._clients)]
        request_id = f"visit-{self.num_requests}"
        scores = client.predict(
            sparse={"user": [[user]] * len(items), "item": [[item] for item in items]}, request_id=request_id
        )["score"]
        self.num_requests += 1
        for row, (item, score) in enumerate(zip(items, scores, strict=True)):
            is_click = self._world.clicks(user, item)
            self._writer.writerow([request_id, row, int(is_click), f"{time.time():.6f}"])
            click = {"user": user, "item": item, "click": int(is_click)}
            self._producer.produce("clicks", json.dumps(click).encode())
            self.scores.append(float(score))
            self.clicked.append(is_click)
            self.pairs.append((user, item))
        self._producer.poll(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the world; 0 where every new item reached all servers."""
    args = _parser().parse_args(argv)
    folder: Path = args.dir
    if folder.exists() and any(folder.iterdir()) and not (folder / "schema.toml").exists():
        raise SystemExit(f"{folder} is not empty and holds no earlier run")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console = Console(stderr=args.json)
    world = World()
    model, artifact = first_model(console, world, folder, args.rows)
    mock = {"test.mock.num.brokers": 1} if args.broker is None else {}
    producer = Producer({"bootstrap.servers": args.broker or "mock", "linger.ms": 0, "log_level": 4, **mock})
    broker = args.broker or address_of(producer)
    for topic in ("clicks", "deltas"):
        producer.list_topics(topic, timeout=10)  # a topic is made when it is first asked for
    with ExitStack() as stack:
        stack.callback(producer.flush, 10)
        addresses = [
            stack.enter_context(server(console, artifact, broker, folder / "answers"))
            for _ in range(args.servers)
        ]
        trainer = stack.enter_context(trained(console, model, artifact, broker, args.publish_every))
        shop = Shop(world, addresses, producer, folder / "labels.csv")
        stack.callback(shop.close)
        watchers = [stack.enter_context(Watcher(address)) for address in addresses]
        told = open_shop(world, shop, watchers, args.seconds)
        wait_for(watchers, told)
    result = {
        **freshness(told, watchers),
        "requests": shop.num_requests,
        "trainer": trainer,
        **aucs(shop, artifact),
        "joined": joined(console, folder),
    }
    return report(console, result, as_json=args.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("fresh"), help="where everything goes; emptied first"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long users look (default 60)")
    parser.add_argument(
        "--rows", type=int, default=20_000, help="clicks before the first model (default 20000)"
    )
    parser.add_argument("--servers", type=int, default=2, help="servers that follow (default 2)")
    parser.add_argument(
        "--publish-every", type=float, default=1.0, metavar="S", help="seconds between deltas (default 1)"
    )
    parser.add_argument("--broker", metavar="HOST:PORT", help="a Kafka broker (default: one in this process)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def first_model(console: Console, world: World, folder: Path, num_rows: int) -> tuple[Path, Path]:
    """Train and export a model of what was clicked before."""
    (folder / "schema.toml").write_text(SCHEMA)
    with (folder / "before.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "user", "item"])
        for _ in range(num_rows):
            user, (item,) = world.user(), world.candidates(1)
            writer.writerow([int(world.clicks(user, item)), user, item])
    model, artifact = folder / "model.pt", folder / "model.artifact"
    data = ["--data", str(folder / "before.csv"), "--schema", str(folder / "schema.toml")]
    run(console, "recsys-train", *data, *SIZES, "--out", str(model))
    run(console, "recsys-export", str(model), "--out", str(artifact))
    return model, artifact


def open_shop(world: World, shop: Shop, watchers: Sequence[Watcher], seconds: float) -> dict[int, float]:
    """Let users look for so long; return when the clicks on each new item were sent, by ``time.monotonic``."""
    started = time.monotonic()
    told: dict[int, float] = {}
    while (now := time.monotonic()) < started + seconds:
        if now >= started + len(told) * NEW_ITEM_EVERY_S:
            item = FIRST_NEW_ITEM + len(told)
            world.add_item(item)
            for _ in range(SHOWN_PER_NEW_ITEM):
                shop.visit([item])
            told[item] = time.monotonic()
            for watcher in watchers:
                watcher.watch(item)
        shop.visit()
        time.sleep(0.02)
    return told


def wait_for(watchers: Sequence[Watcher], told: dict[int, float], timeout_s: float = 30.0) -> None:
    """Wait until all servers know all items, for a while."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(len(one.seen_s) < len(told) for one in watchers):
        time.sleep(0.05)


def freshness(told: dict[int, float], watchers: Sequence[Watcher]) -> dict[str, Any]:
    """Return the seconds from the clicks on a new item to its row in all servers' answers."""
    found = [
        max(one.seen_s[item] for one in watchers) - sent
        for item, sent in told.items()
        if all(item in one.seen_s for one in watchers)
    ]
    p50, p99 = np.percentile(found, [50, 99]).tolist() if found else (None, None)
    return {"new_items": len(told), "served": len(found), "p50_s": p50, "p99_s": p99}


def aucs(shop: Shop, artifact: Path) -> dict[str, float | None]:
    """Return the AUC of what was served in the second half, and of the first model on the same rows."""
    half = len(shop.pairs) // 2
    clicked = np.array(shop.clicked[half:], dtype=np.float64)
    with server(Console(quiet=True), artifact, None, None) as address, Client(address) as client:
        scores: list[float] = []
        for first in range(half, len(shop.pairs), 500):
            pairs = shop.pairs[first : first + 500]
            sparse = {"user": [[user] for user, _ in pairs], "item": [[item] for _, item in pairs]}
            scores += client.predict(sparse=sparse)["score"].tolist()
    return {
        "auc": auc(np.array(shop.scores[half:]), clicked),
        "auc_without_deltas": auc(np.array(scores), clicked),
    }


def joined(console: Console, folder: Path) -> dict[str, Any]:
    """Join what was answered with the clicks, and train on it. Clicks come at once here, not within an hour."""
    table = folder / "joined.parquet"
    inputs = ["--log", str(folder / "answers"), "--labels", str(folder / "labels.csv"), "--within", "1s"]
    report = run(console, "recsys-data", "join", *inputs, "--out", str(table), "--json")
    data = ["--data", str(table), "--schema", str(folder / "schema.toml"), "--json"]
    trained_ = run(console, "recsys-train", *data, *SIZES, "--out", str(folder / "next.pt"))
    return {"join": json.loads(report), "auc": json.loads(trained_)["metrics"]["auc"]}


def run(console: Console, *command: str) -> str:
    """Run one of our commands; return the last line that it prints."""
    console.rule(" ".join(command), align="left")
    done = subprocess.run([BIN / command[0], *command[1:]], check=True, stdout=subprocess.PIPE, text=True)
    console.print(done.stdout, markup=False, highlight=False)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def address_of(producer: Producer) -> str:
    """Return a broker of a producer's cluster."""
    return next(f"{one.host}:{one.port}" for one in producer.list_topics(timeout=10).brokers.values())


@contextmanager
def server(console: Console, artifact: Path, broker: str | None, answers: Path | None) -> Iterator[str]:
    """Yield the address of a server that follows a topic of deltas and logs its answers."""
    command = ["recsys-serve", str(artifact), "--port", "0", "--metrics-port", "0", "--json"]
    command += [] if broker is None else ["--deltas", f"kafka://{broker}/deltas"]
    command += [] if answers is None else ["--answer-log-destination", str(answers)]
    console.rule(" ".join(command))
    with process(command) as (_, line):
        yield f"{line['host']}:{line['port']}"


@contextmanager
def trained(
    console: Console, model: Path, artifact: Path, broker: str, every_s: float
) -> Iterator[dict[str, Any]]:
    """Run the trainer; what is yielded gets what it reports at its end."""
    script = str(Path(__file__).with_name("fresh_trainer.py"))
    topics = ["--clicks", f"kafka://{broker}/clicks", "--publish", f"kafka://{broker}/deltas"]
    command = [sys.executable, script, str(model), str(artifact), *topics, "--every", str(every_s)]
    console.rule(" ".join(command[1:]))
    report: dict[str, Any] = {}
    with process(command) as (running, _):
        yield report
        running.send_signal(signal.SIGTERM)
        text, _ = running.communicate(timeout=60)
        report |= json.loads(text.strip().splitlines()[-1])


@contextmanager
def process(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a program that prints a line of JSON once it is ready."""
    program = command[0] if "/" in command[0] else str(BIN / command[0])
    with subprocess.Popen([program, *command[1:]], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            line = json.loads(running.stdout.readline() or "{}")
            if line.get("event") != "ready":
                raise SystemExit(f"{command[0]} did not start")
            yield running, line
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def report(console: Console, result: dict[str, Any], *, as_json: bool) -> int:
    """Print what was measured; return 1 where a new item did not reach all servers."""
    if as_json:
        print(json.dumps(result))
    trainer, joined_ = result["trainer"], result["joined"]
    shown = {
        "new items, and those that all servers know": f"{result['new_items']}, {result['served']}",
        "from an item's clicks to its row in all answers": f"p50 {result['p50_s']:.2f} s, p99 {result['p99_s']:.2f} s"
        if result["served"]
        else "none",
        "requests": f"{result['requests']:,}",
        "clicks learned, deltas published": f"{trainer['num_clicks']:,}, {trainer['num_published']}",
        "AUC of what was served": f"{result['auc']:.3f}",
        "AUC of the first model on the same": f"{result['auc_without_deltas']:.3f}",
        "rows of the log joined with clicks": f"{joined_['join']['rows_labelled']:,}",
        "AUC of a model trained on them": f"{joined_['auc']:.3f}",
    }
    table = Table(title="from click to served row", title_justify="left", show_header=False)
    for name, value in shown.items():
        table.add_row(name, value)
    console.print(table)
    return 0 if result["served"] == result["new_items"] else 1


if __name__ == "__main__":
    sys.exit(main())
