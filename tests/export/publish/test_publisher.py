"""Publishing from training loops: artifact and deltas are what a fresh export of the trained model is."""

from __future__ import annotations

import copy
import re
import resource
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import nn

from export.delta.compact import compact
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from export.publish.process import _Publisher
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ArtifactError, ExportError
from recsys.streams.folder import FolderSink, FolderSource
from recsys.training import Publisher
from recsys.training.slices import Pace
from tests.export.delta.test_delta import rows_of
from tests.export.delta.test_mappings import assert_same
from tests.recsys.artifact.delta.deltas import header_of, write_delta
from tests.support.children.publishers import forked_publishers
from tests.support.helpers import kjt_of
from tests.support.models.export_models import CopyCase, batch_of, dlrm
from tests.support.models.managed import Managed, train_managed

__all__ = ["forked_publishers"]
# test_train and test_kafka start processes as users do.
pytestmark = pytest.mark.usefixtures("forked_publishers")


class Loop:
    """A training of a DLRM with Adagrad for everything."""

    def __init__(self, seed: int = 0) -> None:
        self.model = dlrm(seed=seed).train()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.05)
        self._generator = torch.Generator().manual_seed(seed)

    def steps(self, num: int = 2) -> None:
        for _ in range(num):
            ids = {f"f{i}": torch.randint(40, (4, 2), generator=self._generator).tolist() for i in range(4)}
            self.optimizer.zero_grad()
            out = self.model(torch.rand(4, 5, generator=self._generator), kjt_of(ids))
            out.square().sum().backward()
            self.optimizer.step()


