"""The widths of dense arguments, as far as the layers that take them tell.

Shape letters: B batch, K width.
"""

from __future__ import annotations

from torch import Tensor, fx, nn

# Operations of one tensor (and perhaps numbers) that keep its shape.
_SHAPE_KEEPING = {
    *("to", "float", "double", "half", "bfloat16", "contiguous", "detach", "clone", "dropout"),
    *(
        "clamp",
        "clamp_min",
        "clamp_max",
        "nan_to_num",
        "abs",
        "neg",
        "exp",
        "log",
        "log1p",
        "log2",
        "log10",
        "sqrt",
    ),
    *("sigmoid", "tanh", "relu", "add", "sub", "mul", "div", "truediv", "pow"),
    *("where", "sign", "isfinite", "isnan", "isinf", "lt", "le", "gt", "ge", "eq", "ne"),
}
# Operations of a tensor [B, K] and a weight, and the dimension of the weight that is K.
_PRODUCTS = {"linear": -1, "matmul": 0, "mm": 0}
_SHAPE_KEEPING_LAYERS = (nn.Identity, nn.Dropout, nn.ReLU, nn.Sigmoid, nn.Tanh)


def input_name(node: fx.Node) -> str | None:
    """Return the name under which a node takes an input from the root's argument; that of a dense one is its own."""
    if node.op != "call_function" or len(node.args) != 2 or not isinstance(node.args[1], str):
        return None
    source = node.args[0]
    return node.args[1] if isinstance(source, fx.Node) and source.op == "placeholder" else None


def width_of(root: nn.Module, graph: fx.Graph, name: str) -> int | None:
    """Return the width that the first layer, product or split takes of a dense argument; None if none tells."""
    same: set[fx.Node] = set()
    for node in graph.nodes:
        if input_name(node) == name:
            same.add(node)
        elif any(one in same for one in node.all_input_nodes):
            others = [one for one in node.all_input_nodes if one not in same]
            width = _taken(root, node, same, others)
            if width is not None:
                return width
            if _keeps_shape(node, _layer(root, node)) and all(_is_number(root, one) for one in others):
                same.add(node)
    return None


def _taken(root: nn.Module, node: fx.Node, same: set[fx.Node], others: list[fx.Node]) -> int | None:
    """Return the width that a node takes of its first argument, which is in ``same``; None if it does not tell."""
    if not node.args or node.args[0] not in same:
        return None
    layer, name = _layer(root, node), _name(node)
    for attribute in ("in_features", "num_features", "normalized_shape") if not others else ():
        width = getattr(layer, attribute, None)
        if width is not None:
            return int(width[-1] if isinstance(width, tuple) else width)
    if name == "split" and not others and node.kwargs.get("dim") in (1, -1):
        sizes = node.args[1] if len(node.args) > 1 else None
        if isinstance(sizes, (list, tuple)) and all(isinstance(size, int) for size in sizes):
            return sum(size for size in sizes if isinstance(size, int))
    factor = node.args[1] if len(node.args) > 1 else None
    if name in _PRODUCTS and isinstance(factor, fx.Node):
        weight = _attribute(root, factor)
        return None if weight is None or weight.dim() != 2 else int(weight.shape[_PRODUCTS[name]])
    return None


def _keeps_shape(node: fx.Node, layer: nn.Module | None) -> bool:
    if layer is not None:
        return isinstance(layer, _SHAPE_KEEPING_LAYERS)
    return _name(node) in _SHAPE_KEEPING


def _name(node: fx.Node) -> str:
    if node.op == "call_module":
        return ""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_number(root: nn.Module, node: fx.Node) -> bool:
    tensor = _attribute(root, node)
    return tensor is not None and not tensor.dim()


def _attribute(root: nn.Module, node: fx.Node) -> Tensor | None:
    """Return the parameter or buffer that a node gets; None for other nodes."""
    if node.op != "get_attr":
        return None
    path, _, name = str(node.target).rpartition(".")
    found = getattr(root.get_submodule(path), name)
    return found if isinstance(found, Tensor) else None


def _layer(root: nn.Module, node: fx.Node) -> nn.Module | None:
    if node.op != "call_module":
        return None
    return root.get_submodule(str(node.target))
