"""Somebody sets the machine's clock while the server runs: nothing waits, expires or is measured by it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from serve.client.packing import build_request
from tests.conformance.support.artifacts import export_slow
from tests.conformance.support.harness import ServerUnderTest, running, status_of

pytestmark = pytest.mark.engine

HOUR_S = 3600
_PLUG_ROWS = 4096


@dataclass
class Clock:
    """The wall clock of a server."""

    file: Path

    def set(self, ahead_s: int) -> None:
        """Let it run so much ahead; at once, also where the server waits."""
        with self.file.open("r+b") as file:
            file.write(ahead_s.to_bytes(8, "little", signed=True))


def shows_a_shift(environment: dict[str, str], clock: Clock) -> bool:
    """Whether a program under the shifted clock sees it."""
    seen = []
    for ahead_s in (0, HOUR_S):
        clock.set(ahead_s)
        told = subprocess.run(["/bin/date", "+%s"], env=environment, capture_output=True, check=True)
        seen.append(int(told.stdout))
    clock.set(0)
    return HOUR_S <= seen[1] - seen[0] < 2 * HOUR_S


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerUnderTest, Clock]]:
    """A server of a slow model whose clock can be set."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc, to make what shifts the clock")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the clock can be shifted on Linux on x86-64 only")
    folder = tmp_path_factory.mktemp("clock")
    library, file = folder / "clock.so", folder / "shift"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    file.write_bytes(bytes(8))
    artifact = export_slow(folder / "narrow", width=512)
    environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK_FILE": str(file)}
    assert shows_a_shift(environment, Clock(file))
    with running(artifact.path, folder=folder, environment=environment) as server:
        yield server, Clock(file)
        assert server.stop()[0] == 0


def request(rows: list[list[int]]) -> bytes:
    data: bytes = build_request({}, {"id": rows}).SerializeToString()
    return data


@pytest.mark.parametrize(
    "ahead_s", [HOUR_S, -HOUR_S, 10 * 365 * 24 * HOUR_S], ids=["ahead", "back", "ten-years"]
)
def test_a_clock_that_jumps_ends_no_request_and_spoils_no_metric(
    clocked: tuple[ServerUnderTest, Clock], ahead_s: int
) -> None:
    server, clock = clocked
    call = server.predict_bytes()
    before = server.metrics()
    plugged = call.future(request([[7]] * _PLUG_ROWS), timeout=60)
    waiting = [call.future(request([[number]]), timeout=60) for number in range(10)]
    clock.set(ahead_s)
    later = [call.future(request([[number]]), timeout=60) for number in range(10)]
    expiring = call.future(request([[9]]), timeout=0.05)
    for one in (plugged, *waiting, *later):
        assert one.exception() is None
    assert expiring.exception() is None or expiring.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert status_of(lambda: call(request([[3]]), timeout=60))[0] is grpc.StatusCode.OK
    clock.set(0)
    assert status_of(lambda: call(request([[3]]), timeout=60))[0] is grpc.StatusCode.OK
    after = server.metrics()
    grown = {
        name: value - before.get(name, 0)
        for name, value in after.items()
        if name.partition("{")[0].endswith("_seconds_sum")
    }
    assert grown
    assert all(0 <= seconds < HOUR_S / 4 for seconds in grown.values()), grown
    assert server.total("recsys_pending_rows") == 0
