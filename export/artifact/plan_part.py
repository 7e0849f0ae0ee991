"""The part of an artifact that holds a compiled graph's own operators: the graph as one plan, with its dense weights.

Loaders where ``make native`` has built the operators run it in the compiled graph's place, under any version of torch.
It is a file of the format safetensors. Tensor ``plan`` holds the plan's numbers (``cpp_client/ops/plan.h``),
``weights.PATH`` each dense weight that it reads, all others its constants; metadata ``recsys`` says, in JSON, what each
is to the plan. ``cpp_client/check/files/plan_file.cpp`` reads it.
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
from recsys.artifact.graphs import outside_collections, set_attribute
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
    """A graph is not one plan; the message says why."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A plan, and what it takes as constants: by kind and names, and the tensors among them.

    Attributes:
        parts: What ``operators.plan_parts`` returns.
        constants: As the metadata have them.
        tensors: By name, all but dense weights.
    """

    parts: Mapping[str, Any]
    constants: list[dict[str, Any]]
    tensors: dict[str, Tensor]

    def about(self) -> dict[str, Any]:
        """Return the metadata."""
        same = {name: self.parts[name] for name in ("num_inputs", "inputs", "rows_of", "per_row", "widths")}
        outputs = [{"name": name, "index": index} for name, index in self.parts["outputs"]]
        return {
            "format": _FORMAT, "format_version": _FORMAT_VERSION, **same, "outputs": outputs,
            "constants": self.constants,
        }  # fmt: skip


def plan_part(graph: Graph, plan: ShardingPlan, blob: Tensor) -> bytes:
    """Return a graph as one plan, which is the same whatever the type is in which linear layers multiply.

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
    held = {**dict(script.named_parameters()), **dict(script.named_buffers())}
    weights = {path: t for path, t in outside_collections(held, plan).items() if t.is_floating_point()}
    generator = torch.Generator().manual_seed(_SEED)
    try:
        for path in graph.rows:
            set_attribute(script, path, blob)
        first, second = (_with_random(script, weights, blob, generator) for _ in range(2))
    finally:
        for path in graph.rows:
            set_attribute(script, path, held[path])
    is_same = first.about() == second.about() and all(
        torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items()
    )
    if not is_same:
        raise NoPlanError("it computes with its dense weights before a batch is there")
    read = {constant[key] for constant in first.constants for key in ("name", "bias") if constant.get(key)}
    stored = {f"weights.{path}": weights[path] for path in sorted(read & set(weights))}
    return _written({**first.tensors, **stored}, first.about())


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
        raise NoPlanError("it does more than a plan can, or takes its rows apart in several plans")
    constants: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {"plan": parts["plan"]}
    for i, constant in enumerate(parts["constants"]):
        if constant.data_ptr() == blob.data_ptr() and constant.shape == blob.shape:
            constants.append({"kind": "rows"})
            continue
        layer = next((of for of in parts["layers"] if of[0].data_ptr() == constant.data_ptr()), None)
        weight = _path_of(constant if layer is None else layer[1], randoms)
        if layer is not None and weight is not None:
            bias = None if layer[2] is None else _path_of(layer[2], randoms)
            if layer[2] is None or bias is not None:
                constants.append({"kind": "layer", "name": weight, "bias": bias})
                continue
        if layer is None and weight is not None:
            constants.append({"kind": "weight", "name": weight})
            continue
        key = f"constants.{i}"
        constants.append({"kind": "tensor", "name": key})
        tensors[key] = constant
    return _Read(parts=parts, constants=constants, tensors=tensors)


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
