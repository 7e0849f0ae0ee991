"""What is decided before anything is written: the inputs, the tables that are stored, and the samples.

Shape letters: B batch, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from export.config import DENSE_DTYPES, ExportConfig
from export.graph.inputs.features import Declared, discover
from export.graph.inputs.forward import DENSE, SPARSE, Wanted, adapted, arguments, batch_fields
from export.graph.inputs.mapping import UnreadTablesError, map_inputs, signature_of, with_inputs_of
from export.graph.inputs.pruning import features_of, needed_rows, pruned
from export.graph.managed import find_managed
from export.graph.prepared import PreparedModel, Progress, shard_without_rows
from export.tables import plan_tables
from export.verify.samples import verification_samples
from recsys.artifact.batches.samples import Batch
from recsys.errors import ExportError
from recsys.find_collections import find_collections
from recsys.inputs.signature import Signature
from recsys.inputs.sketch import data_sketch_of
from recsys.models.retrieval import RetrievalModel
from recsys.quant import float_weights


def prepare(model: nn.Module, config: ExportConfig, progress: Progress) -> PreparedModel:
    """Decide everything about an export, and check that the model can be exported.

    Raises:
        ExportError: The model cannot be exported as asked.
        PlanError: The plan or the memory does not fit.
    """
    progress("plan", 0, 1)
    _check_options(model, config)
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
    sharded = shard_without_rows(collections, stored, next(iter(stored.envs)), torch.float32)
    try:
        input_mapping = map_inputs(model, sharded, stored.weighted, declared)
    except UnreadTablesError as error:
        if len(error.paths) == len(collections):
            raise
        read = {path: features_of(one) for path, one in collections.items() if path not in error.paths}
        return _prepare_without(error.paths, pruned(original, collections, read), config, progress)
    without = input_mapping.unread & {*declared.optional}
    if without or input_mapping.absent:
        model = adapted(original, replace(wanted, without=without, absent=input_mapping.absent))
    signature = signature_of(model, original, input_mapping, stored, config)
    samples = verification_samples(original, config, signature, managed.known_ids)
    return PreparedModel(
        model=model,
        config=config,
        collections=collections,
        managed=managed,
        stored=stored,
        input_mapping=input_mapping,
        signature=signature,
        samples=samples.batch,
        clean=in_range(signature, samples.batch),
        samples_source=samples.source,
        num_held=samples.num_held,
        examples=samples.examples,
        data_sketch=data_sketch_of(original),
        dense_dtype=DENSE_DTYPES[config.dense_dtype],
        weights={
            stored.paths[path][name]: weight
            for path, collection in collections.items()
            for name, weight in float_weights(collection).items()
        },
        progress=progress,
    )


def _check_options(model: nn.Module, config: ExportConfig) -> None:
    """Check the options for a model that retrieves items.

    Raises:
        ExportError: An option does not go with it.
    """
    if not isinstance(model, RetrievalModel):
        return
    if config.context:
        raise ExportError(
            f"context: got {list(config.context)}, expected none with top_k: a request holds users alone"
        )
    for name in ("dense_dtype", "linear_dtype"):
        dtype = getattr(config, name)
        if dtype != "float32":
            raise ExportError(
                f"{name}: got {dtype!r}, expected 'float32' with top_k: rounded scores tie, and ties hide the best "
                "items"
            )


def _prepare_without(
    unread: Sequence[str], model: nn.Module, config: ExportConfig, progress: Progress
) -> PreparedModel:
    """Prepare a model from which the collections are gone that ``forward`` looks nothing up in.

    ``prepare`` calls this again if others are unread then. That ends: each time some go, and never all.
    """
    prepared = prepare(model, config, progress)
    note = f"tables of {', '.join(unread)} are left out: forward looks nothing up in them"
    return replace(prepared, notes=(*prepared.notes, note))


def _with_needed_tables(model: nn.Module, wanted: Wanted, declared: Declared) -> nn.Module:
    """Return the model with only the tables whose rows the chosen outputs descend from."""
    whole = adapted(model, wanted)
    collections = find_collections(whole, error=ExportError)
    # For one device: the plans of the whole model do not fit the tables that are left.
    stored = plan_tables(collections, ExportConfig())
    sharded = shard_without_rows(collections, stored, next(iter(stored.envs)), torch.float32)
    found = discover(whole, arguments(whole), sharded, stored.weighted, declared)
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
