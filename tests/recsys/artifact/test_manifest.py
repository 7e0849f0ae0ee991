"""The manifest: what it says, that it round-trips, and that its lies are found though its digest fits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from recsys.artifact.load import load_artifact
from recsys.artifact.loaded_rows import artifact_digest
from recsys.artifact.manifest import Manifest
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import read_manifest
from recsys.errors import ArtifactError, ManifestError, NewerVersionError, PartSizeError
from tests.recsys.artifact.damage import (
    answers,
    lie,
    manifest_of,
    same,
    with_digest,
    with_old_digest,
    write_manifest,
)

Change = Callable[[Any], object]


def test_the_manifest_says_what_the_artifact_is(pristine: Path) -> None:
    data = manifest_of(pristine)
    assert data["format"] == "recsys-artifact"
    assert data["format_version"] == 1
    assert data["name"] == "ranker"
    assert set(data["versions"]) >= {"torch", "recsys-serving"}
    assert [t["name"] for t in data["targets"]] == ["cpu", "cpu,cpu", "cuda:0,cuda:1"]
    assert {t["name"]: (t["num_embeddings"], t["embedding_dim"], t["data_type"]) for t in data["tables"]} == {
        "plain.users": (50, 16, "INT8"),
        "plain.goods": (30, 24, "INT8"),
        "scored.tags": (20, 8, "INT8"),
    }
    assert data["rows"]["size_bytes"] == (pristine / data["rows"]["path"]).stat().st_size
    for part in data["skeletons"]:
        assert part["size_bytes"] == (pristine / part["path"]).stat().st_size


def test_a_manifest_round_trips(pristine: Path) -> None:
    manifest = read_manifest(pristine)
    again = Manifest.loads(manifest.dumps())
    assert again == manifest
    assert again.dumps() == (pristine / MANIFEST_NAME).read_text()


def test_the_digests_are_of_the_bytes_and_for_earlier_releases_of_the_json(pristine: Path) -> None:
    stored = (pristine / MANIFEST_NAME).read_bytes()
    data = json.loads(stored)
    assert data["bytes_sha256"] == hashlib.sha256(stored[: stored.index(b'"bytes_sha256"')]).hexdigest()
    old = data.pop("manifest_sha256")
    assert old == json.loads(with_old_digest(data))["manifest_sha256"]


def test_manifests_of_earlier_releases_load_in_any_form(artifact: Path, expected: dict[str, Tensor]) -> None:
    data = manifest_of(artifact)
    reordered = {key: data[key] for key in sorted(data, reverse=True)}
    (artifact / MANIFEST_NAME).write_text(with_old_digest(reordered))
    assert same(answers(load_artifact(artifact)), expected)


@pytest.mark.parametrize("text_of", [with_digest, with_old_digest])
@pytest.mark.parametrize("changed", [('"pooling": "sum"', '"pooling": "none"'), ("_sha256", "_sha255")])
def test_a_change_shows_by_either_digest(
    artifact: Path, text_of: Callable[[Any], str], changed: tuple[str, str]
) -> None:
    text = text_of(manifest_of(artifact))
    assert changed[0] in text
    (artifact / MANIFEST_NAME).write_text(text.replace(*changed))
    with pytest.raises(ManifestError, match="its own digest does not match"):
        load_artifact(artifact)


def test_unknown_fields_of_the_same_version_do_not_matter(
    artifact: Path, expected: dict[str, Tensor]
) -> None:
    lie(artifact, lambda m: (m.update(more=[1]), m["tables"][0].update(more={})))
    assert same(answers(load_artifact(artifact)), expected)


def _block(m: Any, i: int = 0) -> Any:
    return m["rows"]["blocks"][i]


def _table(m: Any, i: int = 0) -> Any:
    return m["tables"][i]


def _shard(m: Any, target: int, table: str = "users") -> Any:
    return m["targets"][target]["plan"]["plain"][table]["shards"][0]


HEX = "0" * 64
LIES: dict[str, tuple[Change, str]] = {
    "rows shorter": (
        lambda m: m["rows"].update(size_bytes=m["rows"]["size_bytes"] - 128),
        r"rows\.size_bytes",
    ),
    "rows longer": (
        lambda m: m["rows"].update(size_bytes=m["rows"]["size_bytes"] + 128),
        r"rows\.size_bytes",
    ),
    "negative size": (lambda m: m["rows"].update(size_bytes=-1), r"rows\.size_bytes"),
    "block moved": (
        lambda m: _block(m, 2).update(offset_bytes=_block(m, 2)["offset_bytes"] + 128),
        r"size_bytes",
    ),
    "block not aligned": (
        lambda m: _block(m, 1).update(offset_bytes=_block(m, 1)["offset_bytes"] + 4),
        "offset_bytes",
    ),
    "blocks overlap": (lambda m: _block(m, 1).update(offset_bytes=0), r"blocks\[1\]\.offset_bytes: got '0'"),
    "offset beyond int64": (lambda m: _block(m, 2).update(offset_bytes=2**63), "offset_bytes"),
    "offset far away": (lambda m: _block(m, 2).update(offset_bytes=2**62), "size_bytes"),
    "more rows in a block": (
        lambda m: _block(m).update(num_rows=51),
        r"blocks\[0\]\.num_rows: got '51', expected 50",
    ),
    "no rows in a block": (lambda m: _block(m).update(num_rows=0), r"blocks\[0\]\.num_rows"),
    "other row bytes": (
        lambda m: _block(m).update(row_bytes=16),
        r"blocks\[0\]\.row_bytes: got '16', expected 20",
    ),
    "columns beyond": (lambda m: _block(m).update(columns=[0, 17]), r"blocks\[0\]\.columns"),
    "columns reversed": (lambda m: _block(m).update(columns=[16, 0]), r"blocks\[0\]\.columns"),
    "columns are not two": (lambda m: _block(m).update(columns=[0]), r"blocks\[0\]\.columns"),
    "columns missing": (lambda m: _block(m).update(columns=[0, 8], row_bytes=12), "users.*columns"),
    "block of nobody": (lambda m: _block(m).update(table="nobody"), r"blocks\[0\]\.table"),
    "block missing": (lambda m: m["rows"]["blocks"].pop(0), "plain.users"),
    "block twice": (lambda m: m["rows"]["blocks"].insert(1, dict(_block(m), offset_bytes=1024)), "blocks"),
    "digest too short": (lambda m: _block(m).update(sha256="ab"), r"blocks\[0\]\.sha256"),
    "more table rows": (lambda m: _table(m).update(num_embeddings=51), r"num_rows: got '50', expected 51"),
    "another dim": (lambda m: _table(m).update(embedding_dim=32), "columns|row_bytes"),
    "another row type": (lambda m: _table(m).update(data_type="INT4"), r"row_bytes"),
    "an unknown row type": (lambda m: _table(m).update(data_type="BF16"), r"tables\[0\]\.data_type"),
    "a zero row that is not there": (lambda m: _table(m).update(zero_row=True), "num_rows"),
    "table twice": (lambda m: m["tables"].append(_table(m)), "tables.*plain.users.*once"),
    "sqnr beyond floats": (lambda m: _table(m).update(sqnr_db=10**400), r"tables\[0\]\.sqnr_db"),
    "a schema that is a list": (lambda m: m.update(schema=[]), r"manifest\.schema: got list"),
    "a sketch of no rows": (
        lambda m: m.update(data_sketch={"dense": {}, "sparse": {}, "num_rows": 0}),
        r"manifest\.data_sketch\.num_rows: got '0'",
    ),
    "sqnr a text": (lambda m: _table(m).update(sqnr_db="high"), r"tables\[0\]\.sqnr_db"),
    "signature with more rows than the table": (
        lambda m: m["signature"]["sparse"][1]["tables"][0].update(num_embeddings=31),
        r"signature\.sparse\[1\]\.tables\[0\]",
    ),
    "signature with an unknown table": (
        lambda m: m["signature"]["sparse"][1]["tables"][0].update(name="nobody"),
        r"signature\.sparse\[1\]\.tables\[0\]",
    ),
    "signature with a doubled input": (
        lambda m: m["signature"]["sparse"].append(m["signature"]["sparse"][0]),
        "names are not unique",
    ),
    "signature without outputs": (lambda m: m["signature"].update(outputs=[]), "no outputs"),
    "signature with a width of 0": (lambda m: m["signature"]["dense"][0].update(width=0), "width"),
    "no targets": (lambda m: m.update(targets=[]), "manifest.targets: got none"),
    "a target without devices": (lambda m: m["targets"][0].update(devices=[]), "devices"),
    "a target of unknown devices": (
        lambda m: m["targets"][0].update(devices=["tpu:0"]),
        "devices: got 'tpu:0'",
    ),
    "a target of meta devices": (lambda m: m["targets"][0].update(devices=["meta"]), "devices: got 'meta'"),
    "a target of a huge device": (lambda m: m["targets"][0].update(devices=["cuda:99999999999"]), "devices"),
    "a target under another name": (lambda m: m["targets"][0].update(name="cuda:0"), r"targets\[0\]\.name"),
    "a target twice": (lambda m: m["targets"].append(m["targets"][0]), "targets.*once"),
    "a skeleton of nobody": (lambda m: m["targets"][0].update(skeleton="x.pt"), "not among the parts"),
    "a plan with too high a rank": (lambda m: _shard(m, 0).update(rank=1), r"targets\[0\]\.plan"),
    "a plan with too few rows": (lambda m: _shard(m, 1).update(shard_sizes=[49, 16]), r"targets\[1\].*users"),
    "a plan with too many rows": (
        lambda m: _shard(m, 2).update(shard_sizes=[51, 16]),
        r"targets\[2\].*users",
    ),
    "a plan with other columns": (lambda m: _shard(m, 1).update(shard_sizes=[50, 8]), r"targets\[1\].*users"),
    "a plan without a table": (
        lambda m: m["targets"][2]["plan"]["plain"].pop("users"),
        r"targets\[2\].*users",
    ),
    "a plan without a collection": (lambda m: m["targets"][2]["plan"].pop("plain"), r"targets\[2\]"),
    "a plan with another table": (
        lambda m: m["targets"][2]["plan"]["plain"].update(x=m["targets"][2]["plan"]["plain"]["users"]),
        r"targets\[2\]",
    ),
    "rows on too high a rank": (
        lambda m: m["targets"][0]["rows"].update(dict.fromkeys(m["targets"][0]["rows"], 1)),
        r"targets\[0\]\.rows",
    ),
    "a negative rank": (
        lambda m: m["targets"][0]["rows"].update(dict.fromkeys(m["targets"][0]["rows"], -1)),
        r"targets\[0\]\.rows",
    ),
    "rows nowhere": (lambda m: m["targets"][0].update(rows={}), "manifest.targets"),
    "rows in an unknown place": (
        lambda m: m["targets"][0]["rows"].update({"model.x.rows": 0}),
        "other attributes",
    ),
    "rows in a dense weight": (
        lambda m: m["targets"][0]["rows"].update({"model.layer.weight": 0}),
        "other attributes",
    ),
    "rows in an offset": (
        lambda m: m["targets"][0]["rows"].update(
            {key.replace(".rows", ".offsets_bytes"): 0 for key in m["targets"][0]["rows"]}
        ),
        "other attributes",
    ),
    "rows in no tensor": (lambda m: m["targets"][0]["rows"].update({"training": 0}), "other attributes"),
    "rows in the class": (lambda m: m["targets"][0]["rows"].update({"__class__": 0}), "other attributes"),
    "a rank for no tensor": (lambda m: m["targets"][0].update(ranks={"forward": 0}), "other attributes"),
    "a rank for the module": (lambda m: m["targets"][0].update(ranks={"model": 0}), "other attributes"),
    "rows without a file": (lambda m: m["rows"].update(path=None), r"manifest\.rows\.path: got null"),
    "versions no object": (lambda m: m.update(versions=[]), "manifest.versions"),
    "verification no object": (lambda m: m.update(verification=1), "manifest.verification"),
    "another dense dtype": (lambda m: m["targets"][0].update(dense_dtype="float64"), "dense_dtype"),
    "another batch": (lambda m: m["signature"].update(batch="user"), "signature.batch: got 'user'"),
    "batch no text": (lambda m: m["signature"].update(batch=True), "signature.batch"),
    "version 0": (lambda m: m.update(format_version=0), "format_version"),
    "version true": (lambda m: m.update(format_version=True), "format_version"),
    "version a text": (lambda m: m.update(format_version="1"), "format_version"),
    "version missing": (lambda m: m.pop("format_version"), "format_version: missing"),
}
PATHS = [
    "../rows.bin",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "",
    "a\\b",
    "a\0b",
    "\ud800",
    "x" * 300,
    7,
    None,
    ["rows.bin"],
]


@pytest.mark.parametrize("verify", [True, False], ids=["checksums", "no checksums"])
@pytest.mark.parametrize(("change", "message"), LIES.values(), ids=LIES)
def test_lies_are_found(artifact: Path, change: Change, message: str, verify: bool) -> None:
    lie(artifact, change)
    # The graph in TorchScript is not read where there is a program.
    with pytest.raises(ManifestError, match=message):
        load_artifact(artifact, target="cpu", verify_checksums=verify, scripted=True)


@pytest.mark.parametrize("path", PATHS, ids=repr)
@pytest.mark.parametrize("field", ["rows", "skeleton", "part"])
def test_paths_stay_in_the_directory(artifact: Path, field: str, path: object) -> None:
    def change(m: Any) -> None:
        if field == "rows":
            m["rows"]["path"] = path
        if field == "part":
            m["skeletons"][0]["path"] = path
        if field in ("part", "skeleton"):
            m["targets"][0]["skeleton"] = path

    lie(artifact, change)
    with pytest.raises(ManifestError):
        load_artifact(artifact)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_lie_about_a_skeletons_size_is_found(artifact: Path, by: int) -> None:
    lie(artifact, lambda m: m["skeletons"][0].update(size_bytes=m["skeletons"][0]["size_bytes"] + by))
    for verify in (True, False):
        with pytest.raises(PartSizeError, match=r"part 'target-0.pt'"):
            load_artifact(artifact, verify_checksums=verify)


def test_a_lie_about_the_rows_digest_is_found_when_they_are_read(
    artifact: Path, expected: dict[str, Tensor]
) -> None:
    lie(artifact, lambda m: m["rows"]["blocks"][0].update(sha256=HEX))
    with pytest.raises(ArtifactError, match="checksum"):
        load_artifact(artifact)
    assert same(answers(load_artifact(artifact, verify_checksums=False)), expected)


def test_a_lie_about_the_digest_of_what_runs_is_always_found(artifact: Path) -> None:
    lie(artifact, lambda m: [part.update(sha256=HEX) for part in m["skeletons"]])
    for verify in (True, False):
        with pytest.raises(ArtifactError, match="checksum"):
            load_artifact(artifact, verify_checksums=verify)


def test_a_lie_about_the_digest_of_torchscript_is_found_before_it_runs(artifact: Path) -> None:
    skeleton = manifest_of(artifact)["targets"][0]["skeleton"]
    lie(
        artifact,
        lambda m: [part.update(sha256=HEX) for part in m["skeletons"] if part["path"] == skeleton],
    )
    for verify, scripted in ((True, False), (True, True), (False, True)):
        with pytest.raises(ArtifactError, match=f"part '{skeleton}': its checksum"):
            load_artifact(artifact, verify_checksums=verify, scripted=scripted)


def test_every_field_is_missed_where_it_is_missing(pristine: Path) -> None:
    """No field is optional but those that few artifacts have: the error names it."""
    data = manifest_of(pristine)
    for at in (
        [],
        ["signature"],
        ["rows"],
        ["rows", "blocks", 0],
        ["tables", 0],
        ["targets", 0],
        ["skeletons", 0],
    ):
        found = data
        for step in at:
            found = found[step]
        for key in sorted(found):
            if at == [] and key in ("format", "format_version", "answers"):
                continue
            if key == "program":
                continue
            broken = json.loads(json.dumps(data))
            inner = broken
            for step in at:
                inner = inner[step]
            del inner[key]
            with pytest.raises(ManifestError, match=f"{key}: missing"):
                Manifest.loads(with_digest(broken))


@pytest.mark.parametrize("version", [5, 6, 10**6])
def test_a_newer_version_is_told_before_all_else(artifact: Path, version: int) -> None:
    write_manifest(artifact, {"format": "recsys-artifact", "format_version": version, "novel": True})
    with pytest.raises(NewerVersionError, match=f"got format version {version}"):
        load_artifact(artifact)


def test_an_artifact_is_named_by_the_text_as_it_is_stored(artifact: Path) -> None:
    manifest = artifact / MANIFEST_NAME
    write_manifest(artifact, manifest_of(artifact))
    found = read_manifest(artifact)
    assert artifact_digest(found) == hashlib.sha256(manifest.read_bytes()).hexdigest()[:12]
    changed = replace(found, name="other")
    assert artifact_digest(changed) == hashlib.sha256(changed.dumps().encode()).hexdigest()[:12]
