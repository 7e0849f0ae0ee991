"""The rows that an export is verified with: the user's, those that the checkpoint holds, or random ones.

Tools and servers make rows too: the signature says how many IDs each bag must hold where a model does not take bags of
any size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.graph.inputs.mapping import InputMapping, schema_of
from export.graph.prepared import PreparedModel
from export.verify.compare import call_model
from recsys.artifact.batches.answers import MOST_IDS, few_rows, made_batch, warm_up_rows, warm_up_sizes
from recsys.artifact.batches.ranking import picked
from recsys.artifact.batches.samples import (
    Batch,
    batch_of_request,
    joined,
    random_batch,
    read_samples,
    request_of_batch,
)
from recsys.errors import ExportError
from recsys.inputs.example_rows import example_rows_of
from recsys.inputs.schema import Schema
from recsys.inputs.signature import Signature
from recsys.models.retrieval import RetrievalModel

#: Rows of the random batch, and its seed.
NUM_SAMPLES = 256
SAMPLES_SEED = 20260101
#: Random rows beside those of a checkpoint: their IDs are of whole tables.
_NUM_RANDOM = 64
_MOST_TABLE_ROWS = 4096
#: The most of the user's rows in an artifact, and of the bytes of their text.
_MOST_EXAMPLES, _MOST_BYTES = 256, 1 << 20
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".txt")
# Numbers of scores that random samples take together: 1 GiB.
_MAX_SCORES = 2**28
_NUM_ROWS = 16
_SEED = 20260101


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Rows to verify with.

    Attributes:
        batch: The rows.
        source: In words where they come from.
        num_held: How many of them, the first, are rows of the training with random ones behind them.
        examples: Some of them as a request in JSON, if they are the user's; else empty.
    """

    batch: Batch
    source: str
    examples: Mapping[str, Any]
    num_held: int = 0


def verification_samples(
    model: nn.Module, config: ExportConfig, signature: Signature, known_ids: Mapping[str, Tensor]
) -> Samples:
    """Return the rows to verify with.

    Args:
        model: May hold example rows, and a schema that random rows follow.
        config: May name a file of samples.
        signature: The inputs.
        known_ids: By table, the raw IDs that own rows.

    Raises:
        ValueError: The file of samples does not fit.
    """
    schema = schema_of(model)
    if config.samples is not None:
        batch, examples = _of_file(config.samples, signature, schema)
        source = f"{batch.num_rows} rows of {config.samples.name}"
        return Samples(batch=batch, source=source, examples=examples)
    held = example_rows_of(model)
    examples = {} if held is None else held.request(signature) or {}
    found = _batch_of(examples, signature) if examples else None
    origin = "" if held is None else held.origin
    wanted = NUM_SAMPLES if found is None else _NUM_RANDOM
    generator = torch.Generator().manual_seed(SAMPLES_SEED)
    num_rows = _num_samples(model, wanted)
    drawn = random_batch(signature, num_rows, generator, known_ids=known_ids, schema=schema)
    if found is None:
        why = "the checkpoint holds none" if held is None else "those of the checkpoint have other inputs"
        return Samples(batch=drawn, source=f"{num_rows} random rows ({why})", examples={})
    return Samples(
        batch=joined([found, with_numbers_of(found, drawn, signature)]),
        source=f"{found.num_rows} {origin}, {num_rows} with random IDs",
        examples=examples,
        num_held=found.num_rows,
    )


