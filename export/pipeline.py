"""The steps from a float model to a verified artifact.

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

from export.artifact.destination import Destination
from export.artifact.single_file import write_single_file
from export.artifact.writing import make_manifest, sqnr, write_graphs, write_programs
from export.choices import AUTO
from export.config import ALL_FEATURES, DENSE_DTYPES, ExportConfig
from export.graph.inputs.binding import (
    Binding,
    UnreadTablesError,
    bind,
    dense_inputs,
    sparse_inputs,
    with_columns,
    with_inputs_of,
    with_same_lengths,
)
from export.graph.inputs.features import Declared, discover
from export.graph.inputs.forward import DENSE, SPARSE, Wanted, adapted, arguments, batch_fields
from export.graph.inputs.pruning import features_of, needed_rows, pruned
from export.graph.managed import find_managed
from export.graph.place import naming_places
from export.graph.prepared import PreparedModel, Progress, skeletons_of
from export.report import ExportReport, TableReport
from export.source.torchrec_modules import our_names, with_our_modules
from export.tables.rows_file import drop_cached, write_rows
from export.tables.tables import plan_tables
from export.verify.bags import check_warm_up, with_bag_sizes
from export.verify.compare import Difference
from export.verify.linear_dtypes import LinearTrial, choose_linear_dtype, with_linear_dtype
from export.verify.reference import float_model
from export.verify.retrieval import check_options
from export.verify.run import FloatOutputs, Verified, check_independence, float_outputs, verify
from export.verify.samples import verification_samples
from recsys.artifact.manifest import Manifest
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME
from recsys.artifact.ranking import picked
from recsys.artifact.samples import Batch
from recsys.embedding import FloatCollection
from recsys.errors import ExportError, ManifestError
from recsys.files import naming_full_disk
from recsys.find_collections import find_collections
from recsys.kernels.operators import instructions, multiplies_in
from recsys.quant import float_weights
from recsys.rows.quantize import QuantizationError
from recsys.sharding.plan.device_rows import table_path
from recsys.signature import IdPolicy, Signature, SparseInput


def export_model(
    model: nn.Module, path: str | Path, config: ExportConfig | None = None, progress: Progress | None = None
) -> ExportReport:
    """Export a float model, which is not changed.

    Args:
        model: Holds EmbeddingBagCollections or EmbeddingCollections; its ``forward`` takes float32 tensors
            ``[B, width]`` and KeyedJaggedTensors, and returns tensors with one row per row of the batch.
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
    model = with_our_modules(model)
    with (
        naming_full_disk(f"out: {Path(path).name!r}"),
        made as destination,
        our_names(model),
        naming_places(),
    ):
        work = destination.work
        prepared = prepare(model, config, progress)
        trained = float_model(prepared)
        prepared, floats = _with_float_outputs(prepared, trained)
        prepared = with_bag_sizes(with_outputs(prepared, floats), trained)
        check_independence(prepared, trained)
        check_warm_up(prepared, trained)
        digests, errors = write_rows(work / ROWS_NAME, prepared.stored, prepared.weights, progress)
        programs = write_programs(prepared, work)
        targets = [write_graphs(prepared, target, work, programs) for target in prepared.stored.envs]
        manifest = make_manifest(prepared, targets, programs, digests, errors)
        trials: tuple[LinearTrial, ...] = ()
        if config.linear_dtype == AUTO:
            trials = choose_linear_dtype(prepared, work, manifest) if programs.parts else ()
            chosen = next((trial.dtype for trial in trials if trial.is_chosen), "float32")
            prepared = replace(prepared, config=_with_linear_dtype(prepared.config, chosen))
            manifest = with_linear_dtype(manifest, chosen)
        # Verified as loaders read it, before it is written with what that gives.
        manifest = Manifest.loads(manifest.dumps())
        verified = verify(prepared, work, manifest, floats)
        verification = _verification(prepared, verified, trials)
        manifest = replace(manifest, verification=verification, answers=verified.answers)
        if config.single_file:
            write_single_file(prepared, work, manifest, destination.file)
        else:
            (work / MANIFEST_NAME).write_text(manifest.dumps())
            drop_cached(work / ROWS_NAME)
        artifact_bytes = destination.commit()
    return ExportReport(
        path=str(path),
        name=config.name,
        tables=_table_reports(prepared, errors),
        differences=verified.differences,
        checked=verified.checked,
        ranking_differences=verified.ranking,
        verified_on=verified.ran_on,
        steps=verified.steps,
        without_program=programs.missing,
        linear_dtypes=trials,
        num_samples=prepared.samples.num_rows,
        samples=prepared.samples_source,
        hardly_varying=verified.hardly_varying,
        artifact_bytes=artifact_bytes,
        peak_rss_bytes=_peak_rss_bytes(),
        seconds=time.monotonic() - started,
        notes=(
            *prepared.notes,
            *_products_note(prepared.config.linear_dtype),
            *_unserved_note(config, has_programs=bool(programs.parts)),
        ),
    )


