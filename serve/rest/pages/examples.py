"""Example requests of a model, valid as they are: rows like those of the training, else random ones."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from recsys.inputs.columns import vectors_in
from recsys.inputs.signature import Signature
from serve.client.sampling import JsonRequest, example_request
from serve.engine.interface import Servable
from serve.protocols.open_inference import FLOAT, ID, LENGTH, TEXT
from serve.rpc.metadata import servable_metadata

ROWS, RANKING, INSTANCES = "rows", "ranking", "instances"
_NUM_ROWS = 2
_MOST_EXAMPLES = 1024


def plain_examples(servable: Servable, seed: int) -> dict[str, JsonRequest]:
    """Return requests in plain JSON: ``rows``, and ``ranking`` if the model has a context.

    Args:
        servable: the version to ask.
        seed: the same seed makes the same requests.
    """
    signature = servable.signature
    num_rows = min(_NUM_ROWS, servable.settings.limits.max_request_rows)
    metadata = servable_metadata(servable, 0, _MOST_EXAMPLES)
    rows = example_request(metadata, num_rows, np.random.default_rng(seed))
    return {ROWS: rows, RANKING: _ranking(rows, signature)} if signature.context else {ROWS: rows}


def row_examples(signature: Signature, plain: dict[str, JsonRequest]) -> dict[str, dict[str, Any]]:
    """Return the same rows as objects; none where an output has no entry for each row."""
    if any(output.batch_dims[:1] != (0,) for output in signature.outputs):
        return {}
    request = plain[ROWS]
    columns: dict[str, list[Any]] = {}
    for dense in signature.dense:
        rows = request["dense"][dense.name]
        names = dense.columns or ((dense.name,) if dense.width == 1 else ())
        by_name = {name: [row[i] for row in rows] for i, name in enumerate(names)} or {dense.name: rows}
        for name, size in vectors_in(names).items():
            elements = [by_name.pop(f"{name}[{i}]") for i in range(size)]
            by_name[name] = [list(row) for row in zip(*elements, strict=True)]
        columns |= by_name
    for sparse in signature.sparse:
        columns[sparse.name] = request["sparse"][sparse.name]
        if sparse.weighted:
            columns[f"{sparse.name}.weights"] = request["weights"][sparse.name]
    return {
        INSTANCES: {
            "instances": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        }
    }


def tensor_examples(signature: Signature, plain: dict[str, JsonRequest]) -> dict[str, dict[str, Any]]:
    """Return the same requests as tensors, except those whose context holds every input: B is in no tensor."""
    made = {}
    for name, request in plain.items():
        context: JsonRequest = request.get("context", {})
        if "num_rows" not in context:
            body: dict[str, Any] = {"inputs": [*_tensors(request), *_tensors(context)]}
            if context:
                body["parameters"] = {"context": ",".join(signature.context)}
            made[name] = body
    return made


def _ranking(rows: JsonRequest, signature: Signature) -> JsonRequest:
    """Return a request whose context has the first row of each of its inputs."""
    request: JsonRequest = {}
    context: dict[str, Any] = {}
    num_rows = 0
    for part, inputs in rows.items():
        for name, values in inputs.items():
            if name in signature.context:
                context.setdefault(part, {})[name] = values[:1]
            else:
                request.setdefault(part, {})[name] = values
            num_rows = len(values)
    if not request:
        context["num_rows"] = num_rows
    return {**request, "context": context}


def _tensors(request: JsonRequest) -> list[dict[str, Any]]:
    tensors = []
    for name, rows in request.get("dense", {}).items():
        tensors.append(_tensor(name, FLOAT, [len(rows), len(rows[0])], rows))
    for name, rows in request.get("sparse", {}).items():
        lengths = [len(row) for row in rows]
        is_text = any(isinstance(value, str) for row in rows for value in row)
        tensors.append(_tensor(f"{name}.values", TEXT if is_text else ID, [sum(lengths)], rows))
        tensors.append(_tensor(f"{name}.lengths", LENGTH, [len(rows)], [lengths]))
        if name in request.get("weights", {}):
            tensors.append(_tensor(f"{name}.weights", FLOAT, [sum(lengths)], request["weights"][name]))
    return tensors


def _tensor(name: str, datatype: str, shape: list[int], rows: list[list[Any]]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": list(chain.from_iterable(rows))}
