"""FBGEMM's names for ours."""

from __future__ import annotations

import pytest

from recsys.as_torchrec.parts.fbgemm_types import data_type_to_sparse_type, pooling_type_to_pooling_mode
from recsys.configs import DataType, PoolingType


@pytest.mark.parametrize("data_type", list(DataType))
def test_every_data_type_has_one(data_type: DataType) -> None:
    assert data_type_to_sparse_type(data_type).value == data_type.value.lower()


def test_means_of_tables_cut_by_rows_are_sums_first() -> None:
    found = [pooling_type_to_pooling_mode(kind).name for kind in PoolingType]
    assert found == ["SUM", "MEAN", "NONE"]
    cut = [pooling_type_to_pooling_mode(PoolingType.MEAN, kind).name for kind in ("row_wise", "column_wise")]
    assert cut == ["SUM", "MEAN"]
