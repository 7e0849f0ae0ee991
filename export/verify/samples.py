"""The rows that an export is verified with: the user's, those that the checkpoint holds, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.graph.inputs.binding import schema_of
from export.verify.retrieval import num_samples
from recsys.artifact.samples import Batch, batch_of_request, joined, random_batch, read_samples
from recsys.errors import ExportError
from recsys.example_rows import ExampleRows, example_rows_of
from recsys.schema import Schema
from recsys.signature import Signature

#: Rows of the random batch, and its seed.
NUM_SAMPLES = 256
SAMPLES_SEED = 20260101
#: Random rows beside those of a checkpoint: their IDs are of whole tables.
_NUM_RANDOM = 64
_MOST_TABLE_ROWS = 4096
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".txt")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The batch, and in words where it comes from."""

    batch: Batch
    source: str


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
        batch = _of_file(config.samples, signature, schema)
        return Samples(batch=batch, source=f"{batch.num_rows} rows of {config.samples.name}")
    held = example_rows_of(model)
    found = None if held is None else _batch_of(held, signature)
    wanted = NUM_SAMPLES if found is None else _NUM_RANDOM
    generator = torch.Generator().manual_seed(SAMPLES_SEED)
    num_rows = num_samples(model, wanted)
    drawn = random_batch(signature, num_rows, generator, known_ids=known_ids, schema=schema)
    if found is None:
        why = "the checkpoint holds none" if held is None else "those of the checkpoint have other inputs"
        return Samples(batch=drawn, source=f"{num_rows} random rows ({why})")
    return Samples(
        batch=joined([found, drawn]),
        source=f"{found.num_rows} held-out rows of the training, {num_rows} random rows",
    )


def example_request(model: nn.Module, signature: Signature) -> dict[str, Any]:
    """Return the example rows that a model holds as a request in JSON; empty without any that fit."""
    held = example_rows_of(model)
    if held is None or _batch_of(held, signature) is None:
        return {}
    return held.request(signature) or {}


def _batch_of(rows: ExampleRows, signature: Signature) -> Batch | None:
    request = rows.request(signature)
    if request is None:
        return None
    try:
        return batch_of_request(request, signature, "examples")
    except ValueError:  # such as IDs that an option of the export refuses
        return None


def _of_file(path: Path, signature: Signature, schema: Schema | None) -> Batch:
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
    if not batch.num_rows:
        raise ExportError(f"samples: got {path.name!r} without rows, expected at least one")
    return batch
