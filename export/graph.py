"""From a model with sharded collections to a scripted graph of plain tensors.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.binding import Binding, trace
from export.device_check import check_devices
from export.managed import FrozenCollisions, mapping_in_front
from export.passes import relu_in_place
from recsys import torchscript
from recsys.errors import ExportError
from recsys.keyed import KeyedTensor
from recsys.keyed_jagged import KeyedJaggedTensor
from recsys.ops import is_traced
from recsys.sharding.features import PairIds
from recsys.sharding.inputs import DistInput
from recsys.sharding.local_dist import LocalInputDist, send
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection

_ALLOWED_NAMESPACES = ("aten", "fbgemm", "prim")
#: The name of a model's only output where the model gives none, as TorchRec's server answers.
DEFAULT_OUTPUT = "default"


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A traced and scripted model.

    Attributes:
        script: the scripted graph; its rows are empty.
        rows: the attribute path of each buffer that takes rows, and its rank.
        ranks: the attribute path of every other tensor that does not stay in host memory, and its rank.
    """

    script: torch.jit.ScriptModule
    rows: dict[str, int]
    ranks: dict[str, int]


class ExportedModel(nn.Module):
    """Plain tensors in, named tensors out: what is traced.

    Args:
        model: the module tree with its collections exchanged for sharded ones.
        binding: how the arguments are made of the inputs.
        devices: rank by rank.
        dense_dtype: of the dense layers.
    """

    def __init__(
        self, model: nn.Module, binding: Binding, devices: Sequence[torch.device], dense_dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.model = model
        self._binding = binding
        self._devices = list(devices)
        self._dense_dtype = dense_dtype

    def run(
        self, dense: Sequence[Tensor], lengths: Tensor, values: Tensor, weights: Tensor | None
    ) -> dict[str, Tensor]:
        """Predict; see ``recsys.signature`` for the arguments."""
        features = split_features(self._binding, lengths, values, weights)
        if features:
            dense = self._same_rows(dense, lengths)
        if any(device.type != "cpu" for device in self._devices):
            features, dense = self._sent(features, dense)
        tensors = [t if self._dense_dtype is torch.float32 else t.to(self._dense_dtype) for t in dense]
        arguments: dict[str, Any] = dict(zip(self._binding.dense, tensors, strict=True))
        outputs = named_outputs(self.model(**arguments, **features))
        if self._binding.casts_outputs or self._dense_dtype is not torch.float32:
            outputs = {name: output.to(torch.float32) for name, output in outputs.items()}
        return self._in_host_memory(outputs)

    def _same_rows(self, dense: Sequence[Tensor], lengths: Tensor) -> list[Tensor]:
        """The dense inputs; an error in the graph where they have not as many rows as the sparse ones."""
        num_features = sum(len(features) for features in self._binding.sparse.values())
        num_rows = lengths.size(0) // num_features
        widths = self._binding.dense.values()
        return [tensor.reshape(num_rows, width) for tensor, width in zip(dense, widths, strict=True)]

    def _sent(
        self, features: dict[str, KeyedJaggedTensor], dense: Sequence[Tensor]
    ) -> tuple[dict[str, KeyedJaggedTensor], Sequence[Tensor]]:
        """Split the batch for all collections at once, so that each device gets it in one copy."""
        inputs: dict[str, dict[ShardedCollection, DistInput]] = {name: {} for name in features}
        batches = []
        for path, names in self._binding.collections.items():
            collection = self.model.get_submodule(path) if path else self.model
            if isinstance(collection, ShardedCollection) and len(names) == 1:
                mapping = mapping_in_front(self.model, collection)
                given = features[names[0]]
                split = collection.input_dist(given if mapping is None else mapping(given))
                inputs[names[0]][collection] = split
                batches.append((split, collection.layout, collection.needs_lengths))
        dense = send(batches, dense, self._devices)
        sent: dict[str, KeyedJaggedTensor] = {
            name: DistributedKeyedJaggedTensor(features[name], inputs[name]) for name in features
        }
        return sent, dense

    def _in_host_memory(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs on a device come back in one copy."""
        if self._devices[0].type == "cpu":
            return outputs
        flat = torch.cat([output.reshape(-1) for output in outputs.values()]).to("cpu")
        parts = torch.split(flat, [output.numel() for output in outputs.values()])
        return {name: parts[i].view(output.size()) for i, (name, output) in enumerate(outputs.items())}


def split_features(
    binding: Binding, lengths: Tensor, values: Tensor, weights: Tensor | None
) -> dict[str, KeyedJaggedTensor]:
    """One KeyedJaggedTensor for each sparse argument: slices of the flat tensors."""
    if not binding.sparse:
        return {}
    counts = [len(features) for features in binding.sparse.values()]
    num_bags = lengths.size(0) // sum(counts)
    bag_lengths: list[Tensor] = [lengths]
    id_values: Sequence[Tensor] = [values]
    id_weights: Sequence[Tensor] | None = None if weights is None else [weights]
    if len(counts) > 1:
        ends = list(accumulate(counts))
        bag_lengths = [
            lengths[(end - count) * num_bags : end * num_bags]
            for end, count in zip(ends, counts, strict=True)
        ]
        id_ends = torch.stack([part.sum() for part in bag_lengths[:-1]]).cumsum(dim=0)
        id_values = torch.tensor_split(values, id_ends)
        id_weights = None if weights is None else torch.tensor_split(weights, id_ends)
    return {
        name: KeyedJaggedTensor(
            features,
            id_values[i],
            weights=id_weights[i] if id_weights is not None and name in binding.weighted else None,
            lengths=bag_lengths[i],
            stride=num_bags,
        )
        for i, (name, features) in enumerate(binding.sparse.items())
    }


def named_outputs(outputs: Any) -> dict[str, Any]:
    """A model's outputs by name, whatever it returns.

    Raises:
        ExportError: they are neither tensors nor anything that holds tensors by name or position.
    """
    if isinstance(outputs, Tensor) or is_traced(outputs):
        return {DEFAULT_OUTPUT: outputs}
    if isinstance(outputs, KeyedTensor):
        return dict(outputs.to_dict())
    if isinstance(outputs, dict):
        named = dict(outputs)
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        named = dict(zip(outputs._fields, outputs, strict=True))
    elif isinstance(outputs, (tuple, list)):
        named = {f"output_{i}": output for i, output in enumerate(outputs)}
    elif is_dataclass(outputs):
        named = {f.name: getattr(outputs, f.name) for f in fields(outputs)}
    else:
        raise ExportError(
            f"outputs: got {type(outputs).__name__}, expected tensors, or a dict or tuple of them"
        )
    for name, output in named.items():
        if not isinstance(name, str) or not (isinstance(output, Tensor) or is_traced(output)):
            raise ExportError(
                f"outputs[{name!r}]: got {type(output).__name__}, expected a tensor with one row per row of the "
                "batch (make sequences dense with to_padded_dense)"
            )
    return named


def _exported_type(num_dense: int, weighted: bool) -> type[ExportedModel]:
    """The type with a ``forward`` whose arguments are written out, as FX and TorchScript want them."""
    dense = [f"dense_{i}" for i in range(num_dense)]
    arguments = [*dense, "lengths", "values", *(["weights"] if weighted else [])]
    source = (
        f"def forward(self, {', '.join(arguments)}):\n"
        f"    return self.run([{', '.join(dense)}], lengths, values, {'weights' if weighted else 'None'})\n"
    )
    scope: dict[str, Any] = {}
    exec(source, scope)
    return type("ExportedModel", (ExportedModel,), {"forward": scope["forward"]})


def make_graph(
    model: nn.Module, binding: Binding, devices: Sequence[torch.device], dense_dtype: torch.dtype
) -> Graph:
    """Trace and script.

    Args:
        model: the module tree with its collections exchanged for sharded ones.
        binding: how the arguments are made of the inputs.
        devices: rank by rank.
        dense_dtype: of the dense layers.

    Raises:
        ExportError: FX or TorchScript cannot follow the model, or the graph calls foreign operators.
    """
    kind = _exported_type(len(binding.dense), bool(binding.weighted))
    root = kind(model, binding, devices, dense_dtype)
    graph = trace(root)
    # A copy, because the model's own layers must not follow a change of dtype.
    module = copy.deepcopy(fx.GraphModule(root, graph))
    relu_in_place(module)
    if dense_dtype is not torch.float32:
        module.to(dense_dtype)
    module.eval().requires_grad_(False)
    rows, ranks = _tensor_ranks(root, module)
    if any(device.type != "cpu" for device in devices):
        check_devices(module, devices, {**rows, **ranks})
    try:
        script = torchscript.script(module)
    except RuntimeError as error:
        raise ExportError(f"model: cannot be scripted: {error}") from error
    foreign = sorted(
        name for name in torchscript.operators(script) if name.split("::")[0] not in _ALLOWED_NAMESPACES
    )
    if foreign:
        raise ExportError(f"model: the graph calls {foreign}, expected operators of aten and fbgemm only")
    return Graph(script=script, rows=rows, ranks=ranks)


def _tensor_ranks(root: nn.Module, module: fx.GraphModule) -> tuple[dict[str, int], dict[str, int]]:
    rank_of: dict[str, int | None] = {}
    for path, part in root.named_modules():
        if isinstance(part, (PairIds, LocalInputDist, FrozenCollisions)):
            rank_of[path] = None
        if isinstance(part, ShardedCollection):
            for i, group in enumerate(part.layout.groups):
                rank_of[f"{path}.lookups.{i}"] = group.rank
    rows, ranks = {}, {}
    for name, _ in [*module.named_parameters(), *module.named_buffers()]:
        owner = next((p for p in rank_of if name.startswith(f"{p}.")), None)
        rank = 0 if owner is None else rank_of[owner]
        if owner is not None and ".lookups." in owner and name == f"{owner}.rows":
            rows[name] = rank or 0
        elif rank is not None:
            ranks[name] = rank
    return rows, ranks


def signature_shapes(outputs: Mapping[str, Tensor], num_rows: int) -> dict[str, tuple[int, ...]]:
    """Each output's shape without the batch dimension.

    Raises:
        ExportError: an output does not have one row per row of the batch.
    """
    for name, output in outputs.items():
        if output.dim() == 0 or output.shape[0] != num_rows:
            raise ExportError(
                f"outputs[{name!r}]: got shape {list(output.shape)} for a batch of {num_rows} rows, expected "
                "one row per row of the batch"
            )
    return {name: tuple(output.shape[1:]) for name, output in outputs.items()}
