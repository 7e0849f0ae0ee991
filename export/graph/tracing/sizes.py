"""Sizes that every batch has, and widths of dense arguments, while a model is traced.

Traced tensors are placeholders. Where the model's code decides by a size, such as ``if x.dim() == 2`` or ``for i in
range(x.size(1))``, what was traced so far is run for a batch of symbolic sizes, whose tensors have shapes and no
numbers. What follows from no symbol is a constant.

A width that nobody has told is a symbol too. The first operation that does not take it tells what it expects.

Shape letters: B batch, Q contexts, N number of IDs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch
import torch.fx.experimental._config
from torch import SymBool, SymFloat, SymInt, Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv

from export.graph.inputs.computed import checked_ids
from export.graph.tracing.layer_shapes import result_of, size_of

_shape_config: Any = torch.fx.experimental._config
#: Stands for what differs between batches, or follows from numbers in tensors.
OPEN = object()
#: The types of numbers in which a symbol is left.
SYMBOLIC = (SymInt, SymFloat, SymBool)
# What symbols stand for where a kernel must choose: a prime, which hardly is a size of a model's own.
_ANY = 10_007
# What torch raises where it needs numbers.
_WITHOUT_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    GuardOnDataDependentSymNode,
    NotImplementedError,
)
# Up to which widths are searched where an operation does not expect a multiple of them.
_MOST_WIDTH = 4096


class BatchSizes:
    """The sizes of a batch, as symbols.

    Args:
        widths: Those of dense arguments, as far as they are known.

    Attributes:
        symbols: What holds of them.
        rows: B.
        contexts: Q.
        ids: N.
        unknown: The arguments whose widths are symbols, by symbol.
    """

    def __init__(self, widths: Mapping[str, int]) -> None:
        self.symbols = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self._widths = widths
        self._count = 0
        self.rows, self.contexts, self.ids = (self.another() for _ in range(3))
        self.unknown: dict[Any, str] = {}

    def another(self) -> Any:
        """Return a size that equals no other."""
        from torch._dynamo.source import ConstantSource  # takes a second to import

        self._count += 1
        return self.symbols.create_unspecified_symint_and_symbol(
            _ANY + self._count, ConstantSource(f"size_{self._count}"), DimDynamic.DYNAMIC
        )

    def width(self, argument: str) -> Any:
        """Return the width of a dense argument."""
        if argument in self._widths:
            return self._widths[argument]
        width = self.another()
        self.unknown[width.node.expr] = argument
        return width

    def sparse(self, prefix: str, num_bags: int, *, is_weighted: bool) -> dict[str, Tensor]:
        """Return flat lengths, values, and weights, by these names behind a prefix."""
        found = {
            f"{prefix}lengths": torch.empty(num_bags, dtype=torch.int64),
            f"{prefix}values": torch.empty(self.ids, dtype=torch.int64),
        }
        return {**found, f"{prefix}weights": torch.empty(self.ids)} if is_weighted else found

    def follow_from_widths(self, expression: Any) -> bool:
        """Return whether an expression has unknown widths as its only symbols."""
        return bool(expression.free_symbols) and expression.free_symbols <= set(self.unknown)

    def solved(self, expression: Any) -> tuple[str, int] | None:
        """Return the argument, and its width, for which the two sides of a comparison are equal; None without one."""
        found = set()
        for one in expression.atoms(sympy.Eq, sympy.Ne):
            symbols = [symbol for symbol in one.free_symbols if symbol in self.unknown]
            if len(symbols) == 1:
                found |= {(symbols[0], width) for width in _roots(one.lhs - one.rhs, symbols[0])}
        others = {(symbol, width) for symbol, width in found if width != 1} or found
        if len(others) != 1:
            return None
        [(symbol, width)] = others
        return self.unknown[symbol], width


def _roots(expression: Any, symbol: Any) -> list[int]:
    """Return the widths at which an expression is zero, whatever its other symbols are."""
    expression = sympy.expand(expression)
    if expression.is_polynomial(symbol) and sympy.degree(expression, symbol) == 1:
        roots = [sympy.cancel(-expression.coeff(symbol, 0) / expression.coeff(symbol, 1))]
    else:
        widths = (sympy.Integer(width) for width in range(1, _MOST_WIDTH))
        roots = [width for width in widths if expression.xreplace({symbol: width}) == 0]
    return [int(root) for root in roots if root.is_Integer and root > 0]


#: Returns the arguments of a traced module's ``forward`` for a batch, by name.
Example = Callable[[BatchSizes], Mapping[str, Any]]


class Sizes:
    """What is known of the nodes of a graph that is being traced.

    Args:
        root: The module that is traced.
        example: Returns its arguments for a batch.
        widths: Those of dense arguments, as far as they are known.

    Attributes:
        widths: Those that are known by now.
        is_running: Whether the traced modules are being run, and not traced.
        failure: The last error of the model's code for a batch of symbolic sizes, and its node; None if it was not an
            error of the model's.
    """

    def __init__(self, root: nn.Module, example: Example, widths: Mapping[str, int]) -> None:
        self._root, self._example = root, example
        self._run: Run | None = None
        self._asked: list[fx.Node] = []
        self._guessed: list[tuple[BatchSizes, Any]] = []
        self.widths = dict(widths)
        self._num_told = len(widths)
        self.is_running = False
        self.failure: tuple[Exception, fx.Node] | None = None

    def constant(self, node: fx.Node) -> Any:
        """Return a node's value if it is a number, bool or type that every batch has; else ``OPEN``.

        Comparisons of widths that are not known are answered as if these were unlike any other number.
        """
        value = self._value(node)
        self._asked.append(node)
        if self._run is not None and isinstance(value, SymBool):
            sizes = self._run.sizes
            if sizes.follow_from_widths(value.node.expr):
                self._guessed.append((sizes, value.node.expr))
                return bool(value)
        return OPEN if isinstance(value, (Tensor, *SYMBOLIC)) else value

    def follows_from_width(self, node: fx.Node) -> bool:
        """Return whether a node's value is a number that follows from the width of a dense argument, which is open."""
        value = self._value(node)
        if self._run is None or not isinstance(value, SYMBOLIC):
            return False
        return not value.node.expr.free_symbols.isdisjoint(self._run.sizes.unknown)

    def remove_asked(self, graph: fx.Graph) -> None:
        """Take nodes out of the graph whose constants alone were asked for, and what only led to them."""
        while self._asked:
            node = self._asked.pop()
            if node.op in ("call_function", "call_method") and not node.users and not node._erased:
                self._asked += node.all_input_nodes
                graph.erase_node(node)

    def holds_tensors(self, node: fx.Node) -> bool:
        """Return whether a node's value is a tensor, or holds some."""
        return _holds_tensors(self._value(node))

    def key(self, node: fx.Node) -> tuple[Any, bool]:
        """Return a value's key for its hash, and whether it differs between batches; None if it is or holds a tensor.

        What differs between batches is a 1 there, so that Python compares it with its like, and with a size of 1.
        """
        value = self._value(node)
        self._asked.append(node)
        return (None, False) if _holds_tensors(value) else (_key(value), _is_open(value))

    def num_parts(self, node: fx.Node) -> int | None:
        """Return how many parts a tuple, a list, or a tensor along its first dimension has; None if it is open."""
        value = self._value(node)
        if isinstance(value, Tensor) and value.dim():
            size = value.shape[0]
            return size if isinstance(size, int) else None
        return len(value) if isinstance(value, (tuple, list)) else None

    def size(self, node: fx.Node, dim: int) -> Any:
        """Return the size of a dimension, a symbol if it differs between batches; None if it is open."""
        told = size_of(self._root, node, dim)
        if told is not None:
            return told
        value = self._value(node)
        return value.shape[dim] if isinstance(value, Tensor) and -value.dim() <= dim < value.dim() else None

    def single_dims(self, node: fx.Node) -> list[int] | None:
        """Return the dimensions of a tensor that have the size 1 in every batch; None if they are open."""
        value = self._value(node)
        if not isinstance(value, Tensor):
            return None
        return [i for i, size in enumerate(value.shape) if isinstance(size, int) and size == 1]

    def learn(self, graph: fx.Graph | None, arguments: Sequence[str]) -> bool:
        """Learn the widths of dense arguments; return whether the module must be traced again with them.

        Args:
            graph: The trace; None if it failed, perhaps because a width was not what the model's code expects.
            arguments: The dense arguments.
        """
        while graph is not None:
            unknown = [name for name in arguments if name not in self.widths]
            if not unknown or not self._learn_from(graph, unknown):
                break
        if graph is None and len(self.widths) == self._num_told:
            for sizes, expression in reversed(self._guessed):
                solved = sizes.solved(expression)
                if solved is not None:
                    self.widths[solved[0]] = solved[1]
                    break
        return bool(self._guessed) and len(self.widths) > self._num_told

    def _learn_from(self, graph: fx.Graph, unknown: Sequence[str]) -> bool:
        """Learn a width from the first operation that tells one of the unknown; return whether there is one."""
        run = self._new_run(graph)
        failed: set[fx.Node] = set()
        for node in descendants(graph, [node for node in graph.nodes if input_name(node) in unknown]):
            if failed.intersection(node.all_input_nodes):
                failed.add(node)
                continue
            try:
                with self.running():
                    run.value(node)
            except Exception:  # torch's, and the model's: what cannot be run without numbers tells nothing
                if self._learn_width(run, node):
                    return True
                failed.add(node)
        return False

    def _value(self, node: fx.Node) -> Any:
        while True:
            run = self._run = self._run or self._new_run(node.graph)
            try:
                with self.running():
                    value = _settled(run.value(node))
            except Exception as error:  # torch's, and the model's: it stays open
                self._run = None
                if run.failed is None or not self._learn_width(run, run.failed):
                    if (
                        run.failed is not None
                        and not run.sizes.unknown
                        and not isinstance(error, _WITHOUT_NUMBERS)
                    ):
                        self.failure = (error, run.failed)
                    return OPEN
            else:
                self._guessed += [(run.sizes, expression) for expression in run.guessed]
                run.guessed.clear()
                return value

    def _learn_width(self, run: Run, node: fx.Node) -> bool:
        """Learn a width from the operation that has just failed; return whether it tells one."""
        guards = run.sizes.symbols.guards[run.before :]
        solved = run.sizes.solved(guards[-1].expr) if guards else None
        if solved is None or not self._is_sure(run, node, solved):
            return False
        self.widths[solved[0]] = solved[1]
        return True

    def _is_sure(self, run: Run, node: fx.Node, solved: tuple[str, int]) -> bool:
        """Return whether the operation takes no other width: batches could also be multiplied by a column."""
        name, width = solved
        inputs = [run.env[one] for one in node.all_input_nodes]
        if width == 1 or node.op == "call_module" or any(_is_fixed(value) for value in inputs):
            return True
        try:
            with self.running():
                self._new_run(node.graph, {name: 1}).value(node)
        except Exception:  # torch's
            return True
        return False

    def _new_run(self, graph: fx.Graph, widths: Mapping[str, int] | None = None) -> Run:
        with self.running():
            return Run(self._root, graph, self._example, {**self.widths, **(widths or {})})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let code of the model run, and not be traced."""
        # Let torch not print what fails without numbers.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        before, log.disabled, self.is_running = log.disabled, True, True
        try:
            with _shape_config.patch(backed_size_oblivious=True):
                yield
        finally:
            log.disabled, self.is_running = before, False


class Run(fx.Interpreter):
    """The nodes of a graph for a batch.

    Attributes:
        sizes: Of the batch.
        failed: The node that could not be run.
        before: How many guards there were before the last node.
        guessed: Comparisons of unknown widths that Python made.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, example: Example, widths: Mapping[str, int]) -> None:
        super().__init__(root, garbage_collect_values=False, graph=graph)
        self.sizes = BatchSizes(widths)
        self.failed: fx.Node | None = None
        self.before = 0
        self.guessed: list[Any] = []
        self._mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self.sizes.symbols)
        # Each node is run once: keeping its result for equal calls takes more time than they do.
        self._mode.cache_enabled = False
        with self._mode:
            self._arguments = example(self.sizes)

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
            for one in self.graph.nodes if needed else ():
                if one in needed:
                    self.failed = one
                    self.env[one] = self._value(one)
        return self.env[node]

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._arguments[str(node.target)]
        symbols = self.sizes.symbols
        self.before = len(symbols.guards)
        value = self.run_node(node)
        chosen = [guard.expr for guard in symbols.guards[self.before :]]
        if not chosen or _holds_tensors(value):
            return value
        # Python has compared symbols for it, and took what they stand for.
        if all(map(self.sizes.follow_from_widths, chosen)):
            self.guessed += chosen
            return value
        return OPEN

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function; not those that read numbers."""
        if target is checked_ids:
            return args[0]
        if target is torch.tensor_split and isinstance(args[1], Tensor):
            # The IDs or the rows of each argument or feature, of which there is any number.
            whole, counts = args[0], (self.sizes.another() for _ in range(args[1].numel() + 1))
            return tuple(whole.new_empty((count, *whole.shape[1:])) for count in counts)
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a layer, unless its result is known without."""
        layer = self.fetch_attr(target)
        found = result_of(layer, args[0]) if len(args) == 1 and not kwargs else None
        return super().call_module(target, args, kwargs) if found is None else found

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; the layers have their own dtype, which the graph's inputs may get only later."""
        if target == "to" and len(args) == 2 and isinstance(args[1], torch.dtype) and _is_float(args[0]):
            return args[0]
        return super().call_method(target, args, kwargs)


