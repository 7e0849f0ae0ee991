"""TorchRec's defaults of a topology and a plan, by their names, and optimizers. Bandwidths are in bytes/ms."""

from __future__ import annotations

_GB = 1024**3

#: Represents "no bound".
MAX_SIZE = 2**63 - 1
INTRA_NODE_BANDWIDTH: float = 600 * _GB / 1000
CROSS_NODE_BANDWIDTH: float = 12.5 * _GB / 1000
HBM_CAP = 32 * _GB
DDR_CAP = 128 * _GB
SSD_CAP = 2048 * _GB
HBM_MEM_BW: float = 897 * _GB / 1000
DDR_MEM_BW: float = 51 * _GB / 1000
SSD_MEM_BW: float = 100 * 1024**2 / 1000
HBM_TO_DDR_MEM_BW: float = 32 * _GB / 1000
BWD_COMPUTE_MULTIPLIER: float = 2
WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER: float = 1
#: The share of a table's rows in the cache of ``fused_uvm_caching``.
UVM_CACHING_RATIO = 0.2
#: Samples per rank and step.
BATCH_SIZE = 512
POOLING_FACTOR = 1.0
NUM_POOLINGS = 1.0
#: The minimum columns of a column-wise shard.
MIN_CW_DIM = 128
BIGINT_DTYPE = 8
#: Share of device memory reserved for everything that is not counted: activations, caches, fragmentation.
DEFAULT_RESERVED_FRACTION = 0.15
#: Float32 numbers of optimizer state for a row of D numbers: (for each row, for each number of it).
OPTIMIZERS = {
    "sgd": (0, 0),
    "rowwise_adagrad": (1, 0),
    "adagrad": (0, 1),
    "adam": (0, 2),
}
