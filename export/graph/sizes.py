"""Sizes that every batch has, while a model is traced.

Traced tensors are placeholders. Where the model's code decides by a size, such as ``if x.dim() == 2`` or ``for i in
range(x.size(1))``, what was traced so far is run for a batch of symbolic sizes, whose tensors have shapes and no
numbers. What follows from no symbol is a constant.

Shape letters: B batch, Q contexts, N number of IDs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.experimental._config
from torch import SymBool, SymFloat, SymInt, Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from export.graph.computed import checked_ids

_shape_config: Any = torch.fx.experimental._config
#: In the place of what differs between batches, or follows from numbers in tensors.
OPEN = object()
# What symbols stand for where a kernel must choose: a prime, which hardly is a size of a model's own.
_ANY = 10_007


class BatchSizes:
    """The sizes of a batch, as symbols.

    Attributes:
        rows: B.
        contexts: Q.
        ids: N.
    """

    def __init__(self) -> None:
        self.symbols = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self._count = 0
        self.rows, self.contexts, self.ids = (self.another() for _ in range(3))

    def another(self) -> Any:
        """Return a size that equals no other."""
        from torch._dynamo.source import ConstantSource  # takes a second to import; few models need it

        self._count += 1
        return self.symbols.create_unspecified_symint_and_symbol(
            _ANY + self._count, ConstantSource(f"size_{self._count}"), DimDynamic.DYNAMIC
        )

    def sparse(self, prefix: str, num_bags: int, *, is_weighted: bool) -> dict[str, Tensor]:
        """Return flat lengths, values, and weights, by these names behind a prefix."""
        found = {
            f"{prefix}lengths": torch.empty(num_bags, dtype=torch.int64),
            f"{prefix}values": torch.empty(self.ids, dtype=torch.int64),
        }
        return {**found, f"{prefix}weights": torch.empty(self.ids)} if is_weighted else found


#: Returns the arguments of a traced module's ``forward`` for a batch, by name.
Example = Callable[[BatchSizes], Mapping[str, Any]]


class Sizes:
    """What is known of the nodes of a graph that is being traced.

    Args:
        root: The module that is traced.
        example: Returns its arguments for a batch.
    """

    def __init__(self, root: nn.Module, example: Example) -> None:
        self._root, self._example = root, example
        self._run: _Run | None = None
        self._asked: list[fx.Node] = []
        #: Whether the traced modules are being run, and not traced.
        self.is_running = False

    def constant(self, node: fx.Node) -> Any:
        """Return a node's value if it is a number, bool or type that every batch has; else ``OPEN``."""
        value = self._value(node)
        self._asked.append(node)
        return OPEN if isinstance(value, (Tensor, SymInt, SymFloat, SymBool)) else value

    def remove_asked(self, graph: fx.Graph) -> None:
        """Take nodes out of the graph whose constants alone were asked for, and what only led to them."""
        while self._asked:
            node = self._asked.pop()
            if node.op in ("call_function", "call_method") and not node.users and not node._erased:
                self._asked += node.all_input_nodes
                graph.erase_node(node)

    def num_parts(self, node: fx.Node) -> int | None:
        """Return how many parts a tuple, a list, or a tensor along its first dimension has; None if it is open."""
        value = self._value(node)
        if isinstance(value, Tensor) and value.dim():
            size = value.shape[0]
            return size if isinstance(size, int) else None
        return len(value) if isinstance(value, (tuple, list)) else None

    def single_dims(self, node: fx.Node) -> list[int] | None:
        """Return the dimensions of a tensor that have the size 1 in every batch; None if they are open."""
        value = self._value(node)
        if not isinstance(value, Tensor):
            return None
        return [i for i, size in enumerate(value.shape) if isinstance(size, int) and size == 1]

    def _value(self, node: fx.Node) -> Any:
        self.is_running = True
        try:
            with _quiet(), _shape_config.patch(backed_size_oblivious=True):
                for _ in range(2):
                    self._run = self._run or _Run(self._root, node.graph, self._example)
                    try:
                        return self._run.value(node)
                    except Exception:  # torch's, and the model's: it stays open
                        # By now the graph may tell a width that was not known when its tensor was made.
                        self._run = None
        finally:
            self.is_running = False
        return OPEN


@contextmanager
def _quiet() -> Iterator[None]:
    """Let torch not print what fails without numbers."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class _Run(fx.Interpreter):
    """The nodes of a graph for a batch."""

    def __init__(self, root: nn.Module, graph: fx.Graph, example: Example) -> None:
        super().__init__(root, garbage_collect_values=False, graph=graph)
        self._sizes = BatchSizes()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self._sizes.symbols)
        with self._mode:
            self._arguments = example(self._sizes)

    def value(self, node: fx.Node) -> Any:
        """Return a node's value; those that it descends from are computed once."""
        needed: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one not in needed and one not in self.env:
                needed.add(one)
                waiting += one.all_input_nodes
        with self._mode, torch.no_grad():
            for one in self.graph.nodes:
                if one in needed:
                    self.env[one] = self._value(one)
        return self.env[node]

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._arguments[str(node.target)]
        before = len(self._sizes.symbols.guards)
        value = self.run_node(node)
        is_chosen = len(self._sizes.symbols.guards) > before
        # Python has compared symbols for it, and took what they stand for.
        return OPEN if is_chosen and not _holds_tensors(value) else value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function; not those that read numbers."""
        if target is checked_ids:
            return args[0]
        if target is torch.tensor_split and isinstance(args[1], Tensor):
            # The IDs of each argument, of which there is any number.
            return tuple(args[0].new_empty(self._sizes.another()) for _ in range(args[1].numel() + 1))
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; the layers have their own dtype, which the graph's inputs may get only later."""
        if target == "to" and len(args) == 2 and isinstance(args[1], torch.dtype) and _is_float(args[0]):
            return args[0]
        return super().call_method(target, args, kwargs)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_tensors(part) for part in value)
    return isinstance(value, Tensor)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
