"""A graph for one CUDA device, cut at its copies: what host memory prepares, and what the device computes of it.

Shape letters: P parts that are sent.

``forward`` stays as it is. Beside it the graph gets two methods over the same attributes, of which loaders make CUDA
graphs (``recsys.artifact.cuda.graphs``):

* ``to_send(...)`` takes the inputs of ``forward`` and returns the P tensors that ``forward`` sends, before they are
  packed, and the sizes of other tensors in host memory that the device's part reads;
* ``on_device(parts, sizes)`` takes both, the tensors on the device, and returns the outputs there, in order.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from export.graph.passes import is_pure, without_unused
from export.graph.tracing.sizes import descendants
from recsys.artifact.cuda.graphs import ON_DEVICE, TO_SEND

_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)


def cut(module: fx.GraphModule, devices: Mapping[fx.Node, str | None]) -> dict[str, fx.GraphModule]:
    """Return the two methods by name.

    Args:
        module: A traced model of pooled collections, all on one CUDA device.
        devices: The device of each node, as ``check_devices`` returns it.

    Returns:
        Nothing if the graph cannot be cut: it sends several times, or the device's part reads tensors in host memory.
    """
    copies = [node for node in module.graph.nodes if node.target == "pin_memory"]
    if len(copies) != 1:
        return {}
    halves = _Halves(module, devices, copies[0])
    if not halves.can_be_cut:
        return {}
    return {TO_SEND: halves.to_send(), ON_DEVICE: halves.on_device()}


class _Halves:
    """The nodes before and behind the copy to the device.

    ``recsys.sharding.transport.local`` sends, and ``export.graph.graph`` copies the outputs back:
    the nodes that they emit are followed here.
    """

    def __init__(self, module: fx.GraphModule, devices: Mapping[fx.Node, str | None], copy: fx.Node) -> None:
        self._module = module
        self._devices = devices
        self._copy = copy
        self._behind = set(descendants(module.graph, [copy]))
        packed: Any = copy.args[0]
        # torch.cat of tensor.reshape(-1) as torch.int32.
        self._sent: list[fx.Node] = [word.args[0].args[0] for word in packed.args[0]]
        self._received = dict(_received(copy))
        self._of_inputs = set[fx.Node]()
        for node in module.graph.nodes:
            if node.op == "placeholder" or any(source in self._of_inputs for source in node.all_input_nodes):
                self._of_inputs.add(node)
        answers: Any = next(node for node in module.graph.nodes if node.op == "output").args[0]
        # Each answer is part.view(output.size()).
        self._outputs: list[fx.Node] = [answer.args[1].args[0] for answer in answers.values()]
        # Those of host memory that the device's part reads.
        self._sizes: list[fx.Node] = []
        self._needed = set[fx.Node]()
        self.can_be_cut = self._follow()

    def _follow(self) -> bool:
        """Collect what the outputs are made of, up to what is received; return whether all of it can be captured."""
        [on_device] = self._copy.users
        home = str(on_device.args[1])
        back = _back_in_host_memory(self._module, self._behind)
        # Operators that write to what they are given count too, though nothing may read what they return.
        waiting = [*self._outputs, *(n for n in self._behind - back if not is_pure(self._module, n))]
        while waiting:
            node = waiting.pop()
            if node in self._needed or node in self._received or node in self._sizes:
                continue
            device = self._devices[node]
            if device is None and node not in self._behind and node in self._of_inputs:
                if not _is_int(node):
                    return False
                self._sizes.append(node)
            elif device in (None, home):
                self._needed.add(node)
                waiting += node.all_input_nodes
            else:
                return False
        return True

    def to_send(self) -> fx.GraphModule:
        """Return what runs before the copy, with all that checks inputs."""
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        for node in self._module.graph.nodes:
            if node is not self._copy and node not in self._behind and node.op != "output":
                copied[node] = graph.node_copy(node, copied.__getitem__)
        results = ([copied[node] for node in self._sent], [copied[node] for node in self._sizes])
        graph.output(results, type_expr=tuple[list[Tensor], list[int]])
        part = fx.GraphModule(self._module, graph)
        without_unused(part)
        part.recompile()
        return part

    def on_device(self) -> fx.GraphModule:
        """Return what runs behind it, up to the copy of the outputs."""
        graph = fx.Graph()
        parts = graph.placeholder("parts", type_expr=list[Tensor])
        sizes = graph.placeholder("sizes", type_expr=list[int])
        copied: dict[fx.Node, fx.Node] = {}
        for node in self._module.graph.nodes:
            if node in self._received:
                copied[node] = graph.call_function(operator.getitem, (parts, self._received[node]))
            elif node in self._sizes:
                copied[node] = graph.call_function(operator.getitem, (sizes, self._sizes.index(node)))
            elif node in self._needed:
                copied[node] = graph.node_copy(node, copied.__getitem__)
        graph.output([copied[node] for node in self._outputs], type_expr=list[Tensor])
        return fx.GraphModule(self._module, graph)


def _received(copy: fx.Node) -> Iterator[tuple[fx.Node, int]]:
    """Yield the nodes of the parts on the device, in their types and shapes, and their numbers."""
    [on_device] = copy.users
    for split in on_device.users:
        for part in split.users:
            for typed in part.users:
                for shaped in typed.users:
                    yield shaped, int(part.args[1])  # type: ignore[arg-type]


def _back_in_host_memory(module: fx.GraphModule, behind: set[fx.Node]) -> set[fx.Node]:
    """Return the copies of the outputs, and all behind them."""
    copies = [n for n in behind if n.target == "to" and n.args[1:] in (("cpu",), (torch.device("cpu"),))]
    output = next(node for node in module.graph.nodes if node.op == "output")
    return {output, *copies, *descendants(module.graph, copies)}


def _is_int(node: fx.Node) -> bool:
    """Return whether a number is an integer: one size of a tensor, or made of such by whole arithmetic."""
    if node.op == "call_method":
        return (node.target == "size" and len(node.args) == 2) or node.target == "numel"
    if node.target is operator.getitem:
        source, index = node.args
        return isinstance(source, fx.Node) and source.target == "size" and isinstance(index, int)
    return node.target in _ARITHMETIC and all(
        _is_int(arg) if isinstance(arg, fx.Node) else type(arg) is int for arg in node.args
    )
