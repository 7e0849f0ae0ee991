"""What tools say of a command line that is wrong: how they are called, and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from serve import bench
from serve.app import cli
from serve.tools import admin as admin_cli
from serve.tools import predict, probe

_ADDRESS = "127.0.0.1:9"
_MAINS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": cli.main,
    "predict": predict.main,
    "bench": bench.main,
    "admin": admin_cli.main,
    "probe": probe.main,
}


@pytest.mark.parametrize(
    ("tool", "arguments", "texts"),
    [
        ("serve", ["--prot", "1"], ["unrecognized arguments: --prot 1; did you mean --port?"]),
        ("predict", ["--random", "--timout-s=1"], ["; did you mean --timeout-s?"]),
        ("predict", ["--radnom"], ["unrecognized arguments: --radnom; did you mean --random?"]),
        ("bench", ["--fnd-rate"], ["; did you mean --find-rate?"]),
        ("admin", ["lst"], ["COMMAND: got 'lst', expected one of list, ", "; did you mean list?"]),
        ("admin", ["load", "m", "--verson", "4"], ["; did you mean --version?"]),
        (
            "admin",
            ["load", "--verson=4"],
            ["MODEL: missing, expected it; got --verson; did you mean --version?"],
        ),
        ("admin", ["list", "--tls-sertificate", "x"], ["; did you mean --tls-certificate?"]),
        ("probe", ["--alife"], ["; did you mean --alive?"]),
        ("probe", ["--wwwwwwww"], ["unrecognized arguments: --wwwwwwww\n"]),
    ],
)
def test_an_error_is_one_line_of_usage_and_one_of_what_is_wrong(
    tool: str, arguments: list[str], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        _MAINS[tool]([_ADDRESS, *arguments])
    assert caught.value.code == 2
    usage, error, *more = capsys.readouterr().err.splitlines(keepends=True)
    assert usage.startswith("usage: ")
    assert more == []
    for text in texts:
        assert text in error


def test_a_wrong_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main([_ADDRESS, "--protocol", "kserv"])
    assert caught.value.code == 2
    expected = "expected one of recsys, kserve, torchrec, rest; did you mean kserve?"
    assert capsys.readouterr().err == f"recsys-bench: --protocol: got 'kserv', {expected}\n"
