"""The arguments of a model's ``forward``: which are dense, which are sparse, and which collections look them up.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, fx, nn

from export.graph.tracing import trace
from export.graph.tree import exchanged
from recsys.configs import EmbeddingBagConfig
from recsys.embedding import EmbeddingBagCollection, FloatCollection
from recsys.errors import ExportError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.quant import float_tables
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.sharded import ShardedCollection
from recsys.signature import DenseInput, IdPolicy, SparseInput, TableUse

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
}
_SHAPE_KEEPING_LAYERS = (nn.Identity, nn.Dropout, nn.ReLU, nn.Sigmoid, nn.Tanh)


@dataclass(kw_only=True)
class Binding:
    """The mapping of the exported inputs to a model's arguments.

    Attributes:
        dense: For each dense argument its width.
        sparse: For each KeyedJaggedTensor argument its features, in the wire's order.
        collections: For each collection, by path, the sparse arguments that reach it.
        weighted: The sparse arguments that carry weights.
        casts_outputs: Whether the model returns other dtypes than float32.
    """

    dense: dict[str, int] = field(default_factory=dict)
    sparse: dict[str, list[str]] = field(default_factory=dict)
    collections: dict[str, list[str]] = field(default_factory=dict)
    weighted: set[str] = field(default_factory=set)
    casts_outputs: bool = False

    def wire_name(self, argument: str, feature: str) -> str:
        """Return a feature's wire name; prefixed with the argument if two arguments have the feature."""
        holders = [name for name, features in self.sparse.items() if feature in features]
        return feature if len(holders) == 1 else f"{argument}.{feature}"

    def part(self, names: Collection[str]) -> Binding:
        """Return the binding restricted to sparse features with these wire names."""
        kept = {
            argument: [feature for feature in features if self.wire_name(argument, feature) in names]
            for argument, features in self.sparse.items()
        }
        return replace(self, sparse={argument: features for argument, features in kept.items() if features})

    @property
    def wire_names(self) -> list[str]:
        """The sparse features as the signature names them, in its order."""
        return [self.wire_name(name, f) for name, features in self.sparse.items() for f in features]


