"""Random samples as plain Python lists, and what the model itself says of them.

The oracle lays a sample out with loops and calls the model alone on it: neither the server's checks nor its
collation nor the batch's neighbours can touch it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recsys.inputs.signature import Signature
from serve.client.packing import build_request
from serve.engine.reference.executor import ServedModel
from serve.wire import predict_pb2 as wire

Rows = list[list[int]]
Floats = list[list[float]]


@dataclass(frozen=True)
class Sample:
    """One request: rows outermost."""

    num_rows: int
    dense: dict[str, Floats]
    sparse: dict[str, Rows]
    weights: dict[str, Floats]

    def request(self) -> wire.PredictRequest:
        """The same on the wire."""
        return build_request(self.dense, self.sparse, self.weights)


def random_sample(signature: Signature, num_rows: int, rng: np.random.Generator, max_ids: int = 4) -> Sample:
    """0 to ``max_ids`` IDs a bag; IDs without a limit may be negative or larger than the table."""
    dense = {
        d.name: rng.standard_normal((num_rows, d.width)).astype(np.float32).tolist() for d in signature.dense
    }
    sparse: dict[str, Rows] = {}
    weights: dict[str, Floats] = {}
    for use in signature.sparse:
        low, high = (0, use.id_limit) if use.id_limit is not None else (-(1 << 40), 1 << 40)
        bags = [rng.integers(low, high, rng.integers(0, max_ids + 1)).tolist() for _ in range(num_rows)]
        sparse[use.name] = bags
        if use.weighted:
            weights[use.name] = [rng.random(len(bag)).astype(np.float32).tolist() for bag in bags]
    return Sample(num_rows, dense, sparse, weights)


def forward_inputs(signature: Signature, sample: Sample) -> list[torch.Tensor]:
    """The sample alone, laid out as ``forward`` takes it."""
    dense = [
        torch.tensor(sample.dense[d.name], dtype=torch.float32).reshape(sample.num_rows, d.width)
        for d in signature.dense
    ]
    lengths, values, weights = [], [], []
    for use in signature.sparse:
        for row, bag in enumerate(sample.sparse[use.name]):
            lengths.append(len(bag))
            values.extend(bag)
            weights.extend(sample.weights[use.name][row] if use.weighted else [1.0] * len(bag))
    inputs = [
        *dense,
        torch.tensor(lengths, dtype=torch.int64),
        torch.tensor(values, dtype=torch.int64),
    ]
    return [*inputs, torch.tensor(weights, dtype=torch.float32)] if signature.is_weighted else inputs


def answer(model: ServedModel, sample: Sample) -> dict[str, npt.NDArray[Any]]:
    """What the model, called directly, says of the sample."""
    with torch.inference_mode():
        outputs = model.forward(*forward_inputs(model.signature, sample))
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def assert_answers(got: dict[str, npt.NDArray[Any]], expected: dict[str, npt.NDArray[Any]]) -> None:
    """Equal up to what another batch size does to the order of a dense layer's sums; integers exactly."""
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert got[name].dtype.kind == values.dtype.kind, name
        if values.dtype.kind == "i":
            np.testing.assert_array_equal(got[name], values, err_msg=name)
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
