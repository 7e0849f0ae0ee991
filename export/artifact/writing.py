"""Writing an artifact's parts: graphs and manifest.

Shape letters: R rows.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

from export.graph.exported import exported_program, save_exported
from export.graph.graph import Graph, finished, traced_model
from export.graph.inputs.mapping import schema_of
from export.graph.modules import replace_modules
from export.graph.prepared import PreparedModel, target_modules
from export.lower.lowering import lower
from export.lower.part import program_part
from export.lower.spaces.report import SpacesReport
from export.lower.spaces.sinking import sink_expansions
from export.lower.values import NotLoweredError
from export.options import AUTO
from recsys.artifact.manifest import Manifest, Part, TableInfo
from recsys.artifact.parts import ROWS_NAME
from recsys.artifact.targets import RankingGraph, Target
from recsys.base import machine
from recsys.configs import EmbeddingBagConfig
from recsys.errors import ExportError
from recsys.rows.quantize import QuantizationError
from recsys.scripting import torchscript

_MOST_SAID = 300


@dataclass(frozen=True, kw_only=True)
class WrittenTarget:
    """A target for the manifest.

    Attributes:
        target: The target.
        parts: The files of its graphs.
    """

    target: Target
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class WrittenPrograms:
    """The programs of a model, which all its targets in host memory share.

    Attributes:
        parts: The files of the plain form's, and of the ranking form's if there is one; none without programs.
        missing: Why there are none.
        spaces: What the ranking form computes for contexts and what for rows.
    """

    parts: tuple[Part, ...] = ()
    missing: str = ""
    spaces: SpacesReport | None = None


def write_programs(prepared: PreparedModel, work: Path) -> WrittenPrograms:
    """Lower the forms of a model to programs, and write them if all can be lowered.

    Args:
        prepared: The model.
        work: The directory that holds the artifact.

    Raises:
        ExportError: There are none, and the linear layers multiply in a type that only programs have.
    """
    programs = _write_programs(prepared, work)
    dtype = prepared.config.linear_dtype
    if not programs.parts and dtype not in ("float32", AUTO):
        raise ExportError(
            f"linear_dtype: got {dtype!r}, expected 'float32': only a program multiplies in {dtype}, and the model has "
            f"none: {programs.missing}"
        )
    return programs


def _write_programs(prepared: PreparedModel, work: Path) -> WrittenPrograms:
    if prepared.dense_dtype is not torch.float32:
        return WrittenPrograms(missing=f"its dense layers are {prepared.config.dense_dtype}")
    if not any(_is_on_host(prepared, target) for target in prepared.stored.envs):
        return WrittenPrograms(missing="no target is in host memory")
    names = ["program.safetensors", *(["ranking-program.safetensors"] if prepared.signature.context else [])]
    try:
        programs = [lower(prepared, is_ranking=form > 0) for form in range(len(names))]
    except NotLoweredError as error:
        return WrittenPrograms(missing=str(error))
    except Exception as error:
        # A mistake of ours: the graph computes the same, and the report says why it does.
        return WrittenPrograms(missing=_unexpected(error))
    for name, program in zip(names, programs, strict=True):
        (work / name).write_bytes(program_part(program))
    return WrittenPrograms(parts=tuple(_part(work / name) for name in names), spaces=programs[-1].spaces)


def _unexpected(error: Exception) -> str:
    """Return what failed while a model was lowered, and where."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SAID]
    return f"lowering failed, which is a bug in recsys-export: {said} (at {at.filename}:{at.lineno})"


def _is_on_host(prepared: PreparedModel, target: str) -> bool:
    return all(device.type == "cpu" for device in prepared.stored.envs[target].devices)


def write_targets(prepared: PreparedModel, work: Path, programs: WrittenPrograms) -> list[WrittenTarget]:
    """Trace and script the graphs of all targets, and write them; as ``write_graphs``."""
    return [write_graphs(prepared, target, work, programs) for target in prepared.stored.envs]


def write_graphs(
    prepared: PreparedModel, target: str, work: Path, programs: WrittenPrograms
) -> WrittenTarget:
    """Trace and script the graphs of a target, and write them.

    Args:
        prepared: The model.
        target: The name of one of its targets.
        work: The directory that holds the artifact.
        programs: The programs of the model.

    Returns:
        The target, for the manifest.

    Raises:
        ExportError: FX or TorchScript does not support the model, or the graph calls foreign operators.
    """
    env = prepared.stored.envs[target]
    position = list(prepared.stored.envs).index(target)
    prepared.progress("trace and script", position, len(prepared.stored.envs))
    graphs = make_graphs(prepared, target, is_scripted=prepared.config.is_scripted)
    writing = _GraphWriting(prepared, target, work, programs)
    plain = writing.write(graphs[0], f"target-{position}", is_ranking=False)
    ranking = writing.write(graphs[1], f"ranking-{position}", is_ranking=True) if len(graphs) > 1 else None
    on_host = _is_on_host(prepared, target)
    made = Target(
        name=target,
        devices=tuple(str(device) for device in env.devices),
        plan=prepared.stored.plans[target],
        skeleton=plain.skeleton,
        rows=plain.rows,
        ranks={} if on_host else plain.ranks,
        dense_dtype=prepared.config.dense_dtype,
        linear_dtype=prepared.config.linear_dtype,
        ranking=None if ranking is None else replace(ranking, ranks={} if on_host else ranking.ranks),
        exported=plain.exported,
        program=plain.program,
    )
    return WrittenTarget(target=made, parts=tuple(writing.parts))


