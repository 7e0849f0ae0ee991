"""The cost of one shard: its bytes on its rank, and its time per step.

Shape letters: B batch, D embedding dimension, R rows, W world size.

Times follow from bytes: of received IDs, rows read, outputs written and sent, gradients returned, rows
updated. Each kind is divided by the topology's bandwidth for it. Times are attributed to the rank that holds
the shard; a rank's cost is the sum over its shards. The latency of collective calls is a constant of the
whole plan (``step_latency_us``), because all outputs of a rank are sent in one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.planner.constants import BWD_COMPUTE_MULTIPLIER, OPTIMIZERS
from recsys.planner.cost.machine import Link, Memory
from recsys.planner.cost.tables import PlannedTable
from recsys.planner.cost.topology import Topology
from recsys.rows.format import RowFormat

_FLOAT_BYTES = 4
_LENGTH_BYTES = 8
_FLOAT_TYPE_BYTES = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2}
#: Types whose partial sums stay inside a host until they are added.
_WITHIN_HOST = ("table_row_wise", "grid_shard")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The workload of a plan.

    Attributes:
        is_training: Each rank has its own batch, there is a backward pass and an optimizer. Otherwise one batch is
            looked up on all ranks, and rows have the format of ``recsys.rows.format``.
        optimizer: The optimizer of the tables, one of ``OPTIMIZERS``.
        row_alignment: Alignment of stored rows in inference, in bytes (16 on CUDA).
        counts_buffers: Whether IDs, outputs and gradients count as memory in addition to the rows.

    Raises:
        PlanError: The optimizer is unknown.
    """

    is_training: bool = True
    optimizer: str = "rowwise_adagrad"
    row_alignment: int = 1
    counts_buffers: bool = True

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise PlanError(f"optimizer: got {self.optimizer!r}, expected one of {', '.join(OPTIMIZERS)}")


@dataclass(frozen=True, kw_only=True)
class ShardCost:
    """One shard's estimate.

    Attributes:
        hbm_bytes: Device memory it takes; 0 on ``cpu``.
        ddr_bytes: Host memory it takes.
        weight_bytes: The size of its rows, wherever they are stored.
        optimizer_bytes: The size of its optimizer state.
        buffer_bytes: The size of IDs, outputs and gradients.
        input_us: Time to send IDs to the shard.
        forward_us: Time to read rows and write outputs.
        output_us: Time to send outputs to the samples' ranks, and gradients back.
        backward_us: Time of the gradients and the update.
    """

    hbm_bytes: int
    ddr_bytes: int
    weight_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    input_us: float
    forward_us: float
    output_us: float
    backward_us: float

    @property
    def total_us(self) -> float:
        """The whole step."""
        return self.input_us + self.forward_us + self.output_us + self.backward_us


@dataclass(frozen=True, kw_only=True)
class ShardShape:
    """The properties of a shard that determine its cost.

    Attributes:
        sharding_type: The sharding type of its table.
        compute_kernel: The compute kernel of its table.
        num_rows: R of the shard.
        num_columns: D of the shard.
    """

    sharding_type: str
    compute_kernel: str
    num_rows: int
    num_columns: int


def row_bytes_of(data_type: DataType, num_columns: int, workload: Workload) -> int:
    """Return the bytes read per row.

    Raises:
        PlanError: Such rows cannot be trained, or cannot be stored.
    """
    if workload.is_training:
        if data_type not in _FLOAT_TYPE_BYTES:
            raise PlanError(
                f"data_type: got {data_type.value} for training, expected FP32, FP16 or BF16; plan the inference "
                "of tables with other rows"
            )
        return _FLOAT_TYPE_BYTES[data_type] * num_columns
    try:
        return RowFormat(data_type=data_type, dim=num_columns).row_bytes(workload.row_alignment)
    except ValueError as error:
        raise PlanError(str(error)) from None


def step_latency_us(topology: Topology, workload: Workload) -> float:
    """Return the latency of the collective calls of a step with at least one sharded table.

    The calls are for lengths, IDs and outputs; in training also for the outputs' gradients.
    """
    if topology.world_size == 1:
        return 0.0
    link = topology.intra_host if topology.num_hosts == 1 else topology.inter_host
    return (4 if workload.is_training else 3) * link.latency_us


