"""What rows of one context share is computed once: operators run on contexts before their result is expanded.

Shape letters: B rows, Q contexts, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import fx

from export.lower.bags import IdsSpace, Rows, ids_space
from export.lower.formed import Operand
from export.lower.operators.sequences import Ids
from export.lower.operators.views import RowContext
from export.lower.regions import Outside
from export.lower.spaces.report import Journal
from export.lower.values import Called, Expand, NotLoweredError, NumRows, Part, Space, Value, Weight


class Contexts:
    """Applies operators to contexts where all that they read is expanded from contexts, or the same for all rows.

    Args:
        journal: Where is noted what does not run on contexts.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._outside: set[fx.Node] = set()
        self._expanded: dict[Value, Value] = {}
        #: By what is there for each ID of expanded contexts, the same of the contexts.
        self._of_contexts: dict[Value, Value] = {}
        #: By IDs of contexts, the same expanded, and the other way round.
        self._other_ids: dict[Ids, Ids] = {}
        self._constants: dict[Value, bool] = {}
        self._in_spaces: dict[tuple[Value, Space], Value] = {}

    def expanded_rows(self, rows: Rows) -> Rows:
        """Return the rows of the IDs of contexts, for the rows that share them."""
        found = rows.expanded()
        self._expanded[rows], self._of_contexts[found] = found, rows
        return found

    def _ids(self, ids: Ids, is_expanded: bool) -> Ids:
        """Return IDs of contexts, as they are or for the rows that share them; each once."""
        if ids.is_expanded is is_expanded:
            return ids
        if ids not in self._other_ids:
            other = replace(ids, is_expanded=is_expanded)
            self._other_ids[ids], self._other_ids[other] = other, ids
        return self._other_ids[ids]

    def apply(self, node: fx.Node, function: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Return what a function makes of arguments, computed once for each context if they allow it.

        Args:
            node: The node that calls it.
            function: Takes positional arguments and those by name.
            args: Positional arguments.
            kwargs: Arguments by name.
        """
        space = self._space_of((args, kwargs))
        if space is Space.CONTEXTS:
            try:
                return self.applied(function, args, kwargs)
            except NotLoweredError as error:
                self._journal.kept.append((node, str(error)))
        elif space is Space.ROWS and self._reads_contexts((args, kwargs)):
            self._journal.meetings.append(node)
        return function(args, kwargs)

    def applied(self, function: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Return what a function makes of contexts.

        Raises:
            NotLoweredError: It does not read contexts alone, or cannot take them.
        """
        if self._space_of((args, kwargs)) is not Space.CONTEXTS:
            raise NotLoweredError("it computes with rows")
        return self._expand(function(*self._contexts_of((args, kwargs))))

    def note_outside(self, node: fx.Node, read: Sequence[Any], why: str) -> None:
        """Note that no step computes a node, if it reads contexts alone."""
        if _either(self._space_of(one) for one in read) is Space.CONTEXTS:
            self._outside.add(node)
            self._journal.kept.append((node, why))

    def _reads_contexts(self, one: Any) -> bool:
        """Return whether something reads, directly, what is expanded from contexts."""
        if isinstance(one, Value):
            return isinstance(one, Expand) or one in self._of_contexts
        if isinstance(one, slice):
            return False
        return any(map(self._reads_contexts, _parts_of(one)))

    def _space_of(self, one: Any) -> Space | None:
        """Return whether something depends on rows or on contexts alone; None if it is the same for all."""
        if isinstance(one, Outside):
            return Space.CONTEXTS if one.node in self._outside else Space.ROWS
        if isinstance(one, Value):
            if self._is_constant(one):
                return None
            return Space.CONTEXTS if isinstance(one, Expand) or one in self._of_contexts else Space.ROWS
        if isinstance(one, Ids):
            return Space.CONTEXTS if one.is_expanded else Space.ROWS
        if isinstance(one, Space | RowContext):
            return Space.ROWS
        if isinstance(one, NumRows):
            # A number of rows is one of contexts where the rest is.
            return None
        if isinstance(one, slice):
            one = (one.start, one.stop, one.step)
        return _either(map(self._space_of, _parts_of(one)))

    def _contexts_of(self, one: Any) -> Any:
        """Return something expanded as it is of contexts."""
        if isinstance(one, NumRows):
            return NumRows(_of_contexts(one.space), one.times)
        if isinstance(one, Expand):
            return one.source
        if isinstance(one, Ids):
            return self._ids(one, False)
        if isinstance(one, Value):
            return (
                self._of_contexts[one] if one in self._of_contexts else self._constant_of(one, _of_contexts)
            )
        return _mapped(one, self._contexts_of)

    def _expand(self, one: Any) -> Any:
        """Return what was made of contexts for the rows that share them."""
        if isinstance(one, NumRows):
            return NumRows(_expanded(one.space), one.times)
        if isinstance(one, Ids):
            return self._ids(one, True)
        if isinstance(one, Value) and self._is_constant(one):
            return self._constant_of(one, _expanded)
        if isinstance(one, Value):
            if one not in self._expanded:
                self._expanded[one] = self._expanded_value(one)
            return self._expanded[one]
        return _mapped(one, self._expand)

    def _expanded_value(self, value: Value) -> Value:
        if isinstance(value, Rows):
            return self.expanded_rows(value)
        if isinstance(value.space, IdsSpace):
            found: Value = replace(_replaced(value, self._expand), space=_expanded(value.space))
            self._of_contexts[found] = value
            return found
        if value.space is not Space.CONTEXTS:
            raise NotLoweredError("it computes with rows and contexts")
        return Expand(dims=value.dims, dtype=value.dtype, source=value)

    def _is_constant(self, value: Value) -> bool:
        """Return whether a value is computed of weights alone."""
        if value not in self._constants:
            is_made = isinstance(value, Weight) or bool(value.sources)
            self._constants[value] = is_made and all(map(self._is_constant, value.sources))
        return self._constants[value]

    def _constant_of(self, value: Value, space_of: Callable[[Space], Space]) -> Value:
        """Return what is computed of weights alone in another space."""
        space = space_of(value.space)
        if space is value.space:
            return value
        key = (value, space)
        if key not in self._in_spaces:

            def of(one: Any) -> Any:
                return self._constant_of(one, space_of) if isinstance(one, Value) else _mapped(one, of)

            self._in_spaces[key] = replace(_replaced(value, of), space=space)
        return self._in_spaces[key]


def _either(spaces: Iterable[Space | None]) -> Space | None:
    """Return the space of what depends on some others."""
    found = set(spaces)
    return Space.ROWS if Space.ROWS in found else Space.CONTEXTS if Space.CONTEXTS in found else None


def _of_contexts(space: Space) -> Space:
    if space is Space.ROWS:
        return Space.CONTEXTS
    return ids_space(space.bags, space.feature, False) if isinstance(space, IdsSpace) else space


def _expanded(space: Space) -> Space:
    if space is Space.CONTEXTS:
        return Space.ROWS
    return ids_space(space.bags, space.feature, True) if isinstance(space, IdsSpace) else space


def _parts_of(one: Any) -> list[Any]:
    """Return what something consists of that operators take, other than values."""
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, (tuple, list)):
        return list(one)
    if isinstance(one, (Called, Part, Operand)) and is_dataclass(one):
        return [getattr(one, each.name) for each in fields(one)]
    return []


def _mapped(one: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same of parts that a function makes."""
    if isinstance(one, dict):
        return {key: function(each) for key, each in one.items()}
    if isinstance(one, (tuple, list)):
        parts = [function(each) for each in one]
        return type(one)(*parts) if hasattr(one, "_fields") else type(one)(parts)
    if isinstance(one, slice):
        return slice(function(one.start), function(one.stop), function(one.step))
    if isinstance(one, (Called, Part, Operand)) and is_dataclass(one):
        return _replaced(one, function)
    return one


def _replaced(one: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass whose fields a function makes."""
    given = {each.name: function(getattr(one, each.name)) for each in fields(one) if each.init}
    return replace(one, **given)
