"""The cells of the page for notebooks run in order, with a live server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.config.settings import ServerConfig
from tests.docs.pages import ROOT, blocks
from tests.support.serve.live import LiveServer
from tests.support.serve.repositories import add_version

pytest.importorskip("aiohttp", reason="HTTP is in the extra 'rest'")


def test_the_cells_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    *before, served, explained = [
        block.text for block in blocks(ROOT / "docs" / "train" / "notebook.md") if block.language == "python"
    ]
    names: dict[str, Any] = {}
    for cell in before:
        exec(cell, names)
    printed = capsys.readouterr().out
    assert "dcn.artifact" in printed
    assert "GAUC" in printed
    add_version(tmp_path / "models", "dcn", "1", tmp_path / "dcn.artifact")
    with LiveServer(tmp_path / "models", ServerConfig(port=0, metrics_port=None, http_port=0)) as live:
        assert f"127.0.0.1:{8500}" in served
        served = served.replace("127.0.0.1:8500", live.address)
        exec(served.replace("127.0.0.1:8080", f"127.0.0.1:{live.server.http_port}"), names)
    scores = names["scores"]
    assert len(scores) == 2000
    np.testing.assert_allclose(
        scores, names["fitted"]["dcn"].model.predict(names["today"])["score"], atol=0.02
    )
    assert str([float(one) for one in scores[:2]]) in capsys.readouterr().out
    exec(explained, names)
    printed = capsys.readouterr().out
    assert "recent_items = ['i" in printed
    assert "Similar(value='c" in printed
