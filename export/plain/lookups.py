"""The lookups in the graph of a plain model, and which of the weights that they read are tables.

Shape letters: B batch, L IDs of a row, D embedding dim, R rows.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from export.graph.tracing.sizes import input_name
from export.graph.tracing.tracer import LINE
from export.plain.moved import Moved, is_size
from export.plain.traced import MODEL, PlainGraph
from recsys.artifact.graphs import attribute
from recsys.base.table_modules import TAKEN_NAMES
from recsys.base.table_names import short_names
from recsys.errors import ExportError

# Below so many rows, a weight that IDs of the model's own making read, such as buckets, stays dense.
_FEW_ROWS = 1000
# What takes a tensor's sizes alone.
_OF_SIZES = {f"{name}_like" for name in ("zeros", "ones", "full", "empty", "rand", "randn")}
_OF_SIZES |= {f"new_{name}" for name in ("zeros", "ones", "full", "empty")}
_OF_SIZES_OF_SECOND = {"expand_as", "view_as", "reshape_as", "type_as"}


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """A node that reads rows.

    Attributes:
        node: It.
        ids: The node of the IDs.
        weight: The path of the weight in the user's model.
        mode: ``sum``, ``mean`` or ``max`` of a bag's rows ``[B, L]``; empty where each ID has a row.
        padding_idx: The ID whose row is left out of bags, and is not trained; None without one.
        per_id_weights: The node of the weight of each ID; None without any.
    """

    node: fx.Node
    ids: fx.Node
    weight: str
    mode: str = ""
    padding_idx: int | None = None
    per_id_weights: fx.Node | None = None


@dataclass(kw_only=True)
class Table:
    """A weight that lookups read.

    Attributes:
        name: Its name in the artifact.
        path: Its path in the user's model.
        weight: ``[R, D]``.
        lookups: In the order of the graph.
        stays_dense: Why it is no table; empty for tables.
        is_of_inputs: Whether its IDs follow from the inputs.
    """

    name: str = ""
    path: str
    weight: Tensor
    lookups: list[Lookup] = field(default_factory=list)
    stays_dense: str = ""
    is_of_inputs: bool = True

    @property
    def padding_idx(self) -> int | None:
        """The ID of padding."""
        return next((one.padding_idx for one in self.lookups if one.padding_idx is not None), None)


def find_tables(
    plain: PlainGraph,
    moved: Mapping[fx.Node, Moved],
    tables: Collection[str] = (),
    dense: Collection[str] = (),
) -> list[Table]:
    """Return the weights that lookups read.

    Args:
        plain: The graph.
        moved: The nodes that hold numbers of the inputs.
        tables: Names of weights that are tables, whatever reads them.
        dense: Names of those that stay dense.

    Raises:
        ExportError: A table cannot be served, or a name is unknown.
    """
    found: dict[int, Table] = {}
    for lookup in _lookups(plain):
        weight = attribute(plain.root, f"{MODEL}.{lookup.weight}")
        table = found.setdefault(id(weight), Table(path=lookup.weight, weight=weight.detach()))
        table.lookups.append(lookup)
    behind = _behind_inputs(plain.graph)
    read = _read_as_a_whole(plain, found)
    few = []
    for key, table in found.items():
        if not any(lookup.ids in behind for lookup in table.lookups):
            table.stays_dense, table.is_of_inputs = "its IDs follow from no input, such as positions", False
        elif key in read:
            table.stays_dense = f"it is read as a whole{read[key]}"
        elif all(lookup.ids not in moved for lookup in table.lookups) and len(table.weight) < _FEW_ROWS:
            table.stays_dense = f"the model computes its IDs, and it has only {len(table.weight)} rows"
            few.append(table)
    if all(table.stays_dense for table in found.values()):
        for table in few:  # or there would be none
            table.stays_dense = ""
    named = short_names(_module_path(table.path) for table in found.values())
    for table in found.values():
        name = named[_module_path(table.path)].replace(".", "_")
        table.name = f"{name}_table" if name in TAKEN_NAMES else name
    _choose([*found.values()], tables, dense)
    for key, table in found.items():
        if key in read and not table.stays_dense:
            raise ExportError(
                f"tables: got {table.path!r}, which is read as a whole{read[key]}, expected weights that IDs alone "
                "read: it stays dense"
            )
    return [*found.values()]


def _behind_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes whose numbers follow from numbers of the inputs, and not from their sizes alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        sources = node.all_input_nodes[:1] if name in _OF_SIZES_OF_SECOND else node.all_input_nodes
        is_of_sizes = is_size(node) or name in _OF_SIZES
        if input_name(node) is not None or (not is_of_sizes and any(one in found for one in sources)):
            found.add(node)
    return found


def _choose(found: list[Table], tables: Collection[str], dense: Collection[str]) -> None:
    names = {name: table for table in found for name in (table.path, _module_path(table.path), table.name)}
    unknown = [name for name in (*tables, *dense) if name not in names]
    if unknown:
        known = [table.name for table in found]
        raise ExportError(f"tables: got {unknown[0]!r}, expected what forward looks IDs up in: {known[:20]}")
    for name in tables:
        names[name].stays_dense = ""
    for name in dense:
        names[name].stays_dense = "you said so"


def _module_path(path: str) -> str:
    return path.removesuffix(".weight") or path


def _read_as_a_whole(plain: PlainGraph, found: Mapping[int, Table]) -> dict[int, str]:
    """Return the weights that are read other than by lookups, and where."""
    lookups = {lookup.node for table in found.values() for lookup in table.lookups}
    read = {}
    for node in plain.graph.nodes:
        held: Any = (
            attribute(plain.root, str(node.target)) if node.op in ("get_attr", "call_module") else None
        )
        if isinstance(held, nn.Module):  # such as a linear layer that shares its weight
            others = [node] if node not in lookups else []
        else:
            others = [user for user in node.users if user not in lookups]
        for weight in [*held.parameters()] if isinstance(held, nn.Module) else [held]:
            if id(weight) in found and others:
                read[id(weight)] = _at(others[0])
    return read


def computed_weight(plain: PlainGraph) -> str:
    """Return what to say of a lookup in rows that forward computes of a weight; empty without one."""
    behind = _behind_inputs(plain.graph)
    for node in plain.graph.nodes:
        is_by_name = node.target in (functional.embedding, functional.embedding_bag)
        if not is_by_name and node.target not in (operator.getitem, torch.index_select, "index_select"):
            continue
        weight = _argument(node, 1, "weight") if is_by_name else node.args[0]
        if not isinstance(weight, fx.Node) or weight in behind or weight.op == "get_attr":
            continue
        if any(one in behind for one in node.all_input_nodes):
            return f"it looks them up in rows that forward computes{_at(node)}: compute these once, as an nn.Embedding"
    return ""


def _lookups(plain: PlainGraph) -> list[Lookup]:
    found = []
    for node in plain.graph.nodes:
        lookup = _of_module(plain, node) if node.op == "call_module" else _of_function(plain, node)
        if lookup is not None:
            found.append(lookup)
    return found


def _of_module(plain: PlainGraph, node: fx.Node) -> Lookup | None:
    module = attribute(plain.root, str(node.target))
    path = f"{str(node.target).removeprefix(f'{MODEL}.')}.weight"
    if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return None
    if module.max_norm is not None:
        raise _max_norm(path, node)
    ids = _argument(node, 0, "input")
    if not isinstance(ids, fx.Node):
        return None
    if isinstance(module, nn.Embedding):
        return Lookup(node=node, ids=ids, weight=path, padding_idx=module.padding_idx)
    _check_bags(path, node, _argument(node, 1, "offsets"))
    return Lookup(
        node=node,
        ids=ids,
        weight=path,
        mode=module.mode,
        padding_idx=module.padding_idx,
        per_id_weights=_argument(node, 2, "per_sample_weights"),
    )


def _of_function(plain: PlainGraph, node: fx.Node) -> Lookup | None:
    is_by_name = node.target in (functional.embedding, functional.embedding_bag)
    if is_by_name:
        ids, weight = _argument(node, 0, "input"), _argument(node, 1, "weight")
    elif node.target is operator.getitem:
        weight, ids = node.args[:2]
        ids = ids[0] if isinstance(ids, (tuple, list)) and len(ids) == 1 else ids
    elif node.target in (torch.index_select, "index_select"):
        weight, dim, ids = (_argument(node, i, name) for i, name in enumerate(("input", "dim", "index")))
        if dim != 0:
            return None
    else:
        return None
    if not isinstance(weight, fx.Node) or not isinstance(ids, fx.Node) or weight.op != "get_attr":
        return None
    path = str(weight.target)
    value = attribute(plain.root, path)
    if not isinstance(value, nn.Parameter) or value.dim() != 2 or not value.is_floating_point():
        return None
    path = path.removeprefix(f"{MODEL}.")
    if not is_by_name:
        return Lookup(node=node, ids=ids, weight=path)
    if _argument(node, 3, "max_norm") is not None and node.target is functional.embedding:
        raise _max_norm(path, node)
    if node.target is functional.embedding:
        padding = _argument(node, 2, "padding_idx")
        return Lookup(node=node, ids=ids, weight=path, padding_idx=_positive(padding, value))
    _check_bags(path, node, _argument(node, 2, "offsets"))
    if node.kwargs.get("max_norm") is not None:
        raise _max_norm(path, node)
    return Lookup(
        node=node,
        ids=ids,
        weight=path,
        mode=str(node.kwargs.get("mode", "mean")),
        padding_idx=_positive(node.kwargs.get("padding_idx"), value),
        per_id_weights=node.kwargs.get("per_sample_weights"),  # type: ignore[arg-type]
    )


def _positive(padding: Any, weight: Tensor) -> int | None:
    if padding is None:
        return None
    return int(padding) if padding >= 0 else int(padding) + len(weight)


def _argument(node: fx.Node, at: int, name: str) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name)


def _check_bags(path: str, node: fx.Node, offsets: Any) -> None:
    if offsets is not None:
        raise ExportError(
            f"table {path!r}: got an EmbeddingBag that is given offsets{_at(node)}, expected IDs as [B, L]: flat IDs "
            "have no rows to put a batch together of. Leave offsets out, and pad the bag of each row to L by "
            "an ID that is the bag's padding_idx; or take recsys.EmbeddingBagCollection, whose features are such bags"
        )


def _max_norm(path: str, node: fx.Node) -> ExportError:
    return ExportError(
        f"table {path!r}: got max_norm{_at(node)}, expected none: such a lookup changes the rows that it reads. "
        "Renormalize the weight once, and leave max_norm out of the model that is exported"
    )


def _at(node: fx.Node) -> str:
    line = node.meta.get(LINE)
    return "" if line is None else f" at {line}"
