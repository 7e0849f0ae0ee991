"""The tutorial on sharded training shows what it says, on one rank and on two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.tutorial import main, tutorial
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def shown(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each rank shows."""
    ranks: list[dict[str, Any]] = run_ranks(request.param, _in_text)
    return ranks


def _in_text(rank: int, _world_size: int) -> dict[str, Any]:
    shown = tutorial(rank)
    plain = (str, bool, int, float, list, dict)
    return {name: value if isinstance(value, plain) else str(value) for name, value in shown.items()}


def test_shapes(shown: list[dict[str, Any]]) -> None:
    for rank in shown:
        assert rank["weights"] == {
            "embedding_bags.product_table.weight": [4096, 64],
            "embedding_bags.user_table.weight": [4096, 64],
        }
        assert rank["sharded module"] == "ShardedEmbeddingBagCollection"
        assert rank["output"] == "LazyAwaitable"
        assert rank["sum of a LazyAwaitable"] == 6
        assert rank["result keys"] == ["product", "user"]
        assert rank["result"] == {"product": [2, 64], "user": [2, 64]}
        assert rank["as unsharded"]
        assert rank["step by step"]
        assert rank["model"] == ["DistributedModelParallel", "ShardedEmbeddingBagCollection"]
        assert rank["model's result"] == [2, 128]


def test_plan(shown: list[dict[str, Any]]) -> None:
    lines = shown[0]["sharding plan"].splitlines()
    assert lines[0] == "module: ''"
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[1:] if line]
    assert ["table", "sharding type", "kernel", "ranks"] in cells
    assert ["table", "shard offsets", "shard sizes", "rank"] in cells
    types = {line[0]: line[1] for line in cells if line[1] in shown[0]["sharding types"]}
    assert set(types) == {"product_table", "user_table"}
    sizes = {name: 0 for name, kind in types.items() if kind != "data_parallel"}
    for name, _, shard_sizes, rank in (line for line in cells if re.match(r"\[\d+, \d+\]$", line[1])):
        num_rows, num_columns = (int(number) for number in re.findall(r"\d+", shard_sizes))
        sizes[name] += num_rows * num_columns
        assert 0 <= int(rank) < len(shown)
    assert set(sizes.values()) <= {4096 * 64}
    assert all(rank["sharding plan"] == shown[0]["sharding plan"] for rank in shown)


def test_optimizers(shown: list[dict[str, Any]]) -> None:
    for rank in shown:
        assert "lr: 0.01" in rank["default optimizer"], "FBGEMM's default"
        assert "lr: 0.02" in rank["optimizer of fused_params"]
        assert "exact_row_wise_adagrad" in rank["optimizer of fused_params"]
        assert "lr: 0.5" in rank["optimizer of marks"]
        assert rank["left for other optimizers"] == []


@pytest.mark.parametrize("way", ["fused_params", "marks"])
def test_tables_are_updated_in_the_backward_pass(shown: list[dict[str, Any]], way: str) -> None:
    for rank in shown:
        first, second = rank[f"losses with {way}"]
        assert second < first


def test_command() -> None:
    command = [sys.executable, "examples/tutorial.py", "--world-size", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"lr: ([\d.]+)", done.stdout) == ["0.01", "0.02", "0.5"], "rank 0 alone prints"
    first, second = re.search(r"losses with fused_params:\n\[(.*), (.*)\]", done.stdout).groups()  # type: ignore[union-attr]
    assert float(second) < float(first)


def test_world_size_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--world-size", "0"])
    assert "--world-size: got 0, expected at least 1" in capsys.readouterr().err
