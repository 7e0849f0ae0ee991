"""The answer log: what was asked and answered over every protocol is in its files, and nothing else."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.http_calls import ask, plain_body
from tests.support.serve.messages.cases import Sample
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message
from tests.support.serve.messages.texts import text_request, with_texts

pytestmark = pytest.mark.engine

NUM_REQUESTS = 40
ON = ("--answer-log-max-file-age-s", "3600")
# Records do not wait long for others.
SOON = ("--answer-log-max-file-age-s", "6")


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows, as docs/operate/answer_log.md has them."""
    return [row for file in files(folder) for row in parquet.ParquetFile(file).read().to_pylist()]


def by_request(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(folder):
        found.setdefault(row["request_id"], []).append(row)
    return found


def assert_row(row: dict[str, Any], sample: Sample, at: int) -> None:
    """A row has the inputs of one row of a sample."""
    for name, numbers in sample.dense.items():
        given = np.atleast_1d(np.float32(row[f"dense.{name}"]))
        np.testing.assert_array_equal(given, numbers[at])
    for name, bags in sample.sparse.items():
        assert row[f"ids.{name}"] == [int(i) for i in bags[at]], name
    for name, bags in (sample.weights or {}).items():
        np.testing.assert_array_equal(np.float32(row[f"weights.{name}"]), np.float32(bags[at]))


def assert_rows(given: list[dict[str, Any]], small: Exported, sample: Sample) -> None:
    """The rows of a request have its inputs and what the artifact answers."""
    assert [row["row"] for row in given] == list(range(len(given)))
    answer = small.answer(sample)
    for at, row in enumerate(given):
        assert row["num_rows"] == len(given)
        assert_row(row, sample, at)
        for name, values in answer.items():
            np.testing.assert_allclose(
                np.ravel(row[f"output.{name}"]), np.ravel(values[at]), rtol=1e-5, atol=1e-6
            )


@pytest.fixture(scope="module")
def logged(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("logged")
    with running(
        small.path, "--answer-log-destination", folder / "log", *ON, "--http-port", "0", folder=folder
    ) as server:
        call = server.predict_bytes()
        for seed in range(NUM_REQUESTS):
            request = small.sample(seed % 5, seed).request()
            request.request_id = f"visit-{seed}"
            call(request.SerializeToString(), timeout=60)
        wrong = small.sample(1).request()
        wrong.num_rows, wrong.request_id = 2, "wrong"
        status_of(lambda: call(wrong.SerializeToString(), timeout=60))
        ask_others(server, small)
        assert server.stop()[0] == 0
        yield folder / "log"


def ask_others(server: ServerUnderTest, small: Exported) -> None:
    """One request over each other protocol, a stream, and texts in place of IDs."""
    sample = small.sample(2, seed=999)
    channel = server.channel()
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    message = kserve_message(tensors(small.signature, sample))
    message.id = "kserve"
    infer(message.SerializeToString(), timeout=60)
    predict = channel.unary_unary("/predictor.Predictor/Predict")
    predict(torchrec_message(small.signature, sample, "<i8").SerializeToString(), timeout=60)
    url = f"http://{server.http_address}/v1/models/small:predict"
    assert ask(url, {**plain_body(sample), "id": "rest"}).status == 200
    stream = channel.stream_stream("/recsys.v1.PredictionService/PredictStream")
    request = sample.request()
    request.request_id = "stream"
    assert len(list(stream(iter([request.SerializeToString()]), timeout=60))) == 1
    sample, texts = with_texts(small.signature, sample, np.random.default_rng(0))
    request = text_request(sample, texts)
    request.request_id = "texts"
    server.predict_bytes()(request.SerializeToString(), timeout=60)


def test_requests_are_logged_with_their_answers(logged: Path, small: Exported) -> None:
    found = by_request(logged)
    for seed in range(NUM_REQUESTS):
        sample = small.sample(seed % 5, seed)
        if seed % 5:
            assert_rows(found[f"visit-{seed}"], small, sample)
    assert "wrong" not in found
    assert {(row["model"]) for row in rows(logged)} == {"small"}


def test_requests_of_every_protocol_are_logged_alike(logged: Path, small: Exported) -> None:
    found = by_request(logged)
    sample = small.sample(2, seed=999)
    protocols = {"kserve": "kserve", "": "torchrec", "rest": "rest", "stream": "recsys"}
    for request_id, protocol in protocols.items():
        assert_rows(found[request_id], small, sample)
        assert {row["protocol"] for row in found[request_id]} == {protocol}


def test_texts_are_logged_as_they_were_sent(logged: Path, small: Exported) -> None:
    sample, texts = with_texts(small.signature, small.sample(2, seed=999), np.random.default_rng(0))
    given = by_request(logged)["texts"]
    for sparse in small.signature.sparse:
        for at, row in enumerate(given):
            expected = texts[sparse.name][at]
            if sparse.strings and expected:
                assert row[f"texts.{sparse.name}"] == list(expected)
            elif not sparse.strings:
                assert row[f"ids.{sparse.name}"] == [int(i) for i in sample.sparse[sparse.name][at]]


def test_files_are_their_owners_alone(logged: Path) -> None:
    assert logged.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in files(logged)] == [0o600]
    assert not [path for path in logged.iterdir() if path.name.startswith(".")]


def test_a_context_is_logged_once_for_all_rows(small: Exported, tmp_path: Path) -> None:
    sample = small.sample(4, seed=5)
    request = sample.request()
    name = small.signature.context_sparse[0].name
    (bags,) = [one for one in request.sparse if one.name == name]
    context = wire.SparseInput(name=name, lengths=np.array([2], "<i4").tobytes())
    context.values = np.array([1, 2], "<i8").tobytes()
    if bags.weights:
        context.weights = np.array([1, 2], "<f4").tobytes()
    request.sparse.remove(bags)
    request.context_sparse.append(context)
    with running(small.path, "--answer-log-destination", tmp_path / "log", *ON, folder=tmp_path) as server:
        server.predict_bytes()(request.SerializeToString(), timeout=60)
        assert server.stop()[0] == 0
    assert [row[f"ids.{name}"] for row in rows(tmp_path / "log")] == [[1, 2], None, None, None]


def test_what_is_private_is_left_out_or_hashed(small: Exported, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a secret of the tests")
    out, hidden = small.signature.dense[0].name, small.signature.sparse[0].name
    arguments = ["--answer-log-leave-out", f"{out},nobody", "--answer-log-hash", hidden]
    arguments += ["--answer-log-hash-key-file", str(tmp_path / "key"), *ON]
    sample = small.sample(3, seed=7)
    for name in ("log", "again"):
        with running(
            small.path, "--answer-log-destination", tmp_path / name, *arguments, folder=tmp_path
        ) as server:
            server.predict_bytes()(sample.request().SerializeToString(), timeout=60)
            assert server.stop()[0] == 0
    found, again = rows(tmp_path / "log"), rows(tmp_path / "again")
    columns = {*found[0]}
    assert f"dense.{out}" not in columns
    assert not {f"ids.{hidden}", f"texts.{hidden}"} & columns
    hashes: dict[int, int] = {}
    for row, other, bag in zip(found, again, sample.sparse[hidden], strict=True):
        assert row[f"hashes.{hidden}"] == other[f"hashes.{hidden}"]
        for i, value in zip(bag, row[f"hashes.{hidden}"], strict=True):
            assert hashes.setdefault(int(i), value) == value
    assert not {*hashes} & {*hashes.values()}
    assert "'nobody', which model 'small' does not have" in (tmp_path / "server.log").read_text()


def test_a_share_by_request_id_is_the_same_on_all_servers(small: Exported, tmp_path: Path) -> None:
    for name in ("log", "again"):
        with running(
            small.path,
            "--answer-log-destination",
            tmp_path / name,
            "--answer-log-share",
            "0.5",
            *ON,
            folder=tmp_path,
        ) as server:
            call = server.predict_bytes()
            for seed in range(60):
                request = small.sample(1, seed).request()
                request.request_id = f"visit-{seed}"
                call(request.SerializeToString(), timeout=60)
            assert server.stop()[0] == 0
    chosen = {*by_request(tmp_path / "log")}
    assert chosen == {*by_request(tmp_path / "again")}
    assert 10 < len(chosen) < 50


def test_a_server_that_is_killed_leaves_whole_files_alone(small: Exported, tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ["--answer-log-destination", log, "--answer-log-max-file-bytes", "1", *SOON]
    with running(small.path, *arguments, folder=tmp_path) as server:
        call = server.predict_bytes()
        for seed in range(5):
            call(small.sample(1, seed).request().SerializeToString(), timeout=60)
            while len(files(log)) <= seed:
                assert server.is_alive()
        server.signal(signal.SIGKILL)
        server.process.wait()
    assert len(rows(log)) == 5
    with running(small.path, "--answer-log-destination", log, *SOON, folder=tmp_path) as server:
        call = server.predict_bytes()
        call(small.sample(1).request().SerializeToString(), timeout=60)
        while not list(log.glob(".*.partial")):
            assert server.is_alive()
        server.signal(signal.SIGKILL)
        server.process.wait()
    (partial,) = log.glob(".*.partial")
    assert len(rows(log)) == 5
    with running(small.path, "--answer-log-destination", log, folder=tmp_path) as server:
        assert not partial.exists()


def test_the_log_counts_what_it_wrote(small: Exported, tmp_path: Path) -> None:
    arguments = ["--answer-log-destination", tmp_path / "log", "--answer-log-max-file-bytes", "1", *SOON]
    with running(small.path, *arguments, folder=tmp_path) as server:
        call = server.predict_bytes()
        call(small.sample(1).request().SerializeToString(), timeout=60)
        while not server.total("recsys_answer_log_requests_total", result="written"):
            assert server.is_alive()
        metadata = parquet.read_metadata(files(tmp_path / "log")[0]).metadata
        about = json.loads(metadata[b"recsys_answers"])
        assert about["format"] == 1
        assert [one["name"] for one in about["signature"]["outputs"]] == [
            one.name for one in small.signature.outputs
        ]
