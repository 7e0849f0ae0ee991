"""The road from a float model to a verified artifact.

quantize → shard → trace → script → verify → write. Nothing is left at the destination unless all of it succeeds.

Shape letters: B batch, D embedding dim, R rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from export.binding import Binding, bind, dense_inputs, sparse_inputs
from export.config import ExportConfig
from export.destination import Destination
from export.graph import signature_shapes
from export.job import NUM_SAMPLES, SAMPLES_SEED, Job, Progress, skeletons_of
from export.managed import find_managed
from export.proof import float_outputs, verify
from export.report import ExportReport, TableReport
from export.tables import plan_tables
from export.tree import find_collections
from export.verify import Difference
from export.writing import sqnr, write_graphs, write_single_file, write_tables
from recsys.artifact import MANIFEST_NAME
from recsys.errors import ExportError, ManifestError
from recsys.samples import random_batch, read_samples
from recsys.sharding.device_rows import table_path
from recsys.signature import Output, Signature
from recsys.store import QuantizationError


def export_model(
    model: nn.Module, path: str | Path, config: ExportConfig | None = None, progress: Progress | None = None
) -> ExportReport:
    """Export a float model, which stays as it is.

    Args:
        model: holds EmbeddingBagCollections or EmbeddingCollections; its ``forward`` takes float32 tensors
            ``[B, width]`` and KeyedJaggedTensors, and returns tensors with one row per row of the batch.
        path: the artifact to write.
        config: how.
        progress: called with a step's name, what is done and what there is to do.

    Returns:
        what was written and how far it differs from the float model.

    Raises:
        ExportError: the model cannot be exported as asked; ``VerificationError`` where the artifact would be wrong.
        PlanError: the plan or the memory does not fit.
    """
    started = time.monotonic()
    config = config or ExportConfig()
    with Destination(Path(path), single_file=config.single_file, overwrite=config.overwrite) as destination:
        job = _prepare(model, config, progress or (lambda *_: None))
        expected, from_floats = float_outputs(job)
        job.signature = replace(
            job.signature,
            outputs=tuple(
                Output(name=name, shape=shape)
                for name, shape in signature_shapes(expected, job.samples.num_rows).items()
            ),
        )
        _check_names(job.signature)
        work = destination.work
        digests, errors = write_tables(job, work)
        manifest = write_graphs(job, work, digests, errors)
        verified = verify(job, work, expected, from_floats)
        manifest = replace(
            manifest,
            verification={
                "num_samples": job.samples.num_rows,
                "differences": _plain(verified.differences),
                "verified_on": verified.ran_on,
                **({"ranking_differences": _plain(verified.ranking)} if verified.ranking else {}),
            },
        )
        if config.single_file:
            write_single_file(job, work, manifest, destination.file)
        else:
            (work / MANIFEST_NAME).write_text(manifest.dumps())
        artifact_bytes = destination.commit()
    return ExportReport(
        path=str(path),
        tables=_table_reports(job, errors),
        differences=verified.differences,
        ranking_differences=verified.ranking,
        verified_on=verified.ran_on,
        num_samples=job.samples.num_rows,
        artifact_bytes=artifact_bytes,
        peak_rss_bytes=_peak_rss_bytes(),
        seconds=time.monotonic() - started,
    )


def _prepare(model: nn.Module, config: ExportConfig, progress: Progress) -> Job:
    progress("plan", 0, 1)
    collections = find_collections(model)
    managed = find_managed(model, collections)
    stored = plan_tables(collections, config, managed.known_ids)
    first = next(iter(stored.envs))
    skeletons = skeletons_of(collections, stored, first, torch.float32)
    binding = bind(model, collections, skeletons, config.dense_widths)
    signature = Signature(
        dense=dense_inputs(binding),
        sparse=sparse_inputs(binding, collections, stored.policies),
        outputs=(),
        context=_context(binding, config.context),
    )
    if config.samples is not None:
        samples = read_samples(config.samples, signature)
    else:
        generator = torch.Generator().manual_seed(SAMPLES_SEED)
        samples = random_batch(signature, NUM_SAMPLES, generator, known_ids=managed.known_ids)
    return Job(
        model=model,
        config=config,
        collections=collections,
        managed=managed,
        stored=stored,
        binding=binding,
        signature=signature,
        samples=samples,
        progress=progress,
    )


def _context(binding: Binding, wanted: Sequence[str]) -> tuple[str, ...]:
    """The inputs of the context in the signature's order.

    Raises:
        ExportError: one is no input.
    """
    inputs = [*binding.dense, *binding.wire_names]
    unknown = sorted(set(wanted) - set(inputs))
    if unknown:
        raise ExportError(f"context: got unknown inputs {unknown}, expected some of {inputs[:20]}")
    return tuple(name for name in inputs if name in wanted)


def _check_names(signature: Signature) -> None:
    """What readers of the manifest will check, while the user can still do something about it."""
    try:
        Signature.from_json(signature.to_json())
    except ManifestError as error:
        raise ExportError(f"model: {error}; rename the argument, the feature or the output") from None


def _plain(differences: Mapping[str, Mapping[str, Difference]]) -> dict[str, Any]:
    return {target: {name: vars(d) for name, d in found.items()} for target, found in differences.items()}


def _peak_rss_bytes() -> int:
    """The most memory that this process has held; getrusage would count what its parent held before exec."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _table_reports(job: Job, errors: Mapping[str, QuantizationError]) -> tuple[TableReport, ...]:
    weights = job.float_weights()
    placements: dict[str, dict[str, str]] = {name: {} for name in job.stored.stored}
    for target, plan in job.stored.plans.items():
        for path, group in plan.plan.items():
            for name, sharding in group.items():
                ranks = ",".join(str(rank) for rank in dict.fromkeys(sharding.ranks))
                kind = sharding.sharding_type.replace("_", "-")
                placements[table_path(path, name)][target] = f"{kind} {ranks}"
    sizes = dict.fromkeys(placements, 0)
    for block in job.stored.layout.blocks:
        sizes[block.table] += block.num_bytes
    return tuple(
        TableReport(
            name=name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            data_type=table.data_type.value,
            bytes_before=weights[name].numel() * weights[name].element_size(),
            bytes_after=sizes[name],
            sqnr_db=sqnr(errors[name]),
            max_abs_error=errors[name].max_abs,
            placement=placements[name],
        )
        for name, table in job.stored.stored.items()
    )
