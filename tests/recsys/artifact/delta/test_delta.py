"""Deltas on a loaded artifact: what changes, what does not, what fits, and every way to be wrong.

Shape letters: D embedding dim, N rows of a delta, R rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from export.verify.compare import CUDA_ROWS_TOLERANCE
from recsys.artifact.delta.apply import BlockChange, apply, prepare
from recsys.artifact.delta.file import DeltaFile, DeltaWriter
from recsys.artifact.delta.header import DeltaHeader, TableDelta
from recsys.artifact.load import LoadedArtifact, load_artifact, load_rows
from recsys.artifact.loaded_rows import LoadedRows
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME
from recsys.errors import (
    ArtifactError,
    ChecksumError,
    DeltaError,
)
from recsys.inputs.signature import IdPolicy
from recsys.rows.layout import block_rows, copy_blocks
from recsys.sharding.plan.device_rows import DeviceRows, device_layouts
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise
from tests.recsys.artifact.conftest import Ranker
from tests.recsys.artifact.damage import answers, flip, same
from tests.recsys.artifact.delta.deltas import (
    CHANGES,
    GOODS,
    TAGS,
    USERS,
    all_rows,
    digest_of,
    header_text,
    lie,
    read_plainly,
    rewrite_section,
    set_in,
    stored_tables,
    write_delta,
)
from tests.support.helpers import needs_gpu
from tests.support.models.export_models import assert_close


def assert_holds(artifact: LoadedArtifact, before: Sequence[Tensor], made: dict[str, Tensor]) -> None:
    """Each rank's bytes are those of before, but for the delta's rows."""
    stored = stored_tables(artifact.rows)
    for rank, old in zip(artifact.rows.ranks, before, strict=True):
        expected = old.clone()
        for block in rank.layout.blocks:
            for number, row in zip(CHANGES[block.table], made[block.table], strict=True):
                if block.row_start <= number < block.row_end:
                    new = block_rows(row[None], stored[block.table].embedding_dim, block)
                    block.rows(expected)[number - block.row_start] = new[0]
        assert torch.equal(rank.rows.cpu(), expected)


class TestApplying:
    @pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
    def test_the_rows_change_in_place_and_nothing_else_does(
        self, pristine: Path, tmp_path: Path, target: str
    ) -> None:
        artifact = load_artifact(pristine, target=target)
        made = write_delta(tmp_path / "d", artifact.rows, CHANGES)
        before, answers_before = all_rows(artifact), answers(artifact)
        prepared = prepare(artifact.rows, tmp_path / "d")
        assert all(torch.equal(*pair) for pair in zip(all_rows(artifact), before, strict=True))
        apply(prepared)
        assert_holds(artifact, before, made)
        assert not same(answers(artifact), answers_before)

    def test_a_single_file(self, pristine_file: Path, tmp_path: Path) -> None:
        artifact = load_artifact(pristine_file)
        made = write_delta(tmp_path / "d", artifact.rows, CHANGES)
        before, answers_before = all_rows(artifact), answers(artifact)
        apply(prepare(artifact.rows, tmp_path / "d"))
        assert_holds(artifact, before, made)
        assert not same(answers(artifact), answers_before)

    def test_the_graph_reads_the_new_rows(self, loaded: LoadedArtifact, tmp_path: Path) -> None:
        """Row 0 of users becomes row 7 of them: so do predictions."""
        blob = loaded.rows.ranks[0].rows
        users = loaded.manifest.layout.find(USERS, 0, 0).rows(blob)
        write_delta(tmp_path / "d", loaded.rows, {USERS: [0]})
        rewrite_section(tmp_path / "d", 0, "rows", users[7].numpy().tobytes())
        context, lengths = torch.zeros(1, 3), torch.tensor([1, 0, 0, 0])
        call = [torch.tensor([0]), torch.ones(1)]
        seventh = loaded.forward(context, lengths, torch.tensor([7]), torch.ones(1))
        assert not same(loaded.forward(context, lengths, *call), seventh)
        apply(prepare(loaded.rows, tmp_path / "d"))
        assert same(loaded.forward(context, lengths, *call), seventh)

    def test_files_and_other_loaded_models_stay(
        self, pristine: Path, delta: Path, loaded: LoadedArtifact
    ) -> None:
        other = load_artifact(pristine, target="cpu")
        rows, expected = (pristine / ROWS_NAME).read_bytes(), answers(other)
        apply(prepare(loaded.rows, delta))
        assert (pristine / ROWS_NAME).read_bytes() == rows
        assert same(answers(other), expected)

    def test_what_apply_returns_takes_it_back(self, loaded: LoadedArtifact, delta: Path) -> None:
        before = all_rows(loaded)
        undo = apply(prepare(loaded.rows, delta))
        assert loaded.rows.state == digest_of(delta)
        redo = apply(undo)
        assert torch.equal(all_rows(loaded)[0], before[0])
        assert loaded.rows.state == loaded.digest
        apply(redo)
        assert not torch.equal(all_rows(loaded)[0], before[0])
        assert loaded.rows.state == digest_of(delta)

    def test_inside_and_outside_of_inference_mode(self, pristine: Path, delta: Path) -> None:
        with torch.inference_mode():
            artifact = load_artifact(pristine, target="cpu")
        undo = apply(prepare(artifact.rows, delta))
        with torch.inference_mode():
            apply(undo)
            prepared = prepare(artifact.rows, delta)
        apply(prepared)
        assert artifact.rows.state == digest_of(delta)

    def test_it_does_not_read_the_file_again(self, loaded: LoadedArtifact, delta: Path) -> None:
        prepared = prepare(loaded.rows, delta)
        delta.unlink()
        apply(prepared)
        assert loaded.rows.state == prepared.digest

    def test_what_it_says_of_itself(self, loaded: LoadedArtifact, delta: Path) -> None:
        prepared = prepare(loaded.rows, delta)
        assert prepared.num_rows == {USERS: 3, GOODS: 4, TAGS: 1}
        assert prepared.num_bytes == 3 * 20 + 4 * 28 + 1 * 12
        assert (prepared.base, prepared.digest, prepared.num_dense_left) == (
            loaded.digest,
            digest_of(delta),
            0,
        )

    def test_a_delta_of_nothing(self, loaded: LoadedArtifact, tmp_path: Path) -> None:
        write_delta(tmp_path / "d", loaded.rows, {})
        before = all_rows(loaded)
        apply(prepare(loaded.rows, tmp_path / "d"))
        assert torch.equal(all_rows(loaded)[0], before[0])
        assert loaded.rows.state == digest_of(tmp_path / "d")

    def test_ranks_that_hold_shards_stretched_to_their_alignment(
        self, tmp_path: Path, loaded: LoadedArtifact
    ) -> None:
        """The layouts of CUDA devices, laid out in host memory: rows cut by rows and by columns, 16 bytes apart."""
        tables = Ranker().plain.embedding_bag_configs()
        plan = {
            "plain": {t.name: cut(t, [1, 0]) for t, cut in zip(tables, (column_wise, row_wise), strict=True)}
        }
        plan["scored"] = {"tags": row_wise(Ranker().scored.embedding_bag_configs()[0], [0, 1])}
        devices = ("cuda:0", "cuda:1")
        config = ExportConfig(
            targets=(devices,), plan=ShardingPlan(plan=plan), table_id_policies={"goods": IdPolicy.ZERO}
        )
        export_model(Ranker(), tmp_path / "a", config)
        host = load_rows(tmp_path / "a")
        layout, blob, cpu = host.manifest.layout, host.ranks[0].rows, torch.device("cpu")
        assert len(layout.blocks) == 4
        layouts = device_layouts(layout, plan, [torch.device(d) for d in devices])
        ranks = [
            DeviceRows(device=cpu, layout=one, rows=copy_blocks(layout, blob, one, cpu)) for one in layouts
        ]
        assert {one.row_alignment for one in layouts} == {16}
        stretched = LoadedRows(manifest=host.manifest, ranks=ranks)
        write_delta(tmp_path / "d", host, CHANGES)
        before = [rank.rows.clone() for rank in ranks]
        apply(prepare(host, tmp_path / "d"))
        undo = apply(prepare(stretched, tmp_path / "d"))
        for rank, old in zip(ranks, before, strict=True):
            assert not torch.equal(rank.rows, old)
            assert torch.equal(rank.rows, copy_blocks(layout, blob, rank.layout, cpu))
        apply(undo)
        assert all(torch.equal(rank.rows, old) for rank, old in zip(ranks, before, strict=True))

    @pytest.mark.parametrize(
        "devices",
        [
            pytest.param(("cuda:0",), id="cuda", marks=needs_gpu),
            pytest.param(("cpu", "cuda:0"), id="both", marks=needs_gpu),
        ],
    )
    def test_devices(self, tmp_path: Path, devices: tuple[str, ...]) -> None:
        export_model(Ranker(), tmp_path / "a", ExportConfig(targets=(devices, ("cpu",))))
        artifact = load_artifact(tmp_path / "a", target=",".join(devices))
        host = load_artifact(tmp_path / "a", target="cpu")
        made = write_delta(tmp_path / "d", artifact.rows, CHANGES)
        before, answers_before = all_rows(artifact), answers(artifact)
        undo = apply(prepare(artifact.rows, tmp_path / "d"))
        assert_holds(artifact, before, made)
        apply(prepare(host.rows, tmp_path / "d"))
        assert_close(answers(artifact), answers(host), CUDA_ROWS_TOLERANCE)
        apply(undo)
        assert same(answers(artifact), answers_before)


class TestFitting:
    def test_the_digest_is_that_of_the_manifest_file(self, pristine: Path, loaded: LoadedArtifact) -> None:
        content = (pristine / MANIFEST_NAME).read_bytes()
        assert loaded.digest == hashlib.sha256(content).hexdigest()[:12]
        assert loaded.rows.state == loaded.digest

    def test_another_artifact(
        self, pristine: Path, loaded: LoadedArtifact, delta: Path, tmp_path: Path
    ) -> None:
        export_model(Ranker(), tmp_path / "other", ExportConfig(name="other"))
        other = load_artifact(tmp_path / "other")
        text = rf"delta.artifact: got '{loaded.digest}' \(model 'ranker'\), expected '{other.digest}' \(model 'other'\)"
        with pytest.raises(DeltaError, match=text):
            prepare(other.rows, delta)

    def test_deltas_go_in_order_and_each_once(
        self, loaded: LoadedArtifact, pristine: Path, tmp_path: Path
    ) -> None:
        maker = load_artifact(pristine, target="cpu")
        write_delta(tmp_path / "1", maker.rows, CHANGES, seed=1)
        apply(prepare(maker.rows, tmp_path / "1"))
        write_delta(tmp_path / "2", maker.rows, {USERS: [7]}, seed=2)
        apply(prepare(maker.rows, tmp_path / "2"))
        with pytest.raises(DeltaError, match=r"delta.base: got '\w+', expected '\w+'.*in the order"):
            prepare(loaded.rows, tmp_path / "2")
        apply(prepare(loaded.rows, tmp_path / "1"))
        with pytest.raises(DeltaError, match=rf"delta.base: got '{loaded.digest}'"):
            prepare(loaded.rows, tmp_path / "1")
        apply(prepare(loaded.rows, tmp_path / "2"))
        assert torch.equal(all_rows(loaded)[0], all_rows(maker)[0])
        assert loaded.rows.state == maker.rows.state == digest_of(tmp_path / "2")

    def test_another_was_applied_since_it_was_prepared(
        self, loaded: LoadedArtifact, delta: Path, tmp_path: Path
    ) -> None:
        write_delta(tmp_path / "other", loaded.rows, {USERS: [1]})
        late = prepare(loaded.rows, tmp_path / "other")
        apply(prepare(loaded.rows, delta))
        before = all_rows(loaded)
        with pytest.raises(DeltaError, match=r"delta\.base: got"):
            apply(late)
        assert torch.equal(all_rows(loaded)[0], before[0])

    def test_another_is_applied_while_the_file_is_read(
        self, loaded: LoadedArtifact, delta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = write_delta(tmp_path / "first", loaded.rows, CHANGES, seed=1)
        before = all_rows(loaded)
        first = prepare(loaded.rows, tmp_path / "first")
        read = DeltaFile.read

        def late_read(file: DeltaFile, table: TableDelta) -> tuple[Tensor, Tensor]:
            if loaded.rows.state == loaded.digest:
                apply(first)
            return read(file, table)

        monkeypatch.setattr(DeltaFile, "read", late_read)
        with pytest.raises(DeltaError, match=r"delta\.base: got"):
            prepare(loaded.rows, delta)
        assert_holds(loaded, before, made)

    def test_whoever_writes_holds_the_lock(
        self, loaded: LoadedArtifact, delta: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[bool] = []
        put = BlockChange._put

        def seen_put(change: BlockChange, rows: Tensor) -> None:
            seen.append(loaded.rows.lock.locked())
            put(change, rows)

        monkeypatch.setattr(BlockChange, "_put", seen_put)
        apply(prepare(loaded.rows, delta))
        assert seen == [True] * 6
        assert not loaded.rows.lock.locked()

    def test_nothing_is_written_where_the_last_table_is_damaged(
        self, loaded: LoadedArtifact, delta: Path
    ) -> None:
        before = all_rows(loaded)
        flip(delta, json.loads(header_text(delta))["tables"][2]["rows"]["offset_bytes"])
        with pytest.raises(ChecksumError, match=TAGS):
            prepare(loaded.rows, delta)
        assert torch.equal(all_rows(loaded)[0], before[0])
        assert loaded.rows.state == loaded.digest


class TestTheFile:
    def test_anyone_can_read_it(self, loaded: LoadedArtifact, tmp_path: Path) -> None:
        made = write_delta(tmp_path / "d", loaded.rows, CHANGES)
        found = read_plainly(tmp_path / "d")
        assert {name: numbers for name, (numbers, _) in found.items()} == CHANGES
        assert all(np.array_equal(rows, made[name].numpy()) for name, (_, rows) in found.items())

    def test_it_can_be_repeated(self, loaded: LoadedArtifact, tmp_path: Path) -> None:
        for name in ("1", "2"):
            write_delta(tmp_path / name, loaded.rows, CHANGES)
        assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()

    def test_fields_that_only_later_releases_know_are_left_alone(
        self, loaded: LoadedArtifact, delta: Path
    ) -> None:
        lie(delta, lambda header: header.update(extra=1))
        lie(delta, set_in(0, "extra", {}))
        assert prepare(loaded.rows, delta).num_rows == {USERS: 3, GOODS: 4, TAGS: 1}

    def test_a_writer_that_did_not_finish_leaves_no_delta(
        self, loaded: LoadedArtifact, tmp_path: Path
    ) -> None:
        writer = DeltaWriter(
            tmp_path / "d", DeltaHeader(model="m", artifact=loaded.digest, base=loaded.digest)
        )
        writer.add(
            stored_tables(loaded.rows)[USERS], torch.tensor([1]), torch.zeros(1, 20, dtype=torch.uint8)
        )
        writer.close()
        with pytest.raises(ArtifactError):
            DeltaFile(tmp_path / "d")


class TestRowsAlone:
    def test_of_a_directory_for_devices_that_are_not_here(
        self, pristine: Path, loaded: LoadedArtifact
    ) -> None:
        assert torch.equal(load_rows(pristine).ranks[0].rows, loaded.rows.ranks[0].rows)
        assert load_rows(pristine).state == loaded.digest

    def test_of_a_single_file(self, pristine_file: Path) -> None:
        whole = load_artifact(pristine_file)
        assert torch.equal(load_rows(pristine_file).ranks[0].rows, whole.rows.ranks[0].rows)

    def test_changed_rows(self, artifact: Path) -> None:
        flip(artifact / ROWS_NAME, 3)
        with pytest.raises(ChecksumError):
            load_rows(artifact)
        load_rows(artifact, verify_checksums=False)
