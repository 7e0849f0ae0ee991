"""Loading an exported model: a directory of parts, or a single file.

Shape letters: B batch, F features, N number of IDs.

Artifacts are not trusted: sizes are always checked, contents on demand, and nothing is unpickled (the
skeletons are TorchScript). Rows that are read in host memory are mapped, not copied, so processes that load
the same artifact share its pages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.artifact.batches.answers import Answers
from recsys.artifact.cuda.graphs import Capture, CudaGraphOptions
from recsys.artifact.graphs import LoadedGraphs, load_skeletons, place_forms, tensor_at
from recsys.artifact.inputs import check_lengths, computed_id_error, without_rows
from recsys.artifact.loaded_rows import LoadedRows
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import (
    check_rows,
    check_scripts,
    damaged_member,
    load_mappings,
    open_rows,
    part_bytes,
    read_manifest,
)
from recsys.artifact.programs import (
    FormPart,
    ProgramGraphs,
    ProgramPart,
    has_running_programs,
    log_gain,
    log_kernels,
)
from recsys.artifact.remote.fetch import local_artifact
from recsys.artifact.targets import Target
from recsys.errors import (
    ChecksumError,
    ManifestError,
    PartSizeError,
    PlanError,
    RowsMemoryError,
    TargetError,
)
from recsys.inputs.signature import Signature
from recsys.rows.file import RowsFile
from recsys.rows.memory import RowsMemory, lock
from recsys.scripting import torchscript
from recsys.sharding.plan.device_rows import DeviceRows, device_layouts, fill
from recsys.sharding.plan.env import num_cuda_devices

_LOGGER = logging.getLogger(__name__)
_DEFAULT_MEMORY = RowsMemory()
_NO_CUDA_GRAPHS = CudaGraphOptions()


@dataclass(frozen=True, kw_only=True)
class LoadedArtifact:
    """A loaded model. Any number of threads may call ``forward`` and ``forward_ranking`` concurrently.

    Attributes:
        manifest: The manifest of the artifact.
        target: The target that was loaded.
        graphs: The model, and its ranking form over the same rows if the signature has a context: programs, or scripted
            graphs that are frozen with their rows in place. ``recsys.artifact.delta.apply`` replaces them.
        rows: The rows that its lookups read; ``recsys.artifact.delta.apply`` changes them in place.
    """

    manifest: Manifest
    target: Target
    graphs: LoadedGraphs | ProgramGraphs
    rows: LoadedRows

    @property
    def module(self) -> torch.jit.ScriptModule:
        """The scripted model, frozen with its rows in place."""
        return self._frozen()[0]

    @property
    def ranking(self) -> torch.jit.ScriptModule | None:
        """Its ranking form over the same rows, frozen too; None if the signature has no context."""
        frozen = self._frozen()
        return frozen[1] if len(frozen) > 1 else None

    def _frozen(self) -> tuple[torch.jit.ScriptModule, ...]:
        return self.scripted().frozen

    def scripted(self) -> LoadedGraphs:
        """Return the graphs in TorchScript.

        Raises:
            TargetError: The target has none.
        """
        return self.graphs.scripted() if isinstance(self.graphs, ProgramGraphs) else self.graphs

    @property
    def runs_program(self) -> bool:
        """Whether the native kernels run it, by its program."""
        return isinstance(self.graphs, ProgramGraphs) and bool(self.graphs.steps)

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""
        return self.manifest.signature

    @property
    def digest(self) -> str:
        """The digest of the manifest. Deltas do not change it; ``rows.state`` is the state of the rows."""
        return self.rows.digest

    @property
    def target_name(self) -> str:
        """The loaded target's name."""
        return self.target.name

    def cache_contexts(self, max_bytes: int) -> str:
        """Keep what the ranking form computes of contexts alone, by their content, before anybody calls it.

        Deltas empty the cache. Answers are bit-equal to those without it.

        Args:
            max_bytes: Memory for it; what was used least recently makes room.

        Returns:
            Why nothing is kept; empty if the cache is in use.
        """
        if not self.signature.context:
            return "the model has no context"
        if not isinstance(self.graphs, ProgramGraphs) or not self.graphs.steps:
            return "torch's operators run it, not a program"
        return self.graphs.cache_contexts(max_bytes)

    @property
    def contexts(self) -> Any:
        """The context cache, as ``recsys.kernels.operators.context_cache`` returns it; None if there is none."""
        return self.graphs.contexts if isinstance(self.graphs, ProgramGraphs) else None

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Predict from dense inputs, lengths, values and, if weighted, weights; see ``recsys.inputs.signature``.

        Inputs and outputs are in host memory for every target. A batch without rows reaches no graph. Threads that call
        it often should do so within ``torch.inference_mode()``; otherwise it enters the mode itself, which takes some
        microseconds.

        Raises:
            ChecksumError: The rows file was written to since it was loaded.
            ComputedIdError: An ID that the model computes is no row of its table.
            ValueError: Bags that the model puts side by side differ in their numbers of IDs, or a crossed feature has
                several.
            RuntimeError: The inputs do not fit the signature; FBGEMM's or torch's words.
        """
        if self.rows.file is not None:
            self.rows.file.check()
        return self._run(0, inputs)

    def forward_ranking(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Predict for rows that share contexts; see ``recsys.inputs.signature`` for the inputs.

        Otherwise like ``forward``.

        Raises:
            TargetError: The model was exported without a context.
            ChecksumError: The rows file was written to since it was loaded.
            RuntimeError: The inputs do not fit the signature; FBGEMM's or torch's words.
        """
        if self.rows.file is not None:
            self.rows.file.check()
        if len(self.graphs.calls) == 1:
            raise TargetError("signature.context: got none, expected inputs: the model has no ranking form")
        return self._run(1, inputs)

    def _run(self, form: int, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        answer = without_rows(self.signature, inputs, is_ranking=form == 1)
        if answer is not None:
            return answer
        if form == 0 and self.signature.bounds_lengths:
            check_lengths(self.signature, inputs)
        call = self.graphs.calls[form]
        try:
            if torch.is_inference_mode_enabled():
                return call(*inputs)
            with torch.inference_mode():
                return call(*inputs)
        except (RuntimeError, torch.jit.Error) as error:
            computed = computed_id_error(error)
            if computed is None:
                raise
            raise computed from None


def load_artifact(
    path: str | os.PathLike[str] | OpenedArtifact,
    *,
    target: str | None = None,
    verify_checksums: bool = True,
    memory: RowsMemory = _DEFAULT_MEMORY,
    scripted: bool = False,
    cuda_graphs: CudaGraphOptions = _NO_CUDA_GRAPHS,
) -> LoadedArtifact:
    """Load a model: its program where ``make native`` has built the native kernels, else its TorchScript graphs.

    Args:
        path: A directory or a single file that ``recsys-export`` wrote, or its address in an object store, such as
            ``s3://bucket/ranker.artifact`` (``recsys.artifact.remote.fetch``); or one whose manifest was read.
        target: The artifact's target to load, such as ``cpu`` or ``cuda:0,cuda:1``; if None, the first whose
            devices this machine has.
        verify_checksums: Compare the digests of the rows, which reads every byte, and of TorchScript that a program
            runs in place of. Sizes, and digests of what runs, are checked in any case.
        memory: How rows are held: mapped or copied, locked, on which NUMA nodes. Those of a single file are always
            copied.
        scripted: Load the TorchScript graphs, by torch's operators in float32, also where the program could run.
        cuda_graphs: Which batches run as CUDA graphs, on a target of one CUDA device.

    Raises:
        ArtifactError: The artifact cannot be used; the subclass says why, the message names the part.
        OSError: The store, or the cache of this machine, cannot be used.
        RuntimeError: A device cannot record the model's work, or has too little memory; torch's words.
    """
    opened = path if isinstance(path, OpenedArtifact) else _opened(path, target)

    def load(scripted: bool) -> LoadedArtifact:
        return _load(opened, verify_checksums, memory, scripted, cuda_graphs)

    return _checked(load(scripted), load)


def _opened(path: str | os.PathLike[str], target: str | None) -> OpenedArtifact:
    where = local_artifact(path)
    return open_artifact(where, read_manifest(where), target)


def _load(
    opened: OpenedArtifact,
    verify_checksums: bool,
    memory: RowsMemory,
    scripted: bool,
    cuda_graphs: CudaGraphOptions,
) -> LoadedArtifact:
    where, manifest, chosen = opened.path, opened.manifest, opened.target
    runs_programs = has_running_programs(chosen, scripted=scripted, is_recorded=bool(cuda_graphs.rows))
    if not scripted:
        log_gain(chosen)
    capture = None
    if cuda_graphs.rows:
        capture = Capture.on_target(chosen, manifest.signature, cuda_graphs, manifest.verified_rows())
    if where.is_dir():
        blob, file = open_rows(where, manifest, memory)
        if verify_checksums:
            check_rows(manifest, blob)
        modules = [] if runs_programs else load_skeletons(where, manifest, chosen)
    else:
        modules, blob = _load_file(where, manifest, chosen, verify_checksums)
        file = None
        _hold(where, blob, memory)
    if runs_programs:
        check_scripts(where, manifest, chosen, verify_checksums=verify_checksums)
        programs = [graph.program for graph in chosen.graphs if graph.program is not None]
        parts = [ProgramPart(name, part_bytes(where, manifest, name)) for name in programs]
        return artifact_of_parts(opened, parts, blob, file)
    return _artifact(opened, blob, file, partial(_placed, modules, chosen, capture=capture))


def artifact_of_parts(
    opened: OpenedArtifact, parts: Sequence[FormPart], blob: Tensor, file: RowsFile | None
) -> LoadedArtifact:
    """Return a model that runs without TorchScript, over rows in host memory."""
    manifest, target = opened.manifest, opened.target

    def graphs(ranks: Sequence[DeviceRows], slots: Mapping[str, Tensor]) -> ProgramGraphs:
        def scripted() -> LoadedGraphs:
            return _placed(load_skeletons(opened.path, manifest, target), target, ranks, slots)

        return ProgramGraphs(parts, blob, target.linear_dtype, scripted, manifest.signature, slots)

    return _artifact(opened, blob, file, graphs)


def _artifact(
    opened: OpenedArtifact,
    blob: Tensor,
    file: RowsFile | None,
    graphs_over: Callable[[Sequence[DeviceRows], Mapping[str, Tensor]], LoadedGraphs | ProgramGraphs],
) -> LoadedArtifact:
    """Return the model, whose graphs are made over the rows of each rank and the buckets of mappings by path."""
    manifest, target = opened.manifest, opened.target
    ranks = rank_rows(manifest, target, blob)
    mappings = load_mappings(opened.path, manifest)
    graphs = graphs_over(ranks, {mapping.info.path: mapping.slots for mapping in mappings})
    in_place = any(rank.rows is blob for rank in ranks)
    rows = LoadedRows(
        manifest=manifest, ranks=ranks, file=file if in_place else None, graphs=graphs, mappings=mappings
    )
    return LoadedArtifact(manifest=manifest, target=target, graphs=graphs, rows=rows)


def _placed(
    modules: Sequence[torch.jit.ScriptModule],
    target: Target,
    ranks: Sequence[DeviceRows],
    slots: Mapping[str, Tensor],
    capture: Capture | None = None,
) -> LoadedGraphs:
    """Return a target's graphs in TorchScript over rows and buckets of mappings, by path, that are there."""
    place_forms(modules, target, ranks, slots)
    return LoadedGraphs(modules, target, mappings=slots, capture=capture)


def _checked(loaded: LoadedArtifact, load: Callable[[bool], LoadedArtifact]) -> LoadedArtifact:
    """Return the model, or its TorchScript graphs if its program answers otherwise than the export verified.

    Args:
        loaded: The model.
        load: Loads it, scripted or not.

    Raises:
        TargetError: TorchScript answers otherwise too, or cannot run the target.
        ArtifactError: The artifact cannot be used otherwise.
    """
    manifest, target = loaded.manifest, loaded.target
    answers = Answers.from_json(manifest.answers, manifest.signature) if manifest.answers else None
    if not loaded.runs_program:
        return loaded
    log_kernels(target)
    if answers is None:
        return loaded
    difference = answers.difference(loaded.graphs.calls, manifest.signature)
    if not difference:
        return loaded
    found = f"its program answers otherwise than the export verified ({difference})"
    if target.linear_dtype != "float32" or target.skeleton is None:
        option = "--format both" if target.linear_dtype == "float32" else "--linear-dtype float32"
        raise TargetError(
            f"target {target.name!r}: {found}, and nothing else of it can run: export it on this machine, or with "
            f"{option}"
        )
    plain = load(True)
    difference = answers.difference(plain.graphs.calls, manifest.signature)
    if difference:
        raise TargetError(
            f"target {target.name!r}: it answers otherwise than the export verified ({difference}): export it with the "
            "torch and fbgemm-gpu of this machine"
        )
    _LOGGER.warning(
        "target %r: %s: its TorchScript graph is loaded instead, which is slower", target.name, found
    )
    return plain


@dataclass(frozen=True, kw_only=True)
class OpenedArtifact:
    """An artifact with its manifest, of which nothing else was read.

    Attributes:
        path: The directory or the single file.
        manifest: Its manifest.
        target: The target to load.
    """

    path: Path
    manifest: Manifest
    target: Target


def open_artifact(path: str | os.PathLike[str], manifest: Manifest, target: str | None) -> OpenedArtifact:
    """Choose what to load of an artifact.

    Args:
        path: A directory or a single file.
        manifest: Its manifest; the export has not written it yet when it verifies the rest.
        target: See ``load_artifact``.

    Raises:
        TargetError: The artifact has no target of this name, or none for this machine.
    """
    return OpenedArtifact(path=Path(path), manifest=manifest, target=choose_target(manifest, target))


def choose_target(manifest: Manifest, wanted: str | None) -> Target:
    """Return the target of a name, or the first whose devices this machine has.

    Raises:
        TargetError: There is none.
    """
    names = [target.name for target in manifest.targets]
    if wanted is not None and wanted not in names:
        raise TargetError(f"target: got {wanted!r}, expected one of {names}")
    for target in manifest.targets:
        lacking = target.env.lacking()
        if wanted is None and not lacking:
            return target
        if wanted == target.name:
            if lacking:
                raise TargetError(f"target: {wanted!r} needs {lacking}, which this machine lacks")
            return target
    here = ["cpu", *(f"cuda:{i}" for i in range(num_cuda_devices()))]
    raise TargetError(
        f"target: got {names}, expected one whose devices this machine has: {here}; recsys-export --target makes one"
    )


def load_rows(path: str | os.PathLike[str], *, verify_checksums: bool = True) -> LoadedRows:
    """Return an artifact's rows in host memory, without a graph, whatever devices its targets need.

    Raises:
        ArtifactError: It cannot be used; the subclass says why.
    """
    where = Path(path)
    manifest = read_manifest(where)
    if where.is_dir():
        blob, file = open_rows(where, manifest, _DEFAULT_MEMORY)
        if verify_checksums:
            check_rows(manifest, blob)
    else:
        file = None
        _, blob = _load_file(where, manifest, manifest.targets[0], verify_checksums)
    rank = DeviceRows(device=torch.device("cpu"), layout=manifest.layout, rows=blob)
    return LoadedRows(manifest=manifest, ranks=[rank], file=file, mappings=load_mappings(where, manifest))


def _load_file(
    where: Path, manifest: Manifest, target: Target, verify: bool
) -> tuple[list[torch.jit.ScriptModule], Tensor]:
    damaged = damaged_member(where, None if verify else manifest.layout.num_bytes)
    if damaged is not None:
        raise ChecksumError(
            f"part {damaged.split('/', 1)[-1]!r} of {where.name!r}: its checksum does not match"
        )
    module = torchscript.load(where)
    if not target.rows:
        raise ManifestError(f"manifest.targets: {where.name!r} holds no rows where the manifest says")
    blob = tensor_at(module, next(iter(target.rows)))
    if blob.numel() != manifest.layout.num_bytes or blob.dtype != torch.uint8:
        raise PartSizeError(
            f"rows of {where.name!r}: got {blob.numel()} bytes, expected {manifest.layout.num_bytes}"
        )
    if verify:
        check_rows(manifest, blob)
    return [module], blob


def _hold(where: Path, blob: Tensor, memory: RowsMemory) -> None:
    """Hold the rows of a single file as the options say, as far as this is possible."""
    if memory.numa is not None:
        raise RowsMemoryError(
            f"numa: got {memory.numa!r} for {where.name!r}, whose rows torch places; expected a directory"
        )
    if memory.lock_rows:
        lock(blob)


def rank_rows(manifest: Manifest, target: Target, blob: Tensor) -> Sequence[DeviceRows]:
    """Return each rank's rows: the blob itself in host memory, a copy of the rank's shards elsewhere."""
    plans: Mapping[str, Any] = target.plan.plan
    try:
        layouts = device_layouts(manifest.layout, plans, target.env.devices)
    except KeyError as error:
        raise ManifestError(f"manifest.targets: the plan names what the rows lack: {error}") from None
    except PlanError as error:
        raise TargetError(f"target {target.name!r}: {error}") from None
    return fill(manifest.layout, blob, layouts, target.env.devices)
