"""Deltas on a loaded artifact: what changes, what does not, what fits, and every way to be wrong.

Shape letters: D embedding dim, N rows of a delta, R rows.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact import MANIFEST_NAME, ROWS_NAME, LoadedArtifact, load_artifact, load_rows
from recsys.blob import block_rows, copy_blocks
from recsys.delta import BlockChange, PreparedDelta, apply, prepare
from recsys.delta_file import DeltaFile, DeltaWriter
from recsys.delta_header import DeltaHeader, TableDelta
from recsys.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    ChecksumError,
    DeltaError,
    ForeignFileError,
    ManifestError,
    NewerVersionError,
    PartSizeError,
)
from recsys.loaded_rows import LoadedRows
from recsys.sharding.cuts import column_wise, row_wise
from recsys.sharding.device_rows import DeviceRows, device_layouts
from recsys.sharding.plan import ShardingPlan
from recsys.signature import IdPolicy
from tests.artifact.conftest import Ranker
from tests.artifact.damage import answers, flip, same, truncate
from tests.artifact.deltas import (
    PREAMBLE,
    digest_of,
    lie,
    read_plainly,
    rewrite_section,
    stored_tables,
    write_delta,
    write_header,
)
from tests.helpers import needs_gpu

USERS, GOODS, TAGS = "plain.users", "plain.goods", "scored.tags"
CHANGES: dict[str, Sequence[int]] = {USERS: [0, 7, 49], GOODS: [2, 3, 4, 29], TAGS: [19]}


@pytest.fixture
def loaded(pristine: Path) -> LoadedArtifact:
    """A model of one's own: its rows are mapped privately."""
    return load_artifact(pristine, target="cpu")


@pytest.fixture
def delta(tmp_path: Path, loaded: LoadedArtifact) -> Path:
    """A sound delta for ``loaded``."""
    write_delta(tmp_path / "new.delta", loaded.rows, CHANGES)
    return tmp_path / "new.delta"


def all_rows(artifact: LoadedArtifact) -> list[Tensor]:
    """A copy of every rank's bytes."""
    return [rank.rows.clone().cpu() for rank in artifact.rows.ranks]


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
        for name, expected in answers(host).items():
            torch.testing.assert_close(answers(artifact)[name], expected, rtol=1e-4, atol=1e-5)
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


def header_text(path: Path) -> bytes:
    data = path.read_bytes()
    return data[PREAMBLE.unpack_from(data)[1] :]


def set_in(table: int, key: str, value: Any) -> Callable[[Any], None]:
    """A change of a table's field."""

    def change(header: Any) -> None:
        header["tables"][table][key] = value

    return change


