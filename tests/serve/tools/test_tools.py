"""recsys-predict, recsys-bench and recsys-serve as people and scripts call them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from serve import bench
from serve.app import cli
from serve.client import AsyncClient, Client
from serve.client.errors import DeadlineError, InvalidRequestError, UnavailableError
from serve.client.sampling import example_request
from serve.engine.reference.executor import ServedModel
from serve.tools import predict
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE, GatedModel

# No server listens on the discard port of loopback.
NOBODY = "127.0.0.1:9"


def test_predict_sends_its_own_example(
    live: LiveServer, model: ServedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert predict.main([live.address, "--example", "--rows", "3"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "request.json").write_text(text)
    assert predict.main([live.address, "--json-request", str(tmp_path / "request.json"), "--json"]) == 0
    outputs = {name: np.array(values) for name, values in json.loads(capsys.readouterr().out).items()}
    request = json.loads(text)
    expected = answer(model, Sample(3, request["dense"], request["sparse"], request["weights"]))
    assert_answers(outputs, expected)


def test_predict_reads_standard_input(
    live: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert predict.main([live.address, "--example"]) == 0
    content = io.BytesIO(capsys.readouterr().out.encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content))
    assert predict.main([live.address, "--json-request", "-"]) == 0
    assert "score [2]" in capsys.readouterr().out


def test_predict_sends_a_random_request_and_prints_the_metadata(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main([live.address, "--random", "--rows", "4"]) == 0
    assert "vectors [4, 2, 3]" in capsys.readouterr().out
    assert predict.main([live.address, "--metadata"]) == 0
    assert 'name: "genres"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("{", "not readable as JSON", id="no-json"),
        pytest.param("[" * 100_000, "not readable as JSON", id="nested"),
        pytest.param("[]", 'expected an object with "dense"', id="no-object"),
        pytest.param('{"other": {}}', 'expected an object with "dense"', id="unknown-part"),
        pytest.param('{"dense": []}', '"dense": expected an object with one entry per input', id="no-inputs"),
        pytest.param(
            '{"sparse": {"user": [["x"]]}}', "sparse['user']: expected whole numbers", id="text-ids"
        ),
        pytest.param(
            '{"sparse": {"user": [[1]]}}', "INVALID_ARGUMENT: dense: missing 'context'", id="refused"
        ),
    ],
)
def test_predict_says_what_is_wrong_with_a_request(
    live: LiveServer, text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "request.json").write_text(text)
    assert predict.main([live.address, "--json-request", str(tmp_path / "request.json")]) == 2
    output = capsys.readouterr()
    assert complaint in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_predict_without_a_file_is_bad_input_and_without_a_server_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main([NOBODY, "--json-request", str(tmp_path / "missing.json")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert predict.main([NOBODY, "--random"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param([], "nothing at", id="no-artifact"),
        pytest.param(["--port", "70000"], "port: got 70000", id="port"),
        pytest.param(["--max-batch-rows", "0"], "max_batch_rows: got 0", id="limit"),
        pytest.param(["--intra-op-threads", "0"], "intra_op_threads: got 0", id="threads"),
        pytest.param(
            ["--max-request-rows", "99999"], "max_request_rows: got 99999, expected at most", id="queue"
        ),
    ],
)
def test_serve_refuses_bad_input_in_one_line(
    arguments: Sequence[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(tmp_path / "missing"), *arguments]) == 2
    output = capsys.readouterr()
    assert text in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("tool", [cli, predict, bench], ids=["serve", "predict", "bench"])
def test_help_shows_an_example_and_the_exit_codes(tool: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main(["--help"])  # type: ignore[attr-defined]
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "example:" in text
    assert "exit codes: 0" in text


def test_examples_are_valid(client: Client) -> None:
    request = example_request(client.metadata(), 2, np.random.default_rng(0))
    assert client.predict(request["dense"], request["sparse"], request["weights"])["score"].shape == (2,)


def test_the_async_client_answers_as_the_other(live: LiveServer, model: ServedModel) -> None:
    samples = [random_sample(SIGNATURE, 2, np.random.default_rng(seed)) for seed in range(16)]

    async def scenario() -> None:
        async with AsyncClient(live.address, timeout_s=30) as client:
            assert (await client.metadata()).model == "small"
            calls = [client.predict(s.dense, s.sparse, s.weights) for s in samples]
            for sample, outputs in zip(samples, await asyncio.gather(*calls), strict=True):
                assert_answers(outputs, answer(model, sample))
            with pytest.raises(InvalidRequestError, match="dense: missing 'context'"):
                await client.predict({}, {"user": [[1]]})

    asyncio.run(scenario())


def test_clients_raise_named_errors(model: ServedModel) -> None:
    gated = GatedModel(model)
    sample = random_sample(SIGNATURE, 1, np.random.default_rng(0))
    with LiveServer(gated) as live, Client(live.address, timeout_s=0.2) as client:
        gated.close_gate()
        with pytest.raises(DeadlineError):
            client.predict(sample.dense, sample.sparse, sample.weights)
        gated.gate.set()
        with pytest.raises(InvalidRequestError, match=r"sparse\['user'\]\.values: got ID 50 in row 0"):
            client.predict(sample.dense, {**sample.sparse, "user": [[50]]}, sample.weights, timeout_s=30)
    with Client(NOBODY) as nobody, pytest.raises(UnavailableError):
        nobody.metadata()
