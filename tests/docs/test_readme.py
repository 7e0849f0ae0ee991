"""The README's blocks, run in its order in an empty folder: they work as they stand and print what it says.

Changed are only the rows to train on, the seconds of the load test, and the port, which the system chooses. The
environment has the programs of ``tests.support.forked_programs``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recsys.artifact.parts import read_manifest
from recsys.sharding.plan.plan import read_plan
from tests.docs.pages import ROOT, Block, blocks

_PORT = "8500"
_SERVE = re.compile(r"^recsys-serve .*$", re.MULTILINE)
#: What makes the commands short.
_SMALL = {
    "--data synthetic": "--data synthetic --limit-rows 4000 --epochs 1",
    "--in-flight 64": "--in-flight 4 --duration-s 0.5 --warm-up-s 0",
    "recsys-profile model.artifact": "recsys-profile model.artifact --rounds 1 --batch-sizes 8",
}
_SCORES = {"one score": 1, "two scores": 2}
_ENVIRONMENT = {
    "RECSYS_SERVE_PROCESS_ENGINE": "reference",
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


class Reader:
    """Somebody who follows the README in a folder of their own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{_PORT}"
        # Instead of what `make demo`, or `make setup`, has made.
        (folder / ".venv" / "bin").mkdir(parents=True)
        path = f"{programs}:{Path(sys.executable).parent}"
        (folder / ".venv" / "bin" / "activate").write_text(f'PATH="{path}:$PATH"\n')

    def run(self, block: Block | str) -> str:
        """Run a block; return what it printed."""
        text = block if isinstance(block, str) else block.text
        for long, short in _SMALL.items():
            text = text.replace(long, short)
        text = text.replace(f"127.0.0.1:{_PORT}", self.address)
        is_pasted = isinstance(block, Block) and block.language == "python"
        command = [sys.executable, "-i", "-q"] if is_pasted else ["bash", "-e", "-c", text]
        done = subprocess.run(
            command,
            input=f"{text}\n" if is_pasted else "",
            cwd=self.folder,
            env=_ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        # An interactive Python goes on after errors.
        is_wrong = done.returncode != 0 or (is_pasted and "Error: " in done.stderr)
        assert not is_wrong, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Run a server until Ctrl+C; its ready line."""
        command = command.replace(f"--port {_PORT}", "--port 0 --metrics-port 0")
        with subprocess.Popen(
            ["bash", "-c", f". .venv/bin/activate; exec {command}"],
            cwd=self.folder,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                found = re.search(r" port=(\d+)", ready)
                assert found, f"the server did not start: {ready}"
                self.address = f"127.0.0.1:{found[1]}"
                yield ready
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.fixture(scope="module")
def steps() -> list[Block]:
    """The README's blocks that are run, in order: all but the drawing and the installation."""
    found = [block for block in blocks(ROOT / "README.md") if block.language in ("", "python")]
    return [block for block in found if "──" not in block.text and not block.text.startswith("make ")]


def check_printed(printed: str, block: Block) -> None:
    """Compare what a block of Python prints with what it says beside each print."""
    said = re.findall(r"print\(.*\)  # (.*)", block.text)
    lines = printed.splitlines()
    assert said
    assert len(lines) == len(said) == block.text.count("print(")
    for line, text in zip(lines, said, strict=True):
        if text in _SCORES:
            scores = [float(score) for score in line.strip("[]").split()]
            assert len(scores) == _SCORES[text]
            assert all(0 < score < 1 for score in scores)
        else:
            assert line == text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_block_works_in_order(steps: list[Block], tmp_path: Path, programs: Path) -> None:
    serve, ask, client, collections, sharded = steps
    reader = Reader(tmp_path, programs)
    command = _SERVE.findall(serve.text)
    assert len(command) == 1
    made = reader.run(_SERVE.sub("", serve.text))
    assert "saved model.pt" in made
    assert made.rstrip().endswith("model.artifact")
    with reader.serving(*command) as ready:
        assert ready.startswith("ready: model=model ")
        assert '"ready: model=model ..."' in serve.text
        printed = reader.run(ask)
        answer, _, report = printed.partition("\n")
        assert len(json.loads(answer)["score"]) == 2
        assert re.search(r"^[\d.,]+ requests/s", report, re.MULTILINE)
        for block in (client, collections):
            check_printed(reader.run(block), block)
        # In the terminal of the second block.
        reader.run(f". .venv/bin/activate\n{sharded.text}")
    assert read_plan(tmp_path / "plan.json").num_ranks == 2
    assert "<html" in (tmp_path / "plan.html").read_text()
    whole, parts = (read_manifest(tmp_path / f"{name}.artifact") for name in ("model", "sharded"))
    assert parts.name == whole.name == "model"
    assert parts.signature == whole.signature
