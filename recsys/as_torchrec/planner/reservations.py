"""Reservations of memory that is not for tables: dense layers, batches, and a margin."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

from torch import Tensor, nn

from recsys.as_torchrec.planner.interfaces import Constraints, StorageReservation
from recsys.errors import PlanError
from recsys.find_collections import find_collections
from recsys.planner.constants import BIGINT_DTYPE, POOLING_FACTOR
from recsys.planner.cost.capacity import Storage
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType

# Two batches are under way, each with ten copies; TorchRec's number.
_BATCH_COPIES = 20
# A weight, its gradient, two numbers of optimizer state, and buckets of the averaging; TorchRec's number.
_PARAMETER_COPIES = 6.0
_GB = 1024**3


@unique
class StorageReservationType(str, Enum):  # noqa: UP042  (TorchRec's, whose text has the class)
    """The kinds of reservations."""

    HEURISTIC = "heuristic"
    FIXED_PERCENTAGE = "fixed_percentage"
    FIXED_ABSOLUTE = "fixed_absolute"


@dataclass(frozen=True)
class _Load:
    """What a model needs beside tables."""

    batch_size: int
    module: nn.Module
    sharders: Sequence[Any]
    constraints: Constraints | None

    def dense_bytes(self, multiplier: float) -> int:
        """Return the bytes of dense parameters, so many times, and of buffers."""
        sharded = {
            id(tensor)
            for collection in self._collections().values()
            for tensor in (*collection.parameters(), *collection.buffers())
        }
        parameters = sum(_size(p) for p in self.module.parameters() if id(p) not in sharded)
        buffers = sum(_size(b) for b in self.module.buffers() if id(b) not in sharded)
        return round(multiplier * parameters) + buffers

    def batch_bytes(self) -> int:
        """Return the bytes of the IDs of a batch."""
        num_ids = 0.0
        for collection in self._collections().values():
            for table in getattr(collection, "embedding_bags", getattr(collection, "embeddings", {})):
                asked = (self.constraints or {}).get(table)
                factors = [POOLING_FACTOR] if asked is None else list(asked.pooling_factors)
                sizes = (asked.batch_sizes if asked is not None else None) or [self.batch_size] * len(factors)
                num_ids += sum(factor * size for factor, size in zip(factors, sizes, strict=False))
        return math.ceil(num_ids * BIGINT_DTYPE)

    def _collections(self) -> dict[str, Any]:
        kinds = tuple(sharder.module_type for sharder in self.sharders)
        return dict(find_collections(self.module, kinds, PlanError)) if kinds else {}


class FixedPercentageStorageReservation(StorageReservation):
    """Reserves a share of each rank's device memory: of host memory on a CPU.

    Args:
        percentage: The share, 0 to 1.

    Raises:
        PlannerError: Another number.
    """

    def __init__(self, percentage: float) -> None:
        if not 0 <= percentage <= 1:
            raise PlannerError(
                f"percentage: got {percentage}, expected 0 to 1", PlannerErrorType.INPUT_VALIDATION
            )
        self._percentage = percentage
        self._last: Topology | None = None

    def reserve(
        self,
        topology: Topology,
        batch_size: int,
        module: nn.Module,
        sharders: Sequence[Any],
        constraints: Constraints | None = None,
    ) -> Topology:
        """Return the topology with what is left on its ``devices``.

        Raises:
            PlannerError: Nothing is left, where that follows from the model; the message says what takes how much.
        """
        reserved = copy.deepcopy(topology)
        self._take(reserved, _Load(batch_size, module, sharders, constraints))
        self._last = reserved
        return copy.deepcopy(reserved)

    def _take(self, topology: Topology, load: _Load) -> None:
        """Take off what is reserved, in place."""
        del load
        _reserve_share(topology, self._percentage)

    @property
    def last_reserved_topology(self) -> Topology | None:
        """A copy of what ``reserve`` returned last."""
        return copy.deepcopy(self._last)


class FixedAbsoluteStorageReservation(FixedPercentageStorageReservation):
    """Reserves bytes of each rank's device memory: of host memory on a CPU.

    Args:
        hbm_reserved_bytes: The number of bytes.

    Raises:
        PlannerError: A negative number.
    """

    def __init__(self, hbm_reserved_bytes: int) -> None:
        if hbm_reserved_bytes < 0:
            raise PlannerError(
                f"hbm_reserved_bytes: got {hbm_reserved_bytes}, expected at least 0",
                PlannerErrorType.INPUT_VALIDATION,
            )
        super().__init__(0.0)
        self._hbm_reserved_bytes = hbm_reserved_bytes

    @classmethod
    def from_gb(cls, hbm_reserved_gb: float) -> FixedAbsoluteStorageReservation:
        """Return a reservation of so many GiB."""
        return cls(int(hbm_reserved_gb * _GB))

    def _take(self, topology: Topology, load: _Load) -> None:
        del load
        _reserve_bytes(topology, self._hbm_reserved_bytes)


class _EstimatedReservation(FixedPercentageStorageReservation):
    """Reserves a share, the dense layers and the batches."""

    def __init__(
        self, percentage: float, multiplier: float, dense_tensor_estimate: int | None, batch_copies: int
    ) -> None:
        super().__init__(percentage)
        self._multiplier = multiplier
        self._dense_tensor_estimate = dense_tensor_estimate
        self._batch_copies = batch_copies

    def _take(self, topology: Topology, load: _Load) -> None:
        rank = _device_bytes(topology.devices[0].storage, topology)
        super()._take(topology, load)
        dense = self._dense_tensor_estimate or load.dense_bytes(self._multiplier)
        batches = load.batch_bytes() * self._batch_copies
        _reserve_bytes(topology, dense + batches)
        if _device_bytes(topology.devices[0].storage, topology) < 0:
            raise PlannerError(
                f"storage_reservation: nothing is left of the {rank} bytes of a rank: {self._percentage:.0%} of "
                f"them, {dense} bytes of dense layers and {batches} of "
                f"batches of {load.batch_size} are reserved; expected less: give dense_tensor_estimate, a smaller "
                "percentage or batch_size, or FixedPercentageStorageReservation",
                PlannerErrorType.INSUFFICIENT_STORAGE,
            )


class HeuristicalStorageReservation(_EstimatedReservation):
    """Reserves a share of each rank's device memory, and what dense layers and batches take.

    Args:
        percentage: The share, 0 to 1.
        parameter_multiplier: The number of copies of dense parameters: gradients, optimizer state, buckets.
        dense_tensor_estimate: Bytes of dense layers, instead of the estimate.

    Raises:
        PlannerError: A share below 0 or above 1.
    """

    def __init__(
        self,
        percentage: float,
        parameter_multiplier: float = _PARAMETER_COPIES,
        dense_tensor_estimate: int | None = None,
    ) -> None:
        super().__init__(percentage, parameter_multiplier, dense_tensor_estimate, _BATCH_COPIES)


class InferenceStorageReservation(_EstimatedReservation):
    """Reserves a share of each rank's device memory, and what dense layers and one batch take in inference.

    Args:
        percentage: The share, 0 to 1.
        dense_tensor_estimate: Bytes of dense layers, instead of the estimate.

    Raises:
        PlannerError: A share below 0 or above 1.
    """

    def __init__(self, percentage: float, dense_tensor_estimate: int | None = None) -> None:
        super().__init__(percentage, 1.0, dense_tensor_estimate, 1)


def _device_bytes(storage: Storage, topology: Topology) -> int:
    return storage.ddr if topology.hbm is None else storage.hbm


def _reserve_share(topology: Topology, share: float) -> None:
    for device in topology.devices:
        left = int((1 - share) * _device_bytes(device.storage, topology))
        device.storage = (
            Storage(device.storage.hbm, left, device.storage.ssd)
            if topology.hbm is None
            else Storage(left, device.storage.ddr, device.storage.ssd)
        )


def _reserve_bytes(topology: Topology, num_bytes: int) -> None:
    taken = Storage(0, num_bytes) if topology.hbm is None else Storage(num_bytes, 0)
    for device in topology.devices:
        device.storage -= taken


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