def _settled(value: Any) -> Any:
    """Return a number or a bool in whose expression no symbol is left as such; other values as they are."""
    found = value.node.expr if isinstance(value, SYMBOLIC) else None
    if found is None or found.free_symbols:
        return value
    return bool(found) if isinstance(value, SymBool) else type(value.node.hint)(found)


def _key(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    return 1 if _is_open(value) else value


def _is_open(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_open, value))
    return value is OPEN or isinstance(value, SYMBOLIC)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_tensors(part) for part in value)
    return isinstance(value, Tensor)


def _is_fixed(value: Any) -> bool:
    """Return whether a value is a tensor whose sizes every batch has."""
    return isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def input_name(node: fx.Node) -> str | None:
    """Return the name under which a node takes an input from the root's argument; that of a dense one is its own."""
    if node.op != "call_function" or len(node.args) != 2 or not isinstance(node.args[1], str):
        return None
    source = node.args[0]
    return node.args[1] if isinstance(source, fx.Node) and source.op == "placeholder" else None


def descendants(
    graph: fx.Graph, sources: Collection[fx.Node], without: Collection[fx.Node] = ()
) -> list[fx.Node]:
    """Return what descends from nodes, in the order of the graph, but not through those of ``without``."""
    found = set(sources)
    behind = []
    for node in graph.nodes:
        if node not in found and node not in without and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
            behind.append(node)
    return behind
