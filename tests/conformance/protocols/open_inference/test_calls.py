"""Open Inference over gRPC, as Triton's own client speaks it, unmodified."""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.engine.reference.protocols.tensors import Tensor
from tests.conformance.support.artifacts import CONTEXT, Exported
from tests.conformance.support.harness import TOKEN, ServerUnderTest, put_version, running, with_admin
from tests.conformance.support.open_inference import assert_same_bits, plain
from tests.support.serve.messages.cases import assert_answers
from tests.support.serve.messages.foreign import tensors
from tests.support.serve.messages.texts import text_tensors, with_texts

pytestmark = pytest.mark.engine

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="tritonclient is not installed"
)
Result = dict[str, Any]


def call(method: str, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    """A call of Triton's client that answers with plain data."""
    return {"method": method, "arguments": arguments, "keywords": keywords}


def infer(made: Sequence[Tensor], how: str = "sync", outputs: Sequence[str] = (), **keywords: Any) -> Result:
    """An inference by Triton's client."""
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape,
            "data": [text.decode() for text in one.texts]
            if one.datatype == "BYTES"
            else base64.b64encode(one.data).decode(),
        }
        for one in made
    ]
    return {"method": "infer", "how": how, "inputs": inputs, "outputs": list(outputs), "keywords": keywords}


def triton(address: str, *calls: dict[str, Any]) -> list[Any]:
    """What Triton's client, in a process of its own, gets from these calls, one after the other."""
    script = Path(__file__).with_name("triton_child.py")
    done = subprocess.run(
        [sys.executable, str(script), address],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [one["result"] if "result" in one else one["error"] for one in json.loads(done.stdout)]


def arrays(answer: Result) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(base64.b64decode(data), "<f4").reshape(shape)
        for name, (shape, data) in answer["outputs"].items()
    }


@needs_triton
@pytest.mark.parametrize("how", ["sync", "async", "aio", "stream"])
@pytest.mark.parametrize("num_rows", [1, 17], ids=lambda n: f"{n}-rows")
def test_tritons_client_gets_what_the_model_says_bit_for_bit_as_over_recsys_v1(
    server: ServerUnderTest, small: Exported, how: str, num_rows: int
) -> None:
    sample = small.sample(num_rows, seed=num_rows)
    made = tensors(small.signature, sample)
    [answer] = triton(server.address, infer(made, how, model_name="small", request_id="mine"))
    assert (answer["model"], answer["version"], answer["id"]) == ("small", server.ready["version"], "mine")
    assert_same_bits(arrays(answer), plain(server, sample))
    assert_answers(arrays(answer), small.answer(sample))


@needs_triton
@pytest.mark.parametrize("how", ["sync", "stream"])
def test_tritons_client_sends_texts(server: ServerUnderTest, small: Exported, how: str) -> None:
    sample, texts = with_texts(small.signature, small.sample(17), np.random.default_rng(0))
    made = text_tensors(small.signature, sample, texts)
    [answer] = triton(server.address, infer(made, how, model_name="small"))
    assert_same_bits(arrays(answer), plain(server, sample))


