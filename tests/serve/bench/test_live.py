"""Each mode and protocol against a real server of the small model."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from recsys.inputs.signature import IdPolicy
from serve import bench
from serve.bench.load.native import why_not_native
from serve.bench.load.plan import Target
from serve.client import Client
from serve.config.settings import ServerConfig
from serve.engine.reference.executor import ServedModel
from tests.serve.bench.senders import NOBODY, both_senders, check, needs_native
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.live import LiveServer
from tests.support.serve.models import GatedModel, SmallModel

_SHORT = ["--duration-s", "0.5", "--warm-up-s", "0.1", "--distinct", "64", "--timeout-s", "60"]


def _bench(address: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = bench.main([address, *_SHORT, *arguments, "--json"])
    output = capsys.readouterr()
    assert output.out, output.err
    return code, json.loads(output.out)


@both_senders
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="recsys"),
        pytest.param(["--processes", "2", "--connections", "2"], id="processes"),
        pytest.param(["--rows", "1:0.5,5:0.5", "--priority", "high:0.5,low:0.5"], id="mixes"),
        pytest.param(["--protocol", "kserve"], id="kserve"),
        pytest.param(["--protocol", "torchrec"], id="torchrec"),
    ],
)
def test_a_closed_loop(
    live: LiveServer, capsys: pytest.CaptureFixture[str], sender: str, arguments: list[str]
) -> None:
    code, result = _bench(live.address, capsys, "--in-flight", "8", "--sender", sender, *arguments)
    assert code == 0
    check(result)
    assert (result["settings"]["mode"], result["settings"]["sender"]) == ("closed", sender)
    made = result["measurement"]
    assert made["lag_ms"] is None
    if "--priority" in arguments:
        assert set(made["kinds"]) == {f"{p}, {r}" for p in ("high", "low") for r in ("1 row", "5 rows")}
        assert sum(kind["num_answered"] for kind in made["kinds"].values()) == made["num_answered"]
        assert made["rows_per_s"] > made["requests_per_s"]


def test_a_closed_loop_over_streams(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _bench(live.address, capsys, "--in-flight", "8", "--stream")
    assert code == 0
    check(result)
    assert result["settings"]["sender"] == "python"


@needs_native
def test_both_senders_report_the_same_figures(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field of the JSON is there with either sender, and has a value with both or with neither."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        return value is None if not isinstance(value, list) else len(value) > 0

    arguments = ("--rate", "80", "--rows", "1:0.5,2:0.5", "--duration-s", "1.5")
    results = [
        _bench(live.address, capsys, *arguments, "--sender", sender)[1] for sender in ("python", "native")
    ]
    for result in results:
        result["measurement"].pop("warnings")
        assert len(result["measurement"]["series"]) == 2
    python, native = results
    assert python["tool"].keys() - native["tool"].keys() == set()
    assert "grpc++" in native["tool"]
    for part in ("settings", "server", "machine", "measurement"):
        assert shape(python[part]) == shape(native[part])
    for result in results:
        assert result["measurement"]["requests_per_s"] == pytest.approx(80, rel=0.5)


@needs_native
def test_the_native_sender_refuses_what_it_cannot_send(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([live.address, "--sender", "native", "--stream"]) == 2
    assert "--sender native: the native sender does not send over streams; expected python or auto" in (
        capsys.readouterr().err
    )
    code = bench.main([live.address, *_SHORT, "--stream", "--in-flight", "4", "--json"])
    output = capsys.readouterr()
    assert code == 0
    assert (
        output.err == "recsys-bench: using the Python sender: the native sender does not send over streams\n"
    )


@both_senders
def test_a_payload_without_meaning_goes_to_any_server(
    live: LiveServer, capsys: pytest.CaptureFixture[str], sender: str
) -> None:
    """The server's complaint shows that the bytes were sent as they are."""
    arguments = ("--payload-bytes", "100", "--in-flight", "2", "--sender", sender)
    code, result = _bench(live.address, capsys, *arguments)
    assert code == 1
    assert result["settings"]["payload_bytes"] == 100
    assert result["measurement"]["num_answered"] == 0
    assert set(result["measurement"]["errors"]) <= {"INVALID_ARGUMENT", "INTERNAL"}


