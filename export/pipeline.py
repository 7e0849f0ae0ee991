"""The road from a float model to a verified artifact.

quantize → shard → trace → script → verify → write. Nothing is left at the destination unless all of it succeeds.

Shape letters: B batch, D embedding dim, R rows.
"""

from __future__ import annotations

import copy
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.binding import Binding, bind, dense_inputs, sparse_inputs
from export.config import DENSE_DTYPES, ExportConfig
from export.destination import Destination
from export.graph import ExportedModel, make_graph, signature_shapes, split_features
from export.oracle import OracleCollection, StoredRows
from export.report import ExportReport, TableReport
from export.rows_file import write_rows
from export.tables import StoredModel, on_host, plan_tables
from export.tree import exchanged, find_collections
from export.verify import END_TO_END_TOLERANCES, Difference, capture, check_tables, compare, model_outputs
from recsys import torchscript
from recsys.artifact import MANIFEST_NAME, ROWS_NAME, LoadedArtifact, load_artifact
from recsys.configs import EmbeddingBagConfig
from recsys.embedding import EmbeddingBagCollection
from recsys.errors import ExportError, VerificationError
from recsys.manifest import Manifest, Part, TableInfo, Target
from recsys.quant import FloatCollection, float_weights
from recsys.samples import Batch, random_batch, read_samples
from recsys.sharding.device_rows import DeviceRows, device_layouts, empty, table_path
from recsys.sharding.env import ShardingEnv
from recsys.sharding.sharded import (
    ShardedCollection,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
    ShardedOptions,
)
from recsys.signature import Output, Signature
from recsys.store import QuantizationError

#: Rows of a random batch that an export is verified with, and its seed.
NUM_SAMPLES = 256
_SEED = 20260101

Progress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class _Export:
    """One export on its way."""

    model: nn.Module
    config: ExportConfig
    collections: Mapping[str, FloatCollection]
    stored: StoredModel
    binding: Binding
    signature: Signature
    samples: Batch
    progress: Progress

    @property
    def dense_dtype(self) -> torch.dtype:
        return DENSE_DTYPES[self.config.dense_dtype]


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
        export = _prepare(model, config, progress or (lambda *_: None))
        expected, from_floats = _float_outputs(export)
        export.signature = replace(
            export.signature,
            outputs=tuple(
                Output(name=name, shape=shape)
                for name, shape in signature_shapes(expected, export.samples.num_rows).items()
            ),
        )
        work = destination.work
        digests, errors = _write_rows(export, work)
        manifest = _write_graphs(export, work, digests, errors)
        differences, verified_on = _verify(export, work, expected, from_floats)
        manifest = replace(
            manifest,
            verification={
                "num_samples": export.samples.num_rows,
                "differences": {t: {n: vars(d) for n, d in ds.items()} for t, ds in differences.items()},
                "verified_on": verified_on,
            },
        )
        if config.single_file:
            _write_single_file(export, work, manifest, destination.file)
        else:
            (work / MANIFEST_NAME).write_text(manifest.dumps())
        artifact_bytes = destination.commit()
    return ExportReport(
        path=str(path),
        tables=_table_reports(export, errors),
        differences=differences,
        verified_on=verified_on,
        num_samples=export.samples.num_rows,
        artifact_bytes=artifact_bytes,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        seconds=time.monotonic() - started,
    )


def _prepare(model: nn.Module, config: ExportConfig, progress: Progress) -> _Export:
    progress("plan", 0, 1)
    collections = find_collections(model)
    stored = plan_tables(collections, config)
    first = next(iter(stored.envs))
    skeletons = _skeletons(collections, stored, first, torch.float32)
    binding = bind(model, collections, skeletons, config.dense_widths)
    signature = Signature(
        dense=dense_inputs(binding), sparse=sparse_inputs(binding, collections, stored.policies), outputs=()
    )
    if config.samples is not None:
        samples = read_samples(config.samples, signature)
    else:
        samples = random_batch(signature, NUM_SAMPLES, torch.Generator().manual_seed(_SEED))
    return _Export(
        model=model,
        config=config,
        collections=collections,
        stored=stored,
        binding=binding,
        signature=signature,
        samples=samples,
        progress=progress,
    )


