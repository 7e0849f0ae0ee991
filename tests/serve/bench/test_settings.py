"""Command lines: what they mean, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from serve import bench
from serve.bench.cli import COMMAND
from serve.bench.load.plan import Step
from serve.bench.load.workers import shares
from serve.bench.settings import Settings, read_settings

# No server listens on the discard port of loopback.
NOBODY = "127.0.0.1:9"


def _read(*arguments: str) -> Settings:
    return read_settings(COMMAND.parse([NOBODY, *arguments]))


def test_without_options_it_is_a_closed_loop() -> None:
    settings = _read()
    assert (settings.mode, settings.load.num_in_flight, settings.load.rate_per_s) == ("closed", 64, None)
    assert (settings.target.num_connections, settings.load.num_processes) == (4, 1)
    assert settings.load.duration_s == 10.0


def test_a_rate_makes_it_an_open_one() -> None:
    settings = _read(
        "--rate", "250", "--rows", "1:0.9,50:0.1", "--ids-per-bag", "2", "--ids-per-bag", "a=b=0-3"
    )
    assert (settings.mode, settings.load.num_in_flight, settings.load.rate_per_s) == ("open", None, 250.0)
    assert str(settings.shape.ids_per_bag) == "2"
    assert {name: str(mix) for name, mix in settings.shape.ids_per_bag_of.items()} == {"a=b": "0-3"}


def test_few_in_flight_have_few_connections_and_many_processes_many() -> None:
    assert _read("--in-flight", "1").target.num_connections == 1
    assert _read("--processes", "8").target.num_connections == 8
    assert _read("--processes", "80").load.num_in_flight == 80


@pytest.mark.parametrize(("speed", "mode"), [("1", (1.0, None)), ("2.5", (2.5, None)), ("max", (None, 64))])
def test_a_recording_has_its_own_pace_and_end(speed: str, mode: tuple[float | None, int | None]) -> None:
    settings = _read("--replay", "some.capture", "--speed", speed)
    assert settings.recording is not None
    assert (settings.recording.speed, settings.load.num_in_flight) == mode
    assert settings.load.duration_s == math.inf
    assert settings.load.warm_up_s == 0
    assert settings.to_json()["duration_s"] is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "5", "--find-rate", "--p99-ms", "1"], "--find-rate: got --rate too"),
        (["--find-rate"], "--find-rate: expected a bound"),
        (["--search-s", "60"], "--search-s: expected with --find-rate"),
        (
            ["--find-rate", "--p99-ms", "5", "--search-s", "9"],
            "--search-s: got 9, expected at least 15: 3 times --duration-s",
        ),
        (["--p99-ms", "5"], "--p99-ms: expected with --find-rate"),
        (["--rate", "5", "--in-flight", "5"], "--in-flight: expected only of a closed loop"),
        (["--in-flight", "2", "--connections", "4"], "--connections: got 4"),
        (["--processes", "3", "--connections", "2"], "--connections: got 2"),
        (["--rows", "-1"], "--rows: got '-1'"),
        (["--rows", "1", "--candidates", "5"], "--candidates: got --rows too"),
        (["--users", "5"], "--users: expected with --candidates"),
        (["--ids-per-bag", "user=x"], "--ids-per-bag: got 'x'"),
        (["--priority", "urgent"], "--priority: got 'urgent'"),
        (["--deadline-ms", "0"], "--deadline-ms: got '0'"),
        (["--stream", "--protocol", "kserve"], "--stream: got --protocol kserve"),
        (["--stream", "--deadline-ms", "5"], "--deadline-ms: got --stream too"),
        (
            ["--protocol", "torchrec", "--candidates", "5"],
            "--candidates: --protocol torchrec has no field for it",
        ),
        (
            ["--protocol", "torchrec", "--priority", "low"],
            "--priority: --protocol torchrec has no field for it",
        ),
        (["--protocol", "rest"], "--describe: expected with --protocol rest"),
        (["--speed", "2"], "--speed: expected with --replay"),
        (["--replay", "x", "--speed", "0"], "--speed: got '0'"),
        (["--replay", "x", "--rows", "3"], "--replay: expected without --rows"),
        (["--tls-certificate", "x"], "tls.certificate, tls.key: got one of them, expected both or none"),
        (["--metrics", "localhost"], "--metrics: address: got 'localhost', expected host:port"),
        (["--html", "/nowhere/at/all.html"], "--html: expected a file in a folder that exists"),
    ],
)
def test_bad_usage_is_refused_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([NOBODY, *arguments]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"recsys-bench: {complaint}")
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_an_address_has_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["localhost"]) == 2
    assert "address: got 'localhost', expected host:port" in capsys.readouterr().err


def test_paths_of_this_machine_stay_out_of_the_result(tmp_path: Path) -> None:
    settings = _read("--replay", str(tmp_path / "some.capture"), "--tls-ca", str(tmp_path / "ca.pem"))
    assert str(tmp_path) not in str(settings.to_json())


@pytest.mark.parametrize(
    ("arguments", "num_distinct"),
    [
        ([], 4096),
        (["--candidates", "5", "--users", "10"], 4096),
        (["--candidates", "5", "--users", "10000"], 40_000),
        (["--candidates", "5", "--users", "10000", "--distinct", "7"], 7),
    ],
)
def test_many_users_need_many_requests(arguments: list[str], num_distinct: int) -> None:
    assert _read(*arguments).shape.num_distinct == num_distinct


def test_processes_share_what_is_in_flight_and_the_rate() -> None:
    parts = shares(Step(duration_s=1.0, num_in_flight=7, number=3), 3)
    assert [part.num_in_flight for part in parts] == [3, 2, 2]
    assert {part.number for part in parts} == {3}
    parts = shares(Step(duration_s=1.0, rate_per_s=90.0, max_in_flight=10), 3)
    assert [part.rate_per_s for part in parts] == [30.0] * 3
    assert sum(part.max_in_flight for part in parts) >= 10


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--processes", "0"),
        ("--zipf", "-1"),
        ("--duration-s", "0"),
        ("--duration-s", "inf"),
        ("--warm-up-s", "-1"),
        ("--seed", "-1"),
        ("--distinct", "0"),
        ("--users", "0"),
        ("--precision", "0"),
    ],
)
def test_values_out_of_range_are_refused(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([NOBODY, flag, text])
    assert ended.value.code == 2
    assert f"recsys-bench: {flag}: got {text!r}, expected a" in capsys.readouterr().err
