"""The ranking form of a target, which must predict the same as its plain form for the expanded batch.

Shape letters: B rows of a batch, Q contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from export.graph.prepared import PreparedModel
from export.verify.compare import LINEAR_TOLERANCES, Difference, compare, largest
from recsys.artifact.batches.ranking import RankingBatch, expand, picked, ranking_batch
from recsys.artifact.batches.samples import Batch

Predict = Callable[[Batch], dict[str, Tensor]]
PredictRanking = Callable[[RankingBatch], dict[str, Tensor]]

# Lookups are bit-identical. Layers of graphs that run on contexts get other sizes than those of the plain form, and
# sum in another order, relative to the largest output: roundings of a few thousand fp32 terms (2^-24 each), and of bf16
# terms (2^-8 each) over some layers.
_GRAPH_TOLERANCES = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-5}


def ranking_tolerance(dense_dtype: torch.dtype, linear_dtype: str) -> float:
    """Return how far scores of both forms may be apart, relative to the largest.

    A program adds what layers make of contexts and of rows: sums in another order, and in bfloat16 and int8 other
    numbers that are rounded, as between a program and torch.

    Args:
        dense_dtype: The type of the dense layers.
        linear_dtype: That in which a program's linear layers multiply.
    """
    of_graphs = _GRAPH_TOLERANCES[dense_dtype]
    return of_graphs if linear_dtype == "float32" else max(of_graphs, LINEAR_TOLERANCES[linear_dtype])


# Rows of each context.
_CASES = ((64,), (1,), (20, 1, 9, 34), (3, 0, 5, 0))


def check_ranking(
    prepared: PreparedModel, predict: Predict, predict_ranking: PredictRanking
) -> dict[str, Difference]:
    """Compare a target's two forms.

    Contexts and rows come from the samples, so that they are realistic. Cases: one context and several,
    contexts without rows, rows in any order. A batch without rows reaches no graph.

    Args:
        prepared: The model.
        predict: The plain form.
        predict_ranking: The ranking form.

    Returns:
        For each output the largest difference over all cases.

    Raises:
        VerificationError: Names the output and the distance.
    """
    found = []
    generator = torch.Generator().manual_seed(0)
    for case in _CASES:
        batch = _batch(prepared, case, generator)
        outputs, expected = predict_ranking(batch), predict(expand(prepared.signature, batch))
        differences = compare(
            outputs,
            expected,
            ranking_tolerance(prepared.dense_dtype, prepared.config.linear_dtype),
            f"what the plain graph makes of the expanded batch (a ranking batch of {sum(case)} rows for "
            f"{len(case)} contexts)",
        )
        found.append(differences)
    return largest(found, lambda difference: difference.max_abs)


def _batch(prepared: PreparedModel, case: Sequence[int], generator: torch.Generator) -> RankingBatch:
    """Return a ranking batch of samples; its rows differ from the contexts' and are shuffled."""
    num_rows, num_samples = sum(case), prepared.samples.num_rows
    order = torch.randperm(num_rows, generator=generator)
    row_context = torch.repeat_interleave(torch.arange(len(case)), torch.tensor(case, dtype=torch.int64))
    return ranking_batch(
        prepared.signature,
        picked(prepared.signature, prepared.samples, torch.arange(len(case)) % num_samples),
        picked(prepared.signature, prepared.samples, (order + len(case)) % num_samples),
        row_context[order],
    )
