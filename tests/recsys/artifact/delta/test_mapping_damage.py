"""Every way to damage the mappings of a delta or of an artifact is one named error, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.delta.apply import prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.manifest import Manifest
from recsys.errors import (
    ArtifactError,
    ChecksumError,
    DeltaError,
    ManifestError,
    MissingPartError,
    PartSizeError,
)
from recsys.managed.changes import MappingChange
from tests.recsys.artifact.damage import flip, truncate
from tests.recsys.artifact.delta.deltas import header_of, lie, write_header
from tests.support.models.export_models import dlrm
from tests.support.models.managed import USERS, WORDS, Managed


def managed_model() -> Managed:
    """Words 10, 20 and 30 own the rows 0, 1 and 2."""
    model = Managed().eval()
    words: Any = model.bags.managed_collision_collection.managed_collision_modules()["words"]
    words.set_ids(torch.tensor([10, 20, 30]))
    return model


@pytest.fixture(scope="session")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of ``managed_model()``. Not to be written to."""
    path = tmp_path_factory.mktemp("managed") / "a"
    export_model(managed_model(), path, ExportConfig(name="managed"))
    return path


def write_mapping(path: Path, digest: str, *, table: str = WORDS, num_rows: int = 20) -> None:
    """A delta with which 20 moves to row 0, 40 comes, and 10 goes."""
    writer = DeltaWriter(path, DeltaHeader(model="managed", artifact=digest, base=digest))
    change = MappingChange(
        raw_ids=torch.tensor([20, 40]), rows=torch.tensor([0, 5]), evicted=torch.tensor([10])
    )
    writer.add_mapping(table, num_rows, change)
    writer.finish()


def section(key: str, *numbers: int) -> Callable[[Path], None]:
    """Other numbers in a section, with the digest that fits."""

    def change(path: Path) -> None:
        header, data = header_of(path), bytearray(path.read_bytes())
        content = np.array(numbers, "<i8").tobytes()
        place = header["mappings"][0][key]
        data[place["offset_bytes"] : place["offset_bytes"] + len(content)] = content
        path.write_bytes(data)
        place["sha256"] = hashlib.sha256(content).hexdigest()
        write_header(path, json.dumps(header).encode())

    return change


def field(key: str, value: Any) -> Callable[[Path], None]:
    """Another value of a field of the mapping."""
    return lambda path: lie(path, lambda header: header["mappings"][0].update({key: value}))