def _num_samples(model: nn.Module, wanted: int) -> int:
    """Return the number of random samples; fewer than wanted where their scores of all items take too much memory."""
    if not isinstance(model, RetrievalModel):
        return wanted
    return max(1, min(wanted, _MAX_SCORES // len(model.vectors)))


def with_numbers_of(samples: Batch, rows: Batch, signature: Signature) -> Batch:
    """Return rows with the dense numbers of samples, and with their IDs where no table bounds them.

    Models may take such numbers for positions, and fail on any others.
    """

    def in_turn(held: Tensor, count: int) -> Tensor:
        return held.index_select(0, torch.arange(count) % len(held))

    def by_feature(batch: Batch) -> tuple[Tensor, ...]:
        counts = batch.lengths.view(len(signature.sparse), batch.num_rows).sum(dim=1)
        return torch.split(batch.values, counts.tolist())

    values = [
        in_turn(sampled, len(ids)) if not use.tables and len(sampled) else ids
        for use, ids, sampled in zip(signature.sparse, by_feature(rows), by_feature(samples), strict=True)
    ]
    return replace(
        rows,
        dense=tuple(in_turn(dense, rows.num_rows) for dense in samples.dense),
        values=torch.cat(values) if values else rows.values,
    )


def _batch_of(request: Mapping[str, Any], signature: Signature) -> Batch | None:
    try:
        return batch_of_request(request, signature, "examples")
    except ValueError:  # such as IDs that an option of the export refuses
        return None


def _of_file(path: Path, signature: Signature, schema: Schema | None) -> tuple[Batch, Mapping[str, Any]]:
    """Return the rows of a file, and some of them as a request in JSON."""
    examples = None
    if path.is_file() and path.suffix in _JSON_SUFFIXES:
        batch = read_samples(path, signature)
    else:
        # Arrow is imported only when it is needed.
        from recsys.data.tables.sample_rows import is_table, rows_of_table

        if not is_table(path):
            batch = read_samples(path, signature)
        elif schema is None:
            raise ExportError(
                f"samples: got the table {path.name!r}, but the model has no schema that says which column is what, "
                "as those of recsys-train have; expected requests in JSON, one a line"
            )
        else:
            rows = rows_of_table(path, schema, _MOST_TABLE_ROWS)
            request = rows.request(signature)
            if request is None:
                raise ExportError(
                    f"samples: got the table {path.name!r}, but its schema's columns are not the model's inputs; "
                    "expected requests in JSON, one a line"
                )
            batch = batch_of_request(request, signature, path.name)
            examples = rows.first(_MOST_EXAMPLES).request(signature)
    if not batch.num_rows:
        raise ExportError(f"samples: got {path.name!r} without rows, expected at least one")
    if examples is None:
        first = picked(signature, batch, torch.arange(min(batch.num_rows, _MOST_EXAMPLES)))
        examples = request_of_batch(first, signature)
    is_small = examples is not None and len(json.dumps(examples)) <= _MOST_BYTES
    return batch, examples if examples is not None and is_small else {}


def with_bag_sizes(prepared: PreparedModel, model: nn.Module) -> PreparedModel:
    """Return the model with ``SparseInput.num_ids`` in its signature, for the inputs that need them.

    The sizes are those of the first sample for which it takes made rows, if there is one. An input does not need its
    own if the model takes both one ID and random numbers of IDs in its bags. Made rows have numbers of the samples.

    Args:
        prepared: The model, with its outputs.
        model: The float model.
    """
    plain = prepared.signature
    if _failure_of_sizes(prepared, model, plain) is None and _takes_drawn(prepared, model, plain):
        return prepared
    lengths = prepared.samples.lengths.view(len(plain.sparse), prepared.samples.num_rows)
    for sizes in dict.fromkeys(zip(*lengths.tolist(), strict=True)):
        sized = _sized(plain, sizes)
        if _failure_of_sizes(prepared, model, sized) is None:
            return replace(prepared, signature=_only_needed(prepared, model, sized))
    return prepared


def check_warm_up(prepared: PreparedModel, model: nn.Module) -> None:
    """Verify that the float model takes the rows that servers warm up with, in the numbers in which they do.

    Raises:
        ExportError: It fails on them.
    """
    signature = prepared.signature
    verified = few_rows(signature, prepared.clean)
    failure = _failure(prepared, model, lambda num_rows: warm_up_rows(signature, verified, num_rows))
    if failure is None:
        return
    num_rows, error = failure
    failed = f"{type(error).__name__}: {error}. Servers warm up with such rows: expected it to take"
    if verified is not None:
        raise ExportError(
            f"model: forward failed on {num_rows} rows, the samples over and over: {failed} any number of rows"
        ) from error
    raise ExportError(
        f"model: forward failed on {num_rows} made rows: {failed} zeros for dense inputs, and any IDs of the tables, "
        f"as many in each bag as a sample has; or give --samples with at most {MOST_IDS} IDs in a row"
    ) from error


def _sized(signature: Signature, sizes: Sequence[int | None]) -> Signature:
    """Return the signature with sizes of bags; inputs with the lengths of another one have its size."""
    of_name = {use.name: size for use, size in zip(signature.sparse, sizes, strict=True)}
    sizes = [
        use.num_ids if use.fixed else of_name[use.same_lengths_as or use.name] for use in signature.sparse
    ]
    sparse = tuple(replace(use, num_ids=size) for use, size in zip(signature.sparse, sizes, strict=True))
    return replace(signature, sparse=sparse)


def _only_needed(prepared: PreparedModel, model: nn.Module, sized: Signature) -> Signature:
    """Return the signature without the sizes that the model does not need."""
    for i in range(len(sized.sparse)):
        sizes = [None if i == at else use.num_ids for at, use in enumerate(sized.sparse)]
        without = _sized(sized, sizes)
        if _failure_of_sizes(prepared, model, without) is None and _takes_drawn(prepared, model, without):
            sized = without
    return sized


def _takes_drawn(prepared: PreparedModel, model: nn.Module, signature: Signature) -> bool:
    """Return whether the model takes rows with bags of random sizes, where the signature names none."""
    generator = torch.Generator().manual_seed(_SEED)
    rows = random_batch(signature, _NUM_ROWS, generator, known_ids=prepared.managed.known_ids)
    rows = with_numbers_of(prepared.clean, rows, signature)
    return _failure_on(model, prepared.input_mapping, rows) is None


def _failure_of_sizes(
    prepared: PreparedModel, model: nn.Module, signature: Signature
) -> tuple[int, Exception] | None:
    """Return on how many rows with bags of these sizes the model fails, and why."""
    return _failure(
        prepared, model, lambda n: with_numbers_of(prepared.clean, made_batch(signature, n), signature)
    )


def _failure(
    prepared: PreparedModel, model: nn.Module, rows_of: Callable[[int], Batch]
) -> tuple[int, Exception] | None:
    """Return on how many rows the model fails, of the batches that warm servers up, and why."""
    for num_requests, of_each in warm_up_sizes(prepared.signature):
        num_rows = num_requests * of_each
        if num_rows == 1:
            # A float model may lose the dimension of a single row (``squeeze()``). Its graph does not, and is verified
            # on one row.
            continue
        error = _failure_on(model, prepared.input_mapping, rows_of(num_rows))
        if error is not None:
            return num_rows, error
    return None


def _failure_on(model: nn.Module, input_mapping: InputMapping, rows: Batch) -> Exception | None:
    try:
        call_model(model, input_mapping, rows)
    except Exception as error:  # user code can raise anything
        return error
    return None