def patched(offset: int, data: bytes) -> Callable[[Path], None]:
    """Other bytes at an offset."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset : offset + len(data)] = data
        path.write_bytes(content)

    return change


def numbers(*values: int) -> Callable[[Path], None]:
    """Other numbers of rows, with the digest that fits."""
    return lambda path: rewrite_section(path, 0, "numbers", np.array(values, "<i8").tobytes())


def lied(change: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda path: lie(path, change)


NAN_SCALE = struct.pack("<ee", float("nan"), 0) + bytes(16)
DAMAGE: dict[str, tuple[Callable[[Path], object], type[ArtifactError], str]] = {
    "nothing there": (Path.unlink, ArtifactNotFoundError, "delta: nothing at 'new.delta'"),
    "empty": (lambda p: truncate(p, 0), ForeignFileError, "'new.delta' is no delta"),
    "garbage": (lambda p: p.write_bytes(bytes(range(256)) * 9), ForeignFileError, "is no delta"),
    "a manifest": (lambda p: p.write_text('{"format": "recsys-artifact"}'), ForeignFileError, "is no delta"),
    "a zip file": (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(100)), ForeignFileError, "is no delta"),
    "line ends changed": (
        lambda p: p.write_bytes(p.read_bytes().replace(b"\r\n", b"\n")),
        ForeignFileError,
        "does not begin as one",
    ),
    "cut in the magic": (lambda p: truncate(p, 5), PartSizeError, "got 5 bytes, expected 64 at least"),
    "cut in the preamble": (lambda p: truncate(p, 63), PartSizeError, "got 63 bytes"),
    "cut in the rows": (lambda p: truncate(p, 100), PartSizeError, "got 100 bytes, expected"),
    "cut in the header": (lambda p: truncate(p, -1), PartSizeError, "bytes, expected"),
    "bytes behind": (lambda p: p.write_bytes(p.read_bytes() + b"\n"), PartSizeError, "bytes, expected"),
    "never finished": (patched(16, bytes(48)), ManifestError, "never finished"),
    "header of exabytes": (patched(24, b"\xff" * 8), ManifestError, "first 64 bytes are damaged"),
    "header in the preamble": (
        patched(16, struct.pack("<Q", 8)),
        ManifestError,
        "first 64 bytes are damaged",
    ),
    "header's digest": (patched(40, b"\0\1\2\3"), ChecksumError, "its header's checksum"),
    "a byte of the header": (lambda p: flip(p, -10), ChecksumError, "its header's checksum"),
    "a byte of a row": (lambda p: flip(p, 64), ChecksumError, f"table {USERS!r}: the checksum"),
    "header no JSON": (lambda p: write_header(p, b"{"), ManifestError, "not readable as JSON"),
    "header no text": (lambda p: write_header(p, b"\xff\xfe{}"), ManifestError, "not readable as JSON"),
    "header deep": (lambda p: write_header(p, b"[" * 100_000), ManifestError, "not readable as JSON"),
    "header a list": (lambda p: write_header(p, b"[]"), ForeignFileError, "its format is not"),
    "another format": (
        lied(lambda h: h.update(format="x")),
        ForeignFileError,
        "its format is not 'recsys-delta'",
    ),
    "newer": (
        lied(lambda h: h.update(format_version=2)),
        NewerVersionError,
        "got format version 2, expected at most 1",
    ),
    "version a text": (lied(lambda h: h.update(format_version="1")), ManifestError, "delta.format_version"),
    "no artifact": (lied(lambda h: h.pop("artifact")), ManifestError, "delta.artifact: missing"),
    "artifact a number": (lied(lambda h: h.update(artifact=7)), ManifestError, "delta.artifact: got '7'"),
    "base too short": (lied(lambda h: h.update(base="abc")), ManifestError, "12 hexadecimal digits"),
    "another base": (lied(lambda h: h.update(base="0" * 12)), DeltaError, "delta.base: got '000000000000'"),
    "another artifact": (lied(lambda h: h.update(artifact="0" * 12)), DeltaError, "delta.artifact: got"),
    "tables an object": (lied(lambda h: h.update(tables={})), ManifestError, "delta.tables: got"),
    "a table twice": (
        lied(lambda h: h["tables"][1].update(name=USERS)),
        ManifestError,
        "delta.tables: got ['plain.users'] more than once",
    ),
    "unknown table": (
        lied(set_in(0, "name", "x")),
        ManifestError,
        "delta.tables[0].name: got 'x', expected one of",
    ),
    "other rows": (
        lied(set_in(0, "num_embeddings", 51)),
        ManifestError,
        "num_embeddings: got '51', expected 50",
    ),
    "other dim of as many bytes": (
        lied(set_in(0, "embedding_dim", 15)),
        ManifestError,
        "embedding_dim: got '15', expected 16",
    ),
    "other type": (
        lied(set_in(2, "data_type", "INT4")),
        ManifestError,
        "data_type: got 'DataType.INT4', expected",
    ),
    "type of no rows": (lied(set_in(0, "data_type", "BF16")), ManifestError, "expected one of FP32"),
    "no rows": (lied(set_in(0, "num_rows", 0)), ManifestError, "num_rows: got '0'"),
    "more rows than the table": (
        lied(lambda h: h["tables"][0].update(num_rows=3, num_embeddings=2)),
        ManifestError,
        "num_rows: got '3', expected at most the table's 2",
    ),
    "rows of exabytes": (lied(set_in(0, "num_rows", 2**62)), ManifestError, "rows.offset_bytes"),
    "dim of exabytes": (lied(set_in(0, "embedding_dim", 2**62)), ManifestError, "rows.offset_bytes"),
    "a section in the preamble": (
        lied(lambda h: h["tables"][0]["rows"].update(offset_bytes=0)),
        ManifestError,
        "delta.tables[0].rows.offset_bytes: got '0', expected a multiple of 64 from 64 on",
    ),
    "a section over another": (
        lied(lambda h: h["tables"][0]["numbers"].update(offset_bytes=64)),
        ManifestError,
        "delta.tables[0].numbers.offset_bytes: got '64'",
    ),
    "a section off its place": (
        lied(lambda h: h["tables"][0]["rows"].update(offset_bytes=65)),
        ManifestError,
        "got '65', expected a multiple of 64",
    ),
    "a section behind the end": (
        lied(lambda h: h["tables"][2]["numbers"].update(offset_bytes=1 << 20)),
        ManifestError,
        "numbers.offset_bytes: got '1048576'",
    ),
    "a section that is a text": (
        lied(set_in(0, "rows", "x")),
        ManifestError,
        "delta.tables[0].rows.offset_bytes: missing",
    ),
    "no section": (
        lied(lambda h: h["tables"][0].pop("rows")),
        ManifestError,
        "delta.tables[0].rows: missing",
    ),
    "digest of a section": (
        lied(lambda h: h["tables"][0]["rows"].update(sha256="0" * 64)),
        ChecksumError,
        f"table {USERS!r}: the checksum",
    ),
    "digest no digest": (
        lied(lambda h: h["tables"][0]["rows"].update(sha256="x" * 64)),
        ManifestError,
        "rows.sha256: got",
    ),
    "a negative number": (numbers(-1, 7, 49), ManifestError, "got numbers of rows from -1 to 49"),
    "a number behind the table": (numbers(0, 7, 50), ManifestError, "expected ascending ones from 0 to 49"),
    "numbers that descend": (numbers(7, 0, 49), ManifestError, "expected ascending ones"),
    "a number twice": (numbers(7, 7, 49), ManifestError, "each once"),
    "a number of 64 bits": (numbers(0, 7, 2**63 - 1), ManifestError, "expected ascending ones"),
    "the row of zeros": (
        lambda p: rewrite_section(p, 1, "numbers", np.array([2, 3, 4, 30], "<i8").tobytes()),
        ManifestError,
        "expected ascending ones from 0 to 29",
    ),
    "a row that is not finite": (
        lambda p: rewrite_section(p, 0, "rows", NAN_SCALE * 3),
        ManifestError,
        "got a row that is not finite",
    ),
}


@pytest.mark.parametrize(("damage", "kind", "text"), DAMAGE.values(), ids=DAMAGE)
def test_damage(
    loaded: LoadedArtifact,
    delta: Path,
    damage: Callable[[Path], object],
    kind: type[ArtifactError],
    text: str,
) -> None:
    before = all_rows(loaded)
    damage(delta)
    with pytest.raises(ArtifactError) as caught:
        prepare(loaded.rows, delta)
    assert type(caught.value) is kind
    assert text in str(caught.value)
    assert str(delta.parent) not in str(caught.value)
    assert torch.equal(all_rows(loaded)[0], before[0])


def test_a_directory_is_no_delta(loaded: LoadedArtifact, tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match="is no file"):
        prepare(loaded.rows, tmp_path)


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


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 1.5, float("nan"), float("inf")]),
    st.sampled_from(["", USERS, "INT4", "FP16", "\ud800", "0" * 12, "0" * 64]),
    st.sampled_from([[], {}, [[]], [0], {"a": 0}, [{}]]),
)


def _places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(place for key, value in steps for place in _places(value, (*at, key)))]


@pytest.fixture(scope="module")
def shared(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedArtifact, Path, PreparedDelta]:
    """A model, a sound delta for it, and that delta prepared."""
    artifact = load_artifact(pristine, target="cpu")
    path = tmp_path_factory.mktemp("deltas") / "d"
    write_delta(path, artifact.rows, CHANGES)
    return artifact, path, prepare(artifact.rows, path)


def equal_or_error(
    artifact: LoadedArtifact, path: Path, sound: PreparedDelta, left: set[str] | None = None
) -> None:
    """A delta is refused by name, or it puts the same rows in the same places.

    Args:
        artifact: what it is for.
        path: the delta.
        sound: what it was before.
        left: the tables that it still holds; all if None.
    """
    with suppress(ArtifactError):
        found = prepare(artifact.rows, path)
        assert found.num_rows == {t: n for t, n in sound.num_rows.items() if left is None or t in left}
        expected = {change.target.data_ptr(): change for change in sound.changes}
        for one in found.changes:
            other = expected[one.target.data_ptr()]
            assert torch.equal(one.places, other.places)
            assert torch.equal(one.rows, other.rows)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2**16), delete=st.booleans(), value=VALUES)
def test_headers_that_lie(
    shared: tuple[LoadedArtifact, Path, PreparedDelta], tmp_path: Path, at: int, delete: bool, value: Any
) -> None:
    artifact, path, sound = shared
    copy = Path(shutil.copy(path, tmp_path / "copy"))
    header = json.loads(header_text(path))
    places = _places(header)[1:]
    place = places[at % len(places)]
    owner = header
    for step in place[:-1]:
        owner = owner[step]
    if delete:
        del owner[place[-1]]
    else:
        owner[place[-1]] = value
    write_header(copy, json.dumps(header).encode())
    # A table that is taken out leaves a delta of the others; no tables are a delta of nothing.
    left = None
    if place == ("tables",):
        left = set()
    elif len(place) == 2 and delete:
        left = {table["name"] for table in header["tables"]}
    equal_or_error(artifact, copy, sound, left)


@pytest.mark.parametrize("seed", range(150))
def test_random_damage(shared: tuple[LoadedArtifact, Path, PreparedDelta], tmp_path: Path, seed: int) -> None:
    artifact, path, sound = shared
    draw = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content))
        match draw.randrange(4):
            case 0:
                content[at] = draw.randrange(256)
            case 1:
                del content[at:]
                content = content or bytearray(1)
            case 2:
                content[at:at] = draw.randbytes(draw.randint(1, 70))
            case 3:
                del content[at : at + draw.randint(1, 70)]
                content = content or bytearray(1)
    (tmp_path / "damaged").write_bytes(content)
    equal_or_error(artifact, tmp_path / "damaged", sound)