DAMAGES: dict[str, tuple[Callable[[Path], object], type[ArtifactError], str]] = {
    "mappings an object": (
        lambda p: lie(p, lambda h: h.update(mappings={})),
        ManifestError,
        "delta.mappings: got",
    ),
    "a table twice": (
        lambda p: lie(
            p,
            lambda h: h["mappings"].append(
                {
                    **h["mappings"][0],
                    "num_ids": 0,
                    "num_evicted": 0,
                    **{
                        key: {**h["mappings"][0][key], "offset_bytes": 1024}
                        for key in ("raw_ids", "rows", "evicted")
                    },
                }
            ),
        ),
        ManifestError,
        "delta.mappings",
    ),
    "no name": (field("name", ""), ManifestError, "delta.mappings[0].name"),
    "a table of rows": (
        field("name", "bags._embedding_module.days"),
        ManifestError,
        "delta.mappings[0].name: got",
    ),
    "other rows": (field("num_rows", 21), ManifestError, "delta.mappings[0].num_rows: got '21', expected 20"),
    "no rows": (field("num_rows", 0), ManifestError, "delta.mappings[0].num_rows"),
    "rows of exabytes": (field("num_ids", 2**62), ManifestError, "delta.mappings[0].num_ids"),
    "fewer than none": (field("num_evicted", -1), ManifestError, "delta.mappings[0].num_evicted"),
    "more evicted than bytes": (
        field("num_evicted", 99),
        ManifestError,
        "delta.mappings[0].evicted.offset_bytes",
    ),
    "evicted of exabytes": (
        field("num_evicted", 2**62),
        ManifestError,
        "delta.mappings[0].evicted.offset_bytes",
    ),
    "more IDs than bytes": (field("num_ids", 20), ManifestError, "delta.mappings[0].rows.offset_bytes"),
    "sections overlap": (
        lambda p: lie(p, lambda h: h["mappings"][0]["rows"].update(offset_bytes=64)),
        ManifestError,
        "delta.mappings[0].rows.offset_bytes",
    ),
    "no section": (
        lambda p: lie(p, lambda h: h["mappings"][0].pop("evicted")),
        ManifestError,
        "delta.mappings[0].evicted: missing",
    ),
    "another digest": (
        lambda p: lie(p, lambda h: h["mappings"][0]["raw_ids"].update(sha256="0" * 64)),
        ChecksumError,
        f"mapping of table {WORDS!r}: the checksum",
    ),
    "a byte of an ID": (lambda p: flip(p, 64), ChecksumError, f"mapping of table {WORDS!r}: the checksum"),
    "IDs descend": (section("raw_ids", 40, 20), ManifestError, "got raw_ids out of order"),
    "an ID twice": (section("raw_ids", 20, 20), ManifestError, "got raw_ids out of order"),
    "a row below": (section("rows", -1, 5), ManifestError, "got rows from -1 to 5"),
    "a row too many": (section("rows", 0, 20), ManifestError, "got rows from 0 to 20, expected 0 to 19"),
    "a row twice": (section("rows", 5, 5), ManifestError, "got a row of two raw IDs"),
    "a row of another ID": (section("rows", 0, 2), ManifestError, "got row 2 for raw ID 40"),
    "an unknown ID goes": (section("evicted", 11), ManifestError, "got raw ID 11 as evicted"),
    "an ID goes and comes": (
        section("evicted", 20),
        ManifestError,
        "got a raw ID that is evicted and gets a row",
    ),
    "a newer format": (
        lambda p: lie(p, lambda h: h.update(format_version=4)),
        ArtifactError,
        "got format version 4",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_a_named_error(managed: Path, tmp_path: Path, name: str) -> None:
    damage, kind, message = DAMAGES[name]
    model = load_artifact(managed)
    before = [mapping.slots.clone() for mapping in model.rows.mappings]
    write_mapping(tmp_path / "d", model.digest)
    prepare(model.rows, tmp_path / "d")
    damage(tmp_path / "d")
    with pytest.raises(kind) as caught:
        prepare(model.rows, tmp_path / "d")
    assert message in str(caught.value)
    assert all(map(torch.equal, before, (mapping.slots for mapping in model.rows.mappings)))


def test_an_artifact_without_mappings(tmp_path: Path) -> None:
    export_model(dlrm(), tmp_path / "a")
    model = load_artifact(tmp_path / "a")
    write_mapping(tmp_path / "d", model.digest, table="x")
    with pytest.raises(DeltaError, match=r"delta\.mappings: got raw IDs of table 'x', expected none"):
        prepare(model.rows, tmp_path / "d")


def test_a_delta_does_not_replace_the_buckets_as_a_dense_weight(managed: Path, tmp_path: Path) -> None:
    for scripted in (False, True):
        model = load_artifact(managed, scripted=scripted)
        (mapping,) = model.rows.mappings
        path = tmp_path / f"{scripted}"
        writer = DeltaWriter(path, DeltaHeader(model="m", artifact=model.digest, base=model.digest))
        writer.add_dense(mapping.info.path, torch.zeros_like(mapping.slots))
        writer.finish()
        with pytest.raises(ManifestError, match="the path of a dense weight of the artifact"):
            prepare(model.rows, path)


def _in_manifest(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = json.loads((path / "manifest.json").read_text())
        change(data)
        text = (
            json.dumps({key: value for key, value in data.items() if not key.endswith("_sha256")})[:-1] + ", "
        )
        digest = hashlib.sha256(text.encode()).hexdigest()
        (path / "manifest.json").write_text(f'{text}"bytes_sha256": "{digest}"}}')

    return damage


def _in_mapping(key: str, value: Any) -> Callable[[Path], None]:
    return _in_manifest(lambda data: data["mappings"][0].update({key: value}))


def _in_table(key: str, value: Any) -> Callable[[Path], None]:
    return _in_manifest(lambda data: data["mappings"][0]["tables"][0].update({key: value}))


def _other_slots(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Other buckets, with the digest that fits."""

    def damage(path: Path) -> None:
        file = path / "mapping-0.bin"
        slots = np.frombuffer(file.read_bytes(), "<i8").copy()
        change(slots.reshape(-1, 8))
        file.write_bytes(slots.tobytes())
        (part,) = [
            p for p in json.loads((path / "manifest.json").read_text())["skeletons"] if p["path"] == file.name
        ]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()

        def set_digest(data: Any) -> None:
            for one in data["skeletons"]:
                if one["path"] == part["path"]:
                    one["sha256"] = digest

        _in_manifest(set_digest)(path)

    return damage


def _all_rows(slots: Any) -> None:
    slots[:, 4:] = 99


BUCKETS = "manifest.mappings[0].tables[0].num_buckets: got"
ARTIFACT_DAMAGES: dict[str, tuple[Callable[[Path], object], type[ArtifactError], str]] = {
    "no part": (lambda p: (p / "mapping-0.bin").unlink(), MissingPartError, "part 'mapping-0.bin': missing"),
    "a short part": (lambda p: truncate(p / "mapping-0.bin", -8), PartSizeError, "part 'mapping-0.bin': got"),
    "a byte": (lambda p: flip(p / "mapping-0.bin", 100), ChecksumError, "part 'mapping-0.bin': its checksum"),
    "mappings an object": (
        _in_manifest(lambda d: d.update(mappings={})),
        ManifestError,
        "manifest.mappings: got",
    ),
    "no tables": (_in_mapping("tables", []), ManifestError, "manifest.mappings[0].tables: got"),
    "no path": (_in_mapping("path", ""), ManifestError, "manifest.mappings[0].path"),
    "another part": (_in_mapping("part", "target-0.pt"), ManifestError, "manifest.mappings[0].part: got"),
    "an unknown part": (_in_mapping("part", "x"), ManifestError, "manifest.mappings[0].part: got"),
    "a table twice": (_in_table("name", WORDS), ManifestError, "manifest.mappings.tables: got"),
    "other rows": (
        _in_table("num_rows", 7),
        ManifestError,
        f"manifest.mappings: table {USERS!r}.num_rows: got '7'",
    ),
    "rows of exabytes": (
        _in_table("num_rows", 2**40),
        ManifestError,
        "manifest.mappings[0].tables[0].num_rows",
    ),
    "buckets no power of two": (
        _in_table("num_buckets", 17),
        ManifestError,
        BUCKETS,
    ),
    "one bucket": (_in_table("num_buckets", 1), ManifestError, BUCKETS),
    "buckets of exabytes": (
        _in_table("num_buckets", 2**60),
        ManifestError,
        BUCKETS,
    ),
    "more buckets": (_in_table("num_buckets", 2**30), ManifestError, "manifest.mappings[0].part: got"),
    "rows of no table": (_other_slots(_all_rows), ManifestError, "got row"),
    "moved buckets": (
        _other_slots(lambda slots: slots.__setitem__(slice(None), np.roll(slots, 5, 0))),
        ManifestError,
        "got a raw ID in another bucket",
    ),
}


@pytest.mark.parametrize("name", ARTIFACT_DAMAGES)
def test_each_damage_of_an_artifact_is_a_named_error(managed: Path, tmp_path: Path, name: str) -> None:
    damage, kind, message = ARTIFACT_DAMAGES[name]
    shutil.copytree(managed, tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(kind) as caught:
        load_artifact(tmp_path / "a")
    assert message in str(caught.value)


def test_earlier_readers_refuse_the_artifact(managed: Path) -> None:
    assert json.loads((managed / "manifest.json").read_text())["format_version"] == 4
    assert Manifest.loads((managed / "manifest.json").read_bytes()).format_version == 4


def test_the_mapping_is_stored_once(managed: Path) -> None:
    model: LoadedArtifact = load_artifact(managed)
    (mapping,) = model.rows.mappings
    assert (managed / "mapping-0.bin").stat().st_size == mapping.slots.numel() * 8
