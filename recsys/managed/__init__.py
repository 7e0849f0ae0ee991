"""Zero-collision hashing: raw 64-bit IDs get rows of their own during training."""

from recsys.managed.collection import ManagedCollisionCollection, mapping_buffer_names
from recsys.managed.embedding import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from recsys.managed.expiry import HashZchEvictionConfig, HashZchEvictionPolicyName
from recsys.managed.filters import (
    average_threshold_filter,
    dynamic_threshold_filter,
    probabilistic_threshold_filter,
)
from recsys.managed.fresh_rows import reset_optimizer_rows
from recsys.managed.hash_zch import HashZchManagedCollisionModule
from recsys.managed.mapping import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    MCHEvictionPolicy,
)
from recsys.managed.module import ManagedCollisionModule, MCHManagedCollisionModule, VocabularyModule

__all__ = [
    "DistanceLFU_EvictionPolicy",
    "HashZchEvictionConfig",
    "HashZchEvictionPolicyName",
    "HashZchManagedCollisionModule",
    "LFU_EvictionPolicy",
    "LRU_EvictionPolicy",
    "MCHEvictionPolicy",
    "MCHManagedCollisionModule",
    "ManagedCollisionCollection",
    "ManagedCollisionEmbeddingBagCollection",
    "ManagedCollisionEmbeddingCollection",
    "ManagedCollisionModule",
    "VocabularyModule",
    "average_threshold_filter",
    "dynamic_threshold_filter",
    "mapping_buffer_names",
    "probabilistic_threshold_filter",
    "reset_optimizer_rows",
]
