"""The benchmarks run, and what they print is whole; nothing is said about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import artifact, limits
from benchmarks.engine import fixed_numbers
from benchmarks.loading.load import answer_of
from benchmarks.measure.processes import StepError
from benchmarks.steps import rows
from benchmarks.steps.rows import zipf_ids
from recsys.kernels import operators

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str, python: Path | str = sys.executable) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_the_speed_benchmark_compares_equals(
    report_of: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("torchrec", reason="compares with torchrec, which is not installed")
    options = ("--quick", "--no-auc", "--profile", "--batch-sizes", "1,8", "--dir", str(tmp_path))
    result = report_of(artifact.main, *options)
    contestants = [(r["batch_size"], r["contestant"]) for r in result["speed"]]
    own = [] if operators.why_missing() else [f"own {dtype}" for dtype in operators.LINEAR_DTYPES]
    names = ["TorchRec", "float32", "bfloat16", *own]
    zoo = [
        (batch_size, f"{model}: {name}")
        for model in (
            "DCNv2",
            *(
                f"{one}{full}"
                for one in ("DIN-like", "SASRec-like", "BST-like", "HSTU-like")
                for full in ("", ", full")
            ),
        )
        for batch_size in (1, 32, 128)
        for name in ("TorchRec", *own)
    ]
    assert contestants == [(b, name) for b in (1, 8) for name in names] + zoo
    assert all(r["samples_per_s"] > 0 for r in result["speed"])
    bars = [(bar["text"], bar["bar"]) for bar in result["bars"] if "own" not in bar["text"]]
    assert bars == [("batch 1, float32: ÷ TorchRec", 1.5), ("batch 8, float32: ÷ TorchRec", 1.3)]
    assert result["agreement"]["float32"] <= 1e-5 < result["agreement"]["bfloat16"] < 0.05
    profiled = {share["name"] for share in result["profile"]["1"]}
    assert {"aten::bmm", "fbgemm::int_nbit_split_embedding_codegen_lookup_function"} <= profiled
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_the_benchmark_of_limits_measures_all_variants(
    report_of: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    result = report_of(limits.main, "--quick", "--batch-sizes", "1,16", "--dir", str(tmp_path))
    own = [] if operators.why_missing() else [f"own {dtype}" for dtype in operators.LINEAR_DTYPES]
    variants = [(row["variant"], row["batch_size"]) for row in result["results"]]
    assert variants == [(name, size) for name in ("float32", "bfloat16", *own) for size in (1, 16)]
    assert all(row["us"] > 0 and row["all"] > 0 for row in result["results"])
    assert all(row["lookup"] > 0 and row["linear"] > 0 for row in result["results"])
    # Lookups by themselves, and within each variant.
    assert list(result["lookups_alone"]) == (["1", "16"] if own else [])
    assert all(share > 0 for share in result["lookups_alone"].values())
    assert [bar["bar"] for bar in result["bars"]] == [0.8] * 2 * (len(own) + bool(own))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_the_engine_benchmark_compares_all_servers(engine: str) -> None:
    if not (ROOT / "build/native/recsys-plain-server").is_file():
        pytest.skip("the C++ peers are not built (make native-peers)")
    if engine == "native" and not list((ROOT / "serve/engine").glob("_engine*.so")):
        pytest.skip("the native engine is not built (make native)")
    options = ("--engine", engine, "--rounds", "1", "--seconds", "0.2", "--table-rows", "100", "--json")
    result = _run("benchmarks.engine", *options)
    servers = {row["server"] for row in result["loads"]}
    assert {"default", "--executors 1", "C++, no batching", "gRPC echo", "REST"} <= servers
    assert all(row["requests_per_s"] > 0 for row in result["loads"])
    assert len({row["load"] for row in result["loads"]}) == 6
    # Two bars for each load, and three more; which are met is not for a smoke test to say.
    assert len(result["bars"]) == 15
    assert all(isinstance(bar["is_met"], bool) and bar["got"] > 0 for bar in result["bars"])


@pytest.mark.parametrize(
    ("num", "bounds"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (6, [1, 2, 3, 4, 6]), (16, [1, 2, 3, 4, 8, 16])],
)
def test_fixed_numbers_of_executors_reach_up_to_the_processors(num: int, bounds: list[int]) -> None:
    assert fixed_numbers(num) == bounds


def test_the_rows_benchmark_compares_pages(tmp_path: Path, programs: Path) -> None:
    options = ("--size-gb", "0.01", "--rounds", "2", "--json", "--dir", str(tmp_path))
    result = _run("benchmarks.rows", *options, python=programs / "python")
    assert list(result["cases"]) == ["mapped", "copied, ordinary pages", "copied"]
    assert all(min(case["rows_per_s"]) > 0 for case in result["cases"].values())
    assert result["cases"]["copied, ordinary pages"]["pages"]["huge_bytes"] == 0
    assert [bar["text"] for bar in result["bars"]] == ["copied rows: huge ÷ ordinary pages"]


def test_the_rows_benchmark_compares_tables_larger_than_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No limit: the sizes follow it, and a control group that is smaller than torch cannot be had.
    rows.main(["export", str(tmp_path / "a"), "--bytes", "1000000"])
    capsys.readouterr()
    rows.main(["load", str(tmp_path / "a"), "--seconds", "0.2", "--random-access"])
    found = json.loads(capsys.readouterr().out)
    assert found["is_random"]
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["samples_per_s"] > 0


def test_frequent_ids_are_spread_and_follow_the_exponent() -> None:
    generator = np.random.default_rng(0)
    ids = zipf_ids(generator, 100_000, 1000, 1.0)
    assert ids.min() >= 0
    assert ids.max() < 1000
    numbers = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    # Drawn from the continuous distribution: the first rank has log(2) / log(1000) of all.
    assert numbers[0] / 100_000 == pytest.approx(np.log(2) / np.log(1000), rel=0.05)
    assert numbers[9] / 100_000 == pytest.approx(np.log(11 / 10) / np.log(1000), rel=0.2)
    assert np.bincount(zipf_ids(generator, 100_000, 10, 0.0)).min() > 9_000


def test_a_step_that_ends_is_an_error_that_commands_know() -> None:
    with (
        subprocess.Popen(["true"], stdout=subprocess.PIPE, text=True) as child,
        pytest.raises(StepError, match="ended with exit status 0"),
    ):
        answer_of(child)
