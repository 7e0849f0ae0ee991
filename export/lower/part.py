"""The part of an artifact that holds a program: a file of the format safetensors.

Its tensors:

* ``plans.I``: int64: the steps, lookups and buffers of step I (``cpp_client/ops/program/program.h``)
* ``constants.I.J``: slots of a lookup (offset in the rows file, rows, type, width, first column, modulus, last ID,
  feature), or numbers of the model's code
* ``weights.PATH``: a dense weight, by its path in the graph
* ``regions.I``: uint8: step I as a TorchScript file

The entry ``recsys`` of the metadata is JSON: ``format`` (``recsys-plan``); ``format_version`` (1; 2 if a plan has forms
or sequences, or a layer ``columns``; 3 with regions; 4 if steps compute the first places of bags alone); the number of
inputs and their shapes (``checks``: ``[n]``, or ``[n, width]`` if the width is not 0, with n = size 0 of input ``of``,
divided by ``per_row``, times ``times``); the steps in order (``plan``, ``gather``, ``region``); the outputs; type and
shape of every dense weight that deltas may change. ``cpp_client/format/program_file.cpp`` reads its fields,
``export/lower/kinds.py`` lists the kinds of steps.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from export.lower.bags import Slot
from export.lower.plan import Constant, Layer, Plan
from export.lower.scheduling import Gather, Lowered, PlacedRegion
from recsys.errors import ManifestError

_FORMAT = "recsys-plan"
_WEIGHTS = "weights."
_DTYPE_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip
_ALIGNMENT_BYTES = 64
_LENGTH = struct.Struct("<Q")


def program_part(program: Lowered) -> bytes:
    """Return the bytes of the part. They are the same whatever the type is in which linear layers multiply."""
    return _Writing(program).run()


def text_and_weights(part: bytes) -> tuple[str, dict[str, Tensor]]:
    """Return all that a part says and holds but the dense weights, as text, and these by path.

    Raises:
        ManifestError: The bytes are not such a part.
    """
    dtypes = {code: dtype for dtype, code in _DTYPE_CODES.items()}
    texts, weights = {}, {}
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(part)[0]
        header = json.loads(part[_LENGTH.size : start])
        metadata = header.pop("__metadata__")
        for name, tensor in header.items():
            begin, end = (start + offset for offset in tensor.pop("data_offsets"))
            if name.startswith(_WEIGHTS):
                numbers = torch.from_numpy(np.frombuffer(part[begin:end], np.uint8).copy())
                weights[name.removeprefix(_WEIGHTS)] = numbers.view(dtypes[tensor["dtype"]]).view(
                    tensor["shape"]
                )
            else:
                texts[name] = [tensor, hashlib.sha256(part[begin:end]).hexdigest()]
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, struct.error) as error:
        raise ManifestError(f"program: not readable ({type(error).__name__})") from None
    return json.dumps([metadata, texts]), weights


class _Writing:
    def __init__(self, program: Lowered) -> None:
        self._program = program
        self._tensors: dict[str, Tensor] = {}
        self._weights: set[str] = set()

    def run(self) -> bytes:
        program = self._program
        about = {
            "format": _FORMAT,
            "format_version": max(map(_version_of, program.steps)),
            "num_inputs": program.num_inputs,
            "checks": [vars(check) for check in program.checks],
            "steps": [self._step(i, step) for i, step in enumerate(program.steps)],
            "outputs": [{"name": name, "place": place} for name, place in program.outputs.items()],
            "dense": {
                path: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
                for path, tensor in program.weights.items()
            },
        }
        stored = {f"{_WEIGHTS}{path}": program.weights[path] for path in sorted(self._weights)}
        return _written({**self._tensors, **stored}, about)

    def _step(self, number: int, step: Plan | Gather | PlacedRegion) -> dict[str, Any]:
        if isinstance(step, Gather):
            return {"kind": "gather", **vars(step)}
        if isinstance(step, PlacedRegion):
            name = f"regions.{number}"
            self._tensors[name] = torch.frombuffer(bytearray(step.region.script), dtype=torch.uint8)
            return {
                "kind": "region",
                "script": name,
                "inputs": step.inputs,
                "num_outputs": len(step.region.outputs),
                "weights": {
                    at: path for at, path in step.region.weights.items() if path in self._program.weights
                },
            }
        name = f"plans.{number}"
        self._tensors[name] = step.numbers
        return {
            "kind": "plan",
            "plan": name,
            "inputs": step.inputs,
            "constants": [
                self._constant(constant, f"constants.{number}.{i}")
                for i, constant in enumerate(step.constants)
            ],
            "rows_of": step.rows_of,
            "per_row": step.per_row,
            "widths": [value.width if value.dims else 0 for value in step.outputs],
            **({"growing": vars(step.growing)} if step.growing is not None else {}),
        }

    def _constant(self, constant: Constant, name: str) -> dict[str, Any]:
        if isinstance(constant, str):
            return {"kind": "rows"}
        if isinstance(constant, Layer):
            self._weights.update(
                {constant.weight} if constant.bias is None else {constant.weight, constant.bias}
            )
            layer = {"kind": "layer", "name": constant.weight, "bias": constant.bias}
            if not constant.columns:
                return layer
            self._tensors[name] = torch.tensor(constant.columns, dtype=torch.int64)
            return {**layer, "columns": name}
        if isinstance(constant, tuple):
            self._tensors[name] = torch.tensor([_numbers_of(slot) for slot in constant], dtype=torch.int64)
        elif constant.path is not None:
            self._weights.add(constant.path)
            return {"kind": "weight", "name": constant.path}
        else:
            assert constant.numbers is not None
            self._tensors[name] = constant.numbers
        return {"kind": "tensor", "name": name}


def _version_of(step: Plan | Gather | PlacedRegion) -> int:
    """Return the first version of files that have such steps."""
    if isinstance(step, Plan) and step.has_places:
        return 4
    if isinstance(step, PlacedRegion):
        return 3
    has_more = isinstance(step, Plan) and (
        step.has_forms or any(isinstance(one, Layer) and one.columns for one in step.constants)
    )
    return 2 if has_more else 1


def _numbers_of(slot: Slot) -> list[int]:
    """Return a slot as ``cpp_client/ops/torch/program_call.h`` reads it."""
    return [
        slot.offset, slot.num_rows, slot.type_code, slot.dim, slot.column, slot.modulus, slot.last_id, slot.feature,
    ]  # fmt: skip


def _written(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"recsys": json.dumps(about)}}
    data = [
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