def write_mappings(prepared: PreparedModel, work: Path) -> list[Part]:
    """Write the mappings of raw IDs to rows, a file for each collection of managed tables.

    Raises:
        ExportError: A raw ID has no place.
    """
    managed = prepared.managed
    parts = []
    for info, slots in zip(managed.infos, managed.slots.values(), strict=True):
        file = work / info.part
        slots.numpy().tofile(file)
        parts.append(_part(file))
    return parts


def make_graphs(prepared: PreparedModel, target: str, *, is_scripted: bool) -> list[Graph]:
    """Trace the plain form of a target, and the ranking form if the model has a context.

    Raises:
        ExportError: FX or TorchScript does not support the model, or the graph calls foreign operators.
    """
    devices, context = prepared.stored.envs[target].devices, prepared.signature.context
    modules = target_modules(prepared, target)
    forms = [(modules.plain, ()), *([(modules.ranking, context)] if context else [])]
    graphs = []
    for collections, names in forms:
        model = replace_modules(prepared.model, collections)
        traced = traced_model(model, prepared.input_mapping, devices, prepared.dense_dtype, names)
        if names:
            sink_expansions(traced)
        graphs.append(finished(traced, is_scripted=is_scripted))
    return graphs


def export_graph(prepared: PreparedModel, graph: Graph, *, is_ranking: bool) -> ExportedProgram:
    """Return a graph as an ExportedProgram, which takes the rows as an input.

    Raises:
        ExportError: torch.export does not support the model.
    """
    return exported_program(
        graph.module,
        list(graph.rows),
        prepared.signature,
        prepared.stored.layout.num_bytes,
        is_ranking=is_ranking,
    )


class _GraphWriting:
    """Writes graphs in the formats that are asked for.

    Args:
        prepared: The model.
        target: One of its targets.
        work: The directory that holds the artifact.
        programs: The programs of the model.

    Attributes:
        parts: The files, without programs.
    """

    def __init__(self, prepared: PreparedModel, target: str, work: Path, programs: WrittenPrograms) -> None:
        self._prepared = prepared
        self._target = target
        self._work = work
        self._programs = programs
        self.parts: list[Part] = []

    def write(self, graph: Graph, name: str, *, is_ranking: bool) -> RankingGraph:
        """Write a graph; ``name`` is that of its files without a suffix."""
        skeleton, rows, ranks, exported = None, {}, {}, None
        if graph.script is not None:
            file = self._work / f"{name}.pt"
            torchscript.save(graph.script, file)
            skeleton, rows, ranks = self._add(file), graph.rows, graph.ranks
        if self._prepared.config.is_exported:
            file = self._work / f"{name}.exported.pt2"
            save_exported(export_graph(self._prepared, graph, is_ranking=is_ranking), file)
            exported = self._add(file)
        program = None
        if self._programs.parts and _is_on_host(self._prepared, self._target):
            program = self._programs.parts[is_ranking].path
        return RankingGraph(skeleton=skeleton, rows=rows, ranks=ranks, exported=exported, program=program)

    def _add(self, file: Path) -> str:
        self.parts.append(_part(file))
        return file.name


def make_manifest(
    prepared: PreparedModel,
    targets: Sequence[WrittenTarget],
    programs: WrittenPrograms,
    mappings: Sequence[Part],
    digests: tuple[str, ...],
    errors: Mapping[str, QuantizationError],
) -> Manifest:
    """Return the manifest of the artifact.

    Args:
        prepared: The model.
        targets: Their graphs.
        programs: Its programs.
        mappings: The files of its mappings.
        digests: The digest of each block of rows.
        errors: The quantization error of each table.
    """
    return Manifest(
        schema=schema_of(prepared.model),
        data_sketch=prepared.data_sketch,
        examples=prepared.examples,
        name=prepared.config.name,
        versions=package_versions(),
        signature=prepared.signature,
        tables=_table_infos(prepared, errors),
        layout=prepared.stored.layout,
        block_sha256=digests,
        targets=tuple(written.target for written in targets),
        skeletons=(*(part for written in targets for part in written.parts), *programs.parts, *mappings),
        mappings=prepared.managed.infos,
        rows_path=ROWS_NAME,
        options=prepared.config.of_forward(),
    )


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that the artifact is made with."""
    return {
        "torch": str(torch.__version__),
        **machine.package_versions(("recsys-serving", "fbgemm-gpu-cpu", "fbgemm-gpu")),
    }


def _part(file: Path) -> Part:
    data = file.read_bytes()
    return Part(path=file.name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _poolings(prepared: PreparedModel) -> dict[str, str]:
    return {
        prepared.stored.paths[path][table.name]: table.pooling.value.lower()
        if isinstance(table, EmbeddingBagConfig)
        else "none"
        for path, group in prepared.stored.tables.items()
        for table in group
    }


def _sqnr(error: QuantizationError) -> float | None:
    """Return the ratio in dB for reports and manifests; None if nothing was lost."""
    return None if error.noise == 0 else round(error.sqnr_db, 2)


def _table_infos(prepared: PreparedModel, errors: Mapping[str, QuantizationError]) -> tuple[TableInfo, ...]:
    poolings = _poolings(prepared)
    return tuple(
        TableInfo(table=replace(table, column_cuts=()), pooling=poolings[name], sqnr_db=_sqnr(errors[name]))
        for name, table in prepared.stored.stored.items()
    )
