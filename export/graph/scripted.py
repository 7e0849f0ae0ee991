"""A traced graph as TorchScript, and which operators graphs may call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import fx

from export.graph.tracing.source_location import Line
from export.graph.tracing.tracer import LINE
from recsys.errors import ExportError
from recsys.scripting import torchscript

# Before the marks below what TorchScript refuses: the node's name.
_REFUSED = re.compile(r"^ *(\w+) = .*\n *~+ <--- HERE", re.MULTILINE)
_ALLOWED_NAMESPACES = ("aten", "fbgemm", "prim")


def scripted(module: fx.GraphModule, methods: Mapping[str, fx.GraphModule]) -> torch.jit.ScriptModule:
    """Script a graph.

    Args:
        module: The graph.
        methods: By name, the parts of it that become methods of their own.

    Raises:
        ExportError: TorchScript cannot follow the model, or the graph calls foreign operators.
    """
    try:
        script = torchscript.script(module, methods)
    except RuntimeError as error:
        raise ExportError(f"model: cannot be scripted: {_refused(module, error)}") from error
    check_namespaces(torchscript.operators(script))
    return script


def _refused(module: fx.GraphModule, error: RuntimeError) -> str:
    """Return what TorchScript refused, and the line of the model's code that asks for it."""
    lines: dict[str, Line] = {node.name: node.meta[LINE] for node in module.graph.nodes if LINE in node.meta}
    named = [name for name in _REFUSED.findall(str(error)) if name in lines]
    said = " ".join(str(error).split(":\n  File")[0].split())
    if not named:
        return said or str(error)
    return f"{said}. At {lines[named[-1]]}"


def check_namespaces(operators: Iterable[str]) -> None:
    """Check that a graph calls no foreign operators.

    Args:
        operators: By ``namespace::name``.

    Raises:
        ExportError: It does.
    """
    foreign = sorted(name for name in operators if name.split("::")[0] not in _ALLOWED_NAMESPACES)
    if foreign:
        raise ExportError(f"model: the graph calls {foreign}, expected operators of aten and fbgemm only")
