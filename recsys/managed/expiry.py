"""How long an ID keeps its row in a hashed table: policies and their settings, by TorchRec's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique

#: Times are counted in hours.
SECONDS_PER_HOUR = 3600


@unique
class HashZchEvictionPolicyName(Enum):
    """Which expired ID on the way of a new one loses its row.

    Attributes:
        SINGLE_TTL_EVICTION: The first. All IDs live equally long.
        PER_FEATURE_TTL_EVICTION: The first. Each feature says how long its IDs live.
        LRU_EVICTION: The one that expired first, and only if no row on the way is free. All IDs live equally long.
    """

    SINGLE_TTL_EVICTION = "SINGLE_TTL_EVICTION"
    PER_FEATURE_TTL_EVICTION = "PER_FEATURE_TTL_EVICTION"
    LRU_EVICTION = "LRU_EVICTION"


@dataclass
class HashZchEvictionConfig:
    """The settings of a policy.

    Attributes:
        features: The table's features.
        single_ttl: Hours that an ID lives after its latest use.
        per_feature_ttl: The same for each of ``features``, for ``PER_FEATURE_TTL_EVICTION``.
    """

    features: Sequence[str]
    single_ttl: int | None = None
    per_feature_ttl: Sequence[int] | None = None


def check_eviction(policy: HashZchEvictionPolicyName | None, config: HashZchEvictionConfig | None) -> None:
    """Check that a policy has its settings.

    Raises:
        ValueError: A setting is missing, or is not that of the policy.
    """
    if policy is None:
        return
    if config is None:
        raise ValueError(f"eviction_config: got None, expected one for {policy.value}")
    if policy is HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION:
        given = config.per_feature_ttl
        if given is None or len(given) != len(config.features):
            raise ValueError(
                f"eviction_config.per_feature_ttl: got {given}, expected one number of hours for each of the features "
                f"{list(config.features)}"
            )
    elif config.single_ttl is None:
        raise ValueError(
            f"eviction_config.single_ttl: got None, expected a number of hours for {policy.value}"
        )


def lifetime(
    policy: HashZchEvictionPolicyName, config: HashZchEvictionConfig, feature: str | None = None
) -> int:
    """Return how many hours the IDs of a feature live after their latest use.

    Args:
        policy: The policy.
        config: Its settings, checked.
        feature: Needed if each feature has its own time.

    Raises:
        ValueError: The feature is unknown.
    """
    if policy is not HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION:
        assert config.single_ttl is not None
        return config.single_ttl
    if feature is None or feature not in config.features:
        raise ValueError(
            f"eviction_config.features: got IDs of feature {feature!r}, expected one of {list(config.features)}, for "
            "each of which there is a time"
        )
    assert config.per_feature_ttl is not None
    return config.per_feature_ttl[list(config.features).index(feature)]
