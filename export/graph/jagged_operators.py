"""FBGEMM's operators on jagged rows in a traced graph: what they trust, and bounds for it.

They read as many rows as lengths or offsets say, also beyond the end of the values. In an exported graph lengths come
from a wire, or the model computes them. Before each operator the graph bounds them, so that its callers read no memory
but that of its inputs. Operators for which nothing is known here are refused, and so are those that bounds do not
help: ``jagged_softmax`` leaves rows behind ``max_L`` as memory was.

Shape letters: B batch, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from recsys.errors import ExportError
from recsys.ops import fbgemm

# Where lookups of ours are made, which check all lengths before they call operators.
_OURS = ("recsys.sharding.", "recsys.kernels.")


@dataclass(frozen=True, kw_only=True)
class _Jagged:
    """What an operator takes, by the names of its arguments.

    Attributes:
        rows: The rows; several have the same bags.
        offsets: Where bags begin and end, or a list of those of each jagged dimension.
        lengths: The sizes of bags, instead of offsets.
        places: Numbers of bags or features.
    """

    rows: tuple[str, ...]
    offsets: str = ""
    lengths: str = ""
    places: str = ""


_BY_OFFSETS = {
    **dict.fromkeys(
        (
            "jagged_to_padded_dense",
            "jagged_to_padded_dense_forward",
            "jagged_1d_to_dense",
            "jagged_2d_to_dense",
        ),
        _Jagged(rows=("values",), offsets="offsets"),
    ),
    **dict.fromkeys(
        (
            "jagged_dense_elementwise_add",
            "jagged_dense_elementwise_mul",
            "jagged_dense_elementwise_mul_forward",
            "jagged_dense_elementwise_add_jagged_output",
            "jagged_dense_dense_elementwise_add_jagged_output",
            "jagged_dense_dense_elementwise_add_jagged_output_forward",
            "jagged_dense_bmm",
            "jagged_dense_bmm_forward",
        ),
        _Jagged(rows=("x_values",), offsets="x_offsets"),
    ),
    **dict.fromkeys(
        ("jagged_jagged_bmm", "jagged_jagged_bmm_forward"),
        _Jagged(rows=("x_values", "y_values"), offsets="x_offsets"),
    ),
    **dict.fromkeys(
        ("batched_dense_vec_jagged_2d_mul", "batched_dense_vec_jagged_2d_mul_forward"),
        _Jagged(rows=("a_values",), offsets="a_offsets"),
    ),
    "segment_sum_csr": _Jagged(rows=("values",), offsets="csr_seg"),
    # It takes the number of the offsets alone.
    "offsets_range": _Jagged(rows=(), offsets="offsets"),
}
_BY_LENGTHS = {
    "jagged_1d_to_truncated_values": _Jagged(rows=("values",), lengths="lengths"),
    "masked_select_jagged_1d": _Jagged(rows=("values",), lengths="lengths"),
    "jagged_index_select": _Jagged(rows=("values",), lengths="lengths"),
    "jagged_slice": _Jagged(rows=("x_values",), lengths="x_lengths"),
    **dict.fromkeys(
        ("permute_1D_sparse_data", "permute_2D_sparse_data", "permute_sparse_data"),
        _Jagged(rows=("values", "weights"), lengths="lengths", places="permute"),
    ),
    "permute_sparse_features": _Jagged(rows=("indices", "weights"), lengths="lengths", places="permute"),
    **dict.fromkeys(
        (
            "bucketize_sparse_features",
            "block_bucketize_sparse_features",
            "block_bucketize_sparse_features_inference",
        ),
        _Jagged(rows=("indices",), lengths="lengths"),
    ),
    "permute_sequence_embeddings": _Jagged(rows=("embeddings",), lengths="lengths", places="permute"),
}
_JAGGED: Mapping[str, _Jagged] = {**_BY_OFFSETS, **_BY_LENGTHS}
# They pad a bag of a negative size as an empty one, so that only the ends of bags matter to them.
_PADDING = {
    "jagged_to_padded_dense",
    "jagged_to_padded_dense_forward",
    "jagged_1d_to_dense",
    "jagged_2d_to_dense",
}
# Those that read what they are given and no more, whatever numbers are in it.
_SAFE = {
    "asynchronous_complete_cumsum",
    "asynchronous_exclusive_cumsum",
    "asynchronous_inclusive_cumsum",
    "asynchronous_batched_complete_cumsum",
    "bounds_check_indices",
    "dense_to_jagged",
    "dense_to_jagged_forward",
    "index_select_dim0",
    "group_index_select_dim0",
    "batch_index_select_dim0",
    "murmur_hash3",
    "lengths_range",
    "repeat_arange",
    "get_source_mask",
    "permute_pooled_embs",
    "permute_pooled_embs_auto_grad",
    "permute_multi_embedding",
    "permute102_baddbmm_permute102",
    "regroup_keyed_tensor",
    "kt_regroup_arguments",
    "all_to_one_device",
    "sum_reduce_to_one",
    "merge_pooled_embeddings",
}


def bags_of(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield the rows that an operator takes, and the lengths or offsets that it reads them by; none for other nodes."""
    jagged = _JAGGED.get(_name(node))
    if jagged is None:
        return
    given = _given(node)
    bags = given.get(jagged.offsets or jagged.lengths)
    innermost = bags[-1] if isinstance(bags, (list, tuple)) and bags else bags
    for name in jagged.rows:
        rows = given.get(name)
        if isinstance(rows, fx.Node) and isinstance(innermost, fx.Node):
            yield rows, innermost


