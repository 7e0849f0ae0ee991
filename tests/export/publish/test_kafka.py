"""Publishing to a topic of Kafka: brokers that go away, and a training that is killed and resumed."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from export.pipeline import export_model
from export.publish.process import follow
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.streams.opening import open_source
from recsys.training import Publisher
from tests.export.delta.test_mappings import assert_same
from tests.export.publish.test_publisher import until
from tests.support.models.managed import Managed, train_managed
from tests.support.services.kafka import kafka, start_broker, stop_broker

__all__ = ["kafka"]


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
