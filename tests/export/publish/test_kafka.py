"""Publishing to a topic of Kafka: brokers that go away, and a training that is killed and resumed."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from export.cli import main as export
from export.pipeline import export_model
from export.publish.process import follow
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.streams.opening import open_source
from recsys.train.commands.train import main as train
from recsys.training import Publisher
from tests.export.delta.test_mappings import assert_holds_same, assert_same
from tests.export.publish.test_publisher import train_managed, until
from tests.support.kafka import Broker, kafka, start_broker, stop_broker
from tests.support.models.managed import Managed

__all__ = ["kafka"]
_SCHEMA = """\
[[labels]]
name = "click"

[[tables]]
name = "user"
features = ["user"]
rows = 48
ids = "zero_collision"

[[tables]]
name = "item"
features = ["item"]
rows = 96
ids = "zero_collision"
"""
_SMALL = ["--embedding-dim", "8", "--dense-layers", "8", "--over-layers", "8", "--admission-interval", "1"]


def followed(artifact: Path, address: str) -> LoadedArtifact:
    """The artifact with the deltas of a topic."""
    loaded, source = load_artifact(artifact), open_source(address)
    source.expect(loaded.rows.digest)
    follow(source, loaded.rows)
    source.close()
    return loaded


def num_deltas(address: str) -> int:
    source = open_source(address)
    found = 0 if source.check() else len(source.scan())
    source.close()
    return found


def test_brokers_that_go_away(tmp_path: Path) -> None:
    broker = start_broker()
    try:
        model = Managed().train()
        export_model(copy.deepcopy(model).eval(), tmp_path / "a")
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
        address = broker.address("deltas", timeout_s=2)
        lines: list[str] = []
        with Publisher(model, tmp_path / "a", address, optimizer=optimizer, log=lines.append) as publisher:
            for seed in range(3):
                train_managed(model, optimizer, seed)
                assert publisher.finish(), publisher.status
            train_managed(model, optimizer, 3)
            broker.go_away()
            assert publisher.publish()
            until(lambda: publisher.status.state == "retrying")
            train_managed(model, optimizer, 4)
            assert not publisher.publish()
            broker.come_back()
            assert publisher.finish(), publisher.status
            assert publisher.status.num_published == 5
        assert [line.split(":")[1].strip() for line in lines] == ["retrying", "deltas are published again"]
        export_model(copy.deepcopy(model).eval(), tmp_path / "fresh")
        assert_same(followed(tmp_path / "a", address), load_artifact(tmp_path / "fresh"))
    finally:
        stop_broker(broker)


def test_a_training_that_is_killed_and_resumed(tmp_path: Path, kafka: Broker) -> None:
    rng = np.random.default_rng(0)
    lines = ["click,user,item"]
    for _ in range(6_000):
        user, item = int(rng.zipf(1.3)) % 500 * 7_919 - 1_000, int(rng.zipf(1.2)) % 300
        lines.append(f"{(user + item) % 2},{user},{item}")
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.toml").write_text(_SCHEMA)
    data = ["--data", str(tmp_path / "clicks.csv"), "--schema", str(tmp_path / "schema.toml"), "--json"]
    assert (
        train([*data, *_SMALL, "--limit-rows", "500", "--epochs", "1", "--out", str(tmp_path / "old.pt")])
        == 0
    )
    assert export([str(tmp_path / "old.pt"), "--json"]) == 0
    artifact, address = tmp_path / "old.artifact", kafka.address(f"killed-{tmp_path.name}")
    command = [sys.executable, "-m", "recsys.train", *data, "--epochs", "2", "--batch-size", "4"]
    command += ["--init-from", str(tmp_path / "old.pt"), "--artifact", str(artifact)]
    command += ["--publish", address, "--publish-every", "10ms"]
    command += ["--checkpoint-dir", str(tmp_path / "run"), "--checkpoint-every", "50", "--resume"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as training:
        try:
            until(lambda: num_deltas(address) >= 3 and (tmp_path / "run" / "latest").exists())
        finally:
            training.send_signal(signal.SIGKILL)
    num_before = num_deltas(address)
    subprocess.run([*command, "--out", str(tmp_path / "new.pt")], check=True, stdout=subprocess.DEVNULL)
    assert num_deltas(address) > num_before
    assert export([str(tmp_path / "new.pt"), "--json"]) == 0
    assert_holds_same(followed(artifact, address), load_artifact(tmp_path / "new.artifact"))
