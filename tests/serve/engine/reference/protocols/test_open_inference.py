"""Open Inference on a live server: Triton's own client, and messages that it would never send."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from recsys.artifact.load import load_artifact
from serve.app.server import Server
from serve.config.settings import AdminConfig, ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.models.repository import Repository
from serve.protocols.open_inference import SERVICE
from serve.wire import open_inference_pb2 as wire
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.messages.foreign import flat, floats, kserve_message, tensors
from tests.support.serve.models import SIGNATURE, GatedModel
from tests.support.serve.repositories import add_version

ROOT = Path(__file__).resolve().parents[5]
OUTPUTS = [output.name for output in SIGNATURE.outputs]
TOKEN = "a-token-of-the-tests-with-enough-letters"


def sample_of(rows: int, seed: int = 0) -> Sample:
    return random_sample(SIGNATURE, rows, np.random.default_rng(seed))


def triton_calls(what: str, address: str, sample: Sample, *more: str) -> dict[str, Any]:
    """What Triton's client says, from a process of its own."""
    if importlib.util.find_spec("tritonclient") is None:
        pytest.skip("tritonclient is in the group 'peer'")
    dtypes = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape,
            "data": np.frombuffer(one.data, dtypes[one.datatype]).tolist(),
        }
        for one in tensors(SIGNATURE, sample)
    ]
    script = ROOT / "tests" / "support" / "serve" / "messages" / "triton_calls.py"
    done = subprocess.run(
        [sys.executable, str(script), what, address, *more],
        input=json.dumps({"inputs": inputs, "outputs": OUTPUTS}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


def arrays(outputs: dict[str, Any], rows: int) -> dict[str, np.ndarray]:
    shapes = {output.name: (rows, *output.shape) for output in SIGNATURE.outputs}
    return {name: np.array(values, "<f4").reshape(shapes[name]) for name, values in outputs.items()}


@pytest.fixture(scope="module")
def calls(model: ServedModel) -> Iterator[tuple[dict[str, Any], Sample]]:
    """All that Triton's client got from one server."""
    sample = sample_of(3)
    with LiveServer(model) as live:
        yield triton_calls("inference", live.address, sample), sample


def test_triton_predicts_in_every_way(calls: tuple[dict[str, Any], Sample], model: ServedModel) -> None:
    got, sample = calls
    expected = answer(model, sample)
    for outputs in (got["infer"], got["with_client_timeout"], got["async"], *got["aio"]):
        assert_answers(arrays(outputs, 3), expected)
    assert len(got["aio"]) == 8
    assert got["id"] == "first"
    assert got["one_output"] == ["vectors"]


def test_triton_streams_in_order_and_an_error_ends_only_its_request(
    calls: tuple[dict[str, Any], Sample], model: ServedModel
) -> None:
    got, sample = calls
    first, second, third = got["stream"]
    assert [first[0], third[0]] == ["a", "c"]
    assert "inputs: missing 'context'" in second
    for outputs in (first[1], third[1]):
        assert_answers(arrays(outputs, 3), answer(model, sample))


def test_triton_learns_what_is_there(calls: tuple[dict[str, Any], Sample]) -> None:
    got, _ = calls
    assert got["live"] is True
    assert got["ready"] is True
    assert got["model_ready"] == [True, True, False, False]
    assert got["server"]["name"] == "recsys-serving"
    assert "statistics" in got["server"]["extensions"]
    assert (got["model"]["name"], got["model"]["versions"]) == ("small", ["7"])
    inputs = {one["name"]: (one["datatype"], one["shape"]) for one in got["model"]["inputs"]}
    assert inputs["context"] == ("FP32", ["-1", "3"])
    assert inputs["user.values"] == ("INT64", ["-1"])
    assert inputs["user.lengths"] == ("INT32", ["-1"])
    assert inputs["tags.weights"] == ("FP32", ["-1"])
    assert len(inputs) == 2 + 4 * 2 + 1
    assert got["model"]["outputs"] == [
        {"name": "score", "datatype": "FP32", "shape": ["-1"]},
        {"name": "vectors", "datatype": "FP32", "shape": ["-1", "2", "3"]},
    ]
    config = got["config"]
    assert [one["name"] for one in config["input"]] == list(inputs)
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["instance_group"] == [{"name": "small", "count": 1, "kind": "KIND_CPU"}]
    assert config["dynamic_batching"] == {"priority_levels": "3", "default_priority_level": "2"}
    assert config["parameters"]["target"] == {"string_value": "cpu"}
    assert got["index"] == [{"name": "small", "version": "7", "state": "READY"}]


def test_triton_reads_statistics(calls: tuple[dict[str, Any], Sample]) -> None:
    got, _ = calls
    (model,) = got["statistics"]
    assert got["all_statistics"] == 1
    assert (model["name"], model["version"]) == ("small", "7")
    # Before them: four requests, two of the stream, and what was refused.
    stats = model["inference_stats"]
    assert stats["success"]["count"] == "6"
    assert int(stats["success"]["ns"]) > 0
    assert int(stats["fail"]["count"]) >= 3
    assert stats["queue"]["count"] == "6"
    assert int(model["inference_count"]) == 6 * 3
    assert 1 <= int(model["execution_count"]) <= 6
    assert stats["compute_infer"]["count"] == model["execution_count"]
    assert int(stats["compute_infer"]["ns"]) > 0
    assert int(model["last_inference"]) > 0


def test_triton_gets_errors_with_their_codes(calls: tuple[dict[str, Any], Sample]) -> None:
    got, _ = calls
    expected = {
        "unknown model": ("NOT_FOUND", "'other'"),
        "unknown version": ("NOT_FOUND", "'8'"),
        "missing input": ("INVALID_ARGUMENT", "inputs: missing 'context'"),
        "unknown output": (
            "INVALID_ARGUMENT",
            "outputs: got an unknown output 'x', expected 'score', 'vectors'",
        ),
        "classification": ("INVALID_ARGUMENT", "outputs['score'].parameters['classification']"),
        "priority": ("INVALID_ARGUMENT", "parameters['priority']: got 4, expected 0 (default) to 3"),
        "sequence": ("INVALID_ARGUMENT", "parameters['sequence_id']"),
        "load": ("PERMISSION_DENIED", "admin port"),
        "unload": ("PERMISSION_DENIED", "admin port"),
        "metadata": ("NOT_FOUND", "'other'"),
        "statistics": ("NOT_FOUND", "'other'"),
        "shared memory": ("UNIMPLEMENTED", ""),
    }
    assert set(got["errors"]) == set(expected)
    for name, (code, text) in expected.items():
        status, message = got["errors"][name]
        assert status == f"StatusCode.{code}", name
        assert text in message, name


def test_triton_loads_and_unloads_on_the_admin_port(artifact_path: Path, tmp_path: Path) -> None:
    add_version(tmp_path / "models", "small", "1", artifact_path)
    add_version(tmp_path / "models", "small", "2", artifact_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    config = ServerConfig(port=0, metrics_port=None, admin=AdminConfig(token_file=token, port=0))
    model = load_artifact(artifact_path)
    live = LiveServer(model, config)
    live.server = Server(Repository(tmp_path / "models"), config)
    sample = sample_of(2)
    with live:
        got = triton_calls("admin", f"127.0.0.1:{live.server.admin_port}", sample, TOKEN)
    assert got["no token"] == "StatusCode.UNAUTHENTICATED"
    old = {"name": "small", "version": "1", "state": "UNAVAILABLE", "reason": "not loaded"}
    assert got["before"] == [old, {"name": "small", "version": "2", "state": "READY"}]
    assert got["config"][0] == "StatusCode.INVALID_ARGUMENT"
    assert "parameters: got 'config'" in got["config"][1]
    assert got["unknown"][0] == "StatusCode.NOT_FOUND"
    assert [one["state"] for one in got["unloaded"]] == ["UNAVAILABLE", "UNAVAILABLE"]
    assert got["unloaded ready"] is False
    assert got["unloaded infer"] in ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
    assert got["loaded"] == got["before"]
    assert got["loaded ready"] is True
    assert_answers(arrays(got["infer"], 2), answer(model, sample))


@pytest.fixture
def channel(live: LiveServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live.address) as made:
        yield made


def call(channel: grpc.Channel, message: wire.ModelInferRequest, **options: Any) -> wire.ModelInferResponse:
    data = channel.unary_unary(f"/{SERVICE}/ModelInfer")(message.SerializeToString(), **options)
    return wire.ModelInferResponse.FromString(data)


def outputs_of(response: wire.ModelInferResponse) -> dict[str, np.ndarray]:
    return {
        output.name: np.frombuffer(data, "<f4").reshape(output.shape)
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }


@pytest.mark.parametrize("rows", [0, 1, 17])
def test_raw_contents(channel: grpc.Channel, model: ServedModel, rows: int) -> None:
    sample = sample_of(rows, seed=rows)
    response = call(channel, kserve_message(tensors(SIGNATURE, sample), model_name="small", id="x"))
    assert (response.model_name, response.model_version, response.id) == ("small", "7", "x")
    assert {output.datatype for output in response.outputs} == {"FP32"}
    assert_answers(outputs_of(response), answer(model, sample))


@pytest.mark.parametrize("rows", [0, 5])
def test_typed_contents(channel: grpc.Channel, model: ServedModel, rows: int) -> None:
    sample = sample_of(rows, seed=5)
    message = wire.ModelInferRequest()
    for dense in SIGNATURE.dense:
        array = floats(sample.dense[dense.name], dense.width)
        message.inputs.add(
            name=dense.name,
            datatype="FP32",
            shape=array.shape,
            contents=wire.InferTensorContents(fp32_contents=array.reshape(-1)),
        )
    for sparse in SIGNATURE.sparse:
        rows_of_ids = sample.sparse[sparse.name]
        ids = wire.InferTensorContents(int64_contents=flat(rows_of_ids, "<i8"))
        lengths = wire.InferTensorContents(int_contents=[len(row) for row in rows_of_ids])
        num_ids = len(ids.int64_contents)
        message.inputs.add(name=f"{sparse.name}.values", datatype="INT64", shape=[num_ids], contents=ids)
        message.inputs.add(name=f"{sparse.name}.lengths", datatype="INT32", shape=[rows], contents=lengths)
        if sparse.weighted:
            weights = wire.InferTensorContents(fp32_contents=flat(sample.weights[sparse.name], "<f4"))
            message.inputs.add(
                name=f"{sparse.name}.weights", datatype="FP32", shape=[num_ids], contents=weights
            )
    assert_answers(outputs_of(call(channel, message)), answer(model, sample))


def _typed_bool(message: wire.ModelInferRequest) -> None:
    del message.raw_input_contents[:]
    message.inputs[0].contents.bool_contents.append(True)


WRONG: dict[str, tuple[Callable[[wire.ModelInferRequest], object], str]] = {
    "raw-and-typed": (
        lambda m: m.inputs[0].contents.fp32_contents.append(1.0),
        "inputs['context'].contents: got values beside raw_input_contents",
    ),
    "fewer-raw": (lambda m: m.raw_input_contents.pop(), "raw_input_contents: got 10 tensors, expected 11"),
    "wrong-typed-field": (
        _typed_bool,
        "inputs['context'].contents: got bool_contents, expected fp32_contents for FP32",
    ),
    "nothing-typed": (lambda m: m.ClearField("raw_input_contents"), "inputs['context']: got 0 bytes, expected 24"),
    "bool-tensor": (
        lambda m: setattr(m.inputs[2], "datatype", "BOOL"),
        "inputs['user.values'].datatype: got 'BOOL', expected INT64 or INT32 or BYTES",
    ),
    "shared-memory": (
        lambda m: setattr(m.inputs[0].parameters["shared_memory_region"], "string_param", "r"),
        "inputs['context'].parameters['shared_memory_region']",
    ),
    "flood-of-inputs": (
        lambda m: m.inputs.extend([wire.ModelInferRequest.InferInputTensor()] * 100_000),
        "inputs: got 100011 tensors, expected at most 14 for this model",
    ),
    "flood-of-outputs": (
        lambda m: m.outputs.extend([wire.ModelInferRequest.InferRequestedOutputTensor(name="score")] * 100_000),
        "outputs: got 100000, expected at most 2",
    ),
    "doubled-output": (
        lambda m: m.outputs.extend([wire.ModelInferRequest.InferRequestedOutputTensor(name="score")] * 2),
        "outputs: got an output more than once",
    ),
    "long-id": (lambda m: setattr(m, "id", "é" * 65), "id: got 130 bytes, expected at most 128"),
    "text-timeout": (
        lambda m: setattr(m.parameters["timeout"], "string_param", "5"),
        "parameters['timeout']: got '5', expected a whole number of microseconds",
    ),
    "negative-timeout": (
        lambda m: setattr(m.parameters["timeout"], "int64_param", -5),
        "parameters['timeout']: got -5",
    ),
    "bool-priority": (
        lambda m: setattr(m.parameters["priority"], "bool_param", True),
        "parameters['priority']: got True, expected 0",
    ),
    "number-context": (
        lambda m: setattr(m.parameters["context"], "int64_param", 1),
        "parameters['context']: got 1, expected names of inputs",
    ),
    "id-at-limit": (
        lambda m: m.raw_input_contents.__setitem__(2, np.full(m.inputs[2].shape[0], 50, "<i8").tobytes()),
        "sparse['user'].values: got ID 50",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_message_gets_invalid_argument(channel: grpc.Channel, name: str) -> None:
    spoil, text = WRONG[name]
    message = kserve_message(tensors(SIGNATURE, sample_of(2, seed=1)))
    spoil(message)
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in caught.value.details()


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "RepositoryModelLoad"])
def test_bytes_that_are_no_message_get_invalid_argument(channel: grpc.Channel, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE}/{method}")(b"\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "message: got 1 bytes that are not a " in caught.value.details()


def test_a_timeout_parameter_that_passes_ends_the_request(model: ServedModel) -> None:
    gated = GatedModel(model)
    with LiveServer(gated) as live, grpc.insecure_channel(live.address) as channel:
        gated.close_gate()
        method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        message = kserve_message(tensors(SIGNATURE, sample_of(1)))
        running = method.future(message.SerializeToString())
        assert gated.started.acquire(timeout=60)
        message.parameters["timeout"].int64_param = 1
        late = method.future(message.SerializeToString())
        # Passed for certain once a later request has been taken in.
        while live.server.metrics.outcomes()["accepted"] < 2:
            channel.unary_unary(f"/{SERVICE}/ServerLive")(b"")
        gated.gate.set()
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        running.result(60)


def test_a_stream_whose_client_goes_leaves_nothing_behind(model: ServedModel) -> None:
    gated = GatedModel(model)
    with LiveServer(gated) as live:
        gated.close_gate()
        data = kserve_message(tensors(SIGNATURE, sample_of(1))).SerializeToString()
        with grpc.insecure_channel(live.address) as channel:
            answers = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(iter([data] * 3))
            while live.server.metrics.outcomes()["accepted"] < 3:
                channel.unary_unary(f"/{SERVICE}/ServerLive")(b"")
            answers.cancel()
            while live.server.engine.num_active:
                channel.unary_unary(f"/{SERVICE}/ServerLive")(b"")
        gated.gate.set()
    assert live.server.metrics.outcomes()["cancelled"] == 3
