"""Writing an artifact's parts: rows, graphs, manifest, or all of them in a single file.

Shape letters: R rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from export.graph import Graph, make_graph
from export.job import Job, empty_ranks, ranking_of, sharded_of
from export.rows_file import write_rows
from export.tree import exchanged
from recsys import torchscript
from recsys.artifact import MANIFEST_NAME, ROWS_NAME, load_artifact, map_rows, set_attribute
from recsys.configs import EmbeddingBagConfig
from recsys.errors import VerificationError
from recsys.manifest import Manifest, Part, RankingGraph, TableInfo, Target
from recsys.sharding.device_rows import table_path
from recsys.store import QuantizationError


def write_tables(job: Job, work: Path) -> tuple[tuple[str, ...], dict[str, QuantizationError]]:
    """Quantize all tables into the rows file: its blocks' digests, and what storing each table cost."""
    weights = job.float_weights()
    total = sum(table.num_embeddings for table in job.stored.stored.values())
    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        job.progress("quantize", done, total)

    tables = {name: (table, weights[name]) for name, table in job.stored.stored.items()}
    return write_rows(work / ROWS_NAME, job.stored.layout, tables, on_rows)


def write_graphs(
    job: Job, work: Path, digests: tuple[str, ...], errors: Mapping[str, QuantizationError]
) -> Manifest:
    """Trace and script each target, and write the graphs and the manifest that names all parts."""
    targets, parts = [], []
    for i, (name, env) in enumerate(job.stored.envs.items()):
        job.progress("trace and script", i, len(job.stored.envs))
        on_host = all(device.type == "cpu" for device in env.devices)
        ranks = empty_ranks(job.stored, name)
        skeletons = sharded_of(job.collections, job.stored, name, ranks, job.dense_dtype)
        frozen = job.managed.frozen()
        graph = make_graph(
            exchanged(job.model, {**skeletons, **frozen}), job.binding, env.devices, job.dense_dtype
        )
        parts.append(_write_graph(graph, work / f"target-{i}.pt"))
        skeleton = parts[-1].path
        ranking = None
        if job.signature.context:
            model = exchanged(job.model, {**ranking_of(job, name, ranks, skeletons), **frozen})
            second = make_graph(model, job.binding, env.devices, job.dense_dtype, job.signature.context)
            parts.append(_write_graph(second, work / f"ranking-{i}.pt"))
            ranking = RankingGraph(
                skeleton=parts[-1].path, rows=second.rows, ranks={} if on_host else second.ranks
            )
        targets.append(
            Target(
                name=name,
                devices=tuple(str(device) for device in env.devices),
                plan=job.stored.plans[name],
                skeleton=skeleton,
                rows=graph.rows,
                ranks={} if on_host else graph.ranks,
                dense_dtype=job.config.dense_dtype,
                ranking=ranking,
            )
        )
    manifest = Manifest(
        name=job.config.name,
        versions=package_versions(),
        signature=job.signature,
        tables=_table_infos(job, errors),
        layout=job.stored.layout,
        block_sha256=digests,
        targets=tuple(targets),
        skeletons=tuple(parts),
        rows_path=ROWS_NAME,
    )
    (work / MANIFEST_NAME).write_text(manifest.dumps())
    return manifest


def _write_graph(graph: Graph, file: Path) -> Part:
    torchscript.save(graph.script, file)
    return Part(path=file.name, size_bytes=file.stat().st_size, sha256=_sha256(file))


def package_versions() -> dict[str, str]:
    """What the artifact is made with."""
    found = {"torch": str(torch.__version__)}
    for package in ("recsys-serving", "fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _poolings(job: Job) -> dict[str, str]:
    return {
        table_path(path, table.name): table.pooling.value.lower()
        if isinstance(table, EmbeddingBagConfig)
        else "none"
        for path, group in job.stored.tables.items()
        for table in group
    }


def sqnr(error: QuantizationError) -> float | None:
    """In dB, as reports and manifests give it; None where nothing was lost."""
    return None if error.noise == 0 else round(error.sqnr_db, 2)


def _table_infos(job: Job, errors: Mapping[str, QuantizationError]) -> tuple[TableInfo, ...]:
    poolings = _poolings(job)
    return tuple(
        TableInfo(table=replace(table, column_cuts=()), pooling=poolings[name], sqnr_db=sqnr(errors[name]))
        for name, table in job.stored.stored.items()
    )


def write_single_file(job: Job, work: Path, manifest: Manifest, file: Path) -> None:
    """The graph with its rows inside; checked against the directory that it is made of."""
    target = manifest.targets[0]
    module = torchscript.load(work / target.skeleton)
    rows = map_rows(work / ROWS_NAME, manifest.layout)
    for path in target.rows:
        set_attribute(module, path, rows)
    single = replace(
        manifest,
        rows_path=None,
        skeletons=(),
        targets=(replace(target, skeleton="self"),),
    )
    torchscript.save(module, file, {MANIFEST_NAME: single.dumps()})
    whole = load_artifact(work, target=target.name, verify_checksums=False, random_access=True)
    again = load_artifact(file, verify_checksums=False)
    inputs = job.samples.inputs()
    before, after = whole.forward(*inputs), again.forward(*inputs)
    for name, output in before.items():
        if not torch.equal(output, after[name]):
            raise VerificationError(f"output {name!r}: the single file predicts otherwise than the directory")
