"""Conversion of a model with sharded collections to a scripted graph of plain tensors.

Shape letters: B batch, Q contexts, F features, N number of IDs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.cutting import cut
from export.graph.device_check import check_devices
from export.graph.inputs.computed import RequestFeatures
from export.graph.inputs.forward import DEFAULT_OUTPUT, flat_outputs, parts_of
from export.graph.inputs.mapping import InputMapping
from export.graph.jagged_operators import bound_bags
from export.graph.managed import FrozenCollisions, mapping_in_front
from export.graph.passes import (
    flatten_cats,
    part_shared_linears,
    relu_in_place,
    scripted,
    spell_for_torchscript,
    without_unused,
)
from export.graph.ranking import Expansion, RankingCollection, RankingFeatures
from export.graph.tracing.sizes import BatchSizes, Sizes
from export.graph.tracing.tracer import trace
from recsys.errors import ExportError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.ops import is_traced
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection
from recsys.sharding.transport.inputs import DistInput, PairIds
from recsys.sharding.transport.local import LocalInputDist, send


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A traced and scripted model.

    Attributes:
        module: The traced graph; its rows are empty.
        script: The scripted one; None if it was not asked for.
        rows: The attribute path of each buffer for rows, and its rank.
        ranks: The attribute path of every other tensor outside host memory, and its rank.
    """

    module: fx.GraphModule
    script: torch.jit.ScriptModule | None
    rows: dict[str, int]
    ranks: dict[str, int]


@dataclass(frozen=True)
class Ids:
    """The flat sparse inputs: key-major lengths, values, and weights if the model is weighted."""

    lengths: Tensor
    values: Tensor
    weights: Tensor | None


