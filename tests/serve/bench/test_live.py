"""Each mode and protocol against a real server of the small model."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact import load_artifact
from recsys.signature import IdPolicy
from serve import bench
from serve.bench.http_sender import HttpConnections
from serve.bench.mixes import parse_mix
from serve.bench.plan import Job, Step, Target
from serve.bench.requests import Shape, draw_requests
from serve.bench.workers import LoadError, Workers
from serve.capture_file import CapturedRequest, header, record
from serve.client import Client
from serve.config import ServerConfig
from serve.model import ServedModel
from tests.serve.certificates import Authority, write_tls
from tests.serve.live import LiveServer
from tests.serve.models import GatedModel, SmallModel

NOBODY = "127.0.0.1:9"
_SHORT = ["--duration-s", "0.5", "--warm-up-s", "0.1", "--distinct", "64", "--timeout-s", "60"]


@pytest.fixture(scope="module")
def live(model: ServedModel) -> Iterator[LiveServer]:
    """A server with every port."""
    with LiveServer(model, ServerConfig(port=0, metrics_port=0, http_port=0)) as server:
        yield server


def _bench(address: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = bench.main([address, *_SHORT, *arguments, "--json"])
    output = capsys.readouterr()
    assert output.out, output.err
    return code, json.loads(output.out)


def _check(result: dict[str, Any]) -> None:
    made = result["measurement"]
    assert made["errors"] == {}
    assert made["num_answered"] > 0
    assert made["requests_per_s"] > 0
    latency = made["latency_ms"]
    values = [latency[name] for name in ("p50", "p90", "p95", "p99", "p99.9", "max")]
    assert values == sorted(values)
    assert values[0] > 0
    assert sum(count for _, count in made["histogram"]) == made["num_answered"]
    assert len(made["generator_cpu_shares"]) == result["settings"]["num_processes"]
    assert result["server"]["model"] == "small"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="recsys"),
        pytest.param(["--stream"], id="stream"),
        pytest.param(["--processes", "2", "--connections", "2"], id="processes"),
        pytest.param(["--rows", "1:0.5,5:0.5", "--priority", "high:0.5,low:0.5"], id="mixes"),
        pytest.param(["--protocol", "kserve"], id="kserve"),
        pytest.param(["--protocol", "torchrec"], id="torchrec"),
    ],
)
def test_a_closed_loop(live: LiveServer, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, result = _bench(live.address, capsys, "--in-flight", "8", *arguments)
    assert code == 0
    _check(result)
    assert result["settings"]["mode"] == "closed"
    assert result["measurement"]["lag_ms"] is None


def test_rest(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{live.server.http_port}"
    arguments = ["--protocol", "rest", "--describe", live.address, "--in-flight", "4"]
    code, result = _bench(address, capsys, *arguments)
    assert code == 0
    _check(result)


@pytest.mark.parametrize(
    "arguments", [[], ["--stream"], ["--processes", "2"]], ids=["calls", "stream", "processes"]
)
def test_an_open_loop(live: LiveServer, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, result = _bench(live.address, capsys, "--rate", "60", *arguments)
    _check(result)
    made = result["measurement"]
    assert made["asked_per_s"] == 60
    assert made["lag_ms"]["max"] <= made["latency_ms"]["max"]
    # A busy machine may send late: then the result says so, and the exit code too.
    assert code == (0 if made["is_valid"] else 3)


def test_the_same_seed_makes_the_same_load(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrivals, and so their number, follow from the seed alone."""
    counts = {
        (
            seed,
            _bench(live.address, capsys, "--rate", "150", "--seed", seed)[1]["measurement"]["num_answered"],
        )
        for seed in ("1", "1", "2", "3")
    }
    assert len(counts) == 3
    assert len({count for _, count in counts}) > 1