def _unserved_note(config: ExportConfig, *, has_programs: bool) -> tuple[str, ...]:
    """Return a note where an artifact holds nothing that servers run."""
    if config.is_scripted or has_programs:
        return ()
    return (
        "servers refuse this artifact, an ExportedProgram alone, which load_exported_artifact runs in Python; "
        "--format both adds TorchScript",
    )


def _with_float_outputs(prepared: PreparedModel, model: nn.Module) -> tuple[PreparedModel, FloatOutputs]:
    """Run the float model on the samples: on the rows of the training alone if it fails on the others.

    Raises:
        ExportError: The model fails on the samples, or its outputs cannot be served.
    """
    try:
        return prepared, float_outputs(prepared, model)
    except ExportError:
        if not prepared.num_held:
            raise
    held = torch.arange(prepared.num_held)
    prepared = replace(
        prepared,
        samples=picked(prepared.signature, prepared.samples, held),
        clean=picked(prepared.signature, prepared.clean, held),
        samples_source=f"{prepared.num_held} held-out rows of the training (the model fails on random ones)",
        num_held=0,
    )
    return prepared, float_outputs(prepared, model)


def prepare(model: nn.Module, config: ExportConfig, progress: Progress) -> PreparedModel:
    """Decide everything about an export, and check that the model can be exported.

    Raises:
        ExportError: The model cannot be exported as asked.
        PlanError: The plan or the memory does not fit.
    """
    progress("plan", 0, 1)
    check_options(model, config)
    config = with_inputs_of(model, config)
    kinds = {**dict.fromkeys(config.dense_widths, DENSE), **dict.fromkeys(config.features, SPARSE)}
    flat = [name for name, width in config.dense_widths.items() if width == 0]
    wanted = Wanted(kinds=kinds, defaults=config.defaults, outputs=config.outputs, flat=flat)
    declared = Declared(
        dense_widths={name: width or 1 for name, width in config.dense_widths.items()},
        features=config.features,
        floats=config.float_features,
        optional=batch_fields(model),
        are_chosen=bool(config.outputs),
    )
    if config.outputs:
        model = _with_needed_tables(model, wanted, declared)
    original, model = model, adapted(model, wanted)
    collections = find_collections(model, error=ExportError)
    managed = find_managed(model, collections)
    stored = plan_tables(collections, config, managed.known_ids)
    skeletons = skeletons_of(collections, stored, next(iter(stored.envs)), torch.float32)
    try:
        binding = bind(model, collections, skeletons, declared)
    except UnreadTablesError as error:
        if len(error.paths) == len(collections):
            raise
        read = {path: features_of(one) for path, one in collections.items() if path not in error.paths}
        prepared = prepare(pruned(original, collections, read), config, progress)
        note = f"tables of {', '.join(error.paths)} are left out: forward looks nothing up in them"
        return replace(prepared, notes=(*prepared.notes, note))
    without = binding.unread & {*declared.optional}
    if without or binding.absent:
        model = adapted(original, replace(wanted, without=without, absent=binding.absent))
    signature = Signature(
        dense=with_columns(dense_inputs(binding), model),
        sparse=_with_texts(_sparse(binding, collections, stored.policies, config), config),
        outputs=(),
        context=_context(binding, config.context),
        by_request=config.batch == "request",
    )
    samples = verification_samples(original, config, signature, managed.known_ids)
    return PreparedModel(
        model=model,
        config=config,
        collections=collections,
        managed=managed,
        stored=stored,
        binding=binding,
        signature=signature,
        samples=samples.batch,
        clean=in_range(signature, samples.batch),
        samples_source=samples.source,
        num_held=samples.num_held,
        examples=samples.examples,
        dense_dtype=DENSE_DTYPES[config.dense_dtype],
        weights={
            table_path(path, name): weight
            for path, collection in collections.items()
            for name, weight in float_weights(collection).items()
        },
        progress=progress,
    )


def _with_needed_tables(model: nn.Module, wanted: Wanted, declared: Declared) -> nn.Module:
    """Return the model with only the tables whose rows the chosen outputs descend from."""
    whole = adapted(model, wanted)
    collections = find_collections(whole, error=ExportError)
    # For one device: the plans of the whole model do not fit the tables that are left.
    stored = plan_tables(collections, ExportConfig())
    skeletons = skeletons_of(collections, stored, next(iter(stored.envs)), torch.float32)
    found = discover(whole, arguments(whole), collections, skeletons, declared)
    return pruned(model, collections, needed_rows(found))


def in_range(signature: Signature, samples: Batch) -> Batch:
    """Return the samples for the float model: IDs that a policy accepts are taken modulo.

    Raw IDs, of managed tables and of those that mix all IDs, are not changed.
    """
    ids_per_feature = samples.lengths.view(len(signature.sparse), samples.num_rows).sum(dim=1)
    by_feature = torch.split(samples.values, ids_per_feature.tolist())
    limits = [feature.row_limit for feature in signature.sparse]
    values = [ids if limit is None else ids % limit for ids, limit in zip(by_feature, limits, strict=True)]
    return replace(samples, values=torch.cat(values)) if values else samples


