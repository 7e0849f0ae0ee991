"""Ways to damage an artifact, and to make a manifest lie with a digest that does not give it away.

Shape letters: B batch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.artifact.batches.samples import random_batch
from recsys.artifact.load import LoadedArtifact
from recsys.artifact.manifest_file import MANIFEST_NAME

Json = Any


def manifest_of(path: Path) -> Json:
    """The manifest as plain data, without its digests."""
    data = json.loads((path / MANIFEST_NAME).read_text())
    return {key: value for key, value in data.items() if key not in ("bytes_sha256", "manifest_sha256")}


def with_digest(data: Json) -> str:
    """The text of a manifest with its own digest, as ``recsys.artifact.manifest`` tells how to take it."""
    text = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in data.items())
    digest = hashlib.sha256(f"{{{text}".encode()).hexdigest()
    return f'{{{text}"bytes_sha256": "{digest}"}}'


def with_old_digest(data: Json) -> str:
    """The text of a manifest as releases before 0.2.0 wrote its digest: of its JSON, keys sorted."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return json.dumps({**data, "manifest_sha256": hashlib.sha256(canonical.encode()).hexdigest()}, indent=7)


def write_manifest(path: Path, data: Json) -> None:
    """Write plain data as a manifest whose digest fits."""
    text = with_digest(data) if isinstance(data, dict) else json.dumps(data)
    (path / MANIFEST_NAME).write_text(text)


def lie(path: Path, change: Callable[[Json], object]) -> None:
    """Change a manifest in place; its digest fits afterwards."""
    data = manifest_of(path)
    change(data)
    write_manifest(path, data)


def flip(file: Path, at: int, mask: int = 0x01) -> None:
    """Flip bits of one byte; ``at`` may count from the end."""
    data = bytearray(file.read_bytes())
    data[at] ^= mask
    file.write_bytes(data)


def truncate(file: Path, num_bytes: int) -> None:
    """Keep the first bytes; a negative number drops as many from the end."""
    data = file.read_bytes()
    file.write_bytes(data[:num_bytes])


def resize_part(path: Path, name: str) -> None:
    """Let the manifest tell the truth about a skeleton that was changed."""

    def change(data: Json) -> None:
        part = next(part for part in data["skeletons"] if part["path"] == name)
        content = (path / name).read_bytes()
        part["size_bytes"], part["sha256"] = len(content), hashlib.sha256(content).hexdigest()

    lie(path, change)


def without_torchscript(artifact: Path, path: Path) -> Path:
    """Copy an artifact as ``--format pt2`` would have written it, with an ExportedProgram that nothing may load."""
    shutil.copytree(artifact, path)
    dropped: list[str] = []

    def drop(data: Json) -> None:
        data["format_version"] = 2
        for target in data["targets"]:
            for graph in (target, *([target["ranking"]] if "ranking" in target else [])):
                dropped.append(graph["skeleton"])
                graph |= {"skeleton": None, "rows": {}, "ranks": {}, "exported": dropped[-1]}

    lie(path, drop)
    for name in dropped:
        (path / name).write_bytes(b"no ExportedProgram")
        resize_part(path, name)
    return path


def edit_zip(file: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Rewrite each member of a zip file (all stored, as torch writes them); None drops it."""
    with zipfile.ZipFile(file) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members:
            new = change(name, content)
            if new is not None:
                archive.writestr(name, new)


def answers(artifact: LoadedArtifact) -> dict[str, Tensor]:
    """Predictions for a fixed batch."""
    batch = random_batch(artifact.signature, 8, torch.Generator().manual_seed(0))
    return artifact.forward(*batch.inputs())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether predictions are bit-equal."""
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)
