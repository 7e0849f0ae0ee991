"""Nodes that write to tensors: those that can be are replaced by what returns a new tensor, others stay together.

What a node writes to, and which tensors share their memory, is seen by running the graph.

Shape letters: B rows.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.passes import is_pure
from export.lower.leaves import LEAVES
from export.lower.values import NotLoweredError
from recsys.ops import fbgemm

# What may return its argument or a copy, by its strides.
_MAY_BE_VIEWS = frozenset(
    (
        "reshape",
        "reshape_as",
        "flatten",
        "ravel",
        "contiguous",
        "to",
        "float",
        "type",
        "type_as",
        "expand",
        "view_as",
    )
)
_BY_NAME: dict[Any, Callable[..., Any]] = {
    "zero": torch.zeros_like, "fill": torch.full_like,
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}  # fmt: skip
# Their functions write to nothing but what they make.
_LIBRARIES = ("torch", "recsys", "export", "fbgemm_gpu")
# What tells nothing of the numbers.
_SIZES = ("size", "dim", "numel")
#: Nodes of the graph, in order, of which some write to what others read.
Group = tuple[fx.Node, ...]


def calls_code(node: fx.Node) -> bool:
    """Return whether a node calls a function of the model's code, which may write to what it is given."""
    target = node.target
    is_own = isinstance(target, FunctionType) and target.__module__.split(".")[0] in _LIBRARIES
    return node.op == "call_function" and isinstance(target, FunctionType) and not is_own


