"""What a file imports from TorchRec, and where it uses it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import recsys
from recsys.as_torchrec.rewrite.text import Text
from recsys.as_torchrec.table import Name, Table

ROOT = "torchrec"
_NAMED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
)
_STRING = re.compile(r"torchrec(\.\w+)+")


@dataclass(frozen=True)
class ByHand:
    """What is left as it is.

    Attributes:
        line: Its line.
        name: TorchRec's name.
        reason: Why.
    """

    line: int
    name: str
    reason: str


@dataclass(frozen=True)
class Place:
    """Where a name is defined here.

    Attributes:
        module: The module to import.
        name: The name in it.
    """

    module: str
    name: str


@dataclass(frozen=True)
class Use:
    """A use of a name by way of a module, such as ``torchrec.distributed.ShardingEnv``.

    Attributes:
        start: The offset of its first byte.
        end: The offset after the name.
        is_direct: Whether the name stands right after the module's local name.
        entry: The name.
    """

    start: int
    end: int
    is_direct: bool
    entry: Name


def place(entry: Name) -> Place:
    """Return where to import a defined name from: the package itself, if it has the name."""
    assert entry.ours is not None
    module, _, name = entry.ours.partition(":")
    is_public = recsys._MODULE_OF.get(name) == module
    return Place("recsys" if is_public else module, name)


def is_torchrec(module: str | None) -> bool:
    """Return whether a module is TorchRec or below it."""
    return module is not None and module.partition(".")[0] == ROOT


class Imports:
    """The modules of TorchRec's that a file binds to names, and their uses.

    Args:
        text: The file.
        table: TorchRec's names.

    Attributes:
        modules: From local names to modules; those that cannot be followed are left out.
        uses: Of each local name, what is used of its module.
        by_hand: What is left as it is.
        incomplete: Local names of which something is left as it is, so that their imports stay.
    """

    def __init__(self, text: Text, table: Table) -> None:
        self._text, self._table = text, table
        self.by_hand: list[ByHand] = []
        self.incomplete: set[str] = set()
        self._code: set[ast.Constant] = set()
        self.modules = dict(self._bound_modules())
        self.uses: dict[str, list[Use]] = {local: [] for local in self.modules}
        self._visit(text.tree, 0)
        self._visit_strings()

    def _bound_modules(self) -> Iterator[tuple[str, str]]:
        bound: dict[str, list[tuple[str, int]]] = {}
        for node in ast.walk(self._text.tree):
            for local, module in _bindings(node, self._table):
                bound.setdefault(local, []).append((module, getattr(node, "lineno", 0)))
        ours = {"recsys": "recsys", "torch": "torch"}
        foreign = {name for name in ours if any(module != ours[name] for module, _ in bound.get(name, ()))}
        for local, places in bound.items():
            torchrec = [(module, line) for module, line in places if is_torchrec(module)]
            if not torchrec:
                continue
            module, line = torchrec[0]
            if len({module for module, _ in places}) > 1:
                self._leave(line, module, f"{local} has several meanings in this file")
            elif foreign:
                self._leave(
                    line, module, f"{' and '.join(sorted(foreign))} has a meaning of its own in this file"
                )
            else:
                yield local, module

    def _visit(self, node: ast.AST, shift: int) -> None:
        """Find the uses in a node; ``shift`` is what its offsets lack, as those of code in a string do."""
        names: list[ast.Attribute] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            names.append(inner)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self.modules:
            self._add_use(inner, names[::-1], shift)
            return
        for annotation in _annotations(node):
            self._visit_annotation(annotation)
        for child in ast.iter_child_nodes(inner if names else node):
            self._visit(child, shift)

    def _add_use(self, root: ast.Name, names: list[ast.Attribute], shift: int) -> None:
        local, module = root.id, self.modules[root.id]
        for i, node in enumerate(names):
            entry = self._table.get(module, node.attr)
            if entry is not None and entry.ours is not None:
                start, end = (
                    offset + shift for offset in (self._text.span(root)[0], self._text.span(node)[1])
                )
                self.uses[local].append(Use(start, end, i == 0, entry))
                return
            if entry is not None or not self._table.is_module(f"{module}.{node.attr}"):
                self._leave(root.lineno, f"{module}.{node.attr}", self._table.missing(module, node.attr))
                self.incomplete.add(local)
                return
            module = f"{module}.{node.attr}"
        self._leave(root.lineno, module, f"{module} is used as a value")
        self.incomplete.add(local)

    def _visit_annotation(self, node: ast.Constant) -> None:
        start, end = self._text.span(node)
        code = str(node.value)
        if self._text.piece(start + 1, end - 1) != code or "\n" in code:
            return
        try:
            tree = ast.parse(code, mode="eval")
        except SyntaxError:
            return
        if not any(isinstance(found, ast.Attribute) for found in ast.walk(tree)):
            return
        for found in ast.walk(tree):
            if isinstance(found, ast.expr):
                found.lineno = found.end_lineno = node.lineno
        self._code.add(node)
        self._visit(tree, node.col_offset + 1)

    def _visit_strings(self) -> None:
        for node in ast.walk(self._text.tree):
            if not isinstance(node, ast.Constant) or node in self._code or not isinstance(node.value, str):
                continue
            if _STRING.fullmatch(node.value):
                self._leave(node.lineno, node.value, "it is in a string")

    def _leave(self, line: int, name: str, reason: str) -> None:
        self.by_hand.append(ByHand(line, name, reason))


def _bindings(node: ast.AST, table: Table) -> Iterator[tuple[str, str]]:
    """Yield the local names that a node binds, and the modules that they then are; an empty text for anything else."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            root = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (root, root)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            path = f"{node.module}.{alias.name}" if node.level == 0 else ""
            entry = table.get(node.module or "", alias.name)
            is_module = is_torchrec(path) and entry is None and table.is_module(path)
            yield alias.asname or alias.name, path if is_module else ""
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, ""
    elif isinstance(node, ast.arg):
        yield node.arg, ""
    elif isinstance(node, _NAMED):
        yield node.name or "", ""


def _annotations(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the texts that are code in a node's annotations."""
    if isinstance(node, (ast.AnnAssign, ast.arg)):
        root = node.annotation
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        root = node.returns
    else:
        return
    for found in ast.walk(root) if root is not None else ():
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield found
