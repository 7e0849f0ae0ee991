"""Recordings that are played against a real server of the small model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serve import bench
from serve.bench.load.requests import Shape, draw_requests, parse_mix
from serve.client import Client
from serve.observe.capture_file import CapturedRequest, header, record
from tests.serve.bench.senders import both_senders, check
from tests.support.serve.live import LiveServer


@pytest.fixture
def capture(live: LiveServer, tmp_path: Path) -> Path:
    """Forty requests in half a second, as a server would have recorded them."""
    with Client(live.address) as client:
        metadata = client.metadata()
    drawn = draw_requests(metadata, Shape(rows=parse_mix("1-3")), 40, np.random.default_rng(0))
    records = [
        record(
            CapturedRequest(
                time_us=i * 12_500,
                model="small" if i % 4 else "other",
                version="1",
                data=request.SerializeToString(),
            )
        )
        for i, (request, _) in enumerate(drawn)
    ]
    path = tmp_path / "requests.capture"
    path.write_bytes(b"".join([header(0), *records]))
    return path


@both_senders
@pytest.mark.parametrize(
    ("arguments", "lasts_s"),
    [
        (["--speed", "1"], 0.4),
        (["--speed", "4", "--processes", "2"], 0.1),
        (["--speed", "max"], 0.0),
        (["--speed", "max", "--processes", "2"], 0.0),
        (["--protocol", "kserve"], 0.4),
    ],
    ids=["as-recorded", "faster", "max", "max-2", "kserve"],
)
def test_a_recording_is_played_whole(
    live: LiveServer,
    capture: Path,
    capsys: pytest.CaptureFixture[str],
    sender: str,
    arguments: list[str],
    lasts_s: float,
) -> None:
    asked = ["--replay", str(capture), "--model", "small", "--sender", sender, *arguments]
    code = bench.main([live.address, *asked, "--json"])
    result = json.loads(capsys.readouterr().out)
    check(result)
    made = result["measurement"]
    assert made["num_answered"] == 30
    assert made["duration_s"] >= lasts_s
    assert code == (0 if made["is_valid"] else 3)


@both_senders
def test_a_recording_of_a_model_that_is_gone_fails(
    live: LiveServer, capture: Path, capsys: pytest.CaptureFixture[str], sender: str
) -> None:
    asked = ["--replay", str(capture), "--speed", "max", "--sender", sender, "--json"]
    assert bench.main([live.address, *asked]) == 1
    assert json.loads(capsys.readouterr().out)["measurement"]["errors"] == {"NOT_FOUND": 10}
    capture.write_bytes(capture.read_bytes()[:-1] + b"x")
    assert bench.main([live.address, "--replay", str(capture)]) == 2
    assert "checksum" in capsys.readouterr().err