def test_the_server_s_own_counts_are_shown(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = f"127.0.0.1:{live.server.metrics_port}"
    code, result = _bench(live.address, capsys, "--rows", "2", "--in-flight", "8", "--metrics", metrics)
    assert code == 0
    assert result["server_metrics"]["mean_batch_rows"] >= 2
    assert result["server_metrics"]["mean_execute_ms"] > 0
    made = result["measurement"]
    assert made["rows_per_s"] == 2 * made["requests_per_s"]


def test_metrics_that_are_not_there_are_noticed_before_the_load(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for address, reason in (("127.0.0.1:9", "Connection refused"), (live.address, "no metrics endpoint")):
        assert bench.main([live.address, *_SHORT, "--metrics", address]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"recsys-bench: --metrics: got {address!r}: ")
        assert f"{reason}; expected HOST:PORT of the server's metrics" in err
        assert err.count("\n") == 1


def test_a_search_finds_a_rate_and_reports_it(
    live: LiveServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    arguments = ["--find-rate", "--p99-ms", "60000", "--start-rate", "2000", "--precision", "1"]
    code = bench.main([live.address, *_SHORT, *arguments, "--html", str(page), "--json"])
    out, said = capsys.readouterr()
    result = json.loads(out)
    search, steps = result["search"], result["steps"]
    assert len(steps) >= 2
    assert f"recsys-bench: step {len(steps)}: " in said
    assert steps[0]["asked_per_s"] == 2000
    passed = [step["asked_per_s"] for step in steps if step["verdict"] == "ok"]
    # On any machine: what is said to have passed did, and the exit code says whether something did.
    assert code == (3 if search["requests_per_s"] is None else 0)
    assert search["requests_per_s"] is None or search["requests_per_s"] in passed
    assert "Latency by rate" in page.read_text()


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of a model that was exported with a context."""
    path = tmp_path_factory.mktemp("ranking") / "small"
    config = ExportConfig(
        name="small",
        targets=(("cpu",),),
        dense_widths={"context": 3, "price": 1},
        table_id_policies={"catalog": IdPolicy.HASH},
        context=("context", "user"),
    )
    export_model(SmallModel().eval(), path, config)
    with LiveServer(load_artifact(path)) as server:
        yield server


@pytest.mark.parametrize(
    "arguments", [[], ["--stream"], ["--protocol", "kserve"]], ids=["calls", "stream", "kserve"]
)
def test_ranking_requests(
    ranking: LiveServer, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, result = _bench(ranking.address, capsys, "--candidates", "3-20", "--in-flight", "4", *arguments)
    assert code == 0
    _check(result)
    assert result["settings"]["candidates"] == "3-20"
    made = result["measurement"]
    assert 3 * made["requests_per_s"] <= made["rows_per_s"] <= 20 * made["requests_per_s"]


def test_deadlines_are_the_requests_own(model: ServedModel, capsys: pytest.CaptureFixture[str]) -> None:
    gated = GatedModel(model)
    with LiveServer(gated) as live:
        gated.close_gate()
        try:
            code, result = _bench(live.address, capsys, "--rate", "40", "--deadline-ms", "20-60")
        finally:
            gated.gate.set()
    assert code == 1
    assert set(result["measurement"]["errors"]) == {"DEADLINE_EXCEEDED"}
    assert result["measurement"]["latency_ms"]["p99"] is None


@pytest.mark.parametrize("arguments", [[], ["--stream"]], ids=["calls", "stream"])
def test_a_server_that_goes_away_is_counted_and_hangs_nothing(
    model: ServedModel, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """The server stops as soon as the first requests were answered."""
    gated = GatedModel(model)
    live = LiveServer(gated).__enter__()
    gated.close_gate()

    def stop() -> None:
        gated.started.acquire()
        gated.gate.set()
        gated.started.acquire()
        live.__exit__(None, None, None)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        code, result = _bench(live.address, capsys, "--in-flight", "4", "--duration-s", "3", *arguments)
    finally:
        gated.started.release(2)
        stopper.join()
    assert code == 1
    errors, texts = result["measurement"]["errors"], result["measurement"]["error_texts"]
    if texts.get("INTERNAL") == "Internal error from Core":
        del errors["INTERNAL"]  # what grpc.aio's client makes of a stream that breaks while it writes
    assert set(errors) <= {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"}, texts
    assert result["measurement"]["num_failed"] > 0


def test_a_sending_process_that_dies_ends_the_run(live: LiveServer) -> None:
    with Client(live.address) as asked:
        job = Job(target=Target(address=live.address), metadata=asked.metadata().SerializeToString())
    others = set(multiprocessing.active_children())
    with Workers([job]) as workers:
        (child,) = set(multiprocessing.active_children()) - others

        def kill(_elapsed_s: float, num_answered: int, _num_failed: int) -> None:
            if num_answered and child.is_alive():
                child.kill()

        with pytest.raises(LoadError, match="has ended"):
            workers.measure(Step(duration_s=60.0, num_in_flight=1), kill)


@pytest.fixture
def capture(live: LiveServer, tmp_path: Path) -> Path:
    """Forty requests in half a second, as a server would have recorded them."""
    with Client(live.address) as client:
        metadata = client.metadata()
    drawn = draw_requests(metadata, Shape(rows=parse_mix("1-3")), 40, np.random.default_rng(0))
    records = [
        record(
            CapturedRequest(
                time_us=i * 12_500,
                model="small" if i % 4 else "other",
                version="1",
                data=request.SerializeToString(),
            )
        )
        for i, (request, _) in enumerate(drawn)
    ]
    path = tmp_path / "requests.capture"
    path.write_bytes(b"".join([header(0), *records]))
    return path


@pytest.mark.parametrize(
    "arguments",
    [["--speed", "1"], ["--speed", "4", "--processes", "2"], ["--speed", "max"], ["--protocol", "kserve"]],
    ids=["as-recorded", "faster", "max", "kserve"],
)
def test_a_recording_is_played_whole(
    live: LiveServer, capture: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code = bench.main([live.address, "--replay", str(capture), "--model", "small", *arguments, "--json"])
    result = json.loads(capsys.readouterr().out)
    _check(result)
    made = result["measurement"]
    assert made["num_answered"] == 30
    assert code == (0 if made["is_valid"] else 3)


def test_a_recording_of_a_model_that_is_gone_fails(
    live: LiveServer, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([live.address, "--replay", str(capture), "--speed", "max", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["measurement"]["errors"] == {"NOT_FOUND": 10}
    capture.write_bytes(capture.read_bytes()[:-1] + b"x")
    assert bench.main([live.address, "--replay", str(capture)]) == 2
    assert "checksum" in capsys.readouterr().err


def test_errors_are_counted_by_code(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _bench(live.address, capsys, "--rows", "4097", "--distinct", "4", "--in-flight", "4")
    assert code == 1
    made = result["measurement"]
    assert set(made["errors"]) == {"INVALID_ARGUMENT"}
    assert "4097" in made["error_texts"]["INVALID_ARGUMENT"]
    code, result = _bench(
        live.address, capsys, "--rows", "4097", "--distinct", "4", "--in-flight", "4", "--stream"
    )
    assert code == 1
    assert set(result["measurement"]["errors"]) == {"INVALID_ARGUMENT"}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--expect-p99-ms", "60000", "--expect-rate", "0.1"], 0, ""),
        (["--expect-p99-ms", "0.0001"], 3, "p99: got"),
        (["--expect-rate", "1e9"], 3, "rate: got"),
    ],
)
def test_expectations_decide_the_exit_code(
    live: LiveServer, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    assert bench.main([live.address, *_SHORT, "--in-flight", "4", *arguments]) == code
    assert text in capsys.readouterr().err


def test_what_the_model_has_not_is_refused(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([live.address, "--ids-per-bag", "nobody=1"]) == 2
    assert "got 'nobody', expected a sparse input" in capsys.readouterr().err
    assert bench.main([live.address, "--candidates", "5"]) == 2
    assert "exported without a context" in capsys.readouterr().err
    assert bench.main([live.address, "--model", "other"]) == 1
    assert "NOT_FOUND" in capsys.readouterr().err


def test_a_file_can_describe_the_model(
    live: LiveServer, client: Client, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    described = tmp_path / "model.txt"
    described.write_text(str(client.metadata()))
    code, result = _bench(live.address, capsys, "--describe", str(described), "--in-flight", "4")
    assert code == 0
    _check(result)
    described.write_text("no { metadata")
    assert bench.main([live.address, "--describe", str(described)]) == 2
    assert "--describe: expected what" in capsys.readouterr().err
    # A described server that is not there is noticed when the load connects.
    described.write_text(str(client.metadata()))
    assert bench.main(["127.0.0.1:9", "--protocol", "rest", "--describe", str(described)]) == 1


def test_an_encrypted_server_is_spoken_to_in_its_own_way(
    model: ServedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    authority = Authority()
    tls = write_tls(tmp_path, authority.issue(), client_ca=authority.certificate)
    theirs = authority.issue("client")
    for name, data in (
        ("ca.pem", authority.certificate),
        ("client.pem", theirs.certificate),
        ("client.key", theirs.key),
    ):
        (tmp_path / name).write_bytes(data)
    arguments = ["--in-flight", "4", "--tls-ca", str(tmp_path / "ca.pem")]
    arguments += ["--tls-cert", str(tmp_path / "client.pem"), "--tls-key", str(tmp_path / "client.key")]
    with LiveServer(model, ServerConfig(port=0, metrics_port=None, tls=tls)) as live:
        code, result = _bench(live.address, capsys, *arguments)
        assert code == 0
        _check(result)
        assert result["settings"]["encrypted"] is True
        assert bench.main([live.address, *_SHORT]) == 1
        assert bench.main([live.address, *_SHORT, "--tls-ca", str(tmp_path / "missing.pem")]) == 2


def test_without_a_server_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([NOBODY]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_people_get_tables_and_pipes_no_progress_bar(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([live.address, *_SHORT, "--in-flight", "4"]) == 0
    output = capsys.readouterr()
    assert "requests/s" in output.out
    assert "p99.9" in output.out
    assert output.err == ""


def test_it_runs_as_a_module_without_torch() -> None:
    code = "import sys, serve.bench, serve.bench.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    told = subprocess.run(
        [sys.executable, "-m", "serve.bench", "--help"], check=True, capture_output=True, text=True
    )
    assert "exit codes: 0" in told.stdout


def _answer(data: bytes, closes: bool) -> tuple[int, bytes]:
    """What the HTTP client makes of an answer."""

    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST /p HTTP/1.1\r\n")
        assert await reader.readexactly(2) == b"{}"
        writer.write(data)
        if not closes:
            await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def scenario() -> tuple[int, bytes]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            connections = HttpConnections(f"127.0.0.1:{port}", "/p")
            try:
                return await connections.post(b"{}")
            finally:
                await connections.close()
                await ended.wait()

    return asyncio.run(scenario())


def test_answers_over_http_are_read_in_every_form() -> None:
    assert _answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", closes=False) == (200, b"hi")
    assert _answer(b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n", closes=True) == (503, b"")
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n4;x=y\r\n all\r\n0\r\nA: b\r\n\r\n"
    )
    assert _answer(chunked, closes=False) == (200, b"hi all")


@pytest.mark.parametrize(
    "data", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]
)
def test_what_is_no_http_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, EOFError)):
        _answer(data, closes=True)