class ExportedModel(nn.Module):
    """The module that is traced: plain tensors in, named tensors out.

    Args:
        model: The module tree with sharded collections; for the ranking form each within a
            ``RankingCollection``.
        input_mapping: How the arguments are made of the inputs.
        devices: Rank by rank.
        dense_dtype: The dtype of the dense layers.
        context: The inputs of the context, for the ranking form.
    """

    def __init__(
        self,
        model: nn.Module,
        input_mapping: InputMapping,
        devices: Sequence[torch.device],
        dense_dtype: torch.dtype,
        context: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.model = model
        #: From contexts to rows, of the last call of ``run_ranking``.
        self.expansion: Expansion | None = None
        self._input_mapping = input_mapping
        self._devices = list(devices)
        self._dense_dtype = dense_dtype
        self._context = list(context)
        self._of_context = input_mapping.part(context)
        self._of_rows = input_mapping.part([name for name in input_mapping.wire_names if name not in context])

    def run(
        self, dense: Sequence[Tensor], lengths: Tensor, values: Tensor, weights: Tensor | None
    ) -> dict[str, Tensor]:
        """Predict; see ``recsys.inputs.signature`` for the arguments."""
        features = split_features(self._input_mapping, lengths, values, weights, of_request=True)
        if features:
            dense = self._same_rows(dense, lengths)
        if self._is_elsewhere:
            features, dense = self._sent(features, dense)
        return self._predicted(dense, features)

    def run_ranking(
        self, dense: Sequence[Tensor], context: Ids, rows: Ids, row_context: Tensor
    ) -> dict[str, Tensor]:
        """Predict for rows that share contexts; see ``recsys.inputs.signature`` for the arguments."""
        num_rows = row_context.size(0)
        num_contexts = self._num_contexts(dense, context)
        if self._is_elsewhere:
            # Raises for out-of-range contexts, which a device would not report.
            row_context = torch.arange(num_contexts).index_select(0, row_context)
        expansion = self.expansion = Expansion(
            on_host=row_context, row_context=row_context, home=self._devices[0], num_contexts=num_contexts
        )
        features = self._ranking_features(
            _with_bags(self._of_context, context, num_contexts),
            _with_bags(self._of_rows, rows, num_rows),
            expansion,
        )
        dense = [
            tensor.reshape(num_contexts if name in self._context else num_rows, width)
            for tensor, (name, width) in zip(dense, self._input_mapping.dense.items(), strict=True)
        ]
        if self._is_elsewhere:
            features, dense = self._sent(features, dense, expansion)
        dense = [
            expansion.of_rows(tensor, (width,)) if name in self._context else tensor
            for tensor, (name, width) in zip(dense, self._input_mapping.dense.items(), strict=True)
        ]
        return self._predicted(dense, features)

    def example(self, sizes: BatchSizes) -> dict[str, Tensor]:
        """Return arguments of ``forward`` for a batch."""
        is_ranking, is_weighted = bool(self._context), self._input_mapping.has_weights
        found = {
            f"dense_{i}": torch.empty(sizes.contexts if name in self._context else sizes.rows, width)
            for i, (name, width) in enumerate(self._input_mapping.dense.items())
        }
        if is_ranking:
            num_bags = len(self._of_context.wire_names) * sizes.contexts
            found |= sizes.sparse("context_", num_bags, is_weighted=is_weighted)
            found["row_context"] = torch.empty(sizes.rows, dtype=torch.int64)
        num_bags = len(self._of_rows.wire_names) * sizes.rows
        return found | sizes.sparse("", num_bags, is_weighted=is_weighted)

    def _num_contexts(self, dense: Sequence[Tensor], context: Ids) -> int:
        num_features = len(self._of_context.wire_names)
        if num_features:
            return context.lengths.size(0) // num_features
        return next(
            tensor.size(0)
            for tensor, name in zip(dense, self._input_mapping.dense, strict=True)
            if name in self._context
        )

    def _ranking_features(
        self, context: Ids, rows: Ids, expansion: Expansion
    ) -> dict[str, KeyedJaggedTensor]:
        of_context, of_rows = (
            split_features(names, ids.lengths, ids.values, ids.weights, of_request=True)
            for names, ids in ((self._of_context, context), (self._of_rows, rows))
        )
        return {
            name: RankingFeatures(name, keys, of_context[name], of_rows.get(name), expansion)
            if name in of_context
            else of_rows[name]
            for name, keys in self._input_mapping.sparse.items()
        }

    def _predicted(
        self, dense: Sequence[Tensor], features: Mapping[str, KeyedJaggedTensor]
    ) -> dict[str, Tensor]:
        """Return the model's outputs, in host memory."""
        tensors = [t if self._dense_dtype is torch.float32 else t.to(self._dense_dtype) for t in dense]
        arguments: dict[str, Any] = dict(zip(self._input_mapping.dense, tensors, strict=True))
        outputs = named_outputs(self.model(**arguments, **features))
        if self._input_mapping.casts_outputs or self._dense_dtype is not torch.float32:
            integers = self._input_mapping.integers
            outputs = {name: as_answered(output, name in integers) for name, output in outputs.items()}
        return self._in_host_memory(outputs)

    @property
    def _is_elsewhere(self) -> bool:
        return any(device.type != "cpu" for device in self._devices)

    def _same_rows(self, dense: Sequence[Tensor], lengths: Tensor) -> list[Tensor]:
        """Return the dense inputs; the graph raises if their rows differ from the sparse inputs'."""
        num_rows = lengths.size(0) // len(self._input_mapping.wire_names)
        widths = self._input_mapping.dense.values()
        return [tensor.reshape(num_rows, width) for tensor, width in zip(dense, widths, strict=True)]

    def _sent(
        self,
        features: dict[str, KeyedJaggedTensor],
        dense: Sequence[Tensor],
        expansion: Expansion | None = None,
    ) -> tuple[dict[str, KeyedJaggedTensor], Sequence[Tensor]]:
        """Split the batch for all collections at once, so that each device gets it in one copy."""
        inputs: dict[str, dict[ShardedCollection, DistInput]] = {name: {} for name in features}
        batches = []
        for path, names in self._input_mapping.collections.items():
            collection = self.model.get_submodule(path) if path else self.model
            if (
                len(names) != 1
                or path in self._input_mapping.computed
                or not isinstance(collection, (ShardedCollection, RankingCollection))
            ):
                continue
            mapping = mapping_in_front(self.model, collection)
            given = features[names[0]] if mapping is None else mapping(features[names[0]])
            for part, batch in _parts(collection, given):
                split = part.split(batch)
                inputs[names[0]][part] = split
                batches.append((split, part.layout, part.needs_lengths))
            if isinstance(collection, RankingCollection):
                collection.prepare(given)
        if expansion is not None:
            batches.append(expansion.to_send())
        dense = send(batches, dense, self._devices)
        if expansion is not None:
            expansion.receive(batches[-1][0])
        return {name: _sent_already(given, inputs[name]) for name, given in features.items()}, dense

    def _in_host_memory(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy outputs on a device to host memory, those of each type in one copy."""
        if self._devices[0].type == "cpu":
            return outputs
        copied: dict[str, Tensor] = {}
        for is_integer in (False, True):
            names = [name for name in outputs if (name in self._input_mapping.integers) == is_integer]
            if names:
                flat = torch.cat([outputs[name].reshape(-1) for name in names]).to("cpu")
                parts = torch.split(flat, [outputs[name].numel() for name in names])
                copied |= {name: parts[i].view(outputs[name].size()) for i, name in enumerate(names)}
        return {name: copied[name] for name in outputs}


def _with_bags(input_mapping: InputMapping, ids: Ids, num_bags: int) -> Ids:
    """Return the same; the graph raises if a feature has another number of bags."""
    num_features = len(input_mapping.wire_names)
    return replace(ids, lengths=ids.lengths.reshape(num_features * num_bags)) if num_features else ids


def _parts(
    collection: ShardedCollection | RankingCollection, features: KeyedJaggedTensor
) -> Iterable[tuple[ShardedCollection, KeyedJaggedTensor]]:
    """Return the sharded collections that look up a batch, each with its part."""
    if isinstance(collection, RankingCollection):
        return collection.parts(features)
    return [(collection, features)]


def _sent_already(
    features: KeyedJaggedTensor, inputs: dict[ShardedCollection, DistInput]
) -> KeyedJaggedTensor:
    if isinstance(features, RankingFeatures):
        return features.sent(inputs)
    return DistributedKeyedJaggedTensor(features, inputs)


def split_features(
    input_mapping: InputMapping,
    lengths: Tensor,
    values: Tensor,
    weights: Tensor | None,
    *,
    of_request: bool = False,
) -> dict[str, KeyedJaggedTensor]:
    """Return one KeyedJaggedTensor for each sparse argument: slices of the flat tensors.

    Args:
        input_mapping: The arguments.
        lengths: ``[F * B]``.
        values: ``[N]``.
        weights: ``[N]``; None without.
        of_request: Whether they are ``RequestFeatures``.
    """
    if not input_mapping.sparse:
        return {}
    counts = [len(features) for features in input_mapping.sparse.values()]
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
        name: (partial(RequestFeatures, argument=name) if of_request else KeyedJaggedTensor)(
            features,
            _values_of(input_mapping, name, id_values[i], None if id_weights is None else id_weights[i]),
            weights=id_weights[i] if id_weights is not None and name in input_mapping.weighted else None,
            lengths=bag_lengths[i],
            stride=num_bags,
        )
        for i, (name, features) in enumerate(input_mapping.sparse.items())
    }


def _values_of(input_mapping: InputMapping, name: str, values: Tensor, weights: Tensor | None) -> Tensor:
    """Return an argument's values: its IDs, or float32 numbers, which the wire carries as weights."""
    return weights if name in input_mapping.floats and weights is not None else values


def as_answered(output: Tensor, is_integer: bool) -> Tensor:
    """Return an output in the type of its answers: int64 for integers and bools, else float32."""
    return output.to(torch.int64 if is_integer else torch.float32)


def named_outputs(outputs: Any) -> dict[str, Any]:
    """Return a model's outputs by name, for any kind of result; what is within others by names with dots.

    Raises:
        ExportError: They are neither tensors nor containers of tensors by name or position.
    """
    if isinstance(outputs, Tensor) or is_traced(outputs):
        return {DEFAULT_OUTPUT: outputs}
    if parts_of(outputs) is None:
        raise ExportError(
            f"outputs: got {type(outputs).__name__}, expected tensors, or a dict or tuple of them"
        )
    named = dict(flat_outputs(outputs))
    for name, output in named.items():
        if not (isinstance(output, Tensor) or is_traced(output)):
            others = [one for one, part in named.items() if isinstance(part, Tensor) or is_traced(part)]
            keep = f"; or keep the others: --outputs {','.join(others)}" if others else ""
            raise ExportError(
                f"outputs[{name!r}]: got {type(output).__name__}, expected a tensor with one row per row of the batch "
                f"(make sequences dense with to_padded_dense){keep}"
            )
    return named


def _exported_type(num_dense: int, weighted: bool, ranking: bool) -> type[ExportedModel]:
    """Return the type with explicit arguments of ``forward``, which FX and TorchScript require."""
    dense = [f"dense_{i}" for i in range(num_dense)]
    ids = ["lengths", "values", *(["weights"] if weighted else [])]
    of_context = [f"context_{name}" for name in ids] if ranking else []
    arguments = [*dense, *of_context, *ids, *(["row_context"] if ranking else [])]
    no_weights = [] if weighted else ["None"]
    called = ", ".join([*ids, *no_weights])
    call = f"self.run([{', '.join(dense)}], {called})"
    if ranking:
        context = ", ".join([*of_context, *no_weights])
        call = f"self.run_ranking([{', '.join(dense)}], Ids({context}), Ids({called}), row_context)"
    scope: dict[str, Any] = {"Ids": Ids}
    exec(f"def forward(self, {', '.join(arguments)}):\n    return {call}\n", scope)
    return type("ExportedModel", (ExportedModel,), {"forward": scope["forward"]})


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A traced model, before the passes that depend on which operators are left.

    Attributes:
        root: What was traced.
        module: The graph.
        devices: Rank by rank.
        dense_dtype: The dtype of the dense layers.
    """

    root: ExportedModel
    module: fx.GraphModule
    devices: Sequence[torch.device]
    dense_dtype: torch.dtype


def traced_model(
    model: nn.Module,
    input_mapping: InputMapping,
    devices: Sequence[torch.device],
    dense_dtype: torch.dtype,
    context: Sequence[str] = (),
) -> Traced:
    """Trace a model for ``finished``.

    Args:
        model: The module tree with its collections replaced, as ``ExportedModel`` takes it.
        input_mapping: How the arguments are made of the inputs.
        devices: Rank by rank.
        dense_dtype: The dtype of the dense layers.
        context: The inputs of the context, for the ranking form; the plain form without any.

    Raises:
        ExportError: FX cannot follow the model.
    """
    kind = _exported_type(len(input_mapping.dense), input_mapping.has_weights, bool(context))
    root = kind(model, input_mapping, devices, dense_dtype, context)
    graph = trace(root, Sizes(root, root.example, {}))
    # A copy, because the dtype of the model's own layers must not change. Copied scripted layers would have gradients.
    with torch.no_grad():
        module = copy.deepcopy(fx.GraphModule(root, graph))
    if input_mapping.are_chosen:
        without_unused(module)
    spell_for_torchscript(module)
    return Traced(root=root, module=module, devices=devices, dense_dtype=dense_dtype)


def finished(traced: Traced, *, is_scripted: bool) -> Graph:
    """Return the graph of a traced model, whose module is changed.

    Args:
        traced: The traced model.
        is_scripted: Whether to script.

    Raises:
        ExportError: TorchScript cannot follow the model, or the graph calls foreign operators.
    """
    root, module = traced.root, traced.module
    is_ranking = root.expansion is not None
    relu_in_place(module)
    part_shared_linears(module)
    bound_bags(module, root)
    if is_ranking:
        flatten_cats(module)
    module.recompile()
    if traced.dense_dtype is not torch.float32:
        module.to(traced.dense_dtype)
    module.eval().requires_grad_(False)
    rows, ranks = _tensor_ranks(root, module)
    methods: dict[str, fx.GraphModule] = {}
    if any(device.type != "cpu" for device in traced.devices):
        found = check_devices(module, traced.devices, {**rows, **ranks})
        if is_scripted and not is_ranking and len(set(traced.devices)) == 1 and not _has_sequences(root):
            methods = cut(module, found)
    script = scripted(module, methods) if is_scripted else None
    return Graph(module=module, script=script, rows=rows, ranks=ranks)


def _has_sequences(root: nn.Module) -> bool:
    """Return whether some lookups return a row for each ID, so that the sizes of a batch follow its IDs."""
    return any(isinstance(part, ShardedCollection) and part.sequence for part in root.modules())


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
