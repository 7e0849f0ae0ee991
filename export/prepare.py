"""What is decided before anything is written: the inputs, the tables that are stored, and the samples.

Shape letters: B batch, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from export.config import ALL_FEATURES, DENSE_DTYPES, ExportConfig
from export.graph.inputs.features import Declared, discover
from export.graph.inputs.forward import DENSE, SPARSE, Wanted, adapted, arguments, batch_fields
from export.graph.inputs.mapping import (
    InputMapping,
    UnreadTablesError,
    dense_inputs,
    map_inputs,
    sparse_inputs,
    with_columns,
    with_inputs_of,
    with_same_lengths,
)
from export.graph.inputs.pruning import features_of, needed_rows, pruned
from export.graph.managed import find_managed
from export.graph.prepared import PreparedModel, Progress, shard_without_rows
from export.plain.model import PlainModel
from export.tables.tables import plan_tables
from export.verify.retrieval import check_options
from export.verify.samples import verification_samples
from recsys.artifact.batches.samples import Batch
from recsys.embedding import FloatCollection
from recsys.errors import ExportError
from recsys.find_collections import find_collections
from recsys.inputs.signature import IdPolicy, Signature, SparseInput
from recsys.inputs.sketch import data_sketch_of
from recsys.quant import float_weights
from recsys.sharding.plan.device_rows import table_path


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
    sharded = shard_without_rows(collections, stored, next(iter(stored.envs)), torch.float32)
    try:
        input_mapping = map_inputs(model, collections, sharded, declared)
    except UnreadTablesError as error:
        if len(error.paths) == len(collections):
            raise
        read = {path: features_of(one) for path, one in collections.items() if path not in error.paths}
        return _prepare_without(error.paths, pruned(original, collections, read), config, progress)
    without = input_mapping.unread & {*declared.optional}
    if without or input_mapping.absent:
        model = adapted(original, replace(wanted, without=without, absent=input_mapping.absent))
    signature = Signature(
        dense=with_columns(dense_inputs(input_mapping), model),
        sparse=_with_sizes(
            _with_texts(_sparse(input_mapping, collections, stored.policies, config), config), original
        ),
        outputs=(),
        context=_context(input_mapping, config.context),
        by_request=config.batch == "request",
    )
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
            table_path(path, name): weight
            for path, collection in collections.items()
            for name, weight in float_weights(collection).items()
        },
        progress=progress,
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
    found = discover(whole, arguments(whole), collections, sharded, declared)
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


def _context(input_mapping: InputMapping, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs of the context in the signature's order.

    Raises:
        ExportError: A name is not an input.
    """
    inputs = [*input_mapping.dense, *input_mapping.wire_names]
    unknown = sorted(set(wanted) - set(inputs))
    if unknown:
        raise ExportError(f"context: got unknown inputs {unknown}, expected some of {inputs[:20]}")
    return tuple(name for name in inputs if name in wanted)


def _sparse(
    input_mapping: InputMapping,
    collections: Mapping[str, FloatCollection],
    policies: Mapping[str, IdPolicy],
    config: ExportConfig,
) -> tuple[SparseInput, ...]:
    """Return the sparse inputs, with the equal lengths that the user tells.

    Raises:
        ExportError: A name is not an input.
    """
    unknown = sorted({name for group in config.same_lengths for name in group} - {*input_mapping.wire_names})
    if unknown:
        raise ExportError(
            f"features: got equal lengths of {unknown}, expected some of {input_mapping.wire_names[:20]}"
        )
    return with_same_lengths(sparse_inputs(input_mapping, collections, policies), config.same_lengths)


def _with_sizes(inputs: Sequence[SparseInput], model: nn.Module) -> tuple[SparseInput, ...]:
    """Return the inputs with the numbers of IDs that a plain model's take (``export.plain``)."""
    sizes: Mapping[str, int] = model.num_ids if isinstance(model, PlainModel) else {}
    return tuple(
        replace(feature, num_ids=sizes.get(feature.name), fixed=feature.name in sizes) for feature in inputs
    )


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