def _options(
    path: str, collection: FloatCollection, stored: StoredModel, dtype: torch.dtype
) -> ShardedOptions:
    return ShardedOptions(
        path=path,
        is_weighted=isinstance(collection, EmbeddingBagCollection) and collection.is_weighted(),
        output_dtype=dtype,
        id_policies={t.name: stored.policies[table_path(path, t.name)] for t in stored.tables[path]},
    )


def _sharded(
    collections: Mapping[str, FloatCollection],
    stored: StoredModel,
    target: str,
    ranks: list[DeviceRows],
    dtype: torch.dtype,
) -> dict[str, ShardedCollection]:
    made: dict[str, ShardedCollection] = {}
    for path, collection in collections.items():
        pooled = isinstance(collection, EmbeddingBagCollection)
        kind = ShardedEmbeddingBagCollection if pooled else ShardedEmbeddingCollection
        options = _options(path, collection, stored, dtype)
        made[path] = kind(stored.tables[path], stored.plans[target].of(path), ranks, options)
    return made


def _skeletons(
    collections: Mapping[str, FloatCollection], stored: StoredModel, target: str, dtype: torch.dtype
) -> dict[str, ShardedCollection]:
    """Sharded collections of a target whose rows are set when the artifact is loaded.

    All their tensors lie in host memory, whatever the target's devices: they are moved then, too.
    """
    devices = stored.envs[target].devices
    layouts = device_layouts(stored.layout, stored.plans[target].plan, devices)
    return _sharded(collections, stored, target, empty(layouts, devices), dtype)