class Estimator:
    """Estimates shards on one topology for one workload."""

    def __init__(self, topology: Topology, workload: Workload) -> None:
        self.topology = topology
        self.workload = workload
        self._num_batches = topology.world_size if workload.is_training else 1

    def shard(self, table: PlannedTable, shape: ShardShape) -> ShardCost:
        """Return one shard's bytes and times.

        Raises:
            PlanError: The table's data type does not suit the workload.
        """
        if shape.sharding_type == "data_parallel":
            return self._replica(table, shape)
        load = _Load.of(table, shape, self._num_batches)
        row_bytes = row_bytes_of(table.config.data_type, shape.num_columns, self.workload)
        memory = self.topology.device_memory
        input_us = self._to_everyone_us(load.input_bytes)
        forward_us = self._read_us(table, shape, load, row_bytes) + memory.stream_us(load.output_bytes)
        output_us = self._outputs_us(shape, load.output_bytes)
        backward_us = 0.0
        buffer_bytes = load.input_bytes + load.output_bytes
        if self.workload.is_training:
            output_us *= 2
            backward_us = self._update_us(table, shape, load, row_bytes) * self._backward_factor(table)
            buffer_bytes += load.output_bytes
            if shape.compute_kernel == "dense":
                buffer_bytes += shape.num_rows * row_bytes  # a gradient of the table's size
        return self._stored(
            table,
            shape,
            row_bytes,
            buffer_bytes,
            (input_us, forward_us + self.topology.shard_us, output_us, backward_us),
        )

    def _replica(self, table: PlannedTable, shape: ShardShape) -> ShardCost:
        """Return the cost of a copy on every rank, whose gradients are averaged over all ranks."""
        load = _Load.of(table, shape, 1)
        row_bytes = row_bytes_of(table.config.data_type, shape.num_columns, self.workload)
        memory = self.topology.device_memory
        forward_us = memory.read_us(load.num_ids, row_bytes) + memory.stream_us(load.output_bytes)
        output_us = backward_us = 0.0
        gradient_bytes = 0
        if self.workload.is_training:
            gradient_bytes = shape.num_rows * row_bytes
            state_bytes = self._state_bytes(shape)
            world_size = self.topology.world_size
            # A ring sends (and receives) each byte twice, except the ranks' own parts.
            output_us = self._slowest_link.send_us(2 * gradient_bytes * (world_size - 1) / world_size)
            # Writes zeros and adds the rows' gradients; the update reads them, and reads and writes all else.
            backward_us = memory.update_us(load.num_ids, row_bytes) + memory.stream_us(
                2 * gradient_bytes + 2 * (shape.num_rows * row_bytes + state_bytes)
            )
            backward_us *= self._backward_factor(table)
        return self._stored(
            table,
            shape,
            row_bytes,
            gradient_bytes + load.output_bytes * (2 if self.workload.is_training else 1),
            (0.0, forward_us + self.topology.shard_us, output_us, backward_us),
        )

    def _backward_factor(self, table: PlannedTable) -> float:
        """Return the topology's multipliers of backward passes, relative to TorchRec's default."""
        factor = self.topology.bwd_compute_multiplier / BWD_COMPUTE_MULTIPLIER
        return factor * (self.topology.weighted_feature_bwd_compute_multiplier if table.is_weighted else 1)

    def _stored(
        self,
        table: PlannedTable,
        shape: ShardShape,
        row_bytes: int,
        buffer_bytes: float,
        times_us: tuple[float, float, float, float],
    ) -> ShardCost:
        weight_bytes = shape.num_rows * row_bytes
        optimizer_bytes = self._state_bytes(shape)
        buffers = math.ceil(buffer_bytes) if self.workload.counts_buffers else 0
        rows = weight_bytes + optimizer_bytes
        on_device, on_host = rows + buffers, 0
        if shape.compute_kernel == "fused_uvm":
            on_device, on_host = buffers, rows
        elif shape.compute_kernel == "fused_uvm_caching":
            on_device, on_host = math.ceil(rows * table.constraints.cache_load_factor) + buffers, rows
        if self.topology.hbm is None:
            on_device, on_host = 0, on_device
        return ShardCost(
            hbm_bytes=on_device,
            ddr_bytes=on_host,
            weight_bytes=weight_bytes,
            optimizer_bytes=optimizer_bytes,
            buffer_bytes=buffers,
            input_us=times_us[0],
            forward_us=times_us[1],
            output_us=times_us[2],
            backward_us=times_us[3],
        )

    def _state_bytes(self, shape: ShardShape) -> int:
        if not self.workload.is_training:
            return 0
        for_row, for_number = OPTIMIZERS[self.workload.optimizer]
        return _FLOAT_BYTES * shape.num_rows * (for_row + for_number * shape.num_columns)

    def _read_us(self, table: PlannedTable, shape: ShardShape, load: _Load, row_bytes: int) -> float:
        memory, link = self.topology.device_memory, self.topology.host_link
        if shape.compute_kernel == "fused_uvm":
            return _over_link_us(memory, link, load.num_ids, row_bytes)
        read_us = memory.read_us(load.num_ids, row_bytes)
        if shape.compute_kernel == "fused_uvm_caching":
            # Each missing row is loaded once per step and written to the cache.
            missing = load.distinct_rows(shape.num_rows) * (1 - _hit_rate(table))
            read_us += _over_link_us(memory, link, missing, row_bytes) + memory.stream_us(missing * row_bytes)
        return read_us

    def _update_us(self, table: PlannedTable, shape: ShardShape, load: _Load, row_bytes: int) -> float:
        memory, link = self.topology.device_memory, self.topology.host_link
        if shape.compute_kernel == "dense":
            gradient_bytes = shape.num_rows * row_bytes
            return memory.update_us(load.num_ids, row_bytes) + memory.stream_us(
                4 * gradient_bytes + 2 * self._state_bytes(shape)
            )
        state_bytes = self._state_bytes(shape) / max(shape.num_rows, 1)
        distinct = load.distinct_rows(shape.num_rows)
        gradients_us = memory.stream_us(load.num_ids * shape.num_columns * _FLOAT_BYTES)
        if shape.compute_kernel == "fused_uvm":
            # Read and written over the link.
            return gradients_us + 2 * _over_link_us(memory, link, distinct, row_bytes + state_bytes)
        update_us = memory.update_us(distinct, row_bytes + state_bytes)
        if shape.compute_kernel == "fused_uvm_caching":
            # The same number of rows is written back.
            missing = distinct * (1 - _hit_rate(table))
            update_us += _over_link_us(memory, link, missing, row_bytes)
        return gradients_us + update_us

    @property
    def _slowest_link(self) -> Link:
        return self.topology.intra_host if self.topology.num_hosts == 1 else self.topology.inter_host

    def _to_everyone_us(self, num_bytes: float) -> float:
        """Return the time to exchange bytes with all ranks in equal parts, except the own part."""
        world_size, local = self.topology.world_size, self.topology.local_world_size
        within = num_bytes * (local - 1) / world_size
        beyond = num_bytes * (world_size - local) / world_size
        return self.topology.intra_host.send_us(within) + self.topology.inter_host.send_us(beyond)

    def _outputs_us(self, shape: ShardShape, num_bytes: float) -> float:
        if shape.sharding_type not in _WITHIN_HOST:
            return self._to_everyone_us(num_bytes)
        # Partial sums are added inside the host first; then one sum is sent, a part by each of its ranks.
        local, num_hosts = self.topology.local_world_size, self.topology.num_hosts
        within = num_bytes * (local - 1) / local
        beyond = num_bytes / local * (num_hosts - 1) / num_hosts
        return self.topology.intra_host.send_us(within) + self.topology.inter_host.send_us(beyond)


