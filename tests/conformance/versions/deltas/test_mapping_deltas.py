"""Deltas with raw IDs over the admin port: a server answers bit for bit as a fresh export of the new checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from serve.wire import admin_pb2
from tests.conformance.support.harness import put_version, running, with_admin
from tests.support.models.managed import POOL, Managed, trained
from tests.support.serve.messages.cases import Sample, answer

pytestmark = pytest.mark.engine
NUM_DELTAS = 4


def sample() -> Sample:
    """Known and unknown raw IDs, one request of all."""
    rng = np.random.default_rng(0)
    bags = [[i] for i in POOL]
    return Sample(
        num_rows=len(POOL),
        dense={"price": rng.standard_normal((len(POOL), 2)).astype(np.float32).tolist()},
        sparse={
            "user": bags,
            "friend": bags[::-1],
            "day": [[i % 7] for i in range(len(POOL))],
            "ware": bags,
            "word": bags,
        },
        weights={},
    )


@pytest.mark.parametrize("targets", [(("cpu",),), (("cpu", "cpu"),)], ids=["one device", "two devices"])
def test_answers_are_those_of_a_fresh_export(tmp_path: Path, targets: tuple[tuple[str, ...], ...]) -> None:
    config = ExportConfig(name="m", targets=targets)
    models = [trained(Managed(), 0)]
    export_model(models[0], tmp_path / "a", config)
    put_version(tmp_path / "models", "m", "1", tmp_path / "a")
    folder, made = tmp_path / "models" / "m" / "deltas", []
    folder.mkdir()
    for at in range(NUM_DELTAS):
        models.append(trained(models[-1], at + 1))
        path = folder / f"{at}.delta"
        export_delta(models[-2], models[-1], path, DeltaConfig(artifact=tmp_path / "a", after=tuple(made)))
        made.append(path)
        export_model(models[-1], tmp_path / f"fresh-{at}", config)
    request = sample()
    with running("--repository", tmp_path / "models", *with_admin(tmp_path), folder=tmp_path) as server:
        client = server.client()
        for at in range(NUM_DELTAS):
            server.admin().ApplyDelta(
                admin_pb2.ApplyDeltaRequest(model="m", version="1", delta=f"{at}.delta")
            )
            expected = answer(load_artifact(tmp_path / f"fresh-{at}"), request)
            for name, values in client.predict(request.dense, request.sparse, {}).items():
                np.testing.assert_array_equal(values, expected[name], err_msg=name)