@needs_triton
def test_tritons_client_may_name_version_timeouts_priority_and_outputs(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(4)
    made, expected = tensors(small.signature, sample), small.answer(sample)
    version = server.ready["version"]
    first, second, third, *urgencies = triton(
        server.address,
        infer(made, model_name="small", model_version=version, outputs=["vectors"]),
        infer(made, model_name="", client_timeout=60.0, timeout=60_000_000),
        infer(made, model_name="small", outputs=["vectors", "score"]),
        *(infer(made, model_name="small", priority=priority) for priority in (0, 1, 2, 3)),
    )
    assert_answers(arrays(first), {"vectors": expected["vectors"]})
    assert_answers(arrays(second), expected)
    assert_answers(arrays(third), {name: expected[name] for name in ("vectors", "score")})
    for answer in urgencies:
        assert_answers(arrays(answer), expected)


@needs_triton
def test_tritons_client_learns_what_is_there(server: ServerUnderTest) -> None:
    version = server.ready["version"]
    live, ready, *models_ready, about, model, config, index = triton(
        server.address,
        call("is_server_live"),
        call("is_server_ready"),
        call("is_model_ready", "small"),
        call("is_model_ready", "small", version),
        call("is_model_ready", "small", "999"),
        call("is_model_ready", "other"),
        call("get_server_metadata", as_json=True),
        call("get_model_metadata", "small", as_json=True),
        call("get_model_config", "small", as_json=True),
        call("get_model_repository_index", as_json=True),
    )
    assert (live, ready, models_ready) == (True, True, [True, True, False, False])
    assert about["name"]
    assert {"model_repository", "statistics"} <= set(about["extensions"])
    assert (model["name"], model["versions"]) == ("small", [version])
    inputs = {one["name"]: (one["datatype"], one["shape"]) for one in model["inputs"]}
    jagged = {f"{name}.values": ("INT64", ["-1"]) for name in ("user", "genres", "item", "tags")}
    jagged["item.values"] = ("BYTES", ["-1"])  # its texts are hashed
    jagged |= {f"{name}.lengths": ("INT32", ["-1"]) for name in ("user", "genres", "item", "tags")}
    dense = {"context": ("FP32", ["-1", "3"]), "price": ("FP32", ["-1", "1"])}
    assert inputs == {**dense, **jagged, "tags.weights": ("FP32", ["-1"])}
    assert model["outputs"] == [
        {"name": "score", "datatype": "FP32", "shape": ["-1"]},
        {"name": "vectors", "datatype": "FP32", "shape": ["-1", "2", "3"]},
    ]
    assert [one["name"] for one in config["config"]["input"]] == [one["name"] for one in model["inputs"]]
    assert [one["data_type"] for one in config["config"]["input"] if one["name"] == "item.values"] == [
        "TYPE_STRING"
    ]
    assert config["config"]["parameters"]["context"]["string_value"] == ",".join(CONTEXT)
    assert config["config"]["parameters"]["digest"]["string_value"] == server.ready["digest"]
    assert index["models"] == [{"name": "small", "version": version, "state": "READY"}]


@needs_triton
def test_tritons_tools_read_versions_as_integers(server: ServerUnderTest, small: Exported) -> None:
    named = {"model_name": "small"}
    model, index, statistics, answer = triton(
        server.address,
        call("get_model_metadata", "small", as_json=True),
        call("get_model_repository_index", as_json=True),
        call("get_inference_statistics", "small", as_json=True),
        infer(tensors(small.signature, small.sample(1)), **named),
    )
    versions = [*model["versions"], answer["version"]]
    versions += [one["version"] for one in (*index["models"], *statistics["model_stats"])]
    assert [int(version) for version in versions] == [1, 1, 1, 1]


@needs_triton
def test_tritons_client_gets_each_error_with_its_code_and_reason(
    server: ServerUnderTest, small: Exported
) -> None:
    made = tensors(small.signature, small.sample(2))
    named = {"model_name": "small"}
    cases = {
        "unknown model": (infer(made, model_name="other"), "NOT_FOUND", "'other'"),
        "unknown version": (infer(made, model_version="8", **named), "NOT_FOUND", "'8'"),
        "missing input": (infer(made[1:], **named), "INVALID_ARGUMENT", "inputs: missing 'context'"),
        "unknown output": (infer(made, outputs=["x"], **named), "INVALID_ARGUMENT", "got an unknown output 'x'"),
        "priority": (infer(made, priority=4, **named), "INVALID_ARGUMENT", "parameters['priority']: got 4"),
        "sequence": (infer(made, sequence_id=5, **named), "INVALID_ARGUMENT", "parameters['sequence_id']"),
        "metadata": (call("get_model_metadata", "other"), "NOT_FOUND", "'other'"),
        "config": (call("get_model_config", "other"), "NOT_FOUND", "'other'"),
        "statistics": (call("get_inference_statistics", "other"), "NOT_FOUND", "'other'"),
        "load": (call("load_model", "small"), "PERMISSION_DENIED", "admin port"),
        "unload": (call("unload_model", "small"), "PERMISSION_DENIED", "admin port"),
        "shared memory": (call("get_system_shared_memory_status"), "UNIMPLEMENTED", ""),
    }  # fmt: skip
    answers = triton(server.address, *(one for one, _, _ in cases.values()))
    for (name, (_, code, text)), got in zip(cases.items(), answers, strict=True):
        assert got[0] == f"StatusCode.{code}", name
        assert text in got[1], name


@needs_triton
def test_tritons_client_reads_statistics_that_grow_with_what_it_asks(
    server: ServerUnderTest, small: Exported
) -> None:
    made = tensors(small.signature, small.sample(3))
    read = call("get_inference_statistics", "small", as_json=True)
    before, *_, after = triton(
        server.address,
        read,
        *[infer(made, model_name="small")] * 4,
        infer(made[1:], model_name="small"),
        read,
    )

    def counts(stats: Any) -> tuple[int, int, int, int]:
        [one] = stats["model_stats"]
        assert (one["name"], one["version"]) == ("small", server.ready["version"])
        inference = one["inference_stats"]
        return (
            int(inference["success"].get("count", 0)),
            int(inference["fail"].get("count", 0)),
            int(one.get("inference_count", 0)),
            int(one.get("execution_count", 0)),
        )

    grown = [new - old for old, new in zip(counts(before), counts(after), strict=True)]
    assert grown == [4, 1, 4 * 3, 4]


@needs_triton
def test_tritons_client_loads_and_unloads_on_the_admin_port_with_the_token(
    repository: Path, small: Exported, tmp_path: Path
) -> None:
    put_version(repository, "small", "1", small.path)
    put_version(repository, "small", "2", small.path)
    sample = small.sample(2)
    made = tensors(small.signature, sample)
    token = {"headers": {"authorization": f"Bearer {TOKEN}"}}
    index = call("get_model_repository_index", as_json=True, **token)
    named = {"model_name": "small", **token}
    with running("--repository", repository, *with_admin(tmp_path), folder=tmp_path) as server:
        got = triton(
            server.admin_address,
            call("load_model", "small"),
            call("unload_model", "small", headers={"authorization": "Bearer another"}),
            index,
            call("load_model", "other", **token),
            call("unload_model", "small", **token),
            index,
            call("is_model_ready", "small", **token),
            infer(made, **named),
            call("load_model", "small", **token),
            index,
            infer(made, **named),
        )
    refused, wrong, before, unknown, unloaded, gone, is_ready, nobody, loaded, after, answer = got
    assert refused[0] == wrong[0] == "StatusCode.UNAUTHENTICATED"
    assert unknown[0] == "StatusCode.NOT_FOUND"
    assert (unloaded, loaded, is_ready) == (None, None, False)
    assert nobody[0] in ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
    states = [[(one["version"], one["state"]) for one in each["models"]] for each in (before, gone, after)]
    assert states[0] == states[2] == [("1", "UNAVAILABLE"), ("2", "READY")]
    assert states[1] == [("1", "UNAVAILABLE"), ("2", "UNAVAILABLE")]
    assert_answers(arrays(answer), small.answer(sample))