def bound_bags(module: fx.GraphModule, root: nn.Module) -> None:
    """Bound what FBGEMM's operators trust.

    Args:
        module: The traced module.
        root: The module that it was traced of.

    Raises:
        ExportError: The graph calls one for which no bounds are known.
    """
    for node in list(module.graph.nodes):
        name = _name(node)
        jagged = _JAGGED.get(name)
        if jagged is None or _is_ours(root, node):
            _check_known(root, node, name)
            continue
        given = _given(node)
        rows = given[jagged.rows[0]] if jagged.rows else given["range_size"]
        with module.graph.inserting_before(node):
            if jagged.offsets:
                bounded = (
                    clamped_offsets if name in _PADDING else bounded_offsets if jagged.rows else bounded_ends
                )
                _replace(node, jagged.offsets, _bounded(module.graph, bounded, given[jagged.offsets], rows))
            else:
                lengths = given[jagged.lengths]
                _replace(node, jagged.lengths, module.graph.call_function(bounded_lengths, (lengths, rows)))
                if jagged.places:
                    places = module.graph.call_function(bounded_places, (given[jagged.places], lengths))
                    _replace(node, jagged.places, places)


def clamped_offsets(offsets: Tensor, rows: Tensor) -> Tensor:
    """Return offsets of which none points beyond the rows."""
    return offsets.clamp(min=0, max=rows.size(0))


def bounded_offsets(offsets: Tensor, rows: Tensor) -> Tensor:
    """Return offsets that do not fall, and of which none points beyond the rows."""
    return torch.cummax(offsets.clamp(min=0, max=rows.size(0)), dim=0)[0]


def bounded_ends(offsets: Tensor, num_rows: int) -> Tensor:
    """Return the same for a number of rows."""
    return torch.cummax(offsets.clamp(min=0, max=num_rows), dim=0)[0]


def bounded_outer_offsets(offsets: Tensor, inner: Tensor) -> Tensor:
    """Return the same for a jagged dimension within which lies another one, with offsets of its own."""
    return torch.cummax(offsets.clamp(min=0, max=inner.size(0) - 1), dim=0)[0]


def bounded_lengths(lengths: Tensor, rows: Tensor) -> Tensor:
    """Return lengths of at least 0, in total at most as many as rows."""
    ends = torch.cumsum(lengths.reshape(-1).clamp(min=0, max=rows.size(0)), dim=0).clamp(max=rows.size(0))
    starts = torch.cat([ends.new_zeros(1), ends])[: ends.size(0)]
    return (ends - starts).to(lengths.dtype).view_as(lengths)


def bounded_places(places: Tensor, lengths: Tensor) -> Tensor:
    """Return numbers of bags, or of features with bags of their own, that are there."""
    return places.clamp(min=0, max=lengths.size(0) - 1)


def _bounded(graph: fx.Graph, function: Any, offsets: Any, rows: Any) -> Any:
    if not isinstance(offsets, (list, tuple)):
        return _call(graph, function, offsets, rows)
    outer = [
        graph.call_function(bounded_outer_offsets, (one, offsets[i + 1]))
        for i, one in enumerate(offsets[:-1])
    ]
    return [*outer, _call(graph, function, offsets[-1], rows)]


def _call(graph: fx.Graph, function: Any, offsets: fx.Node, rows: Any) -> fx.Node:
    size = offsets.kwargs.get("max")
    if offsets.target == "clamp" and isinstance(size, fx.Node) and rows in size.all_input_nodes:
        return offsets  # as JaggedTensor has done it
    return graph.call_function(function, (offsets, rows))


def _name(node: fx.Node) -> str:
    """Return the name of one of FBGEMM's operators; empty for other nodes."""
    name = str(node.target)
    return name.split(".")[1] if node.op == "call_function" and name.startswith("fbgemm.") else ""


def _given(node: fx.Node) -> dict[str, Any]:
    schema = getattr(fbgemm, _name(node)).default._schema
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _replace(node: fx.Node, name: str, value: Any) -> None:
    if name in node.kwargs:
        node.update_kwarg(name, value)
        return
    names = [argument.name for argument in getattr(fbgemm, _name(node)).default._schema.arguments]
    node.update_arg(names.index(name), value)


def _is_ours(root: nn.Module, node: fx.Node) -> bool:
    """Return whether a lookup of ours calls an operator, behind a check of all lengths."""
    owners = [str(of.target).rpartition(".")[0] for of in node.all_input_nodes if of.op == "get_attr"]
    return any(type(root.get_submodule(path)).__module__.startswith(_OURS) for path in owners)


def _check_known(root: nn.Module, node: fx.Node, name: str) -> None:
    if not name or name in _SAFE or name in _JAGGED or _is_ours(root, node):
        return
    raise ExportError(
        f"model: forward calls torch.ops.fbgemm.{name}, which trusts the numbers that it is given: those of a request "
        f"could let it read other memory. Expected torch's own operators, or some of {sorted({*_JAGGED, *_SAFE})}"
    )
