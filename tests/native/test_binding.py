"""The binding of the native engine: what crosses between C++ and Python, and the ends of both."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported, export_small

pytest.importorskip("torch")  # Its libraries must be in the process.
binding: Any = pytest.importorskip("serve.engine._engine", reason="make native builds it")

METHOD = "/recsys.v1.PredictionService/GetModelMetadata"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_small(tmp_path_factory.mktemp("artifact") / "small")


@pytest.fixture
def engine(small: Exported) -> Iterator[Any]:
    """An engine that serves one model and computes every request with another version too."""
    engine = binding.Engine(json.dumps({"ended": "all", "capture_share": 1.0, "trace_share": 0.0}))
    versions = [
        engine.open(str(small.path), json.dumps({"name": "small", "version": name}), []) for name in "12"
    ]
    table = {"model": "small", "serving": "1", "shadow": "2", "shadow_share": 1.0, "is_only": True}
    engine.publish(json.dumps(table), versions)
    yield engine
    engine.withdraw("small")
    engine.close(0.0)
    for version in versions:
        version.close()


def wait_for(engine: Any, *kinds: str) -> dict[str, tuple[Any, ...]]:
    """Wait for events; the last one of each kind."""
    events: dict[str, tuple[Any, ...]] = {}
    until = time.monotonic() + 30
    poll = select.poll()
    poll.register(engine.fileno(), select.POLLIN)
    while not events.keys() >= set(kinds):
        left = until - time.monotonic()
        assert left > 0, f"only {sorted(events)} came"
        poll.poll(1000 * left)
        events |= {event[0]: event[1:] for event in engine.take(64)}
    return events


def test_the_file_says_once_what_it_was_built_with() -> None:
    data = Path(binding.__file__).read_bytes()
    assert data.count(binding.BUILD.encode()) == 1
    mark, _, record = binding.BUILD.partition(" ")
    assert mark == "recsys-native-build"
    assert json.loads(record).keys() == {"engine", "torch", "fbgemm_gpu"}


def test_a_request_leaves_an_answer_and_its_records(engine: Any, small: Exported) -> None:
    sample = small.sample(3)
    message = sample.request()
    message.request_id = "one"
    engine.submit(7, json.dumps({"form": "recsys", "protocol": "ray"}), message.SerializeToString())
    events = wait_for(engine, "answer", "ended", "captured", "shadow")

    ticket, code, text, retry_after_ms, answer = events["answer"]
    assert (ticket, code, text, retry_after_ms) == (7, 0, "", 0)
    outputs = wire.PredictResponse.FromString(answer).outputs
    expected = small.answer(sample)
    for output in outputs:
        values = np.frombuffer(output.values, "<f4").reshape(output.dims)
        np.testing.assert_allclose(values, expected[output.name], rtol=1e-5)

    (fields,) = events["ended"]
    assert fields["protocol"] == "ray"
    assert (fields["model"], fields["version"], fields["request_id"]) == ("small", "1", "one")
    assert (fields["outcome"], fields["code"], fields["num_rows"]) == ("ok", "OK", 3)
    assert fields["is_logged"] is True
    assert fields["is_traced"] is False
    times = fields["times"]
    assert fields["enqueued_s"] <= times["taken_s"] <= times["executed_s"] <= times["responded_s"]
    assert (times["num_requests"], times["num_rows"]) == (1, 3)

    time_s, model, version, captured = events["captured"]
    assert 0 <= time.monotonic() - time_s < 60
    assert (model, version) == ("small", "1")
    assert wire.PredictRequest.FromString(captured).sparse == message.sparse

    *about, first, second = events["shadow"]
    assert about == ["small", "1", "2", "one", 3]
    assert first == second == [output.values for output in outputs]


def test_a_refused_request_ends_without_times(engine: Any) -> None:
    engine.submit(1, "{}", wire.PredictRequest(num_rows=1, request_id="\u00e4").SerializeToString())
    events = wait_for(engine, "answer", "ended")
    assert events["answer"][1] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    (fields,) = events["ended"]
    assert (fields["outcome"], fields["request_id"], fields["times"]) == ("invalid", "\u00e4", None)
    assert fields["reason"]


def test_calls_of_python_come_as_events_and_are_answered(engine: Any) -> None:
    port = engine.listen(json.dumps({"port": 0}), [METHOD], [], None)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor() as threads:
        call = channel.unary_unary(METHOD)
        asked = threads.submit(call, b"question", timeout=30, metadata=[("key", "first"), ("key", "last")])
        number, method, message, deadline_s, metadata, peer, is_last = wait_for(engine, "call")["call"]
        assert (method, message, is_last) == (METHOD, b"question", True)
        # Clients round a timeout up on the wire.
        assert 0 < deadline_s - time.monotonic() <= 31
        assert metadata["key"] == "first"
        assert peer.startswith("ipv4:127.0.0.1:")
        engine.answer(number, b"answer")
        assert asked.result() == b"answer"

        asked = threads.submit(call, b"")
        number, *_, deadline_s, _, _, _ = wait_for(engine, "call")["call"]
        assert deadline_s is None
        engine.fail(number, grpc.StatusCode.NOT_FOUND.value[0], "no such model")
        error = asked.exception()
        assert isinstance(error, grpc.RpcError)
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such model")


def test_errors_carry_their_kind(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(binding.Error, match="which does not exist") as raised:
        engine.open(str(tmp_path / "nothing"), "{}", [])
    assert (raised.value.kind, raised.value.retry_after_ms) == ("artifact_not_found", 0)
    with pytest.raises(binding.Error, match="unknown field 'colour'") as raised:
        binding.Engine('{"colour": 1}')
    assert raised.value.kind == "config"
    with pytest.raises(binding.Error) as raised:
        engine.listen(json.dumps({"host": "192.0.2.1"}), [], [], None)
    assert raised.value.kind == "listen"
    with pytest.raises(binding.Error) as raised:
        engine.listen("{}", [], [], (b"no certificate", b"no key", None))
    assert raised.value.kind == "config"


def test_waiting_leaves_the_lock_to_other_threads(engine: Any) -> None:
    # A request that stays active: nobody answers the call.
    port = engine.listen(json.dumps({"port": 0}), [METHOD], [], None)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        pending = channel.unary_unary(METHOD).future(b"")
        (number, *_) = wait_for(engine, "call")["call"]
        counted = 0
        done = threading.Event()

        def count() -> None:
            nonlocal counted
            while not done.is_set():
                counted += 1
                time.sleep(0.01)

        thread = threading.Thread(target=count)
        thread.start()
        engine.wait_until_idle(0.5)
        before_end = counted
        done.set()
        thread.join()
        engine.answer(number, b"")
        pending.result(timeout=30)
    assert before_end >= 5


def test_a_process_that_closes_nothing_ends_quietly(small: Exported) -> None:
    program = f"""
import json, torch
from serve.engine import _engine
engine = _engine.Engine("{{}}")
engine.listen("{{}}", [], [], None)
version = engine.open({str(small.path)!r}, json.dumps({{"name": "small", "version": "1"}}), [])
engine.publish(json.dumps({{"model": "small", "serving": "1", "is_only": True}}), [version])
engine.submit(1, "{{}}", b"")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
