"""``benchmarks.remote_rows``, on few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import remote_rows
from tests.native.tool import needs_tool
from tests.support.services.redis_nodes import needs_redis

pytestmark = [needs_tool, needs_redis]


def test_it_measures_rows_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--gb",
        "0.002",
        "--cases",
        "cached",
        "--cache-bytes",
        "1MiB",
        "--warm-s",
        "0.2",
        "--seconds",
        "0.3",
    ]
    assert remote_rows.main([*options, "--nodes", "2", "--json", "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["nodes_bytes"] > 2_000_000
    case = result["cases"]["cached"]
    assert 0 < case["hit_rate"] < 1
    assert case["requests"] > 0
    assert case["failures"] == 0
