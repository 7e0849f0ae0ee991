"""Input batches of the exported ``forward``: read from requests in JSON, or random.

Shape letters: B batch, F features, N number of IDs.

One request in JSON, the same for ``recsys-predict`` and for ``recsys-export --samples``:

    {"dense": {"dense_features": [[0.5, 1.0]]}, "sparse": {"user": [[7]], "genres": [[1, 4]]}}

with one list per row, and ``"weights": {"genres": [[0.5, 2.0]]}`` for weighted features. The IDs of a row of a feature
with a hash may be texts. ``null`` is a missing number of an input that takes missing ones.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.base.hashing import hash_text
from recsys.inputs.schema import DenseColumn, Schema
from recsys.inputs.signature import DenseInput, Signature, SparseInput

# The share of missing numbers in random rows, for inputs that take them.
_MISSING_SHARE = 0.1
# Random numbers of an input that no table bounds: exact as float32.
_UNBOUNDED_IDS = 2**20
_LARGEST_FLOAT32 = torch.finfo(torch.float32).max
_LARGEST_LOG = 80.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The inputs of ``forward``.

    Attributes:
        dense: float32 ``[B, width]`` each.
        lengths: int64 ``[F * B]``, key-major.
        values: int64 ``[N]``.
        weights: float32 ``[N]`` if the model is weighted.
    """

    dense: tuple[Tensor, ...]
    lengths: Tensor
    values: Tensor
    weights: Tensor | None
    num_rows: int

    def inputs(self) -> list[Tensor]:
        """Return the arguments of ``forward`` in order."""
        return [*self.dense, self.lengths, self.values, *([] if self.weights is None else [self.weights])]


def fewest_rows(signature: Signature) -> int:
    """Return the rows of the smallest batch that exports verify: rows that belong together may not be alone."""
    return 2 if signature.by_request else 1


def random_batch(
    signature: Signature,
    num_rows: int,
    generator: torch.Generator,
    max_ids_per_bag: int = 4,
    known_ids: Mapping[str, Tensor] | None = None,
    schema: Schema | None = None,
) -> Batch:
    """Return a batch of uniform IDs in range, bags of 0 to ``max_ids_per_bag`` IDs, and normal dense numbers.

    Bags of inputs with ``num_ids`` have as many.

    Args:
        signature: The signature of the model.
        num_rows: B.
        generator: Source of random numbers.
        max_ids_per_bag: See above.
        known_ids: By table, the raw IDs that own rows, int64. About half of the IDs of mapped features are
            drawn from these, all others from all int64.
        schema: Says how the numbers of the dense columns are spread.
    """
    lengths, values = [], []
    of_name: dict[str, Tensor] = {}
    for feature in signature.sparse:
        if feature.same_lengths_as:
            bags = of_name[feature.same_lengths_as]
        elif feature.num_ids is None:
            bags = torch.randint(0, max_ids_per_bag + 1, (num_rows,), generator=generator)
        else:
            bags = torch.full((num_rows,), feature.num_ids)
        num_ids = int(bags.sum())
        lengths.append(bags)
        of_name[feature.name] = bags
        if not feature.tables:
            values.append(torch.randint(0, _UNBOUNDED_IDS, (num_ids,), generator=generator))
        elif feature.row_limit is None:
            known = [ids for t in feature.tables if (ids := (known_ids or {}).get(t.name)) is not None]
            values.append(_raw_ids(num_ids, torch.cat(known) if known else None, generator))
        else:
            values.append(torch.randint(0, feature.row_limit, (num_ids,), generator=generator))
    flat = torch.cat(values) if values else torch.empty(0, dtype=torch.int64)
    return Batch(
        dense=tuple(random_dense(d, num_rows, generator, schema) for d in signature.dense),
        lengths=torch.cat(lengths) if lengths else torch.empty(0, dtype=torch.int64),
        values=flat,
        weights=torch.rand(flat.numel(), generator=generator) if signature.is_weighted else None,
        num_rows=num_rows,
    )


