"""The placeholders of traced values: where Python wants a number, they are the one that every batch has."""

from __future__ import annotations

import ast
import dis
import inspect
import sys
import textwrap
from functools import cache
from types import CodeType, FrameType
from typing import Any

from torch.fx.proxy import Attribute, Proxy, TraceError

_IN = dis.opmap["CONTAINS_OP"]
OPEN_LENGTH = "the number of its parts differs between batches, so that Python cannot take it"


class _Number:
    """A part of a placeholder: the number that it stands for where Python wants one, if batches agree on it."""

    #: NumPy leaves operators to the placeholder.
    __array_ufunc__ = None

    def __index__(self) -> int:
        found = self._constant()
        if not isinstance(found, int):
            raise TypeError("a number that differs between batches cannot be interpreted as an integer")
        return found

    def __int__(self) -> int:
        return int(float(self))

    def __float__(self) -> float:
        found = self._constant()
        if not isinstance(found, (int, float)):
            raise TypeError("must be real number, not one that differs between batches")
        return float(found)

    def __len__(self) -> int:
        count: int | None = self.tracer.sizes.num_parts(self.node)  # type: ignore[attr-defined]
        if count is None:
            raise TypeError(OPEN_LENGTH)
        return count

    def __hash__(self) -> int:
        """Return a hash by which sets and dictionaries compare numbers and shapes; a tensor equals itself alone."""
        key, is_open = self.tracer.sizes.key(self.node)  # type: ignore[attr-defined]
        if is_open and tells_apart(sys._getframe(1)):
            raise TraceError("control flow: a size that differs between batches is looked up among numbers")
        return object.__hash__(self) if key is None else hash(key)

    def _constant(self) -> Any:
        return self.tracer.sizes.constant(self.node)  # type: ignore[attr-defined]


class Placeholder(_Number, Proxy):
    """Stands for a traced value."""

    def __getattr__(self, k: str) -> Attribute:
        return PlaceholderAttribute(self, k)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("'Proxy' object does not support item assignment")


class PlaceholderAttribute(_Number, Attribute):
    """Stands for an attribute of a traced value."""


def tells_apart(caller: FrameType) -> bool:
    """Return whether code may look an open size up among other numbers, with which Python would not compare it.

    Args:
        caller: The code that asks for the size's hash, which is that of 1.
    """
    code = caller.f_code
    if code.co_code[caller.f_lasti] == _IN or _has_numbers(code, caller.f_lineno):
        return True
    return any(_holds_numbers(_value_of(one, caller)) for one in _operands(code, caller.f_lineno))


@cache
def _statement(code: CodeType, line: int) -> ast.stmt | None:
    """Return the statement of a line of code, whose own lines it has; None for a part of one, such as a lambda."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):  # a part of a statement, or without source
        return None
    ast.increment_lineno(tree, first - 1)
    around = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or one.lineno)
    ]
    return max(around, key=lambda one: one.lineno) if around else None


@cache
def _has_numbers(code: CodeType, line: int) -> bool:
    """Return whether a statement has a set or a dictionary of other integers than 1."""
    statement = _statement(code, line)
    keys = [
        key
        for one in (ast.walk(statement) if statement is not None else ())
        for key in (one.elts if isinstance(one, ast.Set) else one.keys if isinstance(one, ast.Dict) else ())
        if key is not None
    ]
    parts = [part for key in keys for part in (key.elts if isinstance(key, ast.Tuple) else (key,))]
    return any(isinstance(one, ast.Constant) and _is_other(one.value) for one in parts)


@cache
def _operands(code: CodeType, line: int) -> list[ast.expr]:
    """Return what a line has operators or methods of, or gives to methods: sets and dictionaries may be among them."""
    statement = _statement(code, line)
    found: list[ast.expr] = []
    for one in ast.walk(statement) if statement is not None else ():
        if not isinstance(one, ast.expr) or not one.lineno <= line <= (one.end_lineno or one.lineno):
            continue
        if isinstance(one, ast.BinOp):
            found += [one.left, one.right]
        elif isinstance(one, ast.Compare):
            found += [one.left, *one.comparators]
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            found += [one.func.value, *one.args]
    return [one for one in found if isinstance(one, (ast.Name, ast.Attribute))]


def _value_of(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, or of an attribute, where code is running; None for others."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return inspect.getattr_static(_value_of(expression.value, frame), expression.attr, None)
    return None


def _holds_numbers(value: Any) -> bool:
    """Return whether a value is a set or a dictionary of other integers than 1."""
    if not isinstance(value, (set, frozenset, dict)):
        return False
    return any(_is_other(one) for key in value for one in (key if isinstance(key, tuple) else (key,)))


def _is_other(value: Any) -> bool:
    return type(value) is int and value > 1


def known(value: Any) -> Any:
    """Return a value with the numbers that all batches have in the places of traced ones.

    Raises:
        TypeError: They differ between batches.
    """
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(known, value))
    return value.tracer.known(value) if isinstance(value, Proxy) else value  # type: ignore[attr-defined]
