"""Reads PromQL as far as rules and dashboards use it, and says which labels an expression's series have.

A name that no metric has, a label that a metric has not, a function of the wrong kind of vector: each is an error here,
where Prometheus itself would show nothing and be content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<duration>\d+(?:ms|[smhdwy])(?:\d+(?:ms|[smhdw]))*)
  | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
  | (?P<name>[a-zA-Z_:][\w:]*)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<op>=~|!~|==|!=|<=|>=|[-+*/%^<>=(){}\[\],])
    )""",
    re.VERBOSE,
)
_AGGREGATIONS = {"sum", "min", "max", "avg", "count", "group"}
_RANGE_FUNCTIONS = {"rate", "increase", "changes", "max_over_time", "avg_over_time"}
_OPERATORS = {"+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "and", "or", "unless"}
_MATCHERS = {"=", "!=", "=~", "!~"}


class PromqlError(ValueError):
    """The expression is not PromQL, or asks for what there is not."""


@dataclass
class Value:
    """What an expression gives: the labels of its series; None for a plain number."""

    labels: frozenset[str] | None
    is_range: bool = False


@dataclass
class Reader:
    """Reads expressions.

    Attributes:
        metrics: the labels of each name that may be asked for.
    """

    metrics: Mapping[str, frozenset[str]]
    _tokens: list[tuple[str, str]] = field(default_factory=list)
    _at: int = 0

    def labels(self, expression: str) -> frozenset[str]:
        """The labels of the expression's series.

        Raises:
            PromqlError: says what is wrong.
        """
        self._tokens, self._at = _tokens(expression), 0
        value = self._expression()
        if self._at != len(self._tokens):
            raise PromqlError(f"got {self._peek()!r} behind the expression")
        if value.is_range:
            raise PromqlError("got a range, expected rate() or the like around it")
        return value.labels or frozenset()

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "", kind: str = "") -> str:
        if self._at >= len(self._tokens):
            raise PromqlError(f"got the end, expected {expected or kind}")
        got_kind, got = self._tokens[self._at]
        if (expected and got != expected) or (kind and got_kind != kind):
            raise PromqlError(f"got {got!r}, expected {expected or kind}")
        self._at += 1
        return got

    def _expression(self) -> Value:
        """Operands and operators; their precedence changes no labels that matter here."""
        left = self._operand()
        while self._peek() in _OPERATORS:
            operator = self._take()
            matched: set[str] | None = None
            if self._peek() in ("on", "ignoring"):
                by = self._take()
                names = self._names()
                matched = names if by == "on" else None
            if self._peek() in ("group_left", "group_right"):
                self._take()
                self._names()
            left = _combined(left, operator, self._operand(), matched)
        return left

    def _operand(self) -> Value:
        if self._peek() in ("-", "+"):
            self._take()
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if text == "(":
            self._take()
            value = self._expression()
            self._take(")")
            return value
        if kind == "number":
            self._take()
            return Value(None)
        if kind != "name":
            raise PromqlError(f"got {text!r}, expected a metric, a function or a number")
        if text in _AGGREGATIONS:
            return self._aggregation()
        if text in _RANGE_FUNCTIONS or text == "histogram_quantile":
            return self._function()
        return self._selector()

    def _aggregation(self) -> Value:
        self._take()
        by = self._names(after="by") if self._peek() == "by" else set()
        self._take("(")
        inner = self._expression()
        self._take(")")
        if self._peek() == "by":
            by = self._names(after="by")
        _has(inner, by)
        return Value(frozenset(by))

    def _function(self) -> Value:
        name = self._take()
        self._take("(")
        if name == "histogram_quantile":
            self._take(kind="number")
            self._take(",")
        inner = self._expression()
        self._take(")")
        if name == "histogram_quantile":
            _has(inner, {"le"})
            return Value((inner.labels or frozenset()) - {"le"})
        if not inner.is_range:
            raise PromqlError(f"{name}: got no range, expected one such as [5m]")
        return Value(inner.labels)

    def _selector(self) -> Value:
        name = self._take(kind="name")
        if name not in self.metrics:
            raise PromqlError(f"there is no metric {name!r}")
        labels = self.metrics[name]
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label = self._take(kind="name")
                if label not in labels:
                    raise PromqlError(f"{name} has no label {label!r}, only {sorted(labels)}")
                if self._take(kind="op") not in _MATCHERS:
                    raise PromqlError(f"{name}: got no matcher behind {label!r}")
                re.compile(self._take(kind="string")[1:-1])
                if self._peek() == ",":
                    self._take()
            self._take("}")
        if self._peek() == "[":
            self._take()
            self._take(kind="duration")
            self._take("]")
            return Value(labels, is_range=True)
        return Value(labels)

    def _names(self, after: str = "") -> set[str]:
        if after:
            self._take(after)
        self._take("(")
        names = set()
        while self._peek() != ")":
            names.add(self._take(kind="name"))
            if self._peek() == ",":
                self._take()
        self._take(")")
        return names


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    expression = expression.rstrip()
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            raise PromqlError(f"got {expression[at : at + 20]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


def _combined(left: Value, operator: str, right: Value, on: set[str] | None) -> Value:
    if left.is_range or right.is_range:
        raise PromqlError(f"{operator}: got a range, expected rate() or the like around it")
    if left.labels is None or right.labels is None:
        return Value(right.labels if left.labels is None else left.labels)
    if on is not None:
        _has(left, on)
        _has(right, on)
    return Value(left.labels | right.labels if operator == "or" else left.labels)


def _has(value: Value, names: set[str]) -> None:
    missing = names - (value.labels or frozenset())
    if missing:
        raise PromqlError(f"got {sorted(missing)}, the series have only {sorted(value.labels or ())}")
