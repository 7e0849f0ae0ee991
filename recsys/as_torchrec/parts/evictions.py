"""Settings of tables in key-value stores, by TorchRec's names.

Configurations and constraints that hold them can be written and read. A table with one cannot be made here: rows lie
in memory, and no ID loses its row (collections refuse it).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from recsys.configs import DataType, data_type_to_dtype

# FBGEMM keeps 16 bytes before each row: its key, its time and its count.
_HEADER_BYTES = 16


@dataclass
class VirtualTableEvictionPolicy:
    """The base of the policies.

    Attributes:
        meta_header_len: Elements before each row, once the type is known.
        embedding_dim: Elements of a row, once the type is known.
        initialized: Whether both are known.
    """

    meta_header_len: int = 0
    embedding_dim: int = 0
    initialized: bool = False

    def __post_init__(self) -> None:
        """Let what is not given for inference be as in training: ``inference_x`` as ``x``."""
        for setting in fields(self):
            if setting.name.startswith("inference_") and getattr(self, setting.name) is None:
                setattr(self, setting.name, getattr(self, setting.name.removeprefix("inference_")))

    def init_metaheader_config(self, data_type: DataType, embedding_dim: int) -> None:
        """Take the type and length of rows; later calls change nothing."""
        if not self.initialized:
            self.meta_header_len = _HEADER_BYTES // data_type_to_dtype(data_type).itemsize
            self.embedding_dim = embedding_dim
            self.initialized = True

    def get_meta_header_len(self) -> int:
        """Return the number of elements before each row."""
        return self.meta_header_len

    def get_embedding_dim(self) -> int:
        """Return the number of elements of a row."""
        return self.embedding_dim


@dataclass
class NoEvictionPolicy(VirtualTableEvictionPolicy):
    """No row is evicted."""


@dataclass
class CountBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows that were used less often than a threshold are evicted; 0 means none.

    Attributes:
        training_id_eviction_trigger_count: IDs on a rank that start an eviction.
        eviction_threshold: The least count in training.
        decay_rate: Counts are multiplied by it at each eviction.
        inference_eviction_threshold: The least count in inference; that of training by default.
    """

    training_id_eviction_trigger_count: int = 0
    eviction_threshold: int = 15
    decay_rate: float = 0.99
    inference_eviction_threshold: int | None = None


@dataclass
class TimestampBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows that were not used for some minutes are evicted; 0 means none.

    Attributes:
        training_id_eviction_trigger_count: IDs on a rank that start an eviction.
        eviction_ttl_mins: The minutes in training.
        inference_eviction_ttl_mins: The minutes in inference; those of training by default.
        max_inference_id_num_per_rank: The most rows on a rank in inference; 0 means no bound.
    """

    training_id_eviction_trigger_count: int = 0
    eviction_ttl_mins: int = 24 * 60
    inference_eviction_ttl_mins: int | None = None
    max_inference_id_num_per_rank: int = 0


@dataclass
class CountTimestampMixedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows that fall below a count or were not used for some minutes are evicted.

    Attributes:
        training_id_eviction_trigger_count: IDs on a rank that start an eviction.
        eviction_threshold: The least count in training.
        decay_rate: Counts are multiplied by it at each eviction.
        eviction_ttl_mins: The minutes in training.
        inference_eviction_threshold: The least count in inference; that of training by default.
        inference_eviction_ttl_mins: The minutes in inference; those of training by default.
    """

    training_id_eviction_trigger_count: int = 0
    eviction_threshold: int = 15
    decay_rate: float = 0.99
    eviction_ttl_mins: int = 24 * 60
    inference_eviction_threshold: int | None = None
    inference_eviction_ttl_mins: int | None = None


@dataclass
class FeatureL2NormBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows whose norm is below a threshold are evicted; 0 means none.

    Attributes:
        training_id_eviction_trigger_count: IDs on a rank that start an eviction.
        eviction_threshold: The least norm in training.
        inference_eviction_threshold: The least norm in inference; that of training by default.
    """

    training_id_eviction_trigger_count: int = 0
    eviction_threshold: float = 0.0
    inference_eviction_threshold: float | None = None


@dataclass
class FeatureScoreBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows with the lowest scores of their features are evicted.

    Attributes:
        decay_rate: Scores are multiplied by it at each eviction.
        training_id_eviction_trigger_count: IDs on a rank that start an eviction.
        training_id_keep_count: IDs that are kept by it.
        eviction_ttl_mins: Minutes without use in training; other than 0, they count instead of scores.
        max_inference_id_num_per_rank: The most rows on a rank in inference; ``training_id_keep_count`` by default.
        inference_eviction_feature_score_threshold: The least score in inference; 0 by default.
        inference_eviction_ttl_mins: The minutes in inference; those of training by default.
        feature_score_mapping: Scores by feature.
        feature_score_default_value: The score of other features.
        enable_auto_feature_score_collection: Whether scores are collected while training.
        enable_eviction: Whether this table has evictions.
    """

    decay_rate: float = 0.99
    training_id_eviction_trigger_count: int = 0
    training_id_keep_count: int = 0
    eviction_ttl_mins: int = 0
    max_inference_id_num_per_rank: int = 0
    inference_eviction_feature_score_threshold: float | None = None
    inference_eviction_ttl_mins: int | None = None
    feature_score_mapping: dict[str, float] | None = None
    feature_score_default_value: float | None = None
    enable_auto_feature_score_collection: bool = False
    enable_eviction: bool = True

    def __post_init__(self) -> None:
        if self.inference_eviction_feature_score_threshold is None:
            self.inference_eviction_feature_score_threshold = 0
        super().__post_init__()
        if self.max_inference_id_num_per_rank == 0:
            self.max_inference_id_num_per_rank = self.training_id_keep_count
        if self.enable_auto_feature_score_collection and self.feature_score_mapping is None:
            self.feature_score_mapping = {}


@dataclass
class FeatureScoreMapping:
    """Scores by feature, and whether rows are evicted by them."""

    feature_score_mapping: dict[str, float] = field(default_factory=dict)
    eviction_enabled: bool = False
