"""Each kind of damage is one named error that names the part."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.artifact.load import load_artifact
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME, read_manifest
from recsys.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    ChecksumError,
    ForeignFileError,
    ManifestError,
    MissingPartError,
    NewerVersionError,
    PartSizeError,
    TargetError,
)
from tests.recsys.artifact.damage import (
    Json,
    answers,
    edit_zip,
    flip,
    lie,
    manifest_of,
    resize_part,
    same,
    truncate,
)

SKELETON = "target-0.pt"

Damage = Callable[[Path], object]


def _extend(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def _int8_without_a_program(data: Json) -> None:
    target, *others = data["targets"]
    del target["program"]
    fields = list(target.items())
    # Where an export writes it.
    fields.insert(list(target).index("dense_dtype") + 1, ("linear_dtype", "int8"))
    data["targets"] = [dict(fields), *others]


DAMAGES: dict[str, tuple[Damage, type[ArtifactError], str]] = {
    "nothing there": (
        lambda a: shutil.rmtree(a),
        ArtifactNotFoundError,
        "got 'ranker', which does not exist",
    ),
    "rows truncated": (
        lambda a: truncate(a / ROWS_NAME, -1),
        PartSizeError,
        r"part 'rows.bin': got \d+ bytes, expected",
    ),
    "rows empty": (lambda a: truncate(a / ROWS_NAME, 0), PartSizeError, "part 'rows.bin': got 0 bytes"),
    "rows extended": (lambda a: _extend(a / ROWS_NAME), PartSizeError, "part 'rows.bin'"),
    "rows missing": (lambda a: (a / ROWS_NAME).unlink(), MissingPartError, "part 'rows.bin': missing"),
    "skeleton truncated": (lambda a: truncate(a / SKELETON, -1), PartSizeError, f"part '{SKELETON}'"),
    "skeleton empty": (lambda a: truncate(a / SKELETON, 0), PartSizeError, f"part '{SKELETON}'"),
    "skeleton missing": (lambda a: (a / SKELETON).unlink(), MissingPartError, f"part '{SKELETON}': missing"),
    "skeleton flipped": (
        lambda a: flip(a / SKELETON, 1000),
        ChecksumError,
        f"part '{SKELETON}': its checksum",
    ),
    "rows a directory": (
        lambda a: ((a / ROWS_NAME).unlink(), (a / ROWS_NAME).mkdir()),
        MissingPartError,
        "part 'rows.bin': missing",
    ),
    "manifest truncated": (lambda a: truncate(a / MANIFEST_NAME, 500), ManifestError, "not readable as JSON"),
    "manifest empty": (lambda a: truncate(a / MANIFEST_NAME, 0), ManifestError, "not readable as JSON"),
    "manifest missing": (
        lambda a: (a / MANIFEST_NAME).unlink(),
        ForeignFileError,
        "got the folder 'ranker' without manifest.json; expected a folder or file that recsys-export wrote",
    ),
    "manifest binary": (
        lambda a: (a / MANIFEST_NAME).write_bytes(b"\x80\xff\0"),
        ManifestError,
        "not readable",
    ),
    "manifest nested deeply": (
        lambda a: (a / MANIFEST_NAME).write_text("[" * 100_000),
        ManifestError,
        "not readable as JSON",
    ),
    "manifest with a huge number": (
        lambda a: (a / MANIFEST_NAME).write_text('{"format": ' + "9" * 10_000 + "}"),
        ManifestError,
        "not readable as JSON",
    ),
    "manifest of a web app": (
        lambda a: (a / MANIFEST_NAME).write_text('{"name": "app", "icons": []}'),
        ForeignFileError,
        "its format is not 'recsys-artifact'",
    ),
    "manifest no object": (
        lambda a: (a / MANIFEST_NAME).write_text("[]"),
        ForeignFileError,
        "its format is not",
    ),
    "manifest flipped": (
        lambda a: (a / MANIFEST_NAME).write_text(
            (a / MANIFEST_NAME).read_text().replace('"num_embeddings": 50', '"num_embeddings": 51')
        ),
        ManifestError,
        "its own digest does not match",
    ),
    "manifest without a digest": (
        lambda a: (a / MANIFEST_NAME).write_text(json.dumps(manifest_of(a))),
        ManifestError,
        "its own digest does not match",
    ),
    "newer version": (
        lambda a: lie(a, lambda m: m.update(format_version=5)),
        NewerVersionError,
        "got format version 5, expected at most 4; install a newer release",
    ),
    "int8 without a program": (
        lambda a: lie(a, _int8_without_a_program),
        TargetError,
        "target 'cpu': needs linear layers in int8, but holds no program, which alone multiplies in it: run "
        "recsys-export --linear-dtype int8 again",
    ),
}


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(artifact: Path, damage: Damage, error: type[ArtifactError], message: str) -> None:
    load_artifact(artifact)
    damage(artifact)
    with pytest.raises(error, match=message) as raised:
        load_artifact(artifact)
    assert type(raised.value) is error
    assert str(artifact.parent) not in str(raised.value)


@pytest.mark.parametrize("name", [name for name in DAMAGES if name != "skeleton flipped"])
def test_damage_is_named_without_checksums_too(artifact: Path, name: str) -> None:
    damage, error, message = DAMAGES[name]
    damage(artifact)
    with pytest.raises(error, match=message):
        load_artifact(artifact, verify_checksums=False)


@pytest.mark.parametrize("table", ["plain.users", "plain.goods", "scored.tags"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_flipped_byte_in_the_rows_names_the_table(artifact: Path, table: str, where: str) -> None:
    block = next(b for b in read_manifest(artifact).layout.blocks if b.table == table)
    at = block.offset_bytes + (0 if where == "first" else block.num_bytes - 1)
    flip(artifact / ROWS_NAME, at)
    with pytest.raises(ChecksumError, match=f"rows of table '{table}': the checksum does not match"):
        load_artifact(artifact)
    # A program may be told by its stored answers.
    load_artifact(artifact, verify_checksums=False, scripted=True)


def test_other_targets_parts_are_not_needed(artifact: Path, expected: dict[str, Tensor]) -> None:
    (artifact / "target-1.pt").unlink()
    flip(artifact / "target-2.pt", 100)
    assert same(answers(load_artifact(artifact)), expected)
    with pytest.raises(MissingPartError, match=r"part 'target-1.pt': missing"):
        load_artifact(artifact, target="cpu,cpu")


FOREIGN: dict[str, Damage] = {
    "text": lambda p: p.write_text("hello"),
    "empty": lambda p: p.write_bytes(b""),
    "image": lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)),
    "zip": lambda p: _zip(p, {"readme.txt": b"hello"}),
    "zip with a manifest elsewhere": lambda p: _zip(p, {"manifest.json": b"{}"}),
    "zip with two manifests": lambda p: _zip(p, {f"{n}/extra/manifest.json": b"{}" for n in "ab"}),
    "TorchScript": lambda p: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(p)),
    "state dict": lambda p: torch.save({"weight": torch.ones(2)}, p),
    "TorchScript with a foreign manifest": lambda p: torch.jit.save(
        torch.jit.script(torch.nn.Linear(2, 2)), str(p), _extra_files={MANIFEST_NAME: '{"name": "app"}'}
    ),
}


def _zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("verify", [True, False], ids=["checksums", "no checksums"])
@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_named(tmp_path: Path, make: Damage, verify: bool) -> None:
    make(tmp_path / "x.pt")
    with pytest.raises(
        ForeignFileError, match=r"expected a folder or file that recsys-export wrote|is not an exported model"
    ):
        load_artifact(tmp_path / "x.pt", verify_checksums=verify)


def test_a_foreign_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("hello")
    with pytest.raises(ForeignFileError, match=r"without manifest\.json"):
        load_artifact(tmp_path)


def _renamed_operator(_: str, content: bytes) -> bytes:
    return content.replace(b"fbgemm.bounds_check_indices", b"fbgemm.bounds_check_indicez")


@pytest.mark.parametrize("verify", [True, False], ids=["checksums", "no checksums"])
def test_an_unknown_operator_is_named(artifact: Path, verify: bool) -> None:
    before = (artifact / SKELETON).read_bytes()
    edit_zip(artifact / SKELETON, _renamed_operator)
    assert (artifact / SKELETON).read_bytes() != before
    resize_part(artifact, SKELETON)
    with pytest.raises(ArtifactError, match=f"part '{SKELETON}': this torch or fbgemm-gpu lacks an operator"):
        load_artifact(artifact, verify_checksums=verify, scripted=True)


def test_a_rezipped_skeleton_is_sound(artifact: Path, expected: dict[str, Tensor]) -> None:
    """What the test above relies on: only the operator's name is at fault there."""
    edit_zip(artifact / SKELETON, lambda _, content: content)
    resize_part(artifact, SKELETON)
    assert same(answers(load_artifact(artifact)), expected)


