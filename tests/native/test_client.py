"""The native client against the Python server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recsys.artifact.load import LoadedArtifact
from recsys.base.hashing import hash_text
from serve.config.settings import ServerConfig
from serve.engine.reference.executor import ServedModel
from tests.conformance.support.artifacts import Exported, export_best, export_small
from tests.native.tool import BUILD
from tests.serve.conftest import artifact_path, live, model
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.messages.texts import with_texts
from tests.support.serve.models import SIGNATURE, FailingModel, GatedModel

__all__ = ["artifact_path", "live", "model"]  # fixtures
TOOL = BUILD / "recsys-client-tool"
# No server listens on the discard port of loopback.
NOBODY = "127.0.0.1:9"

pytestmark = pytest.mark.skipif(
    not TOOL.is_file(),
    reason=f"no {TOOL.name} in the native build ({BUILD.name}): `make native` builds them, "
    "RECSYS_NATIVE_BUILD tells where else they lie",
)


class Tool:
    """A process with one client (cpp_client/tests/tools/client/client_tool.cpp)."""

    def __init__(self, address: str, **options: Any) -> None:
        self._process = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.connected = self.call("connect", address=address, **options)

    def call(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Tool:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._process.stdout.close()


def as_json(sample: Sample, request_id: str = "") -> dict[str, Any]:
    return {
        "num_rows": sample.num_rows,
        "dense": sample.dense,
        "sparse": sample.sparse,
        "weights": sample.weights,
        "request_id": request_id,
    }


def assert_answered(found: Any, model: ServedModel, sample: Sample) -> None:
    expected = answer(model, sample)
    outputs = {
        name: np.array(output["values"], expected[name].dtype).reshape(output["dims"])
        for name, output in found["outputs"].items()
    }
    assert_answers({name: outputs[name] for name in expected}, expected)


@pytest.fixture(scope="module")
def tool(live: LiveServer) -> Iterator[Tool]:
    with Tool(live.address, num_connections=2) as made:
        yield made


@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_the_client_gets_the_models_answers(tool: Tool, model: LoadedArtifact, num_rows: int) -> None:
    sample = random_sample(SIGNATURE, num_rows, np.random.default_rng(num_rows))
    found = tool.call("predict", **as_json(sample))
    assert (found["model"], found["version"], found["num_attempts"]) == ("small", "7", 1)
    assert_answered(found, model, sample)


def test_many_requests_at_once_get_each_its_own_answer(tool: Tool, model: LoadedArtifact) -> None:
    samples = [random_sample(SIGNATURE, 1 + seed % 4, np.random.default_rng(seed)) for seed in range(32)]
    found = tool.call("many", requests=[as_json(sample) for sample in samples])
    for sample, one in zip(samples, found["answers"], strict=True):
        assert_answered(one, model, sample)


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The same model, with a hash for the texts of ``item``."""
    return export_small(tmp_path_factory.mktemp("hashed") / "small")


def test_texts_get_the_answers_to_their_ids(hashed: Exported) -> None:
    rng = np.random.default_rng(0)
    made = [with_texts(hashed.signature, hashed.sample(1 + seed % 4, seed), rng) for seed in range(8)]
    with LiveServer(hashed.model) as server, Tool(server.address) as tool:
        strings = {name: one["strings"] for name, one in tool.call("metadata")["sparse"].items()}
        assert strings == {"user": "", "genres": "", "item": "xxh64", "tags": ""}
        requests = {
            str(i): as_json(sample, str(i)) | {"sparse": texts} for i, (sample, texts) in enumerate(made)
        }
        answers = {name: tool.call("predict", **request) for name, request in requests.items()}
        streamed = tool.call("stream", requests=list(requests.values()))["answers"]
        for i, (sample, _) in enumerate(made):
            assert_answered(answers[str(i)], hashed.model, sample)
            assert_answered(streamed[str(i)], hashed.model, sample)
        sample, texts = made[1]
        once = {"user": ["7"], "item": ["85f751fd"]}
        found = tool.call(
            "predict",
            num_rows=sample.num_rows,
            dense=sample.dense,
            sparse={name: texts[name] for name in ("genres", "tags")},
            context_sparse=once,
            weights=sample.weights,
        )
        ids = {"user": [[7]] * sample.num_rows, "item": [[hash_text("85f751fd")]] * sample.num_rows}
        assert_answered(found, hashed.model, replace(sample, sparse={**sample.sparse, **ids}))
        wrong = {**requests["0"], "sparse": {**made[0][1], "item": [[""]]}}
        error = tool.call("predict", **wrong)["error"]
        assert error["code"] == "INVALID_ARGUMENT"
        assert "sparse['item'].strings: got '' at position 0" in error["message"]


def test_integers_come_exactly(tmp_path: Path) -> None:
    best = export_best(tmp_path / "best")
    with LiveServer(best.model) as server, Tool(server.address) as tool:
        for num_rows in (0, 1, 9):
            sample = best.sample(num_rows, seed=num_rows)
            assert_answered(tool.call("predict", **as_json(sample)), best.model, sample)


