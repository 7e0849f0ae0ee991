"""The shapes of outputs: which of their dimensions are the batch's.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from recsys.errors import ExportError
from recsys.inputs.signature import FLOAT32, INT64, ROWS_FIRST, Output

_HINT = (
    "If the rows of a request belong together, as in logits [B, B], or an output has no rows, as the vectors of all "
    "candidates, export with --batch request"
)


def signature_outputs(outputs: Mapping[str, Tensor], num_rows: int) -> tuple[Output, ...]:
    """Return the outputs of a model whose rows are any requests'.

    Args:
        outputs: In the types of answers.
        num_rows: B.

    Raises:
        ExportError: An output does not have one row per row of the batch.
    """
    for name, output in outputs.items():
        if output.dim() == 0 or output.shape[0] != num_rows:
            others = [one for one, part in outputs.items() if part.dim() and part.shape[0] == num_rows]
            keep = (
                f"If it is a loss or the like, keep the others: --outputs {','.join(others)}. "
                if others
                else ""
            )
            raise ExportError(
                f"outputs[{name!r}]: got shape {list(output.shape)} for a batch of {num_rows} rows, expected "
                f"one row per row of the batch. {keep}{_HINT}"
            )
    return tuple(_output(name, output, ROWS_FIRST) for name, output in outputs.items())


def request_outputs(
    outputs: Mapping[str, Tensor], num_rows: int, predict_more: Callable[[], Mapping[str, Tensor]]
) -> tuple[Output, ...]:
    """Return the outputs of a model whose batch is one request: each dimension is B, or always the same.

    Args:
        outputs: In the types of answers.
        num_rows: B.
        predict_more: Returns the outputs for one row more.

    Raises:
        ExportError: An output has no dimensions, or one that is neither; or the model fails on one row more.
    """
    more = predict_more()
    found = []
    for name, output in outputs.items():
        if not output.dim():
            raise ExportError(
                f"outputs[{name!r}]: got a number without dimensions, expected at least one: unsqueeze(0) it"
            )
        sizes = list(zip(output.shape, more[name].shape, strict=False))
        batch_dims = tuple(i for i, size in enumerate(sizes) if size == (num_rows, num_rows + 1))
        is_known = all(i in batch_dims or size[0] == size[1] for i, size in enumerate(sizes))
        if not is_known or more[name].dim() != output.dim():
            raise ExportError(
                f"outputs[{name!r}]: got shape {list(output.shape)} for {num_rows} rows and {list(more[name].shape)} "
                f"for {num_rows + 1}, expected each size to be the number of rows, or always the same"
            )
        found.append(_output(name, output, batch_dims))
    return tuple(found)


def _output(name: str, output: Tensor, batch_dims: tuple[int, ...]) -> Output:
    return Output(
        name=name,
        shape=tuple(size for dim, size in enumerate(output.shape) if dim not in batch_dims),
        dtype=FLOAT32 if output.is_floating_point() else INT64,
        batch_dims=batch_dims,
    )
