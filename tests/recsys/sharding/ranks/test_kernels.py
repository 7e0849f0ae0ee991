"""Every kernel on a rank of its own: on CUDA, where there is one, those that live there alone too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recsys import DataType
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type
from tests.recsys.sharding.ranks.training import check_case
from tests.support.helpers import needs_gpu

KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")
OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")


def _case(kernel: str, *, sequence: bool = False, num_steps: int = 3) -> RankCase:
    draw = Draw(world_size=1, kernels=(kernel,), sequence=sequence, num_steps=num_steps)
    return case_of_every_type(f"kernel {kernel}", draw)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3])
@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_in_host_memory(kernel: str, sequence: bool, optimizer: str) -> None:
    check_case(_case(kernel, sequence=sequence), optimizer)


class TestGpu:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("optimizer", OPTIMIZERS[:3])
    @pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_on_the_device(self, kernel: str, sequence: bool, optimizer: str) -> None:
        check_case(_case(kernel, sequence=sequence), optimizer, device="cuda:0")

    @pytest.mark.parametrize("backend", ["gloo", "nccl"])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_adam(self, kernel: str, backend: str) -> None:
        # One step: torch's Adam moves rows that a batch does not name, FBGEMM's does not.
        check_case(_case(kernel, num_steps=1), "adam", device="cuda:0", backend=backend)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_weighted(self, kernel: str) -> None:
        check_case(replace(_case(kernel), weighted=True), device="cuda:0")

    @pytest.mark.parametrize("data_type", [DataType.FP16, DataType.BF16])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_halves(self, kernel: str, data_type: DataType) -> None:
        case = _case(kernel)
        check_case(
            replace(case, tables=[replace(table, data_type=data_type) for table in case.tables]),
            device="cuda:0",
        )
