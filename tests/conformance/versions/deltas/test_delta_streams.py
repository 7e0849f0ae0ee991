"""A server that follows a folder of deltas: applied under load, stopped by what is wrong, and whole after a restart."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.streams.opening import open_sink
from serve.wire import admin_pb2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.chains import NUM_DELTAS, Chain, answers_under_load, make_chain
from tests.conformance.support.harness import ServerUnderTest, put_version, running, spoil, with_admin
from tests.support.serve.messages.cases import assert_answers
from tests.support.services.object_store import bucket, object_store

__all__ = ["bucket", "object_store"]

pytestmark = [pytest.mark.engine, pytest.mark.slow]

_PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the server follows."""
    made = tmp_path / "stream"
    made.mkdir()
    return made


def put(path: Path, folder: Path, name: str = "") -> None:
    """Move a delta into the folder, as the exporter does."""
    partial = folder / f".{path.name}.partial"
    shutil.copyfile(path, partial)
    partial.rename(folder / (name or path.name))


def following(small: Exported, folder: Path, work: Path) -> list[str | Path]:
    """The arguments of a server that polls often."""
    work.mkdir(exist_ok=True)
    return [small.path, "--deltas", folder, "--poll-deltas-s", "0.05", *with_admin(work)]


def stream_of(server: ServerUnderTest) -> admin_pb2.DeltaStream:
    """The stream of the version that serves."""
    (model,) = server.admin().ListModels(admin_pb2.ListModelsRequest()).models
    (version,) = [one for one in model.versions if one.version == model.serving]
    return version.stream


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def assert_has(server: ServerUnderTest, chain: Chain, num_deltas: int) -> None:
    sample = chain.sample
    assert_answers(
        server.client().predict(sample.dense, sample.sparse, sample.weights), chain.answers[num_deltas]
    )


def test_a_stream_is_applied_under_load_without_one_failed_request(
    small: Exported, chain: Chain, folder: Path, tmp_path: Path
) -> None:
    # What is no delta does not stop the others.
    (folder / "loop.delta").symlink_to("loop.delta")
    (folder / "gone.delta").symlink_to("nothing")
    (folder / "zero.delta").symlink_to("/dev/zero")
    (folder / "folder.delta").mkdir()
    with running(*following(small, folder, tmp_path), folder=tmp_path) as server:

        def take(at: int) -> None:
            put(chain.folder / f"{at}.delta", folder)
            until(lambda: stream_of(server).last == f"{at}.delta")

        seen = answers_under_load(server, chain, 8, take)
        assert {0, NUM_DELTAS} <= set(seen)
        assert server.total("recsys_deltas_applied_total") == NUM_DELTAS
        assert server.total("recsys_delta_stream_state", state="following") == 1
        assert 0 <= server.total("recsys_delta_lag_seconds") < 86400
        code, stopped = server.stop()
        assert (code, stopped["ok"]) == (0, sum(seen.values()))


def test_a_restart_applies_the_folder_before_it_is_ready(
    small: Exported, chain: Chain, folder: Path, tmp_path: Path
) -> None:
    for at in range(NUM_DELTAS):
        put(chain.folder / f"{at}.delta", folder)
        with running(*following(small, folder, tmp_path), folder=tmp_path) as server:
            assert_has(server, chain, at + 1)
            assert list(server.client().metadata().deltas) == [f"{one}.delta" for one in range(at + 1)]
            assert server.stop()[0] == 0


def test_what_is_wrong_stops_the_stream_and_the_right_file_continues_it(
    small: Exported, chain: Chain, folder: Path, tmp_path: Path
) -> None:
    with running(*following(small, folder, tmp_path), folder=tmp_path) as server:
        put(chain.folder / "1.delta", folder)
        until(lambda: stream_of(server).state == "gap")
        assert_has(server, chain, 0)
        assert stream_of(server).num_pending == 1
        damaged = tmp_path / "0.delta"
        shutil.copyfile(chain.folder / "0.delta", damaged)
        spoil(damaged, at=100)
        put(damaged, folder)
        until(lambda: stream_of(server).state == "damaged")
        assert str(tmp_path) not in stream_of(server).reason
        assert_has(server, chain, 0)
        assert server.total("recsys_delta_stream_state", state="damaged") == 1
        assert server.total("recsys_deltas_pending") == 2
        put(chain.folder / "0.delta", folder)
        until(lambda: stream_of(server).state == "following" and stream_of(server).last == "1.delta")
        assert_has(server, chain, 2)
        assert server.stop()[0] == 0
        assert "no longer followed" in server.log.read_text()


def test_a_new_version_continues_with_its_own_deltas(
    small: Exported, other: Exported, chain: Chain, repository: Path, folder: Path, tmp_path: Path
) -> None:
    next_chain = make_chain(other, tmp_path_of(tmp_path, "next"), seed=1)
    put_version(repository, "m", "1", small.path)
    config = tmp_path / "serve.toml"
    config.write_text(f"[models.m]\ndeltas = {str(folder)!r}\npoll_deltas_s = 0.05\n")
    arguments = ["--repository", repository, "--config", config, *with_admin(tmp_path)]
    put(chain.folder / "0.delta", folder)
    with running(*arguments, folder=tmp_path) as server:
        assert_has(server, chain, 1)
        put(next_chain.folder / "0.delta", folder, "next-0.delta")
        until(lambda: stream_of(server).state == "foreign")
        put_version(repository, "m", "2", other.path)
        server.admin().LoadModel(admin_pb2.LoadModelRequest(model="m", version="2"))
        assert_has(server, next_chain, 1)
        put(next_chain.folder / "1.delta", folder, "next-1.delta")
        until(lambda: stream_of(server).last == "next-1.delta")
        assert_has(server, next_chain, 2)
        assert stream_of(server).state == "following"
        assert server.stop()[0] == 0


def test_a_stream_in_a_bucket_is_followed_and_each_delta_downloaded_once(
    small: Exported, chain: Chain, bucket: str, tmp_path: Path
) -> None:
    address, cache = f"s3://{bucket}/deltas", tmp_path / "cache"
    arguments = [small.path, "--deltas", address, "--poll-deltas-s", "0.05", "--delta-cache", cache]
    with open_sink(address) as sink:
        sink.publish(chain.folder / "1.delta")
        with running(*arguments, *with_admin(tmp_path), folder=tmp_path) as server:
            until(lambda: stream_of(server).state == "gap")
            assert_has(server, chain, 0)
            for at in (0, 2):
                sink.publish(chain.folder / f"{at}.delta")
                until(lambda: stream_of(server).last == f"{max(at, 1)}.delta")  # noqa: B023
                assert_has(server, chain, max(at, 1) + 1)
            assert server.total("recsys_deltas_failed_total") == 0
            assert server.stop()[0] == 0
    assert len([*cache.rglob("*.delta")]) == NUM_DELTAS


def tmp_path_of(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made
