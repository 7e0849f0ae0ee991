"""What the user says of a plain model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PlainOptions:
    """What the user says of a plain model.

    Attributes:
        method: The method that predicts, instead of ``forward``.
        inputs: Example inputs: a tensor, a tuple of positional arguments of ``forward``, or a dict of keyword
            arguments; None for those of the factory's module or of the model.
        outputs: The names of the outputs to keep; all if it is empty. Inputs that lead to others alone are left out.
        tables: Names of weights that are tables, whatever reads them.
        dense: Names of those that stay dense.
        padding: By feature whose rows may have fewer IDs than the example's: ``left``, ``right``, ``none``, or
            ``left:ID`` with the ID that stands for none.
    """

    method: str = "forward"
    inputs: Any = None
    outputs: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    padding: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps, for deltas; nothing of what was not said."""
        plain = {"tables": list(self.tables), "dense": list(self.dense), "padding": dict(self.padding)}
        method = {} if self.method == "forward" else {"method": self.method}
        return {**method, **{name: value for name, value in plain.items() if value}}
