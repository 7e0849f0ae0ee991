"""The application on Ray Serve: on two nodes, under a change of the artifact; and its parts without a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ArtifactError
from serve.client.packing import read_response
from serve.observe.capture_file import CaptureReader
from serve.ray.autoscaling import PendingRowsPolicy
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.cases import Sample, answer, random_sample
from tests.support.serve.models import SIGNATURE, export_small
from tests.support.serve.repositories import add_version, break_version, repair_version

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Load:
    """What the autoscaler says."""

    current_num_replicas: int
    total_num_requests: float = 0.0
    aggregated_metrics: dict[str, dict[Any, float]] | None = field(default_factory=dict)


def waiting(*rows: float) -> dict[str, dict[Any, float]]:
    return {"pending_rows": dict(enumerate(rows))}


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(2, 0.0, waiting(256, 256)), 2),
        (Load(2, 0.0, waiting(512, 512)), 4),
        (Load(2, 0.0, waiting(1024, 0)), 4),
        (Load(3, 0.0, waiting(10, 10, 10)), 1),
        # A replica that has not reported yet is taken to be like the others.
        (Load(3, 0.0, waiting(512, 512)), 6),
        # Nothing waits, and yet the requests under way keep three replicas busy.
        (Load(4, 130.0, waiting(0, 0, 0, 0)), 3),
        (Load(1, 65.0, {}), 2),
        (Load(1, 0.0, None), 0),
    ],
)
def test_replicas_follow_what_waits(load: Load, expected: int) -> None:
    assert PendingRowsPolicy(target_pending_rows=256, target_requests=64)(load) == (expected, {})


def test_targets_must_be_positive() -> None:
    with pytest.raises(ValueError, match="target_requests: got 0, expected more than 0"):
        PendingRowsPolicy(target_pending_rows=1, target_requests=0)


@pytest.fixture(scope="module")
def ray_app() -> Any:
    """The module; Ray's own warnings on import are not ours."""
    pytest.importorskip("ray.serve", reason="needs the extra ray", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from serve.ray import app as ray_app

        return ray_app


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"artefact": "/a"}, "artefact: unknown argument; did you mean artifact?"),
        ({"artifact": "/a", "port": "1"}, "port: unknown argument"),
        ({"artifact": "/a", "repository": "/b"}, "one of them"),
        ({}, "expected artifact=PATH or repository=PATH"),
        ({"artifact": "/a", "num_replicas": "none"}, "num_replicas: got 'none', expected a number above 0"),
        ({"artifact": "/a", "defaults.limits.max_batch_rows": "x"}, "defaults.limits.max_batch_rows"),
        ({"artifact": "/a", "max_replicas": 3, "target_pending_rows": 0}, "target_pending_rows: got '0'"),
    ],
)
def test_wrong_arguments_are_named(ray_app: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as refused:
        ray_app.app(arguments)
    assert text in str(refused.value)


def test_the_documents_file_is_one_of_ours(ray_app: Any) -> None:
    from ray.serve.schema import ServeDeploySchema

    from serve import ray_app as public

    text = (ROOT / "docs" / "operate" / "ray.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    schema = ServeDeploySchema.model_validate(yaml.safe_load(text))
    assert schema.grpc_options.grpc_servicer_functions == [ray_app.ADD_SERVICES]
    (application,) = schema.applications
    assert application.import_path == f"{public.__name__}:{public.app.__name__}"
    made = ray_app.app(application.args)._bound_deployment
    (deployment,) = application.deployments
    assert deployment.name == made.name
    assert deployment.user_config == made._deployment_config.user_config


def test_autoscaling_takes_the_policy_with_its_targets(ray_app: Any) -> None:
    made = ray_app.app({"artifact": "/a", "min_replicas": 2, "max_replicas": 5, "target_pending_rows": 100})
    config = made._bound_deployment._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas) == (2, 5)
    policy = config.policy
    assert policy.policy_kwargs == {"target_pending_rows": 100.0, "target_requests": 64.0}
    assert policy.get_policy() is PendingRowsPolicy


class ProxyContext:
    """What Ray hands to a replica beside the bytes of a call."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.details = ""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_trailing_metadata(self, pairs: list[tuple[str, str]]) -> None: ...

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


async def responses(replica: Any, requests: list[bytes]) -> list[wire.PredictResponse]:
    """The answers to these requests, asked together."""

    async def ask(data: bytes) -> wire.PredictResponse:
        context = ProxyContext()
        message = await replica.Predict(data, context)
        assert context.code is None, context.details
        return wire.PredictResponse.FromString(message.SerializeToString())

    return list(await asyncio.gather(*(ask(data) for data in requests)))


async def answering(replica: Any, sample: Sample, artifacts: Sequence[LoadedArtifact]) -> list[int]:
    """Which of these artifacts answers each of twenty requests, asked together."""
    expected = [answer(artifact, sample)["score"] for artifact in artifacts]
    found = []
    for response in await responses(replica, [sample.request().SerializeToString()] * 20):
        assert response.version == "1"
        score = read_response(response)["score"]
        found += [i for i, one in enumerate(expected) if np.allclose(score, one, rtol=1e-4, atol=1e-5)]
    assert len(found) == 20
    return found


def test_replica_changes_its_artifact_in_place(ray_app: Any, artifact_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    export_small(other, seed=1)
    artifacts = [load_artifact(path) for path in (artifact_path, other)]
    sample = random_sample(SIGNATURE, 2, np.random.default_rng(1))

    async def live() -> None:
        replica = ray_app.Replica()
        with pytest.raises(RuntimeError, match="no models yet"):
            await replica.check_health()
        # Ray asks already while the models are loaded.
        assert replica.record_autoscaling_stats() == {}
        await replica.reconfigure({"source.artifact": str(artifact_path)})
        await replica.check_health()
        assert replica.record_autoscaling_stats() == {"pending_rows": 0.0}
        assert await answering(replica, sample, artifacts) == [0] * 20

        changing = asyncio.ensure_future(replica.reconfigure({"source.artifact": str(other)}))
        during = []
        while not changing.done():
            during += await answering(replica, sample, artifacts)
        await changing
        # The old one answers until the new one is warm.
        assert during[0] == 0
        assert set(during) <= {0, 1}
        assert await answering(replica, sample, artifacts) == [1] * 20

        # What cannot be loaded changes nothing.
        (other / "manifest.json").write_text("{}")
        with pytest.raises((ArtifactError, RuntimeError)):
            await replica.reconfigure({"source.artifact": str(other)})
        await replica.check_health()
        assert await answering(replica, sample, artifacts) == [1] * 20
        await replica.close()

    asyncio.run(live())


def test_each_replica_captures_to_a_file_of_its_own(
    ray_app: Any, artifact_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "requests.capture"
    settings = {"source.artifact": str(artifact_path), "capture.path": str(path), "capture.share": "1"}
    sample = random_sample(SIGNATURE, 2, np.random.default_rng(1)).request().SerializeToString()

    async def live() -> None:
        replicas = [ray_app.Replica() for _ in range(2)]
        for replica, num_requests in zip(replicas, (3, 5), strict=True):
            await replica.reconfigure(settings)
            await responses(replica, [sample] * num_requests)
        await replicas[0].reconfigure(settings)
        await responses(replicas[0], [sample])
        for replica in replicas:
            await replica.close()

    asyncio.run(live())
    files = list(tmp_path.glob("requests-*.capture"))
    assert sorted(tmp_path.iterdir()) == sorted(files)
    counts = []
    for file in files:
        with CaptureReader(file) as reader:
            counts.append(sum(1 for _ in reader))
    assert sorted(counts) == [1, 3, 5]


def test_a_replica_is_healthy_while_every_model_answers(
    ray_app: Any, artifact_path: Path, tmp_path: Path
) -> None:
    add_version(tmp_path, "good", "1", artifact_path)
    broken = add_version(tmp_path, "bad", "1", artifact_path)
    break_version(broken)

    async def live() -> None:
        replica = ray_app.Replica()
        with pytest.raises(RuntimeError, match="no version could be made ready of 'bad': bad 1: "):
            await replica.reconfigure({"source.repository": str(tmp_path)})
        repair_version(broken, artifact_path)
        await replica.reconfigure({"source.repository": str(tmp_path)})
        await replica.check_health()
        await replica.close()

    asyncio.run(live())


@pytest.mark.parametrize("prefix", ["", "/ranking"], ids=["root", "prefix"])
def test_http_says_what_is_here_and_where_requests_go(ray_app: Any, artifact_path: Path, prefix: str) -> None:
    from starlette.requests import Request

    def request(method: str, path: str) -> Any:
        scope = {"type": "http", "method": method, "path": path, "root_path": prefix, "headers": []}
        return Request(scope)

    async def live() -> None:
        replica = ray_app.Replica()
        loading = await replica(request("GET", f"{prefix}/"))
        assert (loading.status_code, json.loads(loading.body)["models"]) == (200, [])
        await replica.reconfigure({"source.artifact": str(artifact_path)})
        for path in (f"{prefix}/", prefix or "/", "/"):
            here = await replica(request("GET", path))
            assert here.status_code == 200
            assert json.loads(here.body) == {
                "models": [{"name": "small", "versions": ["1"]}],
                "requests": ray_app.WHERE,
            }
        for method, path in (("POST", f"{prefix}/"), ("GET", f"{prefix}/v2/models"), ("PUT", f"{prefix}/x")):
            missing = await replica(request(method, path))
            assert missing.status_code == 404
            assert json.loads(missing.body)["error"].endswith(f": not found; requests are {ray_app.WHERE}")
        await replica.close()

    asyncio.run(live())


def test_refusals_come_as_statuses(ray_app: Any, artifact_path: Path) -> None:
    async def live() -> None:
        replica = ray_app.Replica()
        await replica.reconfigure({"source.artifact": str(artifact_path)})
        context = ProxyContext()
        message = await replica.Predict(b"\xff", context)
        assert message.SerializeToString() == b""
        assert context.code is grpc.StatusCode.INVALID_ARGUMENT
        assert context.details == "message: got 1 bytes that are not a PredictRequest"
        await replica.close()

    asyncio.run(live())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_nodes_answer_while_the_artifact_changes(artifact_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="needs the extra ray", exc_type=ImportError)
    other = tmp_path / "other"
    export_small(other, seed=1)
    child = [
        sys.executable,
        str(ROOT / "tests" / "support" / "serve" / "children" / "ray_cluster.py"),
        str(artifact_path),
        str(other),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(child, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1140)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))

    assert len(found["replicas"]) == len(set(found["replicas"].values())) == 2
    assert found["model"] == "small"
    assert found["errors"] == []
    status, body = found["http"]["GET /"]
    assert (status, [model["name"] for model in body["models"]]) == (200, ["small"])
    for request in ("GET /v2/models", "POST /"):
        status, body = found["http"][request]
        assert status == 404
        assert body["error"].startswith(f"{request}: not found; requests are gRPC calls of recsys.v1")
    # Every answer is the first artifact's, to the request that was asked.
    assert set(found["answers"]) == {0}
    assert found["stream"] == {str(i): 0 for i in range(8)}
    refusals = found["refusals"]
    assert refusals["id"][0] == "InvalidRequestError"
    assert "1000000" in refusals["id"][1]
    assert refusals["model"][0] == "UnknownModelError"
    assert refusals["bytes"] == ["INVALID_ARGUMENT", "message: got 3 bytes that are not a PredictRequest"]
    # The artifact was exchanged in place: nothing failed, nobody got a mixture, and then it is the other's turn.
    assert found["update"]["failed"] == []
    assert set(found["update"]["seen"]) <= {0, 1}
    assert set(found["answers_after"]) == {1}
    assert found["replicas_after"] == found["replicas"]