def random_dense(
    dense: DenseInput, num_rows: int, generator: torch.Generator, schema: Schema | None = None
) -> Tensor:
    """Return normal numbers; some are missing where the input takes missing ones.

    For columns of a schema they are numbers that its transforms make normal, or that fill all of its buckets.
    """
    numbers = torch.randn(num_rows, dense.width, generator=generator)
    known = {} if schema is None else {column.name: column for column in schema.dense}
    for i, name in enumerate(dense.columns):
        if name in known:
            numbers[:, i] = _untransformed(numbers[:, i], known[name])
    if dense.missing:
        numbers[torch.rand(numbers.shape, generator=generator) < _MISSING_SHARE] = torch.nan
    return numbers


def _untransformed(normal: Tensor, column: DenseColumn) -> Tensor:
    """Return numbers that a column's transforms turn into the given ones, as far as its bounds allow."""
    if column.buckets:
        bounds = torch.tensor(column.buckets, dtype=torch.float64)
        width = max(1.0, float(bounds[-1] - bounds[0]) / len(bounds))
        # From a bucket below the first bound to one above the last.
        share: Tensor = torch.special.ndtr(normal.double())
        numbers: Tensor = bounds[0] - width + share * (bounds[-1] - bounds[0] + 2 * width)
    else:
        numbers = normal.double() * column.std + column.mean
    if column.log1p:
        # Beyond that, float32 has no numbers.
        logs = numbers.clamp(-_LARGEST_LOG, _LARGEST_LOG)
        numbers = torch.sign(logs) * torch.expm1(logs.abs())
    if column.clip is not None:
        numbers = numbers.clamp(*column.clip)
    return numbers.clamp(-_LARGEST_FLOAT32, _LARGEST_FLOAT32).float()


def _raw_ids(num_ids: int, known: Tensor | None, generator: torch.Generator) -> Tensor:
    ids = torch.randint(-(2**63), 2**63 - 1, (num_ids,), generator=generator)
    if known is None or not known.numel():
        return ids
    picked = known[torch.randint(0, known.numel(), (num_ids,), generator=generator)]
    return torch.where(torch.rand(num_ids, generator=generator) < 0.5, picked, ids)


def read_samples(path: str | os.PathLike[str], signature: Signature) -> Batch:
    """Read requests in JSON, one per line or a single one over several lines, as one batch.

    What else of dense inputs and features they hold is left out: a part of a model may read less than was recorded.

    Raises:
        ValueError: A field is wrong; the message names the line, the field, what was found and what was expected.
    """
    name = Path(path).name
    try:
        content = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not readable as UTF-8: {error.reason} at byte {error.start}") from None
    requests = []
    whole = _one_request(content)
    if whole is not None:
        return _checked_line(whole, signature, name)
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            requests.append(
                _checked_line(_parsed(line, f"{name}, line {number}"), signature, f"{name}, line {number}")
            )
    if not requests:
        raise ValueError(f"{name}: got no requests, expected one a line")
    return joined(requests)


def _checked_line(data: Any, signature: Signature, at: str) -> Batch:
    names = {
        "dense": {one.name for one in signature.dense},
        "sparse": {one.name for one in signature.sparse},
    }
    names["weights"] = names["sparse"]
    if isinstance(data, dict):
        data = {
            section: {name: rows for name, rows in given.items() if name in names[section]}
            if section in names and isinstance(given, dict) and _holds(data, section, names)
            else given
            for section, given in data.items()
        }
    return _checked(data, signature, at)


def _holds(data: dict[str, Any], section: str, names: Mapping[str, set[str]]) -> bool:
    """Return whether a section has all names: a misspelt one is not left out."""
    return names[section] <= {*(data[section] if section != "weights" else data.get("sparse") or {})}


def batch_of_request(data: Any, signature: Signature, at: str) -> Batch:
    """Return the batch of a request in JSON.

    Args:
        data: The request.
        signature: The inputs.
        at: Where it comes from, for messages.

    Raises:
        ValueError: A field is wrong; the message names it, what was found and what was expected.
    """
    return _checked(data, signature, at)


