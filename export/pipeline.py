"""The steps from a float model to a verified artifact.

prepare → run the float model → quantize rows → lower → trace and script → verify → write. Nothing is left at the
destination unless all of it succeeds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from export.artifact.destination import Destination
from export.artifact.single_file import write_single_file
from export.artifact.writing import make_manifest, write_mappings, write_programs, write_targets
from export.config import ExportConfig
from export.graph.prepared import PreparedModel, Progress
from export.graph.tracing.source_location import source_locations
from export.options import AUTO
from export.plain.convert import convert_plain
from export.prepare import prepare
from export.report import ExportReport, table_reports
from export.source.torchrec_modules import patch_torchrec_names, replace_torchrec_modules
from export.tables import drop_cached, write_rows
from export.verify.compare import Difference
from export.verify.float_model import check_independence, run_float_model
from export.verify.linear_dtypes import LinearTrial, choose_linear_dtype
from export.verify.reference import float_model
from export.verify.run import Verified, verify
from export.verify.samples import check_warm_up, with_bag_sizes
from recsys.artifact.manifest import Manifest
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME
from recsys.base.files import naming_full_disk
from recsys.kernels.operators import instructions, multiplies_in


def export_model(
    model: nn.Module, path: str | Path, config: ExportConfig | None = None, progress: Progress | None = None
) -> ExportReport:
    """Export a float model, which is not changed.

    Args:
        model: Holds EmbeddingBagCollections or EmbeddingCollections; its ``forward`` takes float32 tensors
            ``[B, width]`` and KeyedJaggedTensors, and returns tensors with one row per row of the batch. Or it is of
            plain PyTorch, with ``nn.Embedding``s and example inputs.
        path: The artifact to write.
        config: The options.
        progress: Called with a step's name, the number of units done and the total.

    Returns:
        The report of the artifact and its differences from the float model.

    Raises:
        ExportError: The model cannot be exported as asked; ``VerificationError`` where the artifact would be wrong.
        PlanError: The plan or the memory does not fit.
        DiskFullError: There is no room for the artifact.
    """
    started = time.monotonic()
    config = config or ExportConfig()
    progress = progress or (lambda *_: None)
    made = Destination(Path(path), single_file=config.single_file, overwrite=config.overwrite)
    model = convert_plain(
        replace_torchrec_modules(model), replace(config.plain, outputs=tuple(config.outputs))
    )
    with (
        naming_full_disk(f"out: {Path(path).name!r}"),
        made as destination,
        patch_torchrec_names(model),
        source_locations(),
    ):
        work = destination.work
        planned = prepare(model, config, progress)
        trained = float_model(planned)
        with_outputs, float_outputs = run_float_model(planned, trained)
        prepared = with_bag_sizes(with_outputs, trained)
        check_independence(prepared, trained)
        check_warm_up(prepared, trained)
        digests, quantization_errors = write_rows(
            work / ROWS_NAME, prepared.stored, prepared.weights, prepared.progress
        )
        programs = write_programs(prepared, work)
        targets = write_targets(prepared, work, programs)
        mappings = write_mappings(prepared, work)
        draft = make_manifest(prepared, targets, programs, mappings, digests, quantization_errors)
        exported, trials = prepared, tuple[LinearTrial, ...]()
        if config.linear_dtype == AUTO:
            exported, draft, trials = choose_linear_dtype(
                prepared, work, draft, has_programs=bool(programs.parts)
            )
        # Verified as loaders read it, before it is written with what that gives.
        read_manifest = Manifest.loads(draft.dumps())
        verified = verify(exported, work, read_manifest, float_outputs)
        manifest = _with_verification(read_manifest, exported, verified, trials)
        if config.single_file:
            write_single_file(exported, work, manifest, destination.file)
        else:
            (work / MANIFEST_NAME).write_text(manifest.dumps())
            drop_cached(work / ROWS_NAME)
        artifact_bytes = destination.commit()
    return ExportReport(
        path=str(path),
        name=config.name,
        tables=table_reports(exported, manifest.tables, quantization_errors),
        differences=verified.differences,
        checked=verified.checked,
        ranking_differences=verified.ranking,
        verified_on=verified.ran_on,
        steps=verified.steps,
        without_program=programs.missing,
        spaces=programs.spaces,
        linear_dtypes=trials,
        num_samples=exported.samples.num_rows,
        samples=exported.samples_source,
        hardly_varying=verified.hardly_varying,
        artifact_bytes=artifact_bytes,
        peak_rss_bytes=_peak_rss_bytes(),
        seconds=time.monotonic() - started,
        notes=(
            *exported.notes,
            *_products_note(exported.config.linear_dtype),
            *_unserved_note(config, has_programs=bool(programs.parts)),
        ),
    )


def _with_verification(
    manifest: Manifest, prepared: PreparedModel, verified: Verified, trials: Sequence[LinearTrial]
) -> Manifest:
    """Return the manifest with what the verification gives."""
    verification = {
        "num_samples": prepared.samples.num_rows,
        "samples": prepared.samples_source,
        **({"hardly_varying": list(verified.hardly_varying)} if verified.hardly_varying else {}),
        "differences": _plain(verified.differences),
        "verified_on": verified.ran_on,
        **({"ranking_differences": _plain(verified.ranking)} if verified.ranking else {}),
        **({"linear_dtypes": {trial.dtype: vars(trial) for trial in trials}} if trials else {}),
    }
    return replace(manifest, verification=verification, answers=verified.answers)


def _plain(differences: Mapping[str, Mapping[str, Difference]]) -> dict[str, Any]:
    return {target: {name: vars(d) for name, d in found.items()} for target, found in differences.items()}


def _unserved_note(config: ExportConfig, *, has_programs: bool) -> tuple[str, ...]:
    """Return a note where an artifact holds nothing that servers run."""
    if config.is_scripted or has_programs:
        return ()
    return (
        "servers refuse this artifact, an ExportedProgram alone, which load_exported_artifact runs in Python; "
        "--format both adds TorchScript",
    )


def _products_note(linear_dtype: str) -> tuple[str, ...]:
    """Say that linear layers gain no speed on this processor, if so."""
    products = linear_dtype if linear_dtype == "float32" else multiplies_in(linear_dtype)
    if products == linear_dtype:
        return ()
    return (
        f"linear layers in {linear_dtype} multiply in {products} on this processor, at its speed: {instructions()} has "
        "no faster instruction for their products",
    )


def _peak_rss_bytes() -> int:
    """Return this process's peak memory; getrusage would include its parent's before exec."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0
