"""Writing an artifact's parts: graphs and manifest.

Shape letters: R rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from export.graph.graph import Graph, make_graph
from export.graph.prepared import PreparedModel, target_modules
from export.graph.tree import exchanged
from export.inputs import schema_of
from recsys import machine, torchscript
from recsys.artifact.load import ROWS_NAME
from recsys.artifact.manifest import Manifest, Part, RankingGraph, TableInfo, Target
from recsys.configs import EmbeddingBagConfig
from recsys.rows.quantize import QuantizationError
from recsys.sharding.plan.device_rows import table_path


def write_graphs(prepared: PreparedModel, target: str, work: Path) -> tuple[Target, list[Part]]:
    """Trace and script the graphs of a target, and write them.

    Args:
        prepared: The model.
        target: The name of one of its targets.
        work: The directory that holds the artifact.

    Returns:
        The target for the manifest, and the files of its graphs.

    Raises:
        ExportError: FX or TorchScript does not support the model, or the graph calls foreign operators.
    """
    env = prepared.stored.envs[target]
    position = list(prepared.stored.envs).index(target)
    prepared.progress("trace and script", position, len(prepared.stored.envs))
    on_host = all(device.type == "cpu" for device in env.devices)
    modules = target_modules(prepared, target)
    model = exchanged(prepared.model, modules.plain)
    graph = make_graph(model, prepared.binding, env.devices, prepared.dense_dtype)
    parts = [_write_graph(graph, work / f"target-{position}.pt")]
    ranking = None
    context = prepared.signature.context
    if context:
        model = exchanged(prepared.model, modules.ranking)
        second = make_graph(model, prepared.binding, env.devices, prepared.dense_dtype, context)
        parts.append(_write_graph(second, work / f"ranking-{position}.pt"))
        ranking = RankingGraph(
            skeleton=parts[-1].path, rows=second.rows, ranks={} if on_host else second.ranks
        )
    made = Target(
        name=target,
        devices=tuple(str(device) for device in env.devices),
        plan=prepared.stored.plans[target],
        skeleton=parts[0].path,
        rows=graph.rows,
        ranks={} if on_host else graph.ranks,
        dense_dtype=prepared.config.dense_dtype,
        linear_dtype=prepared.config.linear_dtype,
        ranking=ranking,
    )
    return made, parts


def make_manifest(
    prepared: PreparedModel,
    graphs: Sequence[tuple[Target, list[Part]]],
    digests: tuple[str, ...],
    errors: Mapping[str, QuantizationError],
) -> Manifest:
    """Return the manifest of the artifact.

    Args:
        prepared: The model.
        graphs: The result of ``write_graphs`` for each target.
        digests: The digest of each block of rows.
        errors: The quantization error of each table.
    """
    return Manifest(
        schema=schema_of(prepared.model),
        name=prepared.config.name,
        versions=package_versions(),
        signature=prepared.signature,
        tables=_table_infos(prepared, errors),
        layout=prepared.stored.layout,
        block_sha256=digests,
        targets=tuple(target for target, _ in graphs),
        skeletons=tuple(part for _, parts in graphs for part in parts),
        rows_path=ROWS_NAME,
    )


def _write_graph(graph: Graph, file: Path) -> Part:
    torchscript.save(graph.script, file)
    return Part(path=file.name, size_bytes=file.stat().st_size, sha256=_sha256(file))


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that the artifact is made with."""
    return {
        "torch": str(torch.__version__),
        **machine.package_versions(("recsys-serving", "fbgemm-gpu-cpu", "fbgemm-gpu")),
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _poolings(prepared: PreparedModel) -> dict[str, str]:
    return {
        table_path(path, table.name): table.pooling.value.lower()
        if isinstance(table, EmbeddingBagConfig)
        else "none"
        for path, group in prepared.stored.tables.items()
        for table in group
    }


def sqnr(error: QuantizationError) -> float | None:
    """Return the ratio in dB for reports and manifests; None if nothing was lost."""
    return None if error.noise == 0 else round(error.sqnr_db, 2)


def _table_infos(prepared: PreparedModel, errors: Mapping[str, QuantizationError]) -> tuple[TableInfo, ...]:
    poolings = _poolings(prepared)
    return tuple(
        TableInfo(table=replace(table, column_cuts=()), pooling=poolings[name], sqnr_db=sqnr(errors[name]))
        for name, table in prepared.stored.stored.items()
    )
