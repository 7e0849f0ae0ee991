"""Open Inference over gRPC: every form of a message, and messages that no client would send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serve.engine.reference.protocols.tensors import Tensor
from serve.wire import open_inference_pb2 as wire
from tests.conformance.support.artifacts import CONTEXT, Exported
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.open_inference import SERVICE, assert_same_bits, model_infer, outputs_of, plain
from tests.support.serve.messages.cases import Sample, assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensor, tensors
from tests.support.serve.messages.texts import typed_message

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33], ids=lambda n: f"{n}-rows")
@pytest.mark.parametrize("form", [kserve_message, typed_message], ids=["raw", "typed"])
def test_raw_and_typed_contents_are_answered_as_over_recsys_v1(
    server: ServerUnderTest, small: Exported, form: Callable[..., wire.ModelInferRequest], num_rows: int
) -> None:
    sample = small.sample(num_rows, seed=num_rows)
    got = outputs_of(model_infer(server, form(tensors(small.signature, sample))))
    assert_same_bits(got, plain(server, sample))
    assert_answers(got, small.answer(sample))


def test_the_order_of_tensors_does_not_matter(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(3)
    message = kserve_message(tensors(small.signature, sample)[::-1])
    assert_same_bits(outputs_of(model_infer(server, message)), plain(server, sample))


def _whole(made: list[Tensor], name: str, ids: np.ndarray) -> list[Tensor]:
    """The IDs of an input as one tensor, in place of its parts."""
    left = [one for one in made if one.name not in (f"{name}.values", f"{name}.lengths")]
    return [*left, tensor(name, "INT64" if ids.dtype.itemsize == 8 else "INT32", ids)]


def _retyped(one: Tensor, old: str, new: str, datatype: str) -> Tensor:
    return Tensor(one.name, datatype, one.shape, np.frombuffer(one.data, old).astype(new).tobytes())


@pytest.mark.parametrize("id_type", ["<i8", "<i4"], ids=["int64", "int32"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_ids_of_one_length_may_come_as_one_tensor(
    server: ServerUnderTest, small: Exported, length: int, id_type: str
) -> None:
    sample = small.sample(3)
    ids = np.arange(3 * length, dtype=id_type).reshape(3, length) % 7
    for name in ("user", "genres", "tags"):
        sample.sparse[name][:] = ids.tolist()
    sample.weights["tags"][:] = [[0.5] * length] * 3
    made = tensors(small.signature, sample)
    for name in ("user", "genres", "tags"):
        made = _whole(made, name, ids)
    made = [one for one in made if one.name != "tags.weights"]
    made.append(tensor("tags.weights", "FP32", np.full((3, length), 0.5, "<f4")))
    assert_same_bits(outputs_of(model_infer(server, kserve_message(made))), plain(server, sample))


def test_one_id_and_one_float_a_row_may_come_without_a_second_dimension(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(3)
    sample.sparse["user"][:] = [[1], [2], [3]]
    made = _whole(tensors(small.signature, sample), "user", np.array([1, 2, 3], "<i8"))
    for one in made:
        if one.name == "price":
            one.shape = (3,)
    assert_same_bits(outputs_of(model_infer(server, kserve_message(made))), plain(server, sample))


def test_lengths_may_be_int64_and_ids_int32(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(4)
    sample.sparse["item"][:] = [[1], [2, -3], [], [4]]
    made = [
        _retyped(one, "<i4", "<i8", "INT64")
        if one.name.endswith(".lengths")
        else _retyped(one, "<i8", "<i4", "INT32")
        if one.name.endswith(".values")
        else one
        for one in tensors(small.signature, sample)
    ]
    assert_same_bits(outputs_of(model_infer(server, kserve_message(made))), plain(server, sample))


def test_ids_keep_all_their_bits(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(1)
    sample.sparse["item"][0][:] = [(1 << 53) + 1, -(1 << 63), (1 << 63) - 1]
    got = outputs_of(model_infer(server, kserve_message(tensors(small.signature, sample))))
    assert_answers(got, small.answer(sample))


@pytest.mark.parametrize("shared", [CONTEXT, ("user",), ("genres", "price")], ids="+".join)
def test_inputs_named_as_context_have_one_row_for_all(
    server: ServerUnderTest, small: Exported, shared: tuple[str, ...]
) -> None:
    sample = small.sample(5, seed=3)
    for values in (sample.dense, sample.sparse, sample.weights):
        for name in set(values) & set(shared):
            values[name][1:] = [values[name][0]] * 4
    one_row = Sample(
        1, *({n: v[:1] for n, v in part.items()} for part in (sample.dense, sample.sparse, sample.weights))
    )
    made = [t for t in tensors(small.signature, sample) if t.name.split(".")[0] not in shared]
    made += [t for t in tensors(small.signature, one_row) if t.name.split(".")[0] in shared]
    message = kserve_message(made)
    message.parameters["context"].string_param = ", ".join(shared)
    assert_answers(outputs_of(model_infer(server, message)), small.answer(sample))


def _field(of: str, **values: Any) -> Callable[[wire.ModelInferRequest], None]:
    """Change what an input says of itself."""

    def spoil(message: wire.ModelInferRequest) -> None:
        (one,) = (given for given in message.inputs if given.name == of)
        for field, value in values.items():
            if field == "shape":
                one.shape[:] = value
            else:
                setattr(one, field, value)

    return spoil


def _parameter(name: str, **value: Any) -> Callable[[wire.ModelInferRequest], None]:
    return lambda message: message.parameters[name].CopyFrom(wire.InferParameter(**value))


def _beside(message: wire.ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.append(1.0)


WRONG: dict[str, tuple[Callable[[wire.ModelInferRequest], object], str]] = {
    "unknown-tensor": (_field("user.values", name="who.values"), "inputs: got an unknown tensor 'who.values'"),
    "stranger-beside": (
        lambda m: (m.inputs.add(name="who", datatype="FP32", shape=[0]), m.raw_input_contents.append(b"")),
        "inputs: got an unknown tensor 'who'",
    ),
    "twice": (_field("price", name="context"), "inputs: got 'context' more than once"),
    "whole-and-parts": (
        lambda m: (m.inputs.add(name="user", datatype="INT64", shape=[2, 0]), m.raw_input_contents.append(b"")),
        "inputs: got 'user' whole and in parts",
    ),
    "float-ids": (
        _field("user.values", datatype="FP32"),
        "inputs['user.values'].datatype: got 'FP32', expected INT64 or INT32 or BYTES",
    ),
    "fp64-dense": (_field("context", datatype="FP64"), "inputs['context'].datatype: got 'FP64', expected FP32"),
    "fp16-dense": (_field("context", datatype="FP16"), "inputs['context'].datatype: got 'FP16', expected FP32"),
    "other-width": (_field("context", shape=[3, 2]), "inputs['context'].shape: got [3, 2], expected [-1, 3]"),
    "flat-dense": (_field("context", shape=[6]), "inputs['context'].shape: got [6], expected [-1, 3]"),
    "negative-shape": (_field("context", shape=[-2, 3]), "inputs['context'].shape: got [-2, 3]"),
    "endless-shape": (_field("context", shape=[1 << 62, 3]), "inputs['context']: got 24 bytes"),
    "no-shape": (_field("user.values", shape=[]), "inputs['user.values'].shape: got []"),
    "deep-lengths": (_field("user.lengths", shape=[2, 1]), "inputs['user.lengths'].shape: got [2, 1]"),
    "more-rows": (_field("price", shape=[3, 1]), "inputs['price']: got 8 bytes, expected 12"),
    "fewer-raw": (lambda m: m.raw_input_contents.pop(), "raw_input_contents: got 10 tensors, expected 11"),
    "more-raw": (lambda m: m.raw_input_contents.append(b""), "raw_input_contents: got 12 tensors, expected 11"),
    "raw-and-typed": (_beside, "inputs['context'].contents: got values beside raw_input_contents"),
    "nothing-given": (lambda m: m.ClearField("raw_input_contents"), "inputs['context']: got 0 bytes, expected 24"),
    "long-id": (lambda m: setattr(m, "id", "é" * 65), "id: got 130 bytes, expected at most 128"),
    "priority": (_parameter("priority", int64_param=4), "parameters['priority']: got 4"),
    "priority-text": (_parameter("priority", string_param="1"), "parameters['priority']: got '1'"),
    "timeout": (_parameter("timeout", int64_param=-1), "parameters['timeout']: got -1"),
    "context": (_parameter("context", string_param="who"), "parameters['context']: got an unknown input 'who'"),
    "context-rows": (_parameter("context", string_param="user"), "inputs['user']: got 2 rows, expected 1"),
    "context-all": (
        _parameter("context", string_param="context,price,user,genres,item,tags"),
        "parameters['context']: got every input",
    ),
    "output": (lambda m: m.outputs.add(name="x"), "outputs: got an unknown output 'x', expected 'score', 'vectors'"),
    "output-twice": (
        lambda m: [m.outputs.add(name="score") for _ in range(2)],
        "outputs: got an output more than once",
    ),
    "class-count": (
        lambda m: m.outputs.add(name="score").parameters["classification"].CopyFrom(wire.InferParameter(int64_param=2)),
        "outputs['score'].parameters['classification']",
    ),
    "shared-memory": (
        lambda m: m.inputs[0].parameters["shared_memory_region"].CopyFrom(wire.InferParameter(string_param="r")),
        "inputs['context'].parameters['shared_memory_region']",
    ),
    "id-beyond": (
        lambda m: m.raw_input_contents.__setitem__(2, np.full(3, 50, "<i8").tobytes()),
        "sparse['user'].values: got ID 50 in row 0",
    ),
}  # fmt: skip


def good(small: Exported) -> wire.ModelInferRequest:
    """Two rows; three IDs of 'user'."""
    sample = small.sample(2)
    sample.sparse["user"][:] = [[1, 2], [3]]
    return kserve_message(tensors(small.signature, sample))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_inference_is_refused_by_field_got_and_expected(
    server: ServerUnderTest, small: Exported, name: str
) -> None:
    spoil, text = WRONG[name]
    message = good(small)
    spoil(message)
    code, got = status_of(lambda: model_infer(server, message))
    assert (code, text in got) == (grpc.StatusCode.INVALID_ARGUMENT, True), got
    assert len(got) < 1000


def test_the_inference_that_is_spoiled_is_good(server: ServerUnderTest, small: Exported) -> None:
    assert status_of(lambda: model_infer(server, good(small))) == (grpc.StatusCode.OK, "")


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "ModelMetadata", "RepositoryModelLoad"])
def test_bytes_that_are_no_message_are_an_invalid_argument(server: ServerUnderTest, method: str) -> None:
    code, text = status_of(lambda: server.channel().unary_unary(f"{SERVICE}/{method}")(b"\xff"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "got 1 bytes that are not a " in text


def test_a_flood_of_tensors_is_refused(server: ServerUnderTest, small: Exported) -> None:
    message = good(small)
    message.inputs.extend([wire.ModelInferRequest.InferInputTensor()] * 100_000)
    code, text = status_of(lambda: model_infer(server, message))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "inputs: got 100011 tensors, expected at most" in text


def test_a_stream_answers_in_order_and_an_error_ends_only_its_own_request(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(2)
    made = tensors(small.signature, sample)
    requests = [
        kserve_message(made if at % 3 else made[1:], id=str(at)).SerializeToString() for at in range(30)
    ]
    answers = server.channel().stream_stream(f"{SERVICE}/ModelStreamInfer")(iter(requests), timeout=60)
    expected = small.answer(sample)
    for at, data in enumerate(answers):
        answer = wire.ModelStreamInferResponse.FromString(data)
        if at % 3:
            assert answer.error_message == ""
            assert answer.infer_response.id == str(at)
            assert_answers(outputs_of(answer.infer_response), expected)
        else:
            assert "inputs: missing 'context'" in answer.error_message
    assert at == 29


def test_a_timeout_of_the_client_that_passes_is_a_deadline_exceeded(slow: Exported, tmp_path: Path) -> None:
    rows = 64
    ids = tensor("id", "INT64", np.arange(rows, dtype="<i8"))
    with running(slow.path, "--max-batch-rows", str(rows), folder=tmp_path) as server:
        method = server.channel().unary_unary(f"{SERVICE}/ModelInfer")
        busy = [method.future(kserve_message([ids]).SerializeToString(), timeout=120) for _ in range(8)]
        late = kserve_message([ids])
        late.parameters["timeout"].int64_param = 1
        code, _ = status_of(lambda: method(late.SerializeToString(), timeout=120))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        for one in busy:
            got = outputs_of(wire.ModelInferResponse.FromString(one.result()))
            np.testing.assert_array_equal(got["score"], np.arange(rows))
        assert server.total("recsys_requests_total", outcome="expired") == 1