def with_outputs(prepared: PreparedModel, floats: FloatOutputs) -> PreparedModel:
    """Return the model with the float model's outputs in its signature.

    Raises:
        ExportError: An output has an invalid name.
    """
    signature = replace(prepared.signature, outputs=floats.signature)
    _check_names(signature)
    return replace(
        prepared,
        signature=signature,
        binding=replace(prepared.binding, casts_outputs=floats.are_cast, integers=floats.integers),
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


def _with_linear_dtype(config: ExportConfig, dtype: str) -> ExportConfig:
    return replace(config, linear_dtype=dtype, auto_bound=None, auto_data=None)


def _verification(
    prepared: PreparedModel, verified: Verified, trials: Sequence[LinearTrial]
) -> dict[str, Any]:
    """Return the manifest's data on the verification."""
    return {
        "num_samples": prepared.samples.num_rows,
        "samples": prepared.samples_source,
        **({"hardly_varying": list(verified.hardly_varying)} if verified.hardly_varying else {}),
        "differences": _plain(verified.differences),
        "verified_on": verified.ran_on,
        **({"ranking_differences": _plain(verified.ranking)} if verified.ranking else {}),
        **({"linear_dtypes": {trial.dtype: vars(trial) for trial in trials}} if trials else {}),
    }


def _context(binding: Binding, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs of the context in the signature's order.

    Raises:
        ExportError: A name is not an input.
    """
    inputs = [*binding.dense, *binding.wire_names]
    unknown = sorted(set(wanted) - set(inputs))
    if unknown:
        raise ExportError(f"context: got unknown inputs {unknown}, expected some of {inputs[:20]}")
    return tuple(name for name in inputs if name in wanted)


def _sparse(
    binding: Binding,
    collections: Mapping[str, FloatCollection],
    policies: Mapping[str, IdPolicy],
    config: ExportConfig,
) -> tuple[SparseInput, ...]:
    """Return the sparse inputs, with the equal lengths that the user tells.

    Raises:
        ExportError: A name is not an input.
    """
    unknown = sorted({name for group in config.same_lengths for name in group} - {*binding.wire_names})
    if unknown:
        raise ExportError(
            f"features: got equal lengths of {unknown}, expected some of {binding.wire_names[:20]}"
        )
    return with_same_lengths(sparse_inputs(binding, collections, policies), config.same_lengths)


def _with_texts(inputs: Sequence[SparseInput], config: ExportConfig) -> tuple[SparseInput, ...]:
    """Return the inputs with the hashes of their texts and the separators of their lists.

    Raises:
        ExportError: A name is not an input, or a table of a hashed input takes no IDs beyond its rows.
    """
    names, strings = [feature.name for feature in inputs], config.strings
    unknown = sorted(set(strings) - {*names, ALL_FEATURES})
    if unknown:
        raise ExportError(
            f"strings: got unknown features {unknown}, expected {ALL_FEATURES} or some of {names[:20]}"
        )
    hashed = [
        replace(
            feature,
            strings=strings.get(feature.name, strings.get(ALL_FEATURES, "")),
            separator=config.separators.get(feature.name, ""),
        )
        for feature in inputs
    ]
    for feature in hashed:
        for table in feature.tables if feature.strings else ():
            if table.id_policy in (IdPolicy.REJECT, IdPolicy.ZERO):
                raise ExportError(
                    f"strings[{feature.name!r}]: got {feature.strings!r}, but table {table.name!r} has the ID policy "
                    f"{table.id_policy.value}, expected hash, fmix64 or a managed table: hardly any hash is a row"
                )
    return tuple(hashed)


def _check_names(signature: Signature) -> None:
    """Check names as readers of the manifest do, while the user can still change them."""
    try:
        Signature.from_json(signature.to_json())
    except ManifestError as error:
        raise ExportError(f"model: {error}; rename the argument, the feature or the output") from None


def _plain(differences: Mapping[str, Mapping[str, Difference]]) -> dict[str, Any]:
    return {target: {name: vars(d) for name, d in found.items()} for target, found in differences.items()}


def _peak_rss_bytes() -> int:
    """Return this process's peak memory; getrusage would include its parent's before exec."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _table_reports(
    prepared: PreparedModel, errors: Mapping[str, QuantizationError]
) -> tuple[TableReport, ...]:
    weights = prepared.weights
    placements: dict[str, dict[str, str]] = {name: {} for name in prepared.stored.stored}
    for target, plan in prepared.stored.plans.items():
        for path, group in plan.plan.items():
            for name, sharding in group.items():
                ranks = ",".join(str(rank) for rank in dict.fromkeys(sharding.ranks))
                kind = sharding.sharding_type.replace("_", "-")
                placements[table_path(path, name)][target] = f"{kind} {ranks}"
    sizes = dict.fromkeys(placements, 0)
    for block in prepared.stored.layout.blocks:
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
        for name, table in prepared.stored.stored.items()
    )
