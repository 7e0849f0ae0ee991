"""New import statements in place of TorchRec's."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

from recsys.as_torchrec.rewrite.text import Edit, Text
from recsys.as_torchrec.rewrite.uses import ROOT, ByHand, Imports, is_torchrec, place
from recsys.as_torchrec.table import Table

_WIDTH = 88
_INDENT = "    "
_FROM = re.compile(r"from\s+([\w.]+)")


@dataclass
class _Group:
    """The names that one new statement imports, and the comments at their lines."""

    module: str
    names: list[str] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)

    def text(self, indent: str, newline: str, head: str, *, long: bool) -> str:
        start = f"from {self.module} import "
        short = start + ", ".join(self.names)
        if not (long and len(self.names) > 1) and not self.comments and len(indent + short) <= _WIDTH:
            return short + head
        lines = [f"{indent}{_INDENT}{name},{self.comments.get(name, '')}" for name in self.names]
        return newline.join([f"{start}({head}", *lines, f"{indent})"])


class Statements:
    """The edits of a file's imports, and of the uses of the modules that they bind.

    Args:
        text: The file.
        table: TorchRec's names.

    Attributes:
        edits: What to change.
        by_hand: What is left as it is.
    """

    def __init__(self, text: Text, table: Table) -> None:
        self._text, self._table = text, table
        self._imports = Imports(text, table)
        self.by_hand = self._imports.by_hand
        self.edits: list[Edit] = []
        self._at_top: set[str] = set()
        self._new = {local: list(self._module_imports(local)) for local in self._imports.modules}
        self._rewrite_below(text.tree, False)

    def _module_imports(self, local: str) -> Iterator[str]:
        """Yield the imports that take the place of a module's, and edit its uses where they change."""
        uses = self._imports.uses[local]
        places = [place(use.entry) for use in uses]
        modules = sorted({each.module for each in places})
        keeps_names = all(
            use.is_direct and use.entry.name == each.name for use, each in zip(uses, places, strict=True)
        )
        if local != ROOT and len(modules) <= 1 and keeps_names and local not in self._imports.incomplete:
            # The alias stays, and so do its uses.
            module = modules[0] if modules else "recsys"
            yield f"import {module} as {local}" if module != local else f"import {module}"
            return
        for use, each in zip(uses, places, strict=True):
            self.edits.append(Edit(use.start, use.end, f"{each.module}.{each.name}"))
        yield from (f"import {module}" for module in modules or ["recsys"])

    def _rewrite_below(self, node: ast.AST, in_function: bool) -> None:
        """Rewrite the blocks in a node. Functions do not repeat the imports at the file's top."""
        if isinstance(node, ast.Module):
            self._at_top = self._rewrite_block(node.body, set())
        else:
            in_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(node, block, None)
                if isinstance(statements, list):
                    self._rewrite_block(statements, set(self._at_top) if in_function else set())
        for child in ast.iter_child_nodes(node):
            self._rewrite_below(child, in_function)

    def _rewrite_block(self, statements: list[ast.stmt], seen: set[str]) -> set[str]:
        seen |= {
            f"import {alias.name}"
            for node in statements
            if isinstance(node, ast.Import) and not any(is_torchrec(alias.name) for alias in node.names)
            for alias in node.names
            if alias.asname is None
        }
        is_alone = len(statements) == 1
        for node in statements:
            if isinstance(node, ast.Import) and any(is_torchrec(alias.name) for alias in node.names):
                self._replace(node, self._of_import(node), seen, is_alone)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and is_torchrec(node.module):
                self._rewrite_from(node, seen, is_alone)
        return seen

    def _of_import(self, node: ast.Import) -> list[str]:
        kept: list[str] = []
        new: list[str] = []
        for alias in node.names:
            text = alias.name + (f" as {alias.asname}" if alias.asname else "")
            local = alias.asname or alias.name.partition(".")[0]
            if not is_torchrec(alias.name) or local not in self._new:
                kept.append(text)
            else:
                if not self._table.is_module(alias.name):
                    module, _, name = alias.name.rpartition(".")
                    reason = self._table.missing(module, name)
                    self.by_hand.append(ByHand(node.lineno, alias.name, reason))
                    kept.append(text)
                elif local in self._imports.incomplete:
                    kept.append(text)
                new.extend(self._new[local])
        return ([f"import {', '.join(kept)}"] if kept else []) + new

    def _rewrite_from(self, node: ast.ImportFrom, seen: set[str], is_alone: bool) -> None:
        module = node.module or ""
        start, end = self._text.span(node)
        piece = self._text.piece(start, end)
        groups: dict[str, _Group] = {}
        renamed: list[Edit] = []
        new: list[str] = []
        comments = _comments(piece)
        for alias in node.names:
            entry = self._table.get(module, alias.name)
            local = alias.asname or alias.name
            suffix = f" as {alias.asname}" if alias.asname else ""
            target, name = module, alias.name
            if entry is not None and entry.ours is not None and "." not in place(entry).name:
                target, name = place(entry).module, place(entry).name
                if name != alias.name and not alias.asname:
                    suffix = f" as {local}"
            elif local in self._new and entry is None:
                new.extend(self._new[local])
                if local not in self._imports.incomplete:
                    continue
            elif local not in self._imports.modules and not self._is_left_module(module, alias.name):
                reason = (
                    "import * is not rewritten: import the names that are used"
                    if alias.name == "*"
                    else self._table.missing(module, alias.name)
                )
                self.by_hand.append(ByHand(alias.lineno, f"{module}.{alias.name}", reason))
            words = name + suffix
            group = groups.setdefault(target, _Group(target))
            group.names.append(words)
            comment = comments.get(alias.end_lineno - node.lineno if alias.end_lineno else 0)
            if comment and alias.end_lineno != node.lineno:
                group.comments[words] = f"  {comment}"
            if words != alias.name + (f" as {alias.asname}" if alias.asname else ""):
                renamed.append(Edit(*self._text.span(alias), words))
        if set(groups) == {module} and not new:
            return
        found = _FROM.match(piece)
        if len(groups) == 1 and not new and found is not None and found[1] == module:
            (target,) = groups
            self.edits += [Edit(start + found.start(1), start + found.end(1), target), *renamed]
            return
        head = f"  {comments[0]}" if 0 in comments and "\n" in piece else ""
        indent = self._indent(start) or ""
        texts = [
            each.text(indent, self._text.newline, head if i == 0 else "", long="\n" in piece)
            for i, each in enumerate(groups.values())
        ]
        self._replace(node, [*texts, *new], seen, is_alone)

    def _is_left_module(self, module: str, name: str) -> bool:
        """Return whether a name is a module whose local name cannot be followed, which was said already."""
        entry = self._table.get(module, name)
        return entry is None and self._table.is_module(f"{module}.{name}")

    def _replace(self, node: ast.stmt, texts: list[str], seen: set[str], is_alone: bool) -> None:
        start, end = self._text.span(node)
        new = [text for text in dict.fromkeys(texts) if text not in seen]
        if self._text.piece(start, end) == "; ".join(texts):
            return
        seen.update(new)
        indent = self._indent(start)
        _, line_end = self._text.lines_around(start, end)
        rest = self._text.piece(end, line_end).strip()
        if not new and is_alone:
            self.edits.append(Edit(start, end, "pass"))
        elif indent is None or (rest and not rest.startswith("#")):
            self.edits.append(Edit(start, end, "; ".join(new) or "pass"))
        elif new:
            self.edits.append(Edit(start, end, (self._text.newline + indent).join(new)))
        else:
            self.edits.append(Edit(*self._text.lines_around(start, end), ""))

    def _indent(self, start: int) -> str | None:
        """Return the white space before a statement; None if another one stands before it on its line."""
        before = self._text.piece(self._text.lines_around(start, start)[0], start)
        return before if not before.strip() else None


def _comments(piece: str) -> dict[int, str]:
    """Return the comments of a statement by line, the first being 0."""
    tokens = tokenize.generate_tokens(io.StringIO(piece).readline)
    try:
        return {token.start[0] - 1: token.string for token in tokens if token.type == tokenize.COMMENT}
    except (tokenize.TokenError, IndentationError):
        return {}