def _call(export: _Export, samples: Batch, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The keyword arguments of the float model's ``forward`` for a batch."""
    dense: dict[str, Any] = {
        name: tensor.to(dtype) for name, tensor in zip(export.binding.dense, samples.dense, strict=True)
    }
    return {**dense, **split_features(export.binding, samples.lengths, samples.values, samples.weights)}


def _float_outputs(export: _Export) -> tuple[dict[str, Tensor], dict[str, list[Any]]]:
    export.progress("float model", 0, 1)
    samples = export.samples
    clean = replace(samples, values=_in_range(export))
    model = exchanged(export.model, {})
    collections = {path: model.get_submodule(path) if path else model for path in export.collections}
    try:
        outputs, kept = capture(model, collections, _call(export, clean))
    except Exception as error:  # the user's code can raise anything
        raise ExportError(f"model: forward failed on the samples: {type(error).__name__}: {error}") from error
    return model_outputs(outputs), kept


def _in_range(export: _Export) -> Tensor:
    """The samples' IDs as the float model can take them: IDs that a policy lets through are taken modulo."""
    counts = [len(features) for features in [export.signature.sparse]]
    num_bags = export.samples.lengths.numel() // max(counts[0], 1)
    parts = []
    per_feature = export.samples.lengths.view(counts[0], num_bags).sum(dim=1).tolist()
    for feature, ids in zip(
        export.signature.sparse, torch.split(export.samples.values, per_feature), strict=True
    ):
        parts.append(ids % min(table.num_embeddings for table in feature.tables))
    return torch.cat(parts) if parts else export.samples.values


def _write_rows(export: _Export, work: Path) -> tuple[tuple[str, ...], dict[str, QuantizationError]]:
    weights = {
        table_path(path, name): weight
        for path, collection in export.collections.items()
        for name, weight in float_weights(collection).items()
    }
    total = sum(table.num_embeddings for table in export.stored.stored.values())
    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        export.progress("quantize", done, total)

    tables = {name: (table, weights[name]) for name, table in export.stored.stored.items()}
    return write_rows(work / ROWS_NAME, export.stored.layout, tables, on_rows)


def _write_graphs(
    export: _Export, work: Path, digests: tuple[str, ...], errors: Mapping[str, QuantizationError]
) -> Manifest:
    targets, parts = [], []
    for i, (name, env) in enumerate(export.stored.envs.items()):
        export.progress("trace and script", i, len(export.stored.envs))
        skeletons = _skeletons(export.collections, export.stored, name, export.dense_dtype)
        model = exchanged(export.model, skeletons)
        graph = make_graph(model, export.binding, env.devices, export.dense_dtype)
        file = work / f"target-{i}.pt"
        torchscript.save(graph.script, file)
        parts.append(Part(path=file.name, size_bytes=file.stat().st_size, sha256=_sha256(file)))
        targets.append(
            Target(
                name=name,
                devices=tuple(str(device) for device in env.devices),
                plan=export.stored.plans[name],
                skeleton=file.name,
                rows=graph.rows,
                ranks=graph.ranks if any(d.type != "cpu" for d in env.devices) else {},
                dense_dtype=export.config.dense_dtype,
            )
        )
    manifest = Manifest(
        name=export.config.name,
        versions=package_versions(),
        signature=export.signature,
        tables=_table_infos(export, errors),
        layout=export.stored.layout,
        block_sha256=digests,
        targets=tuple(targets),
        skeletons=tuple(parts),
        rows_path=ROWS_NAME,
    )
    (work / MANIFEST_NAME).write_text(manifest.dumps())
    return manifest


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
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _poolings(export: _Export) -> dict[str, str]:
    return {
        table_path(path, table.name): table.pooling.value.lower()
        if isinstance(table, EmbeddingBagConfig)
        else "none"
        for path, group in export.stored.tables.items()
        for table in group
    }


def _sqnr(error: QuantizationError) -> float | None:
    return None if error.noise == 0 else round(error.sqnr_db, 2)


def _table_infos(export: _Export, errors: Mapping[str, QuantizationError]) -> tuple[TableInfo, ...]:
    poolings = _poolings(export)
    return tuple(
        TableInfo(table=replace(table, column_cuts=()), pooling=poolings[name], sqnr_db=_sqnr(errors[name]))
        for name, table in export.stored.stored.items()
    )


def _oracles(export: _Export, work: Path, dtype: torch.dtype) -> dict[str, OracleCollection]:
    layout = export.stored.layout
    blob = torch.from_file(str(work / ROWS_NAME), shared=False, size=layout.num_bytes, dtype=torch.uint8)
    rows = StoredRows(layout=layout, blob=blob)
    return {
        path: OracleCollection(
            path,
            export.stored.tables[path],
            rows,
            export.stored.policies,
            isinstance(collection, EmbeddingBagCollection) and collection.is_weighted(),
            dtype,
        )
        for path, collection in export.collections.items()
    }


def _verify(
    export: _Export, work: Path, expected: dict[str, Tensor], from_floats: dict[str, list[Any]]
) -> tuple[dict[str, dict[str, Difference]], dict[str, str]]:
    oracles = _oracles(export, work, torch.float32)
    samples = replace(export.samples, values=_in_range(export))
    _, from_rows = capture(exchanged(export.model, oracles), oracles, _call(export, samples))
    check_tables(oracles, from_rows, from_floats)
    implied = _implied_outputs(export, work)
    differences, verified_on = {}, {}
    tolerance = END_TO_END_TOLERANCES[export.dense_dtype]
    for i, name in enumerate(export.stored.envs):
        export.progress("verify", i, len(export.stored.envs))
        outputs, verified_on[name] = _target_outputs(export, work, name)
        compare(outputs, implied, tolerance, "what the model makes of the stored rows")
        differences[name] = compare(outputs, expected, None, "the float model")
    return differences, verified_on


def _implied_outputs(export: _Export, work: Path) -> dict[str, Tensor]:
    """What the model's own layers, in the artifact's dtype, make of the stored rows."""
    model = exchanged(export.model, {path: nn.Identity() for path in export.collections})
    if export.dense_dtype is not torch.float32:
        model = copy.deepcopy(model).to(export.dense_dtype)
    oracles = _oracles(export, work, export.dense_dtype)
    model = oracles[""] if "" in oracles else exchanged(model, oracles)
    with torch.no_grad():
        return model_outputs(model(**_call(export, export.samples, export.dense_dtype)))


def _target_outputs(export: _Export, work: Path, name: str) -> tuple[dict[str, Tensor], str]:
    """What a target predicts for the samples, and for no rows and one row, and where it ran."""
    env = export.stored.envs[name]
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if any(d.type == "cuda" and d.index >= available for d in env.devices):
        # No such device here: the same plan in host memory, not scripted.
        return _host_outputs(export, work, name, on_host(env)), "cpu, the same plan (no such device here)"
    artifact = load_artifact(work, target=name, verify_checksums=False)
    for num_rows in (0, 1):
        _check_rows(artifact, export.signature, num_rows)
    return artifact.forward(*export.samples.inputs()), name


def _check_rows(artifact: LoadedArtifact, signature: Signature, num_rows: int) -> None:
    batch = random_batch(signature, num_rows, torch.Generator().manual_seed(_SEED))
    outputs = artifact.forward(*batch.inputs())
    for output in signature.outputs:
        found = list(outputs[output.name].shape)
        if found != [num_rows, *output.shape]:
            raise VerificationError(
                f"output {output.name!r}: got shape {found} for {num_rows} rows, expected {[num_rows, *output.shape]}"
            )


def _host_outputs(export: _Export, work: Path, name: str, env: ShardingEnv) -> dict[str, Tensor]:
    layout = export.stored.layout
    blob = torch.from_file(str(work / ROWS_NAME), shared=False, size=layout.num_bytes, dtype=torch.uint8)
    ranks = [DeviceRows(device=device, layout=layout, rows=blob) for device in env.devices]
    sharded = _sharded(export.collections, export.stored, name, ranks, export.dense_dtype)
    model = exchanged(export.model, {path: nn.Identity() for path in sharded})
    if export.dense_dtype is not torch.float32:
        model = copy.deepcopy(model).to(export.dense_dtype)
    whole = sharded[""] if "" in sharded else exchanged(model, sharded)
    exported = ExportedModel(whole, export.binding, env.devices, export.dense_dtype)
    samples = export.samples
    with torch.no_grad():
        return exported.run(samples.dense, samples.lengths, samples.values, samples.weights)


def _write_single_file(export: _Export, work: Path, manifest: Manifest, file: Path) -> None:
    """The graph with its rows inside; checked against the directory that it is made of."""
    target = manifest.targets[0]
    whole = load_artifact(work, target=target.name, verify_checksums=False)
    single = replace(
        manifest,
        rows_path=None,
        skeletons=(),
        targets=(replace(target, skeleton="self"),),
    )
    torchscript.save(whole.module, file, {MANIFEST_NAME: single.dumps()})
    again = load_artifact(file, verify_checksums=False)
    inputs = export.samples.inputs()
    before, after = whole.forward(*inputs), again.forward(*inputs)
    for name, output in before.items():
        if not torch.equal(output, after[name]):
            raise VerificationError(f"output {name!r}: the single file predicts otherwise than the directory")


def _table_reports(export: _Export, errors: Mapping[str, QuantizationError]) -> tuple[TableReport, ...]:
    weights = {
        table_path(path, name): weight
        for path, collection in export.collections.items()
        for name, weight in float_weights(collection).items()
    }
    placements: dict[str, dict[str, str]] = {name: {} for name in export.stored.stored}
    for target, plan in export.stored.plans.items():
        for path, group in plan.plan.items():
            for name, sharding in group.items():
                ranks = ",".join(str(rank) for rank in dict.fromkeys(sharding.ranks))
                kind = sharding.sharding_type.replace("_", "-")
                placements[table_path(path, name)][target] = f"{kind} {ranks}"
    sizes = dict.fromkeys(placements, 0)
    for block in export.stored.layout.blocks:
        sizes[block.table] += block.num_bytes
    return tuple(
        TableReport(
            name=name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            data_type=table.data_type.value,
            bytes_before=weights[name].numel() * weights[name].element_size(),
            bytes_after=sizes[name],
            sqnr_db=_sqnr(errors[name]),
            max_abs_error=errors[name].max_abs,
            placement=placements[name],
        )
        for name, table in export.stored.stored.items()
    )