def test_a_ranking_request_gives_the_context_once(tool: Tool, model: LoadedArtifact) -> None:
    one = random_sample(SIGNATURE, 1, np.random.default_rng(0))
    rows = random_sample(SIGNATURE, 3, np.random.default_rng(1))
    sparse = {**rows.sparse, "user": one.sparse["user"] * 3, "tags": one.sparse["tags"] * 3}
    repeated = Sample(
        3,
        {**rows.dense, "context": one.dense["context"] * 3},
        sparse,
        {"tags": one.weights["tags"] * 3},
    )
    found = tool.call(
        "predict",
        num_rows=3,
        dense={"price": rows.dense["price"]},
        sparse={name: rows.sparse[name] for name in ("genres", "item")},
        context_dense={"context": one.dense["context"]},
        context_sparse={"user": one.sparse["user"][0], "tags": one.sparse["tags"][0]},
        weights=one.weights,
    )
    assert_answered(found, model, repeated)


def test_a_stream_answers_each_request_by_its_id(tool: Tool, model: LoadedArtifact) -> None:
    samples = {str(seed): random_sample(SIGNATURE, 2, np.random.default_rng(seed)) for seed in range(20)}
    requests = [as_json(sample, name) for name, sample in samples.items()]
    requests[7]["sparse"] = {**requests[7]["sparse"], "user": [[50], []]}
    found = tool.call("stream", requests=requests)["answers"]
    assert "sparse['user'].values: got ID 50 in row 0" in found.pop("7")["error"]["message"]
    assert set(found) == set(samples) - {"7"}
    for name, one in found.items():
        assert_answered(one, model, samples[name])


def test_the_client_reads_the_metadata(tool: Tool) -> None:
    found = tool.call("metadata")
    assert found["model"] == "small"
    assert found["dense"] == {"context": 3, "price": 1}
    assert found["sparse"]["user"] == {"weighted": False, "pooling": "sum", "strings": "", "id_limit": 50}
    assert found["sparse"]["genres"]["pooling"] == "mean"
    assert found["sparse"]["item"]["id_limit"] == -1
    assert found["sparse"]["tags"]["weighted"] is True


def test_a_refused_request_is_sent_once_and_says_why(tool: Tool) -> None:
    error = tool.call("predict", num_rows=1, sparse={"user": [[1]]})["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    assert error["message"].startswith("dense: missing 'context'")
    assert error["num_attempts"] == 1


def test_an_unknown_model_is_not_found(live: LiveServer) -> None:
    with Tool(live.address, model="other") as tool:
        assert tool.call("metadata")["error"]["code"] == "NOT_FOUND"


def test_deadlines_failures_and_nobody(model: LoadedArtifact) -> None:
    sample = random_sample(SIGNATURE, 1, np.random.default_rng(0))
    gated = GatedModel(model)
    with LiveServer(gated) as server, Tool(server.address, timeout_s=0.2) as tool:
        gated.close_gate()
        assert tool.call("predict", **as_json(sample))["error"]["code"] == "DEADLINE_EXCEEDED"
        gated.gate.set()
    # No ID of the warm-up's.
    with LiveServer(FailingModel(model, 1_000_003)) as server, Tool(server.address) as tool:
        failing = as_json(sample) | {"sparse": {**sample.sparse, "item": [[1_000_003]]}}
        assert tool.call("predict", **failing)["error"]["code"] == "INTERNAL"
    with Tool(NOBODY) as tool:
        error = tool.call("metadata")["error"]
        assert (error["code"], error["num_attempts"]) == ("UNAVAILABLE", 3)


def test_mutual_tls(model: LoadedArtifact, tmp_path: Path) -> None:
    authority = Authority()
    own = authority.issue("client")
    tls = write_tls(tmp_path, authority.issue(), authority.certificate)
    files = {name: str(tmp_path / name) for name in ("ca", "certificate", "key")}
    for name, data in (("ca", authority.certificate), ("certificate", own.certificate), ("key", own.key)):
        Path(files[name]).write_bytes(data)
    sample = random_sample(SIGNATURE, 2, np.random.default_rng(0))
    with LiveServer(model, ServerConfig(port=0, metrics_port=0, tls=tls)) as server:
        with Tool(server.address, tls=files) as tool:
            assert_answered(tool.call("predict", **as_json(sample)), model, sample)
        with Tool(server.address, tls={"ca": files["ca"]}) as tool:
            assert tool.call("metadata")["error"]["code"] == "UNAVAILABLE"
        with Tool(server.address) as tool:
            assert "may want TLS" in tool.call("metadata")["error"]["message"]
    other = authority.issue(password=b"secret")
    Path(files["key"]).write_bytes(other.key)
    with Tool(NOBODY, tls=files) as tool:
        assert "is encrypted, expected a key without a password" in tool.connected["refused"]
