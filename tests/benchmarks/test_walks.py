"""The walks that readers of the code take are counted, all of them if none is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import walks


def test_without_a_name_all_are_walked(
    report_of: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "WALKS", {"step": walks.WALKS["step"]})
    step = report_of(walks.main)["step"]
    assert 0 < len(step["files"]) <= step["num_raw_files"]
    assert 0 < step["num_moves"] <= step["num_raw_moves"]


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        walks.main(["nosuch"])
    assert "WALK: got 'nosuch', expected some of export, step, predict" in capsys.readouterr().err
