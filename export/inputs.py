"""What a model says of its own inputs: ID policies, text hashes and dense widths, unless the user says otherwise."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from torch import nn

from export.config import ExportConfig
from recsys.schema import Schema
from recsys.signature import DenseInput, IdPolicy


def schema_of(model: nn.Module) -> Schema | None:
    """Return the schema that a model has as its attribute ``inputs``; None without one."""
    found = getattr(model, "inputs", None)
    return found if isinstance(found, Schema) else None


def with_inputs_of(model: nn.Module, config: ExportConfig) -> ExportConfig:
    """Return the options with what the model's schema says where the user gave none.

    What training did to IDs, serving does: a table that hashed its IDs takes any ID, and columns of texts are
    sent as texts. ``dense_widths`` of the model are its dense arguments' widths.
    """
    widths = {**getattr(model, "dense_widths", {}), **config.dense_widths}
    config = replace(config, dense_widths=widths)
    schema = schema_of(model)
    if schema is None:
        return config
    strings = {
        name: table.strings for table in schema.tables if table.strings for name in table.feature_names
    }
    policies: dict[str, IdPolicy] = {}
    if config.id_policy is None:
        policies = {table.name: IdPolicy.HASH for table in schema.tables if table.ids == "hash"}
    return replace(
        config,
        strings={**strings, **config.strings},
        table_id_policies={**policies, **config.table_id_policies},
    )


def with_columns(inputs: tuple[DenseInput, ...], model: nn.Module) -> tuple[DenseInput, ...]:
    """Return the dense inputs with the names of the schema's columns, and whether the model fills missing numbers."""
    schema = schema_of(model)
    if schema is None:
        return inputs
    fills = not all(column.is_plain for column in schema.dense)
    starts = accumulate((one.width for one in inputs), initial=0)
    return tuple(
        replace(one, missing=fills, columns=schema.dense_names[start : start + one.width])
        for one, start in zip(inputs, starts, strict=False)
    )
