"""Ranking requests: a user, who is given once, and candidates."""

from __future__ import annotations

from typing import Any

from serve.client.packing import Context, build_request
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import CONTEXT, Exported
from tests.support.serve.messages.cases import Sample


def ranked(
    small: Exported,
    num_rows: int,
    shared: tuple[str, ...] = CONTEXT,
    seed: int = 0,
    user: int | None = None,
) -> tuple[dict[str, Any], Context, Sample]:
    """What a client gives, and the plain sample that it stands for.

    Args:
        small: the model.
        num_rows: candidates.
        shared: the inputs of the context.
        seed: of the candidates, and of the user if there is no other.
        user: the seed of the user.
    """
    rows, one = small.sample(num_rows, seed), small.sample(1, (seed if user is None else user) + 10_000)
    given = {
        part: {name: values for name, values in getattr(rows, part).items() if name not in shared}
        for part in ("dense", "sparse", "weights")
    }
    context = {
        part: {name: values for name, values in getattr(one, part).items() if name in shared}
        for part in ("dense", "sparse", "weights")
    }
    expanded = {
        part: {
            name: getattr(one, part)[name] * num_rows if name in shared else values
            for name, values in getattr(rows, part).items()
        }
        for part in ("dense", "sparse", "weights")
    }
    return given, Context(**context), Sample(num_rows, **expanded)


def ranking_request(small: Exported, num_rows: int, *, seed: int, user: int) -> wire.PredictRequest:
    """A user who asks about candidates: requests of one user have the same context."""
    given, context, _ = ranked(small, num_rows, seed=seed, user=user)
    return build_request(**given, context=context)
