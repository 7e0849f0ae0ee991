"""What ends recsys-serve before and while it serves: its exit code, and what it writes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.errors import ArtifactError
from recsys.options.kinds import ConfigError
from serve.app import cli, start
from serve.app.server import Server
from serve.net.files import SecurityError

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(artifact_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, whose threads and garbage collector it leaves as they are."""
    for name in os.environ:
        if name.startswith("RECSYS_SERVE_"):
            monkeypatch.delenv(name)
    for name in ("set_process", "freeze_imports"):
        monkeypatch.setattr(start, name, lambda *_: None)

    def run(*arguments: str) -> tuple[int, str]:
        code = cli.main(
            [str(artifact_path), "--engine", "reference", "--port", "0", "--no-metrics", *arguments]
        )
        return code, capfd.readouterr().err

    return run


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a list is empty"),
        ConfigError("found while serving"),
        ArtifactError("found while serving"),
        OSError("the disk is gone"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a surrogate"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_while_serving_is_a_failure_with_its_traceback(
    error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("serve.app.lifetime._print_ready", fail)
    code, text = run()
    assert code == 1
    assert "the server failed" in text
    assert "Traceback" in text
    assert str(error) in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("the port is taken"), 1),
        (SecurityError("the key was replaced"), 2),
        (ConfigError("the endpoint is wrong"), 2),
    ],
)
def test_a_start_that_cannot_be_is_one_line(
    error: Exception, code: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Server) -> None:
        raise error

    monkeypatch.setattr(Server, "_start", fail)
    assert run() == (code, f"recsys-serve: {error}\n")


def test_an_unexpected_error_of_the_start_has_its_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Server) -> None:
        await asyncio.sleep(0)
        raise ValueError("a list is empty")

    monkeypatch.setattr(Server, "_start", fail)
    code, text = run()
    assert (code, "Traceback" in text) == (1, True)


def test_models_that_are_not_ready_end_an_artifact_with_2_and_a_repository_with_1(
    run: Run, artifact_path: Path, tmp_path: Path
) -> None:
    capture = tmp_path / "warm_up"
    capture.write_text("none")
    code, text = run("--warm-up", str(capture))
    assert (code, "no version could be made ready" in text) == (2, True)
    assert "Traceback" not in text
    model = tmp_path / "models" / "small"
    model.mkdir(parents=True)
    (model / "1").symlink_to(artifact_path)  # It leads out of the repository, and is passed over.
    arguments = ["--repository", str(tmp_path / "models"), "--port", "0", "--no-metrics"]
    assert cli.main([*arguments, "--engine", "reference"]) == 1
