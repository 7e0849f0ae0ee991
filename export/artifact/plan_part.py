"""The part of an artifact that holds a compiled graph's own operators: the graph as plans, with its dense weights.

Loaders where ``make native`` has built the operators run it in the compiled graph's place, under any version of torch.
It is a file of the format safetensors. Tensors ``plans.I`` hold each plan's numbers (``cpp_client/ops/plan.h``),
``weights.PATH`` each dense weight that they read, all others their constants; metadata ``recsys`` says, in JSON, what
the graph does step by step. ``cpp_client/check/files/plan_file.cpp`` reads it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from export.graph.graph import Graph
from recsys import torchscript
from recsys.artifact.graphs import dense_tensors, set_attribute, tensor_at
from recsys.kernels import operators
from recsys.sharding.plan.plan import ShardingPlan

_FORMAT, _FORMAT_VERSION = "recsys-plan", 1
_DTYPE_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip
_ALIGNMENT_BYTES = 64
_LENGTH = struct.Struct("<Q")
_SEED = 20261124


class NoPlanError(Exception):
    """A graph is not made of plans; the message says why."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A graph of plans.

    Attributes:
        about: The metadata.
        tensors: By name, all but dense weights.
        weights: The paths of these.
    """

    about: dict[str, Any]
    tensors: dict[str, Tensor]
    weights: set[str]


def plan_part(graph: Graph, plan: ShardingPlan, blob: Tensor) -> bytes:
    """Return a graph as plans, which are the same whatever the type is in which linear layers multiply.

    Which dense weights a constant is made of is found by values: the graph is exchanged twice, each time with other
    random weights. What is equal both times is no weight; all else must be a weight itself, or a layer's.

    Args:
        graph: The graph, of a target of ``cpu`` devices.
        plan: Where the target's tables are.
        blob: The rows of the artifact, ``[size of the rows]`` uint8.

    Raises:
        NoPlanError: The graph does anything else, or the operators are not built.
    """
    missing = operators.why_missing()
    if missing:
        raise NoPlanError(missing)
    try:
        script = graph.script or torchscript.script(graph.module, {})
    except RuntimeError as error:
        raise NoPlanError(f"TorchScript, which finds the plan, cannot follow it: {error}") from error
    weights = {path: t for path, t in dense_tensors(script, plan).items() if t.is_floating_point()}
    rows = {path: tensor_at(script, path) for path in graph.rows}
    generator = torch.Generator().manual_seed(_SEED)
    try:
        for path in rows:
            set_attribute(script, path, blob)
        first, second = (_with_random(script, weights, blob, generator) for _ in range(2))
    finally:
        for path, empty in rows.items():
            set_attribute(script, path, empty)
    is_same = first.about == second.about and all(
        torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items()
    )
    if not is_same:
        raise NoPlanError("it computes with its dense weights before a batch is there")
    stored = {f"weights.{path}": weights[path] for path in sorted(first.weights)}
    return _written({**first.tensors, **stored}, first.about)


def _with_random(
    script: torch.jit.ScriptModule,
    weights: Mapping[str, Tensor],
    blob: Tensor,
    generator: torch.Generator,
) -> _Read:
    """Exchange the operators of the graph with random dense weights, and read the plan."""
    randoms = {
        path: torch.rand(tensor.shape, generator=generator).to(tensor.dtype) - 0.5
        for path, tensor in weights.items()
    }
    try:
        for path, tensor in randoms.items():
            set_attribute(script, path, tensor)
        parts = operators.plan_parts(torchscript.freeze(script))
    finally:
        for path, tensor in weights.items():
            set_attribute(script, path, tensor)
    if parts is None:
        raise NoPlanError("it does more than plans can")
    return _Reading(parts, randoms, blob).run()


class _Reading:
    """Reads what ``operators.plan_parts`` returns.

    Args:
        parts: That.
        weights: The dense weights that the graph had, by path.
        blob: Its rows.
    """

    def __init__(self, parts: Mapping[str, Any], weights: Mapping[str, Tensor], blob: Tensor) -> None:
        self._parts = parts
        self._weights = weights
        self._blob = blob
        self._tensors: dict[str, Tensor] = {}
        self._paths: set[str] = set()

    def run(self) -> _Read:
        """Return the graph."""
        parts = self._parts
        about = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "num_inputs": parts["num_inputs"],
            "checks": parts["checks"],
            "steps": [self._step(i, step) for i, step in enumerate(parts["steps"])],
            "outputs": [{"name": name, "place": place} for name, place in parts["outputs"]],
        }
        return _Read(about=about, tensors=self._tensors, weights=self._paths)

    def _step(self, number: int, step: Mapping[str, Any]) -> dict[str, Any]:
        if "plan" not in step:
            return {"kind": "gather", **step}
        name = f"plans.{number}"
        self._tensors[name] = step["plan"]
        constants = [
            self._constant(constant, f"constants.{number}.{i}")
            for i, constant in enumerate(step["constants"])
        ]
        return {**step, "kind": "plan", "plan": name, "constants": constants}

    def _constant(self, constant: Tensor, name: str) -> dict[str, Any]:
        """Return what a plan's constant is, and note the tensor or the weights that it is made of."""
        if constant.data_ptr() == self._blob.data_ptr() and constant.shape == self._blob.shape:
            return {"kind": "rows"}
        layers = self._parts["layers"]
        layer = next((layer for layer in layers if layer[0].data_ptr() == constant.data_ptr()), None)
        weight = _path_of(constant if layer is None else layer[1], self._weights)
        bias = None if layer is None or layer[2] is None else _path_of(layer[2], self._weights)
        if weight is None or (layer is not None and layer[2] is not None and bias is None):
            self._tensors[name] = constant
            return {"kind": "tensor", "name": name}
        self._paths.update({weight} if bias is None else {weight, bias})
        if layer is None:
            return {"kind": "weight", "name": weight}
        return {"kind": "layer", "name": weight, "bias": bias}


def _path_of(tensor: Tensor, weights: Mapping[str, Tensor]) -> str | None:
    """Return the path of a weight that has the same numbers; of a vector, with dimensions of 1 beside it."""
    for path, weight in weights.items():
        found = weight.reshape(-1) if tensor.dim() == 1 else weight
        if found.dtype == tensor.dtype and tensor.numel() and torch.equal(found, tensor):
            return path
    return None


def _written(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"recsys": json.dumps(about)}}
    data: Sequence[bytes] = [
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in tensors.values()
    ]
    end = 0
    for (name, tensor), numbers in zip(tensors.items(), data, strict=True):
        header[name] = {
            "dtype": _DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(numbers)],
        }
        end += len(numbers)
    text = json.dumps(header).encode()
    # The numbers begin at a multiple of what processors load at once.
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT_BYTES)
    return _LENGTH.pack(len(text)) + text + b"".join(data)