def until(condition: Callable[[], bool], timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def followed(artifact: Path, deltas: Path) -> LoadedArtifact:
    """The artifact with all deltas of a folder."""
    loaded = load_artifact(artifact)
    files = sorted(deltas.glob("*.delta"))
    while files:
        for path in files:
            with DeltaFile(path) as file:
                if file.header.base == loaded.rows.state:
                    break
        else:
            raise AssertionError("no delta follows")
        files.remove(path)
        apply(prepare(loaded.rows, path))
    return loaded


def assert_is(loaded: LoadedArtifact, model: nn.Module, folder: Path) -> None:
    """The artifact with its deltas has the bits of a fresh export."""
    path = folder / f"fresh {time.time_ns()}"
    export_model(copy.deepcopy(model).eval(), path)
    fresh = load_artifact(path)
    assert torch.equal(rows_of(loaded), rows_of(fresh))
    inputs = batch_of(fresh.signature, 30).inputs()
    expected = fresh.forward(*inputs)
    for name, found in loaded.forward(*inputs).items():
        assert torch.equal(found, expected[name])


@pytest.fixture
def exported(tmp_path: Path, copy_case: CopyCase) -> Loop:
    """A training whose model ``a`` holds."""
    copy_case("dlrm", tmp_path / "a")
    return Loop()


def test_a_loop_of_ones_own(exported: Loop, tmp_path: Path) -> None:
    loop = exported
    loop.steps()
    lines: list[str] = []
    with Publisher(
        loop.model, tmp_path / "a", tmp_path / "deltas", optimizer=loop.optimizer, log=lines.append
    ) as publisher:
        assert publisher.finish(), publisher.status
        assert_is(followed(tmp_path / "a", tmp_path / "deltas"), loop.model, tmp_path)
        for i in range(5):
            loop.steps(1 + i % 2)
            assert publisher.finish(), publisher.status
            assert publisher.status.num_published == 2 + i
            assert 0 < publisher.status.num_rows <= 64
        assert_is(followed(tmp_path / "a", tmp_path / "deltas"), loop.model, tmp_path)
        assert publisher.finish()  # nothing has changed
        assert publisher.status.num_published == 6
    assert not lines


def publisher_of(loop: Loop, folder: Path, lines: list[str] | None = None) -> Publisher:
    lines = [] if lines is None else lines
    return Publisher(loop.model, folder / "a", folder / "deltas", optimizer=loop.optimizer, log=lines.append)


def test_training_goes_on_while_the_destination_cannot_be_used(exported: Loop, tmp_path: Path) -> None:
    (tmp_path / "deltas").write_text("no folder")
    lines: list[str] = []
    with publisher_of(exported, tmp_path, lines) as publisher:
        until(lambda: bool(publisher.status.reason))
        assert publisher.status.state == "starting"
        exported.steps()
        assert not publisher.publish()
        (tmp_path / "deltas").unlink()
        assert publisher.finish()
        exported.steps()
        (tmp_path / "deltas").rename(tmp_path / "away")
        (tmp_path / "deltas").write_text("no folder")
        assert publisher.publish()
        until(lambda: publisher.status.state == "retrying")
        exported.steps()
        assert not publisher.publish()
        (tmp_path / "deltas").unlink()
        (tmp_path / "away").rename(tmp_path / "deltas")
        assert publisher.finish()
        assert publisher.status.num_published == 3
    assert [line.split(":")[1].strip() for line in lines] == [
        "starting",
        "deltas are published again",
        "retrying",
        "deltas are published again",
    ]
    assert_is(followed(tmp_path / "a", tmp_path / "deltas"), exported.model, tmp_path)


def test_a_process_that_is_killed_is_started_again(
    exported: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.training.publisher_process._RESTART_S", 0.0)
    lines: list[str] = []
    with publisher_of(exported, tmp_path, lines) as publisher:
        assert publisher.finish()
        exported.steps()
        assert publisher._process is not None
        assert publisher._process._process is not None
        publisher._process._process.kill()
        until(lambda: publisher.status.state == "ended")
        exported.steps()
        assert not publisher.publish()
        assert publisher.finish(), publisher.status
        monkeypatch.setattr("recsys.training.publisher_process._RESTART_S", 0.5)
        publisher._process._process.kill()
        until(lambda: publisher.status.state == "ended")
        exported.steps()
        assert publisher.finish(), publisher.status
    assert lines[0] == "publish: ended: the process has ended; it is started again"
    assert_is(followed(tmp_path / "a", tmp_path / "deltas"), exported.model, tmp_path)


def test_a_training_from_an_older_checkpoint_continues_the_chain(exported: Loop, tmp_path: Path) -> None:
    older = copy.deepcopy(exported.model.state_dict())
    with publisher_of(exported, tmp_path) as publisher:
        for _ in range(3):
            exported.steps()
            assert publisher.finish()
    compact([tmp_path / "deltas"], tmp_path / "c")
    # Some of those that it replaces have been removed.
    for path in sorted((tmp_path / "deltas").glob("*.delta"))[:2]:
        path.unlink()
    (tmp_path / "c").rename(tmp_path / "deltas" / "c.delta")
    again = Loop()
    again.model.load_state_dict(older)
    again.steps(1)
    with publisher_of(again, tmp_path) as publisher:
        assert publisher.finish(), publisher.status
    loaded = load_artifact(tmp_path / "a")
    apply(prepare(loaded.rows, tmp_path / "deltas" / "c.delta"))
    last = max((tmp_path / "deltas").glob("[0-9]*.delta"))
    apply(prepare(loaded.rows, last))
    assert_is(loaded, again.model, tmp_path)


def test_a_training_waits_for_the_end_of_another_one(
    exported: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lines: list[str] = []
    exported.steps()
    with publisher_of(exported, tmp_path) as first:
        assert first.finish()
        second = publisher_of(exported, tmp_path, lines)
        until(lambda: bool(second.status.reason))
        assert second.status.state == "starting"
        assert not second.publish()
        # As a process leaves it that is killed while it writes.
        (left,) = tmp_path.glob("recsys-publish-*.lock")
        left = left.with_name(f"{left.stem}-killed")
        left.mkdir()
        (left / "1.delta").write_bytes(b"recsys")
    exported.steps()
    with second:
        assert second.finish(), second.status
        assert not left.exists()
    assert [path.suffix for path in tmp_path.glob("recsys-publish-*")] == [".lock"]
    assert [line.split(";")[0] for line in lines] == [
        "publish: starting: another training on this machine publishes deltas of this artifact to this destination",
        "publish: deltas are published again",
    ]
    assert_is(followed(tmp_path / "a", tmp_path / "deltas"), exported.model, tmp_path)


class TestRefused:
    def reason(self, loop: Loop, folder: Path) -> str:
        lines: list[str] = []
        with publisher_of(loop, folder, lines) as publisher:
            assert not publisher.finish()
            assert publisher.status.state == "refused"
            assert lines == [f"publish: refused: {publisher.status.reason}"]
            loop.steps()
            assert not publisher.publish()
            return publisher.status.reason

    def test_a_chain_with_a_gap(self, exported: Loop, tmp_path: Path) -> None:
        with publisher_of(exported, tmp_path) as publisher:
            for _ in range(2):
                exported.steps()
                assert publisher.finish()
        min((tmp_path / "deltas").glob("*.delta")).unlink()
        assert "but no delta leads there" in self.reason(exported, tmp_path)

    def test_a_damaged_delta(self, exported: Loop, tmp_path: Path) -> None:
        (tmp_path / "deltas").mkdir()
        (tmp_path / "deltas" / "x.delta").write_bytes(b"recsys")
        assert "'x.delta', which cannot be read" in self.reason(exported, tmp_path)

    def test_a_delta_of_somebody_else(self, exported: Loop, tmp_path: Path) -> None:
        old = copy.deepcopy(exported.model).eval()
        with publisher_of(exported, tmp_path) as publisher:
            assert publisher.finish()
            exported.steps()
            theirs = copy.deepcopy(exported.model).eval()
            config = DeltaConfig(artifact=tmp_path / "a")
            export_delta(old, theirs, tmp_path / "deltas" / "theirs.delta", config)
            assert not publisher.finish()
            assert "'theirs.delta' after state" in publisher.status.reason
            assert "another one publishes there" in publisher.status.reason

    def test_a_delta_of_somebody_else_at_the_same_time(self, exported: Loop, tmp_path: Path) -> None:
        rows = load_artifact(tmp_path / "a").rows
        (tmp_path / "deltas").mkdir()
        for seed, name in enumerate(("ours", "theirs")):
            write_delta(
                tmp_path / f"{name}.delta", rows, {rows.manifest.tables[0].table.name: [seed]}, seed=seed
            )

        class Together(FolderSink):
            def publish(self, path: Path) -> None:
                super().publish(tmp_path / "theirs.delta")
                super().publish(path)

        ours, theirs = socket.socketpair()
        with theirs, Connection(ours.detach()) as pipe:
            publisher = _Publisher(pipe)
            publisher._source, publisher._sink = (
                FolderSource(tmp_path / "deltas"),
                Together(tmp_path / "deltas"),
            )
            with pytest.raises(ExportError, match=r"'theirs\.delta' after state"):
                publisher._send(tmp_path / "ours.delta", rows)

    def test_another_model(self, exported: Loop, tmp_path: Path) -> None:
        other = Loop()
        other.model = nn.Sequential(dlrm(num_tables=2)).train()
        lines: list[str] = []
        with publisher_of(other, tmp_path, lines) as publisher:
            assert not publisher.finish()
        assert lines[0].startswith("publish: failed: ")


def test_rows_that_are_no_numbers_are_not_published(exported: Loop, tmp_path: Path) -> None:
    lines: list[str] = []
    with publisher_of(exported, tmp_path, lines) as publisher:
        assert publisher.finish()
        exported.steps()
        weight = exported.model.sparse_arch.embedding_bag_collection.embedding_bags["t1"].weight
        before = weight.detach()[7].clone()
        weight.data[7] = torch.nan
        publisher.touched.mark("sparse_arch.embedding_bag_collection.t1", torch.tensor([7]))
        assert not publisher.finish()
        assert lines == [f"publish: failed: {publisher.status.reason}"]
        assert "t1', row 7: got NaN" in publisher.status.reason
        weight.data[7] = before
        assert publisher.finish()
    assert_is(followed(tmp_path / "a", tmp_path / "deltas"), exported.model, tmp_path)


def test_a_full_disk_is_said_once_and_costs_no_delta(exported: Loop, tmp_path: Path) -> None:
    lines: list[str] = []
    with publisher_of(exported, tmp_path, lines) as publisher:
        assert publisher.finish()
        assert publisher._process is not None
        assert publisher._process._process is not None
        pid = publisher._process._process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        for _ in range(3):
            exported.steps()
            assert not publisher.finish()
            assert publisher.status.state == "failed"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        assert publisher.finish(), publisher.status
    assert len(lines) == 2, lines
    assert re.search(r"failed: .* cannot be written: File too large; have the limit on the size", lines[0])
    assert lines[1] == "publish: deltas are published again"
    assert_is(followed(tmp_path / "a", tmp_path / "deltas"), exported.model, tmp_path)


def test_what_cannot_be_published_at_all(exported: Loop, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="artifact"):
        Publisher(exported.model, tmp_path / "b", tmp_path / "deltas")

    class Local(nn.Module):
        pass

    exported.model.extra = Local()
    with pytest.raises(ValueError, match="cannot be sent to the process that publishes"):
        publisher_of(exported, tmp_path)


def test_mappings_of_raw_ids(tmp_path: Path) -> None:
    model = Managed().train()
    export_model(copy.deepcopy(model).eval(), tmp_path / "a")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    with Publisher(model, tmp_path / "a", tmp_path / "deltas", optimizer=optimizer) as publisher:
        for seed in range(4):
            train_managed(model, optimizer, seed)
            assert publisher.finish(), publisher.status
    headers = [header_of(path) for path in (tmp_path / "deltas").glob("*.delta")]
    assert sum(mapping["num_evicted"] for header in headers for mapping in header["mappings"]) > 0
    export_model(copy.deepcopy(model).eval(), tmp_path / "fresh")
    assert_same(followed(tmp_path / "a", tmp_path / "deltas"), load_artifact(tmp_path / "fresh"))


def test_all_rows_are_copied_at_the_end(
    exported: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.training.slices._SLICE_BYTES", 4 * 16)  # a row
    monkeypatch.setattr("recsys.training.publisher.MOST_SLICES", 1)
    loop = exported
    loop.steps()
    with publisher_of(loop, tmp_path) as publisher:
        until(lambda: publisher.status.state == "ready")
        assert not publisher.publish()
        loop.steps()
        assert publisher.finish(), publisher.status
        assert publisher.status.num_published == 1
    assert_is(followed(tmp_path / "a", tmp_path / "deltas"), loop.model, tmp_path)


@pytest.mark.parametrize("is_killed", [False, True], ids=["once", "again"])
def test_all_rows_are_copied_between_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    monkeypatch.setattr("recsys.training.slices._SLICE_BYTES", 4 * 64)  # four rows
    monkeypatch.setattr("recsys.training.slices._LAST_SLICES", 2)
    monkeypatch.setattr("recsys.training.publisher_process._RESTART_S", 0.0)
    monkeypatch.setattr(Pace, "num_slices", lambda _: 1)
    model = Managed().train()
    export_model(copy.deepcopy(model).eval(), tmp_path / "a")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for seed in range(3):
        train_managed(model, optimizer, seed)
    with Publisher(model, tmp_path / "a", tmp_path / "deltas", optimizer=optimizer) as publisher:
        until(lambda: publisher.status.state == "ready")
        num_calls = 0
        while not publisher.publish():
            num_calls += publisher.status.state == "copying"
            train_managed(model, optimizer, 10 + num_calls)
            if is_killed and num_calls == 5:
                assert publisher._process is not None
                assert publisher._process._process is not None
                publisher._process._process.kill()
                until(lambda: publisher.status.state == "ended")
                is_killed = False
            elif num_calls > 30:
                # Each step touches more rows than a call copies: rounds end with what is left.
                assert publisher.finish(), publisher.status
                break
        assert num_calls > 10
        assert publisher.finish(), publisher.status
        export_model(copy.deepcopy(model).eval(), tmp_path / "fresh")
        assert_same(followed(tmp_path / "a", tmp_path / "deltas"), load_artifact(tmp_path / "fresh"))
        # Later ones hold what changes.
        train_managed(model, optimizer, 1)
        assert publisher.publish()
        assert publisher.finish(), publisher.status
    export_model(copy.deepcopy(model).eval(), tmp_path / "later")
    assert_same(followed(tmp_path / "a", tmp_path / "deltas"), load_artifact(tmp_path / "later"))