def request_of_batch(batch: Batch, signature: Signature) -> dict[str, Any] | None:
    """Return a batch as a request in JSON, which ``batch_of_request`` reads; None if it holds an infinite number."""
    if any(bool(dense.isinf().any()) for dense in batch.dense):
        return None
    bags = _bags(batch.values.tolist(), batch.lengths.tolist())
    of_name = {
        use.name: bags[i * batch.num_rows : (i + 1) * batch.num_rows]
        for i, use in enumerate(signature.sparse)
    }
    request: dict[str, Any] = {
        "dense": {
            use.name: [[_short(number) for number in row] for row in dense.numpy()]
            for use, dense in zip(signature.dense, batch.dense, strict=True)
        },
        "sparse": of_name,
    }
    if batch.weights is not None:
        weights = _bags([_short(number) for number in batch.weights.numpy()], batch.lengths.tolist())
        request["weights"] = {
            use.name: weights[i * batch.num_rows : (i + 1) * batch.num_rows]
            for i, use in enumerate(signature.sparse)
            if use.weighted
        }
    return request


def _bags(values: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    rest = iter(values)
    return [list(itertools.islice(rest, length)) for length in lengths]


def _short(number: np.float32) -> float | None:
    """Return a float32 number with as few digits as tell it, None for NaN."""
    return None if np.isnan(number) else float(str(number))


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the rows of batches of one signature, one batch after the other."""
    num_rows = sum(batch.num_rows for batch in batches)
    num_features = sum(batch.lengths.numel() for batch in batches) // max(num_rows, 1)
    lengths = [batch.lengths.view(num_features, batch.num_rows) for batch in batches]
    counts = [of_batch.sum(dim=1).tolist() for of_batch in lengths]

    def by_feature(parts: Sequence[Tensor]) -> Tensor:
        split = [torch.split(part, sizes) for part, sizes in zip(parts, counts, strict=True)]
        return torch.cat(
            [parts[0][:0], *(bag for of_feature in zip(*split, strict=True) for bag in of_feature)]
        )

    weights = [batch.weights for batch in batches if batch.weights is not None]
    dense = zip(*(batch.dense for batch in batches), strict=True)
    return Batch(
        dense=tuple(torch.cat(parts) for parts in dense),
        lengths=torch.cat(lengths, dim=1).flatten(),
        values=by_feature([batch.values for batch in batches]),
        weights=by_feature(weights) if weights else None,
        num_rows=num_rows,
    )


def _one_request(content: str) -> Any:
    """Return the only request of a file that spreads it over several lines, or None."""
    if not content.lstrip().startswith("{\n"):
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _parsed(line: str, at: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{at}: not readable as JSON: {error}") from None


def _checked(data: Any, signature: Signature, at: str) -> Batch:
    sections = {"dense", "sparse", "weights"}
    if not isinstance(data, dict) or set(data) - sections:
        raise ValueError(f"{at}: expected an object with {sorted(sections)}")
    dense, sparse, weights = (data.get(key) or {} for key in ("dense", "sparse", "weights"))
    names = [
        ("dense", dense, {d.name for d in signature.dense}),
        ("sparse", sparse, {s.name for s in signature.sparse}),
        ("weights", weights, {s.name for s in signature.sparse if s.weighted}),
    ]
    for section, given, expected in names:
        if not isinstance(given, dict) or set(given) != expected:
            found = sorted(given) if isinstance(given, dict) else str(given)[:60]
            raise ValueError(f"{at}, {section}: got {found}, expected {sorted(expected)}")
        for name, rows in given.items():
            if not isinstance(rows, list):
                raise ValueError(
                    f"{at}, {section} {name!r}: got {str(rows)[:60]}, expected a list with one list per row"
                )
    num_rows = {len(rows) for given in (dense, sparse) for rows in given.values()}
    if len(num_rows) != 1:
        raise ValueError(f"{at}: got features with {sorted(num_rows)} rows, expected the same for all")
    dense = {d.name: _filled(d, dense[d.name]) for d in signature.dense}
    for d in signature.dense:
        for row in dense[d.name]:
            _check_row(row, (int, float), f"{at}, dense {d.name!r}")
            if len(row) != d.width:
                raise ValueError(f"{at}, dense {d.name!r}: got {len(row)} numbers, expected {d.width}")
    sparse = {s.name: _hashed(s, sparse[s.name], at) for s in signature.sparse}
    for s in signature.sparse:
        _check_bags(s, sparse[s.name], weights.get(s.name), at)
        _check_lengths(s, sparse, at)
    bags = [bag for s in signature.sparse for bag in sparse[s.name]]
    values = [value for bag in bags for value in bag]
    # Features without weights of their own count fully beside those that have some.
    given = [weights.get(s.name) or [[1.0] * len(bag) for bag in sparse[s.name]] for s in signature.sparse]
    flat = [weight for of_feature in given for bag in of_feature for weight in bag]
    return Batch(
        dense=tuple(
            torch.tensor(dense[d.name], dtype=torch.float32).view(-1, d.width) for d in signature.dense
        ),
        lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
        values=torch.tensor(values, dtype=torch.int64),
        weights=torch.tensor(flat, dtype=torch.float32) if signature.is_weighted else None,
        num_rows=num_rows.pop(),
    )


def _check_row(row: Any, kinds: tuple[type, ...], at: str) -> None:
    if not isinstance(row, list) or not all(isinstance(v, kinds) and not isinstance(v, bool) for v in row):
        raise ValueError(f"{at}: got {str(row)[:60]}, expected a list of numbers for each row")
    if float in kinds and any(isinstance(v, int) and abs(v) > _LARGEST_FLOAT32 for v in row):
        raise ValueError(f"{at}: got a number beyond float32")


def _filled(dense: DenseInput, rows: list[Any]) -> list[Any]:
    """Return rows with NaN for None, if the input takes missing numbers."""
    if not dense.missing:
        return rows
    return [
        [math.nan if value is None else value for value in row] if isinstance(row, list) else row
        for row in rows
    ]


def _hashed(feature: SparseInput, bags: list[Any], at: str) -> list[Any]:
    """Return the bags with the IDs of texts in their place, if the feature has a hash."""
    if not feature.strings:
        return bags
    hashed = []
    for i, bag in enumerate(bags):
        has_texts = isinstance(bag, list) and bool(bag) and all(isinstance(value, str) for value in bag)
        hashed.append(_ids(feature, bag, f"{at}, sparse {feature.name!r}, row {i}") if has_texts else bag)
    return hashed


def _ids(feature: SparseInput, texts: list[str], at: str) -> list[int]:
    try:
        values = [feature.value_of(text.encode()) for text in texts]
        if None in values:
            raise ValueError(
                f"{at}: got {texts[values.index(None)][:80]!r}, expected one value, not a list as tables have it with "
                f"{feature.separator!r} between values; give each value as a text of its own"
            )
        if b"" in values:
            raise ValueError(f"{at}: got '', expected texts; leave a missing value out")
        return [hash_text(value) for value in values if value is not None]
    except UnicodeEncodeError:
        raise ValueError(f"{at}: got half a surrogate pair, expected text in UTF-8") from None


def _check_bags(feature: SparseInput, bags: Any, weights: Any, at: str) -> None:
    where = f"{at}, sparse {feature.name!r}"
    if feature.weighted and len(weights) != len(bags):
        raise ValueError(
            f"{at}, weights {feature.name!r}: got {len(weights)} rows, expected {len(bags)}, as many as of IDs"
        )
    limit = feature.id_limit
    for i, bag in enumerate(bags):
        _check_row(bag, (int,), where)
        for value in bag:
            if not -(2**63) <= value < 2**63 or (limit is not None and not 0 <= value < limit):
                expected = f"0 <= ID < {limit}" if limit is not None else f"{-(2**63)} <= ID < {2**63}"
                raise ValueError(f"{where}, row {i}: got ID {value}, expected {expected}")
        if feature.weighted:
            _check_row(weights[i], (int, float), f"{at}, weights {feature.name!r}")
            if len(weights[i]) != len(bag):
                raise ValueError(
                    f"{at}, weights {feature.name!r}, row {i}: got {len(weights[i])} for {len(bag)} IDs, "
                    "expected one each"
                )


def _check_lengths(feature: SparseInput, sparse: Mapping[str, list[list[int]]], at: str) -> None:
    if not feature.same_lengths_as:
        return
    for i, (bag, other) in enumerate(zip(sparse[feature.name], sparse[feature.same_lengths_as], strict=True)):
        if len(bag) != len(other):
            raise ValueError(
                f"{at}, sparse {feature.name!r}, row {i}: got {len(bag)} IDs, expected {len(other)}, as many as "
                f"{feature.same_lengths_as!r} has there"
            )
