"""The checks before every lookup: no ID may reach memory outside its table.

Shape letters: B batch, E (feature, table) pairs, N number of IDs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn

from recsys.inputs.signature import IdPolicy
from recsys.ops import fbgemm, is_traced, lengths_to_offsets, mixed_ids

INT64_MAX = 2**63 - 1


class BoundsCheckMode(IntEnum):
    """The treatment of an ID outside its table (FBGEMM 1.8's numbers; its NONE is not offered)."""

    FATAL = 0  # raise an error that names feature, ID and rows
    WARNING = 1  # warn with the same names; the ID reads row 0
    IGNORE = 2  # the ID reads row 0


@dataclass(frozen=True, kw_only=True)
class IdRange:
    """The valid IDs of a (feature, table) pair.

    Attributes:
        name: For messages: the feature, or ``feature@table``.
        num_embeddings: The table's rows.
        policy: The treatment of other IDs; every policy except REJECT applies before the bounds check.
    """

    name: str
    num_embeddings: int
    policy: IdPolicy = IdPolicy.REJECT


class StructureCheck(nn.Module):
    """Checks that lengths are not negative and sum to the number of values, before operators use them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one_row", torch.ones(1, dtype=torch.int64), persistent=False)
        self.register_buffer("counter", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, lengths: Tensor, values: Tensor, offsets: Tensor | None = None) -> None:
        """Raise unless the lengths fit the values.

        Args:
            lengths: ``[n]`` int64.
            values: ``[N]`` int64.
            offsets: ``[n + 1]``, those of the lengths; None to compute them.

        Raises:
            ValueError: In eager mode. Under TorchScript it is FBGEMM's RuntimeError.
        """
        offsets = lengths_to_offsets(lengths) if offsets is None else offsets
        try:
            # The operator refuses some IDs in every mode, so it is given zeros instead of the real ones.
            fbgemm.bounds_check_indices(
                self.one_row, torch.zeros_like(values), offsets, int(BoundsCheckMode.FATAL), self.counter
            )
        except RuntimeError:
            _raise_structure(lengths, values)
            raise


def _raise_structure(lengths: Tensor, values: Tensor) -> None:
    if lengths.numel() and int(lengths.min()) < 0:
        at = int(lengths.argmin())
        raise ValueError(f"lengths: got {int(lengths[at])} at position {at}, expected 0 or more") from None
    if lengths.numel() and int(lengths.max()) > values.numel():
        at = int(lengths.argmax())
        raise ValueError(
            f"lengths: got {int(lengths[at])} at position {at} for {values.numel()} values, expected their sum "
            "to be equal"
        ) from None
    if int(lengths.sum()) != values.numel():
        raise ValueError(
            f"lengths: got a sum of {int(lengths.sum())} for {values.numel()} values, expected them to be equal"
        ) from None


class IdCheck(nn.Module):
    """Applies each table's ID policy, then FBGEMM's bounds check. Never writes into the caller's tensors.

    Negative IDs are bad like any other (FBGEMM lets -1 pass): they are mapped to numbers above every table first.

    Args:
        ranges: The range of each of the E (feature, table) pairs. Policy ZERO needs a row of zeros at
            ``num_embeddings``.
        mode: What the bounds check does about IDs that their policy rejects.
    """

    num_rows: Tensor
    moduli: Tensor
    limits: Tensor
    pairs: Tensor
    counter: Tensor
    is_hashed: Tensor
    is_mixed: Tensor

    def __init__(self, ranges: Sequence[IdRange], mode: BoundsCheckMode = BoundsCheckMode.FATAL) -> None:
        super().__init__()
        self._ranges = list(ranges)
        self._mode = mode
        policies = {r.policy for r in ranges}
        self._mixes = IdPolicy.FMIX64 in policies
        self._hashes = self._mixes or IdPolicy.HASH in policies
        self._mixes_some = self._mixes and IdPolicy.HASH in policies
        self._zeroes = IdPolicy.ZERO in policies
        # Only FBGEMM's FATAL mode refuses wrong lengths, and policies read the lengths before it runs.
        trusts_lengths = self._hashes or self._zeroes or mode is not BoundsCheckMode.FATAL
        self.structure = StructureCheck() if trusts_lengths else None
        rows = [r.num_embeddings for r in ranges]

        def constant(name: str, data: list[int]) -> None:
            self.register_buffer(name, torch.tensor(data, dtype=torch.int64), persistent=False)

        mixed = [r.policy is IdPolicy.FMIX64 for r in ranges]
        hashed = [r.policy is IdPolicy.HASH or m for r, m in zip(ranges, mixed, strict=True)]
        zeroed = [r.policy is IdPolicy.ZERO for r in ranges]
        constant("num_rows", [n + z for n, z in zip(rows, zeroed, strict=True)])
        constant("moduli", [n if h else 1 for n, h in zip(rows, hashed, strict=True)])
        constant("limits", [n if z else INT64_MAX for n, z in zip(rows, zeroed, strict=True)])
        constant("pairs", list(range(len(ranges))))
        constant("counter", [0])
        self.register_buffer("is_hashed", torch.tensor(hashed), persistent=False)
        if self._mixes_some:
            self.register_buffer("is_mixed", torch.tensor(mixed), persistent=False)

    def forward(self, lengths: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return checked IDs.

        Args:
            lengths: ``[E * B]`` int64.
            values: ``[N]`` int64.

        Returns:
            The IDs to look up, ``[N]``, and the offsets, ``[E * B + 1]``.

        Raises:
            ValueError: Lengths and values disagree, or an ID is out of range and the mode FATAL, in eager mode.
                Under TorchScript it is FBGEMM's RuntimeError.
        """
        offsets = lengths_to_offsets(lengths)
        if self.structure is not None:
            self.structure(lengths, values, offsets)
        safe = values
        try:
            safe = self._by_policy(lengths, values)
            self._warn(lengths, safe, values)
            fbgemm.bounds_check_indices(self.num_rows, safe, offsets, int(self._op_mode()), self.counter)
        except RuntimeError:
            bad = self._describe(lengths, safe, values)
            if bad:
                raise ValueError(bad) from None
            _raise_structure(lengths, values)
            raise
        return safe, offsets

    def _warn(self, lengths: Tensor, safe: Tensor, values: Tensor) -> None:
        if self._mode is BoundsCheckMode.WARNING and not is_traced(safe) and safe.device.type == "cpu":
            bad = self._describe(lengths, safe, values)
            if bad:
                warnings.warn(f"{bad}; row 0 is read instead", stacklevel=3)

    def _op_mode(self) -> BoundsCheckMode:
        # A warning was already given, with names that the operator's log line lacks.
        return BoundsCheckMode.IGNORE if self._mode is BoundsCheckMode.WARNING else self._mode

    def _by_policy(self, lengths: Tensor, values: Tensor) -> Tensor:
        # A negative ID becomes a number above every table.
        safe = torch.threshold(values, -1, INT64_MAX)
        if not (self._hashes or self._zeroes):
            return safe
        num_pairs = self.num_rows.size(0)
        ids_per_pair = lengths.view(num_pairs, lengths.size(0) // num_pairs).sum(dim=1)
        pair_of_id = torch.repeat_interleave(self.pairs, ids_per_pair, output_size=values.size(0))
        if self._hashes:
            hashes = mixed_ids(values) if self._mixes else values
            if self._mixes_some:
                hashes = torch.where(self.is_mixed.index_select(0, pair_of_id), hashes, values)
            hashed = hashes.remainder(self.moduli.index_select(0, pair_of_id))
            safe = torch.where(self.is_hashed.index_select(0, pair_of_id), hashed, safe)
        if self._zeroes:
            safe = torch.minimum(safe, self.limits.index_select(0, pair_of_id))
        return safe

    def _describe(self, lengths: Tensor, safe: Tensor, values: Tensor) -> str:
        """Describe the first bad ID; an empty string if there is none. Reads the tensors, after an error only."""
        num_pairs = len(self._ranges)
        if lengths.numel() % num_pairs:
            return ""
        per_pair = lengths.view(num_pairs, lengths.numel() // num_pairs).sum(dim=1).tolist()
        if sum(per_pair) != safe.numel() or min(per_pair) < 0:
            return ""
        by_pair = zip(self._ranges, torch.split(safe, per_pair), torch.split(values, per_pair), strict=True)
        for id_range, ids, given in by_pair:
            bad = (ids >= id_range.num_embeddings + (id_range.policy is IdPolicy.ZERO)).nonzero().flatten()
            if bad.numel():
                at = int(bad[0])
                return (
                    f"values: feature {id_range.name!r} got ID {int(given[at])} at its position {at}, expected "
                    f"0 <= ID < {id_range.num_embeddings}"
                )
        return ""
