"""The benchmark of a GPU: its arithmetic, what it says where there is none, and that it runs where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import main
from benchmarks.measure.gpu import LookupShape, latencies, num_synchronizations
from tests.support.helpers import needs_gpu


def test_bytes_of_lookups() -> None:
    shape = LookupShape(batch_size=2, num_ids=3, num_tables=5, num_rows=7, dim=64)
    # Ten bags: three rows of 68 bytes with an ID each, an offset, a sum of 64 floats.
    assert shape.num_bytes == 10 * (3 * (68 + 8) + 8 + 256)


def test_contestants_take_turns() -> None:
    called: list[str] = []
    contestants = {name: (lambda _, name=name: called.append(name)) for name in ("a", "b")}
    found = latencies(contestants, [(torch.zeros(1),)] * 2, num_rounds=2)
    assert "".join(called) == "aabb" * 3
    assert all(0 < latency.p50_us <= latency.p99_us for latency in found.values())


def test_a_call_that_does_not_wait() -> None:
    assert num_synchronizations(lambda: torch.ones(3) + 1) == 0


def test_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    assert main(["--quick"]) == 1
    assert capsys.readouterr().err.startswith("benchmarks.gpu: devices: got no CUDA device, expected one")


@pytest.mark.parametrize("options", [pytest.param((), marks=needs_gpu)])
def test_with_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    assert main([*options, "--quick", "--json", "--batch-sizes", "1,8", "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["batch_size"], row["contestant"]) for row in result["latencies"]] == [
        (batch_size, name) for batch_size in (1, 8) for name in ("forward", "CUDA graphs")
    ]
    assert result["waits"] == {"forward": 1, "CUDA graphs": 1}
    assert all(row["of_memory"] > 0 for row in result["lookups"])
