"""Device checks of a traced graph, for targets with devices that this machine lacks.

Shape letters: none; shapes play no part here.

Every node's device is known when the graph is traced: inputs are in host memory, constants on the target's
devices, and every copy names its device. So a graph that would fail on its first request, because an operator
gets tensors on two devices, already fails at export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from recsys.errors import ExportError

_HOST = "cpu"
# Methods that return numbers.
_NUMBERS = {"size", "numel", "dim", "stride", "element_size", "len"}
# Functions that create tensors; in host memory unless a device is given.
_MAKERS = {
    "ones",
    "zeros",
    "full",
    "empty",
    "arange",
    "linspace",
    "eye",
    "tensor",
    "rand",
    "randn",
    "scalar_tensor",
}
# Functions that read the positions of cuts from host memory, for tensors on any device.
_CUTTERS = {"tensor_split", "split", "chunk"}


def check_devices(
    module: fx.GraphModule, devices: Sequence[torch.device], ranks: Mapping[str, int]
) -> Mapping[fx.Node, str | None]:
    """Check the devices of every node, and return them: None for nodes that are no tensors.

    Args:
        module: A traced model.
        devices: The devices of the target, rank by rank.
        ranks: The rank of each tensor outside host memory, by attribute path.

    Raises:
        ExportError: Names the operation and the devices of its arguments.
    """
    follower = _Follower(module, [str(device) for device in devices], ranks)
    follower.follow()
    return follower.found


class _Follower:
    def __init__(self, module: fx.GraphModule, devices: Sequence[str], ranks: Mapping[str, int]) -> None:
        self._module = module
        self._devices = devices
        self._ranks = ranks
        # A tensor's device; for a node that is a device itself (`x.device`), that device; None for numbers.
        self.found: dict[fx.Node, str | None] = {}

    def follow(self) -> None:
        for node in self._module.graph.nodes:
            self.found[node] = self._device(node)

    def _device(self, node: fx.Node) -> str | None:
        if node.op == "placeholder":
            return _HOST
        if node.op == "get_attr":
            return self._of_attribute(str(node.target))
        if node.op == "output":
            return None
        name = _name(node)
        if name in _NUMBERS or (name == "getattr" and node.args[1] != "device"):
            return None
        device = self._requested(node)
        if device is not None:
            return device
        if name in _MAKERS:
            return _HOST
        if name in _CUTTERS:
            source = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("self"))
            return self.found[source] if isinstance(source, fx.Node) else None
        return self._common(node)

    def _common(self, node: fx.Node) -> str | None:
        given = {self.found[source] for source in node.all_input_nodes} - {None}
        if node.op == "call_module":
            prefix = f"{node.target}."
            given |= {self._of_attribute(path) for path in self._ranks if path.startswith(prefix)}
        if len(given) > 1:
            raise ExportError(
                f"model: on other devices than cpu, {_name(node)} would be given tensors on {sorted(map(str, given))}: "
                "make tensors on their inputs' device (device=x.device), and take lengths from what a collection "
                "returns: a KeyedJaggedTensor itself stays in host memory"
            )
        return given.pop() if given else None

    def _of_attribute(self, path: str) -> str:
        return self._devices[self._ranks[path]] if path in self._ranks else _HOST

    def _requested(self, node: fx.Node) -> str | None:
        """Return the device that a node's arguments request for its result."""
        device: Any = node.kwargs.get("device")
        if device is None and node.op == "call_method" and node.target == "to":
            device = next((arg for arg in node.args[1:] if _names_device(arg)), None)
            if device is None:
                other = next((arg for arg in node.args[1:] if isinstance(arg, fx.Node)), None)
                device = other if other is not None and self.found[other] is not None else None
        if isinstance(device, fx.Node):
            return self.found[device]
        return None if device is None else str(torch.device(device))


def _names_device(value: object) -> bool:
    return isinstance(value, (torch.device, str))


def _name(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