def is_fused_relu(module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node overwrites what a layer has made for it alone."""
    source = node.args[0] if node.args else None
    return (
        node.target is torch.relu_
        and isinstance(source, fx.Node)
        and source.op == "call_module"
        and isinstance(module.get_submodule(str(source.target)), nn.Linear)
        and len(source.users) == 1
    )


def may_write(module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether the graph must be run to tell what a node writes to."""
    if node.op in ("placeholder", "output") or node.target is fbgemm.bounds_check_indices:
        return False
    return (not is_pure(module, node) and not is_fused_relu(module, node)) or calls_code(node)


def separate_writes(module: fx.GraphModule, run: Callable[[fx.Interpreter], None]) -> list[Group]:
    """Let as few nodes as possible write to tensors.

    Args:
        module: The graph, which is changed.
        run: Runs an interpreter of the graph on inputs.

    Returns:
        What must be computed together, in the order of the graph.

    Raises:
        NotLoweredError: It writes to weights, or to the IDs of a batch.
    """
    written = _Recorded(module, run)
    for write in list(written.writes):
        if _replace(written, write):
            written = _Recorded(module, run)
    for node in _first_of_classes(written):
        _copy_behind(module.graph, node, written)
    if written.writes:
        written = _Recorded(module, run)
    return _groups(module.graph, written)


class _Recorded(fx.Interpreter):
    """What the nodes of a graph hold and write.

    Attributes:
        writes: By node, the memory that it writes to.
        memory: By node, that of its tensors.
        results: By node, what it returns.
        tensors: By node, the tensors in that.
        are_reshaped: Whether a node changes the shape of its argument.
    """

    def __init__(self, module: fx.GraphModule, run: Callable[[fx.Interpreter], None]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.graph_module = module
        self.writes: dict[fx.Node, set[int]] = {}
        self.memory: dict[fx.Node, set[int]] = {}
        self.results: dict[fx.Node, Any] = {}
        self.tensors: dict[fx.Node, list[Tensor]] = {}
        self.are_reshaped = False
        self._same: dict[int, int] = {}
        run(self)
        self.memory = {node: set(map(self._root, found)) for node, found in self.memory.items()}
        self.writes = {node: set(map(self._root, found)) for node, found in self.writes.items()}

    def fetch_attr(self, target: str) -> Any:
        """Return a copy of a weight: the model's stays as it is."""
        found = super().fetch_attr(target)
        return found.clone() if isinstance(found, Tensor) else found

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and note what it writes to."""
        seen = [one for node in n.all_input_nodes for one in self.tensors.get(node, ())]
        before = [one._version for one in seen]
        result = super().run_node(n)
        self.results[n] = result
        self.tensors[n] = list(_tensors_in(result))
        self.memory[n] = {_memory_of(one) for one in self.tensors[n]}
        found = {
            _memory_of(one) for one, version in zip(seen, before, strict=True) if one._version != version
        }
        if not found and _writes_by_name(self.graph_module, n) and n.all_input_nodes:
            found = self.memory[n.all_input_nodes[0]]
            self.are_reshaped = True
        if found:
            self.writes[n] = found
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        if name in _MAY_BE_VIEWS and n.op in ("call_method", "call_function"):
            for one in self.memory[n]:
                for other in self.memory.get(n.all_input_nodes[0], ()):
                    self._same[self._root(one)] = self._root(other)
        return result

    def _root(self, memory: int) -> int:
        while self._same.get(memory, memory) != memory:
            memory = self._same[memory]
        return memory

    def members(self, memory: int) -> list[fx.Node]:
        """Return the nodes that hold some memory."""
        return [node for node, found in self.memory.items() if memory in found and node.op != "output"]


def _writes_by_name(module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a name says that a node changes its first argument: also its shape, which has no version."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_private = name.startswith("_")
    return (
        node.op in ("call_method", "call_function")
        and not is_private
        and name.endswith("_")
        and not is_pure(module, node)
    )


def _memory_of(tensor: Tensor) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory


def _tensors_in(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, Mapping):
        for one in found.values():
            yield from _tensors_in(one)
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from _tensors_in(one)


def _replace(recorded: _Recorded, write: fx.Node) -> bool:
    """Let a node return a new tensor, if nothing has a view of what it writes to. Return whether it could."""
    counterpart = _without_writing(recorded.graph_module, write)
    (memory, *others) = recorded.writes[write]
    source = write.args[0] if write.args else None
    if counterpart is None or others or not isinstance(source, fx.Node):
        return False
    members = recorded.members(memory)
    made = [node for node in members if node not in recorded.writes]
    tensors = [one for node in write.all_input_nodes for one in recorded.tensors[node]]
    if (
        len(made) != 1
        or made[0].op == "get_attr"
        or len(recorded.tensors[source]) != 1
        # The result may have another type where the operand has.
        or recorded.tensors[source][0].dtype is not torch.float32
        or any(
            one.dtype is not torch.float32 and one.dim() > 0 and one.is_floating_point() for one in tensors
        )
        or any(_writes_otherwise(recorded, node, memory) for node in recorded.writes)
    ):
        return False
    order = {node: i for i, node in enumerate(write.graph.nodes)}
    later = [
        node
        for member in members
        if member is not write
        for node in member.users
        if order[node] > order[write]
    ]
    for node in dict.fromkeys(later):
        for member in members:
            node.replace_input_with(member, write)
    write.op, target = counterpart
    if isinstance(target, nn.Module):
        module, name = recorded.graph_module, f"{write.target}_without_writing"
        module.add_submodule(name, target)
        target = name
    write.target = target
    write.args = (source, *write.args[1:])
    write.kwargs = {key: one for key, one in write.kwargs.items() if key != "inplace"}
    return True


def _writes_otherwise(recorded: _Recorded, node: fx.Node, memory: int) -> bool:
    """Return whether a node that writes to some memory returns something else, or is given it twice."""
    if memory not in recorded.writes[node]:
        return False
    return recorded.memory[node] != {memory} or _without_writing(recorded.graph_module, node) is None


def _without_writing(module: fx.GraphModule, node: fx.Node) -> tuple[str, Any] | None:
    """Return the operator that returns what a node writes, as op and target."""
    target = node.target
    if node.op == "call_module":
        layer = copy.copy(module.get_submodule(str(target)))
        if not getattr(layer, "inplace", False):
            return None
        layer.inplace = False  # type: ignore[assignment]
        return "call_module", layer
    if "out" in node.kwargs or node.op not in ("call_function", "call_method"):
        return None
    if target in _BY_NAME:
        return "call_function", _BY_NAME[target]
    if node.op == "call_method":
        name = str(target).removesuffix("_")
        if name in _BY_NAME:
            return "call_function", _BY_NAME[name]
        return ("call_method", name) if name != target and hasattr(Tensor, name) else None
    name = getattr(target, "__name__", "")
    if node.kwargs.get("inplace") and str(getattr(target, "__module__", "")).startswith("torch."):
        return "call_function", target
    found = getattr(torch, name.removesuffix("_"), None)
    is_known = name.endswith("_") and getattr(torch, name, None) is target
    return ("call_function", found) if is_known and found is not None else None


def _first_of_classes(recorded: _Recorded) -> list[fx.Node]:
    """Return the nodes that make the memory that is written to.

    Raises:
        NotLoweredError: It is that of weights, or of a batch's IDs.
    """
    found: dict[fx.Node, None] = {}
    for memory in {one for written in recorded.writes.values() for one in written}:
        for node in recorded.members(memory):
            is_input = node.op == "placeholder" and not str(node.target).startswith("dense_")
            if node.op == "get_attr" or is_input:
                writer = next(one for one, written in recorded.writes.items() if memory in written)
                raise NotLoweredError(f"it writes to {node.target}").at(writer)
            is_first = not any(memory in recorded.memory[one] for one in node.all_input_nodes)
            if is_first and len(recorded.tensors[node]) == 1:
                found[node] = None
    return list(found)


def _copy_behind(graph: fx.Graph, node: fx.Node, recorded: _Recorded) -> None:
    """Let what writes and what comes after it read a copy of what a node makes."""
    inputs = [one for one in graph.nodes if one.op == "placeholder"]
    with graph.inserting_after(inputs[-1] if node.op == "placeholder" else node):
        copied = graph.call_method("clone", (node,))
    order = {one: i for i, one in enumerate(graph.nodes)}
    memory = recorded.memory[node]
    first = min(order[one] for one, found in recorded.writes.items() if found & memory)

    def is_after(user: fx.Node) -> bool:
        is_view = bool(recorded.memory.get(user, set()) & memory)
        return user is not copied and (is_view or order[user] >= first)

    node.replace_all_uses_with(copied, delete_user_cb=is_after)


def _groups(graph: fx.Graph, recorded: _Recorded) -> list[Group]:
    """Return what reads and writes the same memory, with all that lies between."""
    groups: list[set[fx.Node]] = []
    order = {node: i for i, node in enumerate(graph.nodes)}
    for memory in {one for written in recorded.writes.values() for one in written}:
        members = recorded.members(memory)
        readers = [user for node in members for user in node.users if not _is_size(recorded, user)]
        # What comes after the last write reads what all of them have made.
        last = max(order[node] for node, found in recorded.writes.items() if memory in found)
        groups.append({node for node in (*members, *readers) if order[node] <= last})
    nodes = [node for node in graph.nodes if node.op != "output"]
    done: list[set[fx.Node]] = []
    while groups:
        group = _closed(groups.pop(), nodes, recorded)
        meeting = [one for one in [*groups, *done] if one & group]
        if meeting:
            groups = [one for one in groups if not one & group]
            done = [one for one in done if not one & group]
            groups.append(group.union(*meeting))
        else:
            done.append(group)
    for group in done:
        for node in group:
            if node.target in LEAVES or node.op == "placeholder":
                raise NotLoweredError(f"it writes to what {node.target} reads").at(node)
    return [tuple(node for node in nodes if node in group) for group in done]


def _is_size(recorded: _Recorded, node: fx.Node) -> bool:
    """Return whether a node reads nothing but sizes, which stay the same."""
    if recorded.are_reshaped:
        return False
    if node.op == "call_method":
        return node.target in _SIZES
    return node.target is getattr and node.args[1] in ("shape", "dtype", "device")


def _closed(group: set[fx.Node], nodes: Iterable[fx.Node], recorded: _Recorded) -> set[fx.Node]:
    """Return a group with what lies between its nodes, and what reads of them what is no tensor."""
    group = set(group)
    while True:
        behind: set[fx.Node] = set()
        before: set[fx.Node] = set()
        ordered = list(nodes)
        for node in ordered:
            if any(one in group or one in behind for one in node.all_input_nodes):
                behind.add(node)
        for node in reversed(ordered):
            if any(one in group or one in before for one in node.users):
                before.add(node)
        found = group | (behind & before)
        for node in list(found):
            if not isinstance(recorded.results.get(node), Tensor):
                found |= {user for user in node.users if user.op != "output"}
        if found == group:
            return group
        group = found