def test_rest(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{live.server.http_port}"
    arguments = ["--protocol", "rest", "--describe", live.address, "--in-flight", "4"]
    code, result = _bench(address, capsys, *arguments)
    assert code == 0
    check(result)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--sender", "python"], id="python"),
        pytest.param(["--sender", "python", "--stream"], id="stream"),
        pytest.param(["--sender", "python", "--processes", "2"], id="python-2"),
        pytest.param(["--sender", "native"], id="native", marks=needs_native),
        pytest.param(["--sender", "native", "--processes", "2"], id="native-2", marks=needs_native),
    ],
)
def test_an_open_loop(live: LiveServer, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, result = _bench(live.address, capsys, "--rate", "60", *arguments)
    check(result)
    made = result["measurement"]
    assert made["asked_per_s"] == 60
    assert made["lag_ms"]["max"] <= made["latency_ms"]["max"]
    # A busy machine may send late: then the result says so, and the exit code too.
    assert code == (0 if made["is_valid"] else 3)


@both_senders
def test_the_same_seed_makes_the_same_load(
    live: LiveServer, capsys: pytest.CaptureFixture[str], sender: str
) -> None:
    """Arrivals, and so their number, follow from the seed alone."""
    asked = ("--rate", "150", "--sender", sender, "--seed")
    counts = {
        (seed, _bench(live.address, capsys, *asked, seed)[1]["measurement"]["num_answered"])
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
        assert bench.main([live.address, *_SHORT, "--sender", "python", "--metrics", address]) == 1
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
    assert "recsys-bench: searching for at most 60 s, in steps of " in said
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
    check(result)
    assert result["settings"]["candidates"] == "3-20"
    made = result["measurement"]
    assert 3 * made["requests_per_s"] <= made["rows_per_s"] <= 20 * made["requests_per_s"]


@both_senders
def test_users_of_ranking_requests_return(
    ranking: LiveServer, capsys: pytest.CaptureFixture[str], sender: str
) -> None:
    asked = ("--candidates", "3", "--users", "10", "--zipf", "1.1", "--in-flight", "4", "--sender", sender)
    code, result = _bench(ranking.address, capsys, *asked)
    assert code == 0
    check(result)
    assert result["settings"]["users"] == 10
    made = result["measurement"]
    assert made["contexts_per_s"] == made["requests_per_s"]
    assert bench.main([ranking.address, *_SHORT, *asked]) == 0
    said = capsys.readouterr().out
    assert " contexts/s, " in said
    assert "requests of one context of 10 users and 3 candidates" in said


@both_senders
def test_deadlines_are_the_requests_own(
    model: ServedModel, capsys: pytest.CaptureFixture[str], sender: str
) -> None:
    gated = GatedModel(model)
    with LiveServer(gated) as live:
        gated.close_gate()
        try:
            code, result = _bench(
                live.address, capsys, "--rate", "40", "--deadline-ms", "20-60", "--sender", sender
            )
        finally:
            gated.gate.set()
    assert code == 1
    assert set(result["measurement"]["errors"]) == {"DEADLINE_EXCEEDED"}
    assert result["measurement"]["latency_ms"]["p99"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--sender", "python"], id="calls"),
        pytest.param(["--stream"], id="stream"),
        pytest.param(["--sender", "native"], id="native", marks=needs_native),
    ],
)
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


@both_senders
def test_errors_are_counted_by_code(
    live: LiveServer, capsys: pytest.CaptureFixture[str], sender: str
) -> None:
    asked = ("--rows", "4097", "--distinct", "4", "--in-flight", "4", "--sender", sender)
    code, result = _bench(live.address, capsys, *asked)
    assert code == 1
    made = result["measurement"]
    assert set(made["errors"]) == {"INVALID_ARGUMENT"}
    assert "4097" in made["error_texts"]["INVALID_ARGUMENT"]
    if sender == "python":
        code, result = _bench(live.address, capsys, *asked, "--stream")
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
    check(result)
    described.write_text("no { metadata")
    assert bench.main([live.address, "--describe", str(described)]) == 2
    assert "--describe: expected what" in capsys.readouterr().err
    # A described server that is not there is noticed when the load connects.
    described.write_text(str(client.metadata()))
    assert bench.main(["127.0.0.1:9", "--protocol", "rest", "--describe", str(described)]) == 1


@both_senders
def test_an_encrypted_server_is_spoken_to_in_its_own_way(
    model: ServedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path, sender: str
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
    arguments = ["--sender", sender, "--in-flight", "4", "--tls-ca", str(tmp_path / "ca.pem")]
    arguments += [
        "--tls-certificate",
        str(tmp_path / "client.pem"),
        "--tls-key",
        str(tmp_path / "client.key"),
    ]
    with LiveServer(model, ServerConfig(port=0, metrics_port=None, tls=tls)) as live:
        code, result = _bench(live.address, capsys, *arguments)
        assert code == 0
        check(result)
        assert result["settings"]["encrypted"] is True
        assert bench.main([live.address, *_SHORT]) == 1
        assert bench.main([live.address, *_SHORT, "--tls-ca", str(tmp_path / "missing.pem")]) == 2


@both_senders
def test_without_a_server_it_fails(capsys: pytest.CaptureFixture[str], sender: str) -> None:
    assert bench.main([NOBODY, "--sender", sender]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_people_get_tables_and_pipes_no_progress_bar(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([live.address, *_SHORT, "--in-flight", "4"]) == 0
    output = capsys.readouterr()
    assert "requests/s" in output.out
    assert "p99.9" in output.out
    note = why_not_native(Target(address=live.address))
    assert output.err == (f"recsys-bench: using the Python sender: {note}\n" if note else "")


def test_it_runs_as_a_module_without_torch() -> None:
    code = "import sys, serve.bench, serve.bench.load.worker, serve.bench.load.native; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    told = subprocess.run(
        [sys.executable, "-m", "serve.bench", "--help"], check=True, capture_output=True, text=True
    )
    assert "exit codes: 0" in told.stdout
