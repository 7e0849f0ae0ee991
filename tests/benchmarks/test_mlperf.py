"""``benchmarks.mlperf``: its samples, its logs, and a run that is as short as one can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.mlperf.cli import main
from benchmarks.mlperf.loadgen import read_summary
from benchmarks.mlperf.workloads import DLRM_ROWS, DlrmDcnV2, Dlrmv3
from recsys.kernels import operators
from serve.wire import predict_pb2 as wire


def test_tables_are_mlperf_s() -> None:
    assert len(DLRM_ROWS) == 26
    assert sum(DLRM_ROWS) == 204_184_588


@pytest.mark.parametrize("workload", [DlrmDcnV2(100), Dlrmv3(100, 7, 16)], ids=lambda one: one.name)
def test_a_sample_is_the_same_as_a_request_and_as_tensors(workload: DlrmDcnV2 | Dlrmv3) -> None:
    sample = workload.sample(3)
    request = wire.PredictRequest.FromString(sample.request)
    assert request.num_rows == sample.num_pairs
    assert sample.request == workload.sample(3).request
    assert sample.request != workload.sample(4).request
    sent = [one.values for one in (*request.context_sparse, *request.sparse)]
    held = [part for part in sample.inputs if part.dtype == torch.int64]
    ids = held[1] if isinstance(workload, DlrmDcnV2) else torch.cat((held[1], held[3]))
    assert b"".join(sent) == ids.numpy().tobytes()


def test_samples_have_mlperf_s_sizes() -> None:
    workload = DlrmDcnV2(2)
    sizes = [workload.sample(i).num_pairs for i in range(100)]
    assert min(sizes) >= 100
    assert max(sizes) <= 700
    assert 220 < sum(sizes) / len(sizes) < 320


def test_read_summary(tmp_path: Path) -> None:
    path = tmp_path / "summary.txt"
    path.write_text("Samples per second: 12.5\nResult is : VALID\n  Min duration satisfied : Yes\n====\n")
    found = read_summary(path)
    assert found["Samples per second"] == "12.5"
    assert found["Result is"] == "VALID"


def test_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlperf_loadgen", reason="MLPerf's load generator is not installed")
    if operators.why_missing():
        pytest.skip("the native kernels are not built")
    options = ["--quick", "--json", "--most-rows", "100", "--samples", "4", "--dir", str(tmp_path)]
    assert main([*options, "--systems", "in-process", "--scenarios", "offline"]) == 0
    report = json.loads(capsys.readouterr().out)
    (run,) = report["runs"]
    assert run["samples_per_s"] > 0
    # Of about a thousand labels.
    assert report["bars"][0]["got"] == pytest.approx(1.0, abs=0.01)
