"""A repository in an object store: load, swap, canary, removal, deltas, and a store that fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from recsys.base.remote import RemoteFolder, parse_address
from serve.client.packing import read_response
from serve.wire import admin_pb2
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.chains import Chain
from tests.conformance.support.harness import ServerUnderTest, ended, running, status_of, with_admin
from tests.support.serve.messages.cases import assert_answers
from tests.support.services.object_store import (
    ObjectStore,
    Proxy,
    bucket,
    object_store,
    proxy,
    remove,
    upload,
)

__all__ = ["bucket", "object_store", "proxy"]
pytestmark = pytest.mark.engine


@contextmanager
def serving(
    address: str, folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[ServerUnderTest]:
    cache = ["--artifact-cache", str(folder / "cache")]
    arguments = (*cache, "--poll-repository-s", "0.1", *with_admin(folder), *arguments)
    with running("--repository", address, *arguments, folder=folder, environment=environment) as server:
        yield server


def ask(server: ServerUnderTest, exported: Exported, **settings: str) -> wire.PredictResponse:
    request = exported.sample(2).request()
    for name, value in settings.items():
        setattr(request, name, value)
    return wire.PredictResponse.FromString(server.predict_bytes()(request.SerializeToString(), timeout=60))


def asserts_answer(server: ServerUnderTest, exported: Exported, version: str, asked: str = "") -> None:
    response = ask(server, exported, version=asked)
    assert response.version == version
    assert_answers(read_response(response), exported.answer(exported.sample(2)))


def versions(server: ServerUnderTest) -> dict[str, admin_pb2.ModelVersion]:
    models = server.admin().ListModels(admin_pb2.ListModelsRequest()).models
    return {version.version: version for model in models for version in model.versions}


def state(server: ServerUnderTest, version: str) -> str:
    found = versions(server).get(version)
    return "" if found is None else admin_pb2.ModelState.Name(found.state).removeprefix("MODEL_STATE_")


def comes(holds: Callable[[], bool]) -> None:
    """Wait until something holds; each look waits for an answer of the server."""
    while not holds():
        pass


def copies(folder: Path) -> list[str]:
    return [path.name for path in (folder / "cache").iterdir() if not path.name.startswith(".")]


@pytest.fixture
def root(bucket: str, small: Exported) -> str:
    """A repository in a bucket, with the small model as version 1."""
    upload(small.path, f"s3://{bucket}/models/m/1")
    return f"s3://{bucket}/models"


def test_versions_come_take_over_and_leave(
    root: str, small: Exported, other: Exported, tmp_path: Path
) -> None:
    with serving(root, tmp_path) as server:
        asserts_answer(server, small, "1")
        second = upload(other.path, f"{root}/m/2")
        comes(lambda: state(server, "2") == "READY")
        asserts_answer(server, other, "2")
        assert len(copies(tmp_path)) == 2
        remove(second)
        comes(lambda: state(server, "2") == "")
        asserts_answer(server, small, "1")
        comes(lambda: len(copies(tmp_path)) == 1)
        remove(RemoteFolder(parse_address(f"{root}/m/1")))
        comes(lambda: not versions(server))
        code, _ = status_of(lambda: ask(server, small))
        assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
        assert server.stop()[0] == 0


def test_a_restart_serves_the_copy_that_is_there(root: str, small: Exported, tmp_path: Path) -> None:
    for _ in range(2):
        with serving(root, tmp_path) as server:
            asserts_answer(server, small, "1")
    assert len(copies(tmp_path)) == 1


def test_a_server_that_starts_while_its_store_is_away_serves_its_copies(
    root: str, small: Exported, other: Exported, proxy: Proxy, tmp_path: Path
) -> None:
    environment = {"AWS_ENDPOINT_URL": proxy.endpoint}
    with serving(root, tmp_path, environment=environment) as server:
        asserts_answer(server, small, "1")
    upload(other.path, f"{root}/m/2")
    proxy.cut = "list-type"
    with serving(root, tmp_path, environment=environment) as server:
        asserts_answer(server, small, "1")
        assert "copies that were fetched before are served until it can" in server.log.read_text()
        proxy.cut = ""
        comes(lambda: state(server, "2") == "READY")
        asserts_answer(server, other, "2")


def test_a_version_that_is_being_uploaded_is_not_taken(
    root: str, small: Exported, other: Exported, tmp_path: Path
) -> None:
    with serving(root, tmp_path) as server:
        folder = RemoteFolder(parse_address(f"{root}/m/2"))
        # As a tool might that uploads in the order of names.
        folder.put(other.path / "manifest.json", "manifest.json")
        comes(lambda: "m/2 is passed over" in server.log.read_text())
        assert state(server, "2") == ""
        asserts_answer(server, small, "1")
        upload(other.path, f"{root}/m/2")
        comes(lambda: state(server, "2") == "READY")
        asserts_answer(server, other, "2")


def test_a_canary_and_a_pin_work_as_in_a_folder(
    root: str, small: Exported, other: Exported, tmp_path: Path
) -> None:
    upload(other.path, f"{root}/m/2")
    with serving(root, tmp_path) as server:
        routing = admin_pb2.Routing(serve="1", canary="2", canary_percent=100)
        server.admin().SetRouting(admin_pb2.SetRoutingRequest(model="m", routing=routing))
        asserts_answer(server, other, "2")
        asserts_answer(server, small, "1", asked="1")
        # The pinned version is loaded already: its files are not needed any more.
        remove(RemoteFolder(parse_address(f"{root}/m/1")))
        remove(RemoteFolder(parse_address(f"{root}/m/2")))
        comes(lambda: state(server, "2") == "")
        asserts_answer(server, small, "1")


def test_a_delta_is_fetched(chain: Chain, root: str, small: Exported, tmp_path: Path) -> None:
    with serving(root, tmp_path) as server:
        file = min(chain.folder.iterdir())
        RemoteFolder(parse_address(f"{root}/m/deltas")).put(file, file.name)
        request = admin_pb2.ApplyDeltaRequest(model="m", delta=file.name)
        assert [*server.admin().ApplyDelta(request).deltas] == [file.name]
        before, after = small.answer(small.sample(2)), read_response(ask(server, small))
        assert any(not np.array_equal(before[name], after[name]) for name in before)
        code, text = status_of(
            lambda: server.admin().ApplyDelta(admin_pb2.ApplyDeltaRequest(model="m", delta="absent.delta"))
        )
        assert code is grpc.StatusCode.NOT_FOUND
        assert "delta: got 'absent.delta', expected a file" in text


def test_credentials_that_fail_leave_what_is_loaded(
    root: str, small: Exported, other: Exported, object_store: ObjectStore, tmp_path: Path
) -> None:
    with serving(root, tmp_path) as server:
        with object_store.checking_credentials():
            comes(lambda: "access denied" in server.log.read_text())
            asserts_answer(server, small, "1")
            code, _, said = ended("--repository", root, "--artifact-cache", tmp_path / "other", "--port", "0")
            assert code == 1
            assert "access denied" in said
            assert "set AWS_ACCESS_KEY_ID" in said
        upload(other.path, f"{root}/m/2")
        comes(lambda: state(server, "2") == "READY")


def test_a_download_that_is_cut_is_tried_again(
    root: str, small: Exported, other: Exported, proxy: Proxy, tmp_path: Path
) -> None:
    with serving(root, tmp_path, environment={"AWS_ENDPOINT_URL": proxy.endpoint}) as server:
        proxy.cut = "m/2/rows.bin"
        upload(other.path, f"{root}/m/2")
        comes(lambda: state(server, "2") == "FAILED")
        assert "ended the connection" in versions(server)["2"].reason
        asserts_answer(server, small, "1")
        proxy.cut = ""
        comes(lambda: state(server, "2") == "READY")
        asserts_answer(server, other, "2")


def test_a_server_killed_while_it_fetches_starts_again(
    root: str, small: Exported, other: Exported, proxy: Proxy, tmp_path: Path
) -> None:
    with serving(root, tmp_path, environment={"AWS_ENDPOINT_URL": proxy.endpoint}) as server:
        proxy.hold = "m/2/rows.bin"
        upload(other.path, f"{root}/m/2")
        assert proxy.held.wait(60)
        asserts_answer(server, small, "1")
        assert state(server, "2") == "LOADING"
        server.signal(signal.SIGKILL)
    assert len(copies(tmp_path)) == 1
    with serving(root, tmp_path) as server:
        asserts_answer(server, other, "2")


def test_a_damaged_version_is_refused_until_its_files_change(
    root: str, small: Exported, other: Exported, tmp_path: Path
) -> None:
    folder = upload(other.path, f"{root}/m/2")
    rows = bytearray((other.path / "rows.bin").read_bytes())
    rows[0] ^= 1
    folder.write(bytes(rows), "rows.bin")
    with serving(root, tmp_path) as server:
        asserts_answer(server, small, "1")
        assert "checksum does not match" in versions(server)["2"].reason
        folder.put(other.path / "rows.bin", "rows.bin")
        comes(lambda: state(server, "2") == "READY")


def test_a_version_that_is_written_over_keeps_what_is_loaded(
    root: str, small: Exported, other: Exported, tmp_path: Path
) -> None:
    folder = RemoteFolder(parse_address(f"{root}/m/1"))
    with serving(root, tmp_path) as server:
        folder.put(other.path / "manifest.json", "manifest.json")
        folder.remove("rows.bin")
        comes(lambda: "m/1 is passed over until it is whole" in server.log.read_text())
        asserts_answer(server, small, "1")
        upload(other.path, f"{root}/m/1")
        comes(lambda: "m/1 was written to after it was fetched" in server.log.read_text())
        asserts_answer(server, small, "1")
        server.admin().UnloadModel(admin_pb2.UnloadModelRequest(model="m"))
        server.admin().LoadModel(admin_pb2.LoadModelRequest(model="m"))
        asserts_answer(server, other, "1")


def test_a_removed_version_answers_until_one_that_is_left_can(
    root: str, small: Exported, other: Exported, tmp_path: Path
) -> None:
    first = RemoteFolder(parse_address(f"{root}/m/1"))
    rows = bytearray((small.path / "rows.bin").read_bytes())
    rows[0] ^= 1
    first.write(bytes(rows), "rows.bin")
    second = upload(other.path, f"{root}/m/2")
    with serving(root, tmp_path) as server:
        asserts_answer(server, other, "2")
        remove(second)
        comes(lambda: "version 2 goes on serving" in server.log.read_text())
        asserts_answer(server, other, "2")
        first.put(small.path / "rows.bin", "rows.bin")
        comes(lambda: state(server, "2") == "")
        asserts_answer(server, small, "1")


def test_a_single_artifact_is_served_by_its_address(bucket: str, small: Exported, tmp_path: Path) -> None:
    upload(small.path, f"s3://{bucket}/small.artifact")
    arguments = ("--artifact-cache", str(tmp_path / "cache"))
    with running(f"s3://{bucket}/small.artifact", *arguments, folder=tmp_path) as server:
        asserts_answer(server, small, "1")


@pytest.mark.parametrize(
    ("address", "code", "text"),
    [
        ("s3://{bucket}/absent", 2, "source.repository: holds no model"),
        ("s3://{bucket}-absent/models", 1, "the bucket does not exist"),
        ("ftp://{bucket}/models", 2, "got 'ftp://"),
    ],
)
def test_what_is_not_there_is_said_at_the_start(
    bucket: str, address: str, code: int, text: str, tmp_path: Path
) -> None:
    arguments = ("--repository", address.format(bucket=bucket), "--artifact-cache", tmp_path / "cache")
    ended_with, _, said = ended(*arguments, "--port", "0")
    assert (ended_with, text in said) == (code, True), said


def test_check_config_asks_the_store_and_fetches_nothing(root: str, tmp_path: Path) -> None:
    arguments = ("--repository", root, "--artifact-cache", tmp_path / "cache", "--check-config")
    code, said, _ = ended(*arguments)
    assert (code, "the settings can be used" in said) == (0, True)
    assert not (tmp_path / "cache").exists()
    RemoteFolder(parse_address(f"{root}/m/1")).remove("manifest.json")
    code, _, said = ended(*arguments)
    assert (code, "m: has no version" in said) == (2, True)