@dataclass(frozen=True, kw_only=True)
class _Load:
    """The load of a step on a shard: IDs looked up, bytes in, bytes out."""

    num_ids: float
    input_bytes: float
    output_bytes: float

    @staticmethod
    def of(table: PlannedTable, shape: ShardShape, num_batches: int) -> _Load:
        share = shape.num_rows / table.config.num_embeddings
        num_ids = table.num_ids * num_batches * share
        num_bags = table.num_bags * num_batches
        # Every row shard contributes to every bag's sum.
        num_outputs = num_bags if table.is_pooled else num_ids
        return _Load(
            num_ids=num_ids,
            input_bytes=num_ids * table.id_bytes + num_bags * _LENGTH_BYTES,
            output_bytes=num_outputs * shape.num_columns * _FLOAT_BYTES,
        )

    def distinct_rows(self, num_rows: int) -> float:
        """Return the expected number of distinct rows among evenly spread IDs; skewed IDs touch fewer."""
        return -num_rows * math.expm1(-self.num_ids / max(num_rows, 1))


def _hit_rate(table: PlannedTable) -> float:
    rate = table.constraints.cache_hit_rate
    return table.constraints.cache_load_factor if rate is None else rate


def _over_link_us(memory: Memory, link: Link, num_rows: float, row_bytes: float) -> float:
    return num_rows * memory.row_read_ns * 1e-3 + link.send_us(num_rows * row_bytes)