# All of data/: of the tensors there, a single one may be empty, and is not read then.
@pytest.mark.parametrize("part", ["data.pkl", "code", "constants.pkl", "data/"])
def test_a_skeleton_without_a_member_is_named(artifact: Path, part: str) -> None:
    edit_zip(artifact / SKELETON, lambda name, content: None if f"/{part}" in name else content)
    resize_part(artifact, SKELETON)
    with pytest.raises(ManifestError, match=f"part '{SKELETON}': not readable as TorchScript"):
        load_artifact(artifact, scripted=True)


def test_a_skeleton_that_is_another_program_is_named(artifact: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(artifact / SKELETON))
    resize_part(artifact, SKELETON)
    with pytest.raises(ManifestError, match="the skeleton has other attributes than the manifest says"):
        load_artifact(artifact, scripted=True)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.7, 0.99, 0.9999])
@pytest.mark.parametrize("verify", [True, False], ids=["checksums", "no checksums"])
def test_a_truncated_single_file_is_named(single: Path, keep: float, verify: bool) -> None:
    truncate(single, int(single.stat().st_size * keep))
    with pytest.raises(ForeignFileError, match="which is of another kind, or damaged"):
        load_artifact(single, verify_checksums=verify)


def test_a_flipped_byte_in_a_single_files_rows_is_named(single: Path) -> None:
    data = single.read_bytes()
    blob = torch.jit.load(str(single))
    rows = max((b for _, b in blob.named_buffers() if b.dtype == torch.uint8), key=lambda b: b.numel())
    at = data.index(rows.numpy().tobytes()[:256])
    flip(single, at + 10)
    with pytest.raises(ChecksumError, match=r"part 'data/\d+' of 'ranker.pt': its checksum does not match"):
        load_artifact(single)