def arguments(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of ``forward``'s dense and sparse arguments, by their annotations.

    Raises:
        ExportError: An argument without a default is annotated neither Tensor nor KeyedJaggedTensor.
    """
    forward = type(model).forward
    try:
        hints: Mapping[str, object] = typing.get_type_hints(forward)
    except (NameError, TypeError, AttributeError):
        hints = getattr(forward, "__annotations__", {})
    dense, sparse = [], []
    for name, parameter in list(inspect.signature(forward).parameters.items())[1:]:
        kind = _unwrapped(hints.get(name))
        has_default = parameter.default is not inspect.Parameter.empty
        is_input = kind is Tensor or str(kind).endswith(("Tensor", "Tensor'>"))
        if is_input and has_default:
            raise ExportError(
                f"forward({name}): got an input with a default, expected every input to be given: wrap the model in "
                "one whose forward takes what the service is to send"
            )
        if kind is Tensor or kind in ("Tensor", "torch.Tensor"):
            dense.append(name)
        elif _is_jagged(kind):
            sparse.append(name)
        elif not has_default:
            raise ExportError(
                f"forward({name}): got annotation {kind!r}, expected torch.Tensor (float32, [B, width]) or "
                "recsys.KeyedJaggedTensor"
            )
    return dense, sparse


def _is_jagged(kind: object) -> bool:
    """Return whether an annotation is our KeyedJaggedTensor, TorchRec's, or the name of one."""
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return name.rpartition(".")[2] == KeyedJaggedTensor.__name__


def _unwrapped(kind: object) -> object:
    """Return the type within ``Optional``; other types unchanged."""
    inner = [t for t in typing.get_args(kind) if t is not type(None)]
    optional = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return inner[0] if optional and len(inner) == 1 else kind


class _Probe(nn.Module):
    """A stand-in for a collection that records the graph node of its IDs."""

    def __init__(self, sharded: ShardedCollection) -> None:
        super().__init__()
        self.sharded = sharded
        self.nodes: list[fx.Node] = []

    def forward(self, features: KeyedJaggedTensor) -> object:
        values: object = features.values()
        if isinstance(values, fx.Proxy):
            self.nodes.append(values.node)
        return self.sharded(features)


class _Root(nn.Module):
    def __init__(
        self, model: nn.Module, dense: Sequence[str], sparse: Sequence[str], features: list[str]
    ) -> None:
        super().__init__()
        self.model = model
        self._dense, self._sparse, self._features = list(dense), list(sparse), features

    def forward(self, tensors: dict[str, Tensor]) -> object:
        kwargs: dict[str, object] = {name: tensors[name] for name in self._dense}
        for name in self._sparse:
            kwargs[name] = KeyedJaggedTensor(
                self._features,
                tensors[f"{name}.values"],
                weights=tensors[f"{name}.weights"],
                lengths=tensors[f"{name}.lengths"],
            )
        # The root's outputs do not matter here; a holder of proxies could not leave a graph.
        self.model(**kwargs)
        return tensors


def bind(
    model: nn.Module,
    collections: Mapping[str, FloatCollection],
    skeletons: Mapping[str, ShardedCollection],
    dense_widths: Mapping[str, int],
) -> Binding:
    """Determine the use of a model's arguments by tracing it once.

    Args:
        model: The float model.
        collections: Its collections by path.
        skeletons: For each of them a sharded collection without rows.
        dense_widths: Widths of dense arguments that do not follow from a layer.

    Raises:
        ExportError: The model cannot be traced, or an argument's use cannot be determined.
    """
    dense, sparse = arguments(model)
    features = list(
        dict.fromkeys(
            f for c in collections.values() for table in float_tables(c) for f in table.feature_names
        )
    )
    probes = {path: _Probe(skeletons[path]) for path in collections}
    root = _Root(exchanged(model, probes), dense, sparse, features)
    graph = trace(root)
    reached = {path: _sources(probe.nodes) & set(sparse) for path, probe in probes.items()}
    binding = Binding()
    for path, collection in collections.items():
        if not reached[path]:
            raise ExportError(f"collection {path!r}: no KeyedJaggedTensor argument of forward reaches it")
        binding.collections[path] = sorted(reached[path], key=sparse.index)
        weighted = isinstance(collection, EmbeddingBagCollection) and collection.is_weighted()
        for name in binding.collections[path]:
            known = binding.sparse.setdefault(name, [])
            wanted = (f for table in float_tables(collection) for f in table.feature_names)
            known += [f for f in dict.fromkeys(wanted) if f not in known]
            binding.weighted |= {name} if weighted else set()
    binding.sparse = {name: binding.sparse[name] for name in sparse if name in binding.sparse}
    unused = sorted(set(sparse) - set(binding.sparse))
    if unused:
        raise ExportError(f"forward({', '.join(unused)}): no collection looks these up")
    unknown = sorted(set(dense_widths) - set(dense))
    if unknown:
        raise ExportError(f"dense_widths: got unknown arguments {unknown}, expected some of {dense}")
    for name in dense:
        binding.dense[name] = dense_widths.get(name) or _width(root, graph, name)
    return binding


def _sources(nodes: Sequence[fx.Node]) -> set[str]:
    """Return the sparse arguments that nodes descend from."""
    found: set[str] = set()
    seen: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        key = _input_name(node)
        if key is not None:
            found.add(key.rsplit(".", 1)[0])
        waiting += node.all_input_nodes
    return found


def _input_name(node: fx.Node) -> str | None:
    """Return the key under which a node takes an input from the root's argument."""
    if node.op != "call_function" or len(node.args) != 2 or not isinstance(node.args[1], str):
        return None
    source = node.args[0]
    return node.args[1] if isinstance(source, fx.Node) and source.op == "placeholder" else None


def _width(root: nn.Module, graph: fx.Graph, name: str) -> int:
    """Return the width of a dense argument: that of the first layer that it goes into."""
    same: set[fx.Node] = set()
    for node in graph.nodes:
        if _input_name(node) == name:
            same.add(node)
        elif len(node.all_input_nodes) == 1 and node.all_input_nodes[0] in same:
            layer = _layer(root, node)
            for attribute in ("in_features", "num_features", "normalized_shape"):
                width = getattr(layer, attribute, None)
                if width is not None:
                    return int(width[-1] if isinstance(width, tuple) else width)
            if _keeps_shape(node, layer):
                same.add(node)
    raise ExportError(
        f"forward({name}): cannot tell its width from the layers that take it, expected --dense-width {name}=N"
    )


def _keeps_shape(node: fx.Node, layer: nn.Module | None) -> bool:
    if layer is not None:
        return isinstance(layer, _SHAPE_KEEPING_LAYERS)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in _SHAPE_KEEPING


def _layer(root: nn.Module, node: fx.Node) -> nn.Module | None:
    if node.op != "call_module":
        return None
    return root.get_submodule(str(node.target))


def sparse_inputs(
    binding: Binding, collections: Mapping[str, FloatCollection], policies: Mapping[str, IdPolicy]
) -> tuple[SparseInput, ...]:
    """Return the signature's sparse inputs, argument by argument.

    Args:
        binding: The binding.
        collections: The float collections by path.
        policies: ID policies by table path.
    """
    found = []
    for argument, features in binding.sparse.items():
        for feature in features:
            uses, pooling, weighted = [], "none", False
            for path, collection in collections.items():
                if argument not in binding.collections[path]:
                    continue
                for table in float_tables(collection):
                    if feature in table.feature_names:
                        name = table_path(path, table.name)
                        weighted |= (
                            isinstance(collection, EmbeddingBagCollection) and collection.is_weighted()
                        )
                        uses.append(
                            TableUse(
                                name=name,
                                num_embeddings=table.num_embeddings,
                                id_policy=policies.get(name, IdPolicy.REJECT),
                            )
                        )
                        if isinstance(table, EmbeddingBagConfig):
                            pooling = table.pooling.value.lower()
            found.append(
                SparseInput(
                    name=binding.wire_name(argument, feature),
                    tables=tuple(uses),
                    pooling=pooling,
                    weighted=weighted,
                )
            )
    return tuple(found)


def dense_inputs(binding: Binding) -> tuple[DenseInput, ...]:
    """Return the signature's dense inputs."""
    return tuple(DenseInput(name=name, width=width) for name, width in binding.dense.items())
