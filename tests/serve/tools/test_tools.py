"""recsys-predict, recsys-bench and recsys-serve as people and scripts call them."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

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
    assert len(json.loads(capsys.readouterr().out)["score"]) == 2


def test_predict_sends_a_random_request_and_prints_the_metadata(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main([live.address, "--random", "--rows", "4"]) == 0
    assert np.array(json.loads(capsys.readouterr().out)["vectors"]).shape == (4, 2, 3)
    assert predict.main([live.address, "--metadata"]) == 0
    assert 'name: "genres"' in capsys.readouterr().out


def test_predict_prints_short_lists_on_one_line(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main([live.address, "--example", "--rows", "2"]) == 0
    text = capsys.readouterr().out
    request = json.loads(text)
    assert f'"user": {json.dumps(request["sparse"]["user"])}' in text
    assert text.count("\n") <= 10
    assert predict.main([live.address, "--random", "--rows", "2"]) == 0
    assert capsys.readouterr().out.count("\n") <= 7
    assert predict.main([live.address, "--example", "--json"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_predict_prints_the_digits_of_an_answer_that_a_float32_has(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for options in ([], ["--json"]):
        assert predict.main([live.address, "--random", *options]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    short, exact = (np.array(answer["score"]) for answer in answers)
    assert np.allclose(short, exact, rtol=1e-5, atol=0)
    assert max(len(str(value)) for value in short.tolist()) < max(len(str(v)) for v in exact.tolist())


def test_predict_shortens_long_lists_on_a_terminal_only(
    live: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*options: str) -> str:
        assert predict.main([live.address, "--random", "--rows", "200", *options]) == 0
        return capsys.readouterr().out

    in_file = printed()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    on_terminal = printed()
    assert "… 191 more …" in on_terminal
    assert len(on_terminal) < len(in_file) / 10
    assert printed("--full") == in_file
    assert len(json.loads(in_file)["score"]) == len(json.loads(printed("--json"))["score"]) == 200


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("{", "not readable as JSON", id="no-json"),
        pytest.param("[" * 100_000, "not readable as JSON", id="nested"),
        pytest.param("[]", 'got no object, expected an object with "dense"', id="no-object"),
        pytest.param(
            '{"dense": {}, "User ID": 1}',
            "request.json: got an unknown entry 'User ID', expected an object with \"dense\"",
            id="unknown-part",
        ),
        pytest.param(
            '{"context": {"num_row": 1}}',
            "request.json: \"context\": got an unknown entry 'num_row', expected",
            id="unknown-part-of-context",
        ),
        pytest.param('{"dense": []}', '"dense": expected an object with one entry per input', id="no-inputs"),
        pytest.param(
            '{"sparse": {"user": [[1.5]]}}', "sparse['user']: expected whole numbers", id="float-ids"
        ),
        pytest.param(
            '{"sparse": {"user": [["x"], [1]]}}', "sparse['user']: got int at position 1", id="texts-and-ids"
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
        pytest.param(
            [], "which does not exist; expected a folder or file that recsys-export", id="no-artifact"
        ),
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "model.pt",
            "got 'model.pt', which holds no manifest; expected a folder or file that recsys-export wrote (a",
        ),
        (
            "plan.json",
            "got 'plan.json', which is of another kind, or damaged (BadZipFile); expected a folder or",
        ),
        (
            ".",
            "without manifest.json; expected a folder or file that recsys-export wrote (the models of a folder: rec",
        ),
    ],
)
def test_serve_says_what_it_was_given_instead_of_an_artifact(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"state_dict": {}}, tmp_path / "model.pt")
    (tmp_path / "plan.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert cli.main([name]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert f"got the folder {tmp_path.name!r}" in error or name != "."
    assert str(tmp_path) not in error


@pytest.mark.parametrize("tool", [cli, predict, bench], ids=["serve", "predict", "bench"])
def test_help_shows_an_example_and_the_exit_codes(tool: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main(["--help"])  # type: ignore[attr-defined]
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert re.search("^examples?:", text, re.MULTILINE)
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
