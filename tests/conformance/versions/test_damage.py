"""What happens to the files of a running server: artifacts that are damaged, disks that are full."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from serve.client.packing import read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.protocols.test_wrong import INTERNALS
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, running
from tests.support.serve.messages.cases import assert_answers
from tests.support.small_disk import small_filesystem

pytestmark = pytest.mark.engine

ROWS = "rows.bin"


def cut_off(artifact: Path) -> None:
    os.truncate(artifact / ROWS, 0)


def cut_in_half(artifact: Path) -> None:
    os.truncate(artifact / ROWS, (artifact / ROWS).stat().st_size // 2)


def overwrite(artifact: Path) -> None:
    size = (artifact / ROWS).stat().st_size
    with (artifact / ROWS).open("r+b") as file:
        file.write(b"\x77" * size)


def write_anew(artifact: Path) -> None:
    """As ``cp`` writes: the old file, cut off first."""
    (artifact / ROWS).write_bytes(b"\x77" * (artifact / ROWS).stat().st_size)


def spoil_graphs(artifact: Path) -> None:
    for path in [*artifact.glob("*.pt"), artifact / "manifest.json"]:
        path.write_bytes(b"no model")


def delete(artifact: Path) -> None:
    shutil.rmtree(artifact)


def rename(artifact: Path) -> None:
    """As artifacts are replaced."""
    other = artifact.with_name("other")
    shutil.copytree(artifact, other)
    overwrite(other)
    artifact.rename(artifact.with_name("old"))
    other.rename(artifact)


HARMLESS = [spoil_graphs, rename, delete]
HARMFUL = [overwrite, write_anew, cut_in_half, cut_off]
Damage = Callable[[Path], None]


@contextmanager
def served_copy(small: Exported, folder: Path, *flags: str) -> Iterator[tuple[ServerUnderTest, Path]]:
    """A server of a copy that may be damaged."""
    artifact = folder / "artifact"
    shutil.copytree(small.path, artifact)
    with running(artifact, *flags, folder=folder) as server:
        yield server, artifact


def answers(server: ServerUnderTest, small: Exported, num_requests: int) -> dict[grpc.StatusCode, int]:
    """How requests ended; an answer is right, or the case fails."""
    call = server.predict_bytes()
    ends: dict[grpc.StatusCode, int] = {}
    for seed in range(num_requests):
        sample = small.sample(1 + seed % 5, seed)
        code, text = grpc.StatusCode.OK, ""
        try:
            data = call(sample.request().SerializeToString(), timeout=60)
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
            found = INTERNALS.search(text)
        else:
            found = None
            assert_answers(read_response(wire.PredictResponse.FromString(data)), small.answer(sample))
        assert found is None, text
        ends[code] = ends.get(code, 0) + 1
    return ends


def test_a_loaded_model_does_not_need_its_files_any_more(small: Exported, tmp_path: Path) -> None:
    with served_copy(small, tmp_path) as (server, artifact):
        for damage in HARMLESS:
            damage(artifact)
            assert answers(server, small, 50) == {grpc.StatusCode.OK: 50}, damage.__name__
        assert server.stop()[0] == 0


@pytest.mark.parametrize("damage", HARMFUL, ids=lambda damage: damage.__name__)
def test_rows_that_are_written_to_in_place_give_no_wrong_answer_and_do_not_end_the_server(
    small: Exported, tmp_path: Path, damage: Damage
) -> None:
    with served_copy(small, tmp_path) as (server, artifact):
        assert answers(server, small, 5) == {grpc.StatusCode.OK: 5}
        damage(artifact)
        ends = set(answers(server, small, 50))
        # Seconds later the version is unloaded.
        assert ends <= {grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
        assert server.is_alive()
        assert server.stop()[0] == 0


def test_copied_rows_are_out_of_reach_whatever_happens_to_their_file_under_load(
    small: Exported, tmp_path: Path
) -> None:
    with served_copy(small, tmp_path, "--copy-rows") as (server, artifact), ThreadPoolExecutor(4) as pool:
        for damage in HARMFUL:
            asking = [pool.submit(answers, server, small, 100) for _ in range(4)]
            damage(artifact)
            for found in asking:
                assert found.result() == {grpc.StatusCode.OK: 100}, damage.__name__
        assert server.stop()[0] == 0


def test_the_log_says_how_the_rows_are_held(small: Exported, tmp_path: Path) -> None:
    num_bytes = (small.path / "rows.bin").stat().st_size
    flags = ("--copy-rows", "--lock-rows", "--numa", "interleave")
    with served_copy(small, tmp_path, *flags) as (server, _):
        assert answers(server, small, 5) == {grpc.StatusCode.OK: 5}
        assert server.stop()[0] == 0
    held = f"rows in memory: {num_bytes:,} bytes, on huge pages: 0, locked: {num_bytes:,}"
    assert f"version 1 is ready; {held}" in server.log.read_text()


def test_a_full_disk_ends_the_capture_and_no_request(small: Exported, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_filesystem(disk):
        flags = ("--capture-path", disk / "requests.capture", "--capture-share", "1.0")
        with running(small.path, *flags, folder=tmp_path) as server:
            assert answers(server, small, 300) == {grpc.StatusCode.OK: 300}
            for _ in range(5000):
                captured = server.total("recsys_captured_requests_total")
                if captured == 300:
                    break
            assert captured == 300
            written, failed, dropped = (
                server.total("recsys_captured_requests_total", result=result)
                for result in ("written", "failed", "dropped")
            )
            assert written > 0
            assert failed > 0
            assert dropped == 0
            assert server.stop()[0] == 0
        assert (disk / "requests.capture").stat().st_size <= 64 << 10
