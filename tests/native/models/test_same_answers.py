"""Both engines answer random messages of all three protocols with the same status, text and bytes.

Each request is a batch of its own, so that no answer depends on what else waits. ``RECSYS_SAME_ANSWERS`` says how many
messages there are; by hand it is 200 000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from recsys.base.native_module import NotBuiltError
from serve.client import PREDICT
from serve.client.packing import read_response
from serve.engine.native import load_binding
from serve.wire import predict_pb2
from tests.cases.fields import plain_field_of
from tests.conformance.support.artifacts import CONTEXT, Exported, export_policies, export_small
from tests.support.serve.messages.cases import Sample, assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message
from tests.support.serve.messages.mutations import MUTATIONS, extend, fields, flip, garbage, splice, truncate
from tests.support.serve.messages.texts import packed, text_request, text_tensors, typed_message, with_texts

NUM_MESSAGES = int(os.environ.get("RECSYS_SAME_ANSWERS", "6000"))
_METHODS = {
    "recsys": PREDICT,
    "kserve": "/inference.GRPCInferenceService/ModelInfer",
    "torchrec": "/predictor.Predictor/Predict",
}
_SPOILED = {
    "recsys": MUTATIONS,
    "kserve": (flip, truncate, extend, splice, garbage, fields),
    "torchrec": (flip, truncate, extend, splice, garbage, fields),
}
_IN_FLIGHT = 32
_ROWS = (0, 1, 2, 3, 7, 40)
Outcome = tuple[str, str, bytes]


def _is_built() -> bool:
    try:
        load_binding()
    except NotBuiltError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _is_built(), reason="needs the native engine; make native builds it")


@contextmanager
def serving(engine: str, path: Path) -> Iterator[grpc.Channel]:
    command = [sys.executable, "-m", "serve.app.cli", str(path), "--engine", engine, "--executors", "1"]
    # Each request alone in its batch.
    command += ["--max-batch-rows", "1", "--port", "0", "--no-metrics", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            process.terminate()


@pytest.fixture(scope="module", params=[export_small, export_policies], ids=["small", "policies"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Exported, grpc.Channel, grpc.Channel]]:
    exported = request.param(tmp_path_factory.mktemp("served") / "artifact")
    with ExitStack() as stack:
        reference = stack.enter_context(serving("reference", exported.path))
        native = stack.enter_context(serving("native", exported.path))
        yield exported, reference, native


def ranking(exported: Exported, rng: np.random.Generator) -> bytes:
    """A request whose context inputs have one row."""
    once = exported.sample(1, int(rng.integers(1 << 30))).request()
    rows = exported.sample(int(rng.integers(1, 41)), int(rng.integers(1 << 30))).request()
    for kept in (rows.dense, rows.sparse):
        for message in [message for message in kept if message.name in CONTEXT]:
            kept.remove(message)
    rows.context_dense.extend(message for message in once.dense if message.name in CONTEXT)
    rows.context_sparse.extend(message for message in once.sparse if message.name in CONTEXT)
    data: bytes = rows.SerializeToString()
    return data


def with_all_texts(
    exported: Exported, sample: Sample, rng: np.random.Generator
) -> tuple[Sample, dict[str, bytes]]:
    """The sample with IDs of texts, and by protocol the same in texts."""
    signature = exported.signature
    sample, texts = with_texts(signature, sample, rng)
    made = text_tensors(signature, sample, texts)
    infer = typed_message(made) if rng.integers(2) else kserve_message(packed(made))
    request = text_request(sample, texts)
    return sample, {"recsys": request.SerializeToString(), "kserve": infer.SerializeToString()}


def messages(exported: Exported, seed: int) -> Iterator[tuple[str, bytes, Sample | None]]:
    """Protocol, message, and the sample that a good ``recsys`` message asks to score; endless."""
    rng = np.random.default_rng(seed)
    signature = exported.signature
    has_dense = bool(signature.dense)
    while True:
        sample = exported.sample(int(rng.choice(_ROWS)), int(rng.integers(1 << 30)))
        plain = sample.request().SerializeToString()
        good = {"recsys": plain, "kserve": kserve_message(tensors(signature, sample)).SerializeToString()}
        if has_dense:
            good["torchrec"] = torchrec_message(signature, sample, "<i8").SerializeToString()
        yield "recsys", plain, sample
        hashed, in_texts = with_all_texts(exported, sample, rng)
        yield "recsys", in_texts["recsys"], hashed
        for protocol, data in in_texts.items():
            yield protocol, data, None
            for mutation in rng.choice(np.array(_SPOILED[protocol], dtype=object), 2):
                yield protocol, mutation(data, rng), None
        if signature.context:
            yield "recsys", ranking(exported, rng), None
        for protocol, data in good.items():
            if protocol != "recsys":
                yield protocol, data, None
            for mutation in rng.choice(np.array(_SPOILED[protocol], dtype=object), 4):
                yield protocol, mutation(data, rng), None


def outcome(call: grpc.Future) -> Outcome:
    """Code, the field that the text names, and bytes."""
    code = call.code()
    return (
        code.name,
        plain_field_of(call.details() or ""),
        call.result() if code is grpc.StatusCode.OK else b"",
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_messages_get_the_same_answers(
    served: tuple[Exported, grpc.Channel, grpc.Channel],
) -> None:
    exported, *channels = served
    methods = [{name: c.unary_unary(method) for name, method in _METHODS.items()} for c in channels]
    waiting: deque[tuple[str, bytes, Sample | None, list[grpc.Future]]] = deque()
    seen: Counter[str] = Counter()

    def check() -> None:
        protocol, data, sample, calls = waiting.popleft()
        reference, native = map(outcome, calls)
        assert native == reference, (protocol, data.hex())
        seen[f"{protocol} {reference[0]}"] += 1
        if sample is not None:
            assert reference[0] == "OK"
            got = read_response(predict_pb2.PredictResponse.FromString(reference[2]))
            assert_answers(got, exported.answer(sample))

    for _, (protocol, data, sample) in zip(range(NUM_MESSAGES // 2), messages(exported, 1), strict=False):
        calls = [own[protocol].future(data, timeout=120.0) for own in methods]
        waiting.append((protocol, data, sample, calls))
        if len(waiting) == _IN_FLIGHT:
            check()
    while waiting:
        check()
    print(dict(sorted(seen.items())))
    assert seen["recsys OK"]
    assert seen["recsys INVALID_ARGUMENT"]
    assert seen["kserve OK"]
    assert seen["kserve INVALID_ARGUMENT"]
