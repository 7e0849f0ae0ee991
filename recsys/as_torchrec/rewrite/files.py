"""Rewrites files and folders."""

from __future__ import annotations

import ast
import difflib
import io
import shutil
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recsys.as_torchrec.rewrite.statements import Statements
from recsys.as_torchrec.rewrite.text import Text
from recsys.as_torchrec.rewrite.uses import ROOT, ByHand
from recsys.as_torchrec.table import Table
from recsys.base.files import replacing


@dataclass(frozen=True)
class Rewritten:
    """What becomes of a file.

    Attributes:
        path: The file.
        before: Its text.
        after: Its text when it is rewritten.
        encoding: How it is stored.
        by_hand: What is left as it is, by line.
    """

    path: Path
    before: str
    after: str
    encoding: str
    by_hand: tuple[ByHand, ...]

    @property
    def is_changed(self) -> bool:
        """Whether rewriting changes the file."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, str(self.path), str(self.path)))

    def write(self) -> None:
        """Write the rewritten file.

        Raises:
            OSError: It cannot be written, and is as before.
        """
        path = self.path.resolve()
        with replacing(path) as partial:
            partial.write_bytes(self.after.encode(self.encoding))
            shutil.copymode(path, partial)


def rewrite_text(source: str, table: Table) -> tuple[str, tuple[ByHand, ...]]:
    """Rewrite the imports of source code.

    Args:
        source: The code.
        table: TorchRec's names.

    Returns:
        The new code, and what is left as it is.

    Raises:
        SyntaxError: The source is not Python.
    """
    statements = Statements(Text(source), table)
    after = Text(source).edited(statements.edits)
    ast.parse(after)
    return after, tuple(sorted(statements.by_hand, key=lambda each: (each.line, each.name)))


def rewrite_file(path: Path, table: Table) -> Rewritten:
    """Return what becomes of a file; it is not written.

    Args:
        path: The file.
        table: TorchRec's names.

    Raises:
        ValueError: The file cannot be read as Python.
    """
    content = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        before = content.decode(encoding)
        after, by_hand = rewrite_text(before, table) if ROOT in before else (before, ())
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path}: got {error}, expected Python source") from None
    return Rewritten(path, before, after, encoding, by_hand)


def python_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the Python files among paths and below folders; not those in hidden folders and environments.

    Args:
        paths: Files and folders.

    Raises:
        ValueError: A path does not exist.
    """
    for path in paths:
        if path.is_dir():
            yield from _below(path)
        elif path.exists():
            yield path
        else:
            raise ValueError(f"--rewrite: got {path}, expected a file or a folder that exists")


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if not path.name.startswith(".") and not path.is_symlink() and not (path / "pyvenv.cfg").exists():
                yield from _below(path)
        elif path.suffix in (".py", ".pyi"):
            yield path
