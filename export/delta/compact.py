"""Compaction: one delta instead of a chain of deltas, so that a server that starts applies one file.

Shape letters: N rows of a delta.

Of a row that several deltas change, the last one's bytes are kept, of a raw ID the last one's row, if it owns one, and
of a dense weight the last one's numbers. The
compacted delta names the digests that it replaces: the state after it is that of the chain's last delta, so the
deltas that follow the chain follow it too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from export.delta.delta import check_replaceable, written
from export.delta.report import DeltaReport, report_of
from recsys.artifact.delta.file import DeltaFile, DeltaWriter
from recsys.artifact.delta.header import DeltaHeader, TableDelta
from recsys.errors import ExportError
from recsys.managed.changes import MappingChange, joined_changes
from recsys.rows.quantize import StoredTable

_SUFFIX = ".delta"
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class _Link:
    """A delta of the chain."""

    path: Path
    digest: str
    header: DeltaHeader

    @property
    def states(self) -> tuple[str, ...]:
        """The states that it stands for, in order; the last is that after it."""
        return self.header.replaces or (self.digest,)


def compact(paths: Sequence[Path], out: Path, *, overwrite: bool = False) -> DeltaReport:
    """Write one delta instead of a chain.

    Args:
        paths: The deltas, in any order, or one folder that holds them. Files that a compacted delta among them
            replaces already are left alone.
        out: The file to write.
        overwrite: Replace an existing delta.

    Raises:
        ExportError: They are no chain: made for several artifacts, or one is missing.
        ArtifactError: One cannot be read.
        DiskFullError: There is no room for the delta.
    """
    started = time.monotonic()
    check_replaceable(out, overwrite)
    chain = _chain(_links(paths))
    header = replace(
        chain[-1].header,
        base=chain[0].header.base,
        tables=(),
        mappings=(),
        dense=(),
        replaces=tuple(state for link in chain for state in link.states),
    )
    with written(out, overwrite) as work:
        with closing(DeltaWriter(work, header)) as writer:
            for name in _names(table.name for link in chain for table in link.header.tables):
                table, numbers, rows = _last_rows(chain, name)
                writer.add(table, numbers, rows)
            for name in _names(mapping.name for link in chain for mapping in link.header.mappings):
                writer.add_mapping(*_last_owners(chain, name))
            for name, weight in _last_dense(chain).items():
                writer.add_dense(name, weight)
            writer.finish()
        with DeltaFile(work) as file:
            for changed in file.header.tables:
                file.read(changed)
            for mapping in file.header.mappings:
                file.read_mapping(mapping)
            for one in file.header.dense:
                file.read_dense(one)
            digest, header = file.digest, file.header
    return report_of(out, digest, header, time.monotonic() - started)


def _links(paths: Sequence[Path]) -> list[_Link]:
    """Return the deltas, each state once."""
    files = list(paths)
    if len(files) == 1 and files[0].is_dir():
        files = sorted(p for p in files[0].iterdir() if p.suffix == _SUFFIX and not p.name.startswith("."))
    if not files:
        raise ExportError(f"compact: got a folder without files *{_SUFFIX}, expected deltas")
    found = []
    for path in files:
        with DeltaFile(path) as file:
            found.append(_Link(path=path, digest=file.digest, header=file.header))
    artifacts = _names(link.header.artifact for link in found)
    if len(artifacts) > 1:
        raise ExportError(
            f"compact: got deltas of the artifacts {artifacts[:_SHOWN]}, expected those of one artifact"
        )
    return found


def _chain(links: Sequence[_Link]) -> list[_Link]:
    """Return the deltas in the order in which they are applied: of two that could follow, the one that goes further.

    Raises:
        ExportError: Some do not belong to the chain.
    """
    ends = {state for link in links for state in link.states}
    roots = _names(link.header.base for link in links if link.header.base not in ends)
    if len(roots) != 1:
        raise ExportError(
            f"compact: got deltas that begin at the states {roots[:_SHOWN]}, expected one chain: a delta is missing"
        )
    state, passed = roots[0], {roots[0]}
    chain: list[_Link] = []
    while following := [k for k in links if k.header.base == state and k.digest not in passed]:
        # As servers do: a compacted one first, then the oldest.
        link = min(following, key=lambda k: (-len(k.header.replaces), k.header.created_s, k.path.name))
        chain.append(link)
        passed.update(link.states)
        state = link.digest
    strange = [link.path.name for link in links if link.digest not in passed]
    if strange:
        raise ExportError(
            f"compact: {strange[:_SHOWN]} follow other states than the chain's, whose last delta is "
            f"{chain[-1].path.name!r}; leave them out"
        )
    return chain


def _last_rows(chain: Iterable[_Link], name: str) -> tuple[StoredTable, Tensor, Tensor]:
    """Return a table, the numbers ``[N]`` of the rows that any delta changes, and the last bytes of each."""
    numbers, rows, about = [], [], None
    for link in chain:
        changed = next((table for table in link.header.tables if table.name == name), None)
        if changed is None:
            continue
        _check_same(about, changed, link)
        about = changed
        with DeltaFile(link.path) as file:
            of_link = file.read(changed)
        numbers.append(of_link[0])
        rows.append(of_link[1])
    assert about is not None
    table = StoredTable(
        name=name,
        num_embeddings=about.num_embeddings,
        embedding_dim=about.embedding_dim,
        data_type=about.data_type,
    )
    every, places = torch.unique(torch.cat(numbers), return_inverse=True)
    last = torch.zeros_like(every).scatter_reduce_(0, places, torch.arange(len(places)), "amax")
    return table, every, torch.cat(rows)[last]


def _last_owners(chain: Iterable[_Link], name: str) -> tuple[str, int, MappingChange]:
    """Return a managed table's name, its rows, and the last change of each raw ID."""
    changes, num_rows = [], 0
    for link in chain:
        for mapping in link.header.mappings:
            if mapping.name != name:
                continue
            if num_rows not in (0, mapping.num_rows):
                raise ExportError(
                    f"compact: {link.path.name!r} has another size of table {name!r} than the deltas before"
                )
            num_rows = mapping.num_rows
            with DeltaFile(link.path) as file:
                changes.append(file.read_mapping(mapping))
    return name, num_rows, joined_changes(changes)


def _check_same(before: TableDelta | None, table: TableDelta, link: _Link) -> None:
    about = ("num_embeddings", "embedding_dim", "data_type")
    if before is not None and any(getattr(before, key) != getattr(table, key) for key in about):
        raise ExportError(
            f"compact: {link.path.name!r} has another size or type of table {table.name!r} than the deltas before"
        )


def _last_dense(chain: Iterable[_Link]) -> Mapping[str, Tensor]:
    last: dict[str, Tensor] = {}
    for link in chain:
        with DeltaFile(link.path) as file:
            last |= {weight.name: file.read_dense(weight) for weight in link.header.dense}
    return last


def _names(names: Iterable[str]) -> list[str]:
    """Return each name once, in order."""
    return list(dict.fromkeys(names))
