"""What stands for a name of TorchRec's that is left out: it can be imported, and fails when it is used.

A file often imports far more than the model in it uses. Left-out names can therefore be imported, stand in
annotations, and be bases of classes. A call of one raises ``LeftOutError`` with the reason.

Code that asks whether a name is there is told the truth: ``hasattr`` is False, and an import inside of
``try: … except ImportError`` raises.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from abc import ABCMeta
from collections.abc import Iterator
from dis import opname
from types import FrameType
from typing import Any, NoReturn

_READS = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_SUPER_ATTR"}
_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_IMPORT_SYSTEM = "<frozen importlib"


class LeftOutError(NotImplementedError):
    """A name of TorchRec's that is left out was used; the message says why it is left out."""


class _LeftOutType(ABCMeta):
    """The type of the classes that stand for left-out names."""

    _reason: str

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        cls._fail()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_") or not reads_attribute(1):
            raise AttributeError(f"{cls.__name__}.{name}: {cls._reason}")
        found = left_out(f"{cls.__module__}.{cls.__qualname__}", name, cls._reason)
        setattr(cls, name, found)
        return found

    def __getitem__(cls, _: object) -> _LeftOutType:
        return cls

    def __iter__(cls) -> NoReturn:
        cls._fail()

    def __len__(cls) -> NoReturn:  # noqa: PLE0303
        cls._fail()

    def __contains__(cls, _: object) -> NoReturn:
        cls._fail()

    def __bool__(cls) -> bool:
        return True

    def _fail(cls) -> NoReturn:
        is_it = "_reason" in vars(cls)
        of = "" if is_it else f"{cls.__qualname__} is a subclass of a name that is not there: "
        raise LeftOutError(f"{of}{cls._reason}")


def left_out(module: str, name: str, reason: str) -> type[Any]:
    """Return what stands for a name.

    Args:
        module: TorchRec's module.
        name: The name in it.
        reason: The whole message of the error that its use raises.
    """
    return _LeftOutType(name, (), {"__module__": module, "_reason": reason})


def reads_attribute(depth: int) -> bool:
    """Return whether a caller's code reads an attribute or imports a name, and does not ask by ``hasattr``.

    Args:
        depth: How many calls above this one the code is.
    """
    frame = sys._getframe(depth + 1)
    return opname[frame.f_code.co_code[frame.f_lasti]] in _READS


def handles_import_errors(depth: int) -> bool:
    """Return whether the code that imports something goes on when the import fails.

    Args:
        depth: How many calls above this one the code is, or the import system that it called.
    """
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
        frame = frame.f_back
    if frame is None:
        return False
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    return any(frame.f_lineno in guarded for guarded in _guarded("".join(lines)))


@functools.lru_cache(maxsize=64)
def _guarded(source: str) -> tuple[range, ...]:
    """Return the lines of a file where a failing import is handled."""
    try:
        return tuple(_guarded_lines(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ()


def _guarded_lines(tree: ast.AST) -> Iterator[range]:
    for node in ast.walk(tree):
        is_guard = isinstance(node, ast.Try) and any(_takes_import_errors(one.type) for one in node.handlers)
        if isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            is_guard = any(
                ast.unparse(call.func).endswith("suppress") and any(map(_takes_import_errors, call.args))
                for call in calls
            )
        if is_guard and isinstance(node, (ast.Try, ast.With)):
            yield range(node.body[0].lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)


def _takes_import_errors(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or ast.unparse(one).rpartition(".")[2] in _ERRORS for one in kinds)
