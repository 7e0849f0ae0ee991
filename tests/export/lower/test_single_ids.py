"""Rows of single IDs that no step uses: torch reads them side by side.

Shape letters: B rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from torch import nn

from export.lower.plan import Plan
from tests.export.lower.test_jagged import (
    REGIONS,
    Histories,
    summed_for_rows,
    summed_layers_for_rows,
    summed_with_rows,
)
from tests.export.lower.test_lowering import kinds_of, lowered, steps_of
from tests.models.timed_hstu import TimedHSTU
from tests.support.models.export_models import CASES as MODELS
from tests.support.models.export_models import History, SameName, Twice


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that computes with rows of single IDs.

    Attributes:
        make: Returns it.
        context: The features of its ranking form's context.
        sparse: As in ``tests.support.models.export_models.ModelCase``.
    """

    make: Callable[[], nn.Module]
    context: tuple[str, ...] = ("seen",)
    sparse: Mapping[str, Mapping[str, str]] | None = None


CASES = {
    **{name: Case(make=lambda score=score: Histories(score)) for name, score in REGIONS.items()},
    "sums of contexts": Case(make=lambda: Histories(summed_for_rows)),
    "layers summed up for contexts": Case(make=lambda: Histories(summed_layers_for_rows)),
    "sums of contexts with numbers of rows": Case(make=lambda: Histories(summed_with_rows)),
    "an output of places": Case(make=History, context=("user", "shop")),
    "a collection of two arguments": Case(
        make=SameName, context=("user.id", "user.kind"), sparse=MODELS["two arguments with one name"].sparse
    ),
    "a collection that is called twice": Case(
        make=Twice,
        context=("mine.f",),
        sparse={name: {key: f"{name}.{key}" for key in "fg"} for name in ("mine", "theirs")},
    ),
    "jagged attention": Case(make=TimedHSTU, context=("candidate",)),
}


@pytest.mark.parametrize("is_ranking", [False, True], ids=["rows", "contexts"])
@pytest.mark.parametrize("name", CASES)
def test_models_have_programs(name: str, is_ranking: bool) -> None:
    case = CASES[name]
    program = lowered(case.make(), is_ranking=is_ranking, context=case.context if is_ranking else ())
    assert any(isinstance(step, Plan) for step in program.steps)


def test_sums_of_contexts_are_computed_once() -> None:
    program = lowered(Histories(summed_for_rows), is_ranking=True, context=("seen",))
    assert kinds_of(program) == ["plan", "gather", "plan"]
    assert steps_of(program)["sum_ids"] == 1