@pytest.mark.parametrize("member", ["code", "data.pkl", "extra/manifest.json"])
def test_a_flipped_byte_in_a_single_files_other_parts_is_named(single: Path, member: str) -> None:
    with zipfile.ZipFile(single) as archive:
        info = next(i for i in archive.infolist() if f"/{member}" in i.filename and i.file_size > 100)
        start = info.header_offset
        content = archive.read(info)
    at = single.read_bytes().index(content[:64] if info.compress_type == 0 else _raw(single, info), start)
    flip(single, at + 30)
    with pytest.raises((ChecksumError, ManifestError, ForeignFileError)) as raised:
        load_artifact(single)
    assert "ranker.pt" in str(raised.value) or "manifest" in str(raised.value)


def _raw(path: Path, info: zipfile.ZipInfo) -> bytes:
    data = path.read_bytes()
    name, extra = (
        int.from_bytes(data[info.header_offset + i : info.header_offset + i + 2], "little") for i in (26, 28)
    )
    start = info.header_offset + 30 + name + extra
    return data[start : start + 16]


def test_a_single_file_without_its_manifest_is_foreign(single: Path) -> None:
    edit_zip(single, lambda name, content: None if "extra" in name else content)
    torch.jit.load(str(single))
    with pytest.raises(ForeignFileError, match=r"which holds no manifest; .*a checkpoint is exported first"):
        load_artifact(single)


def test_a_single_file_of_other_rows_is_named(single: Path) -> None:
    """The rows are another buffer than the manifest says: as long or not, they are noticed."""
    module = torch.jit.load(str(single))
    manifest = read_manifest(single)
    path = next(iter(manifest.targets[0].rows))
    owner = module
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name)
    owner.rows = torch.zeros(manifest.layout.num_bytes, dtype=torch.uint8)
    torch.jit.save(module, str(single), _extra_files={MANIFEST_NAME: manifest.dumps()})
    with pytest.raises(ChecksumError, match=r"rows of table 'plain\.users'"):
        load_artifact(single)
    owner.rows = torch.zeros(manifest.layout.num_bytes - 1, dtype=torch.uint8)
    torch.jit.save(module, str(single), _extra_files={MANIFEST_NAME: manifest.dumps()})
    with pytest.raises(PartSizeError, match=r"rows of 'ranker.pt': got"):
        load_artifact(single, verify_checksums=False)
