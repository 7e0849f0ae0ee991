"""CUDA targets, where there is a GPU: the same artifact predicts on it what it predicts on the CPU.

Shape letters: B batch.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from export.verify.compare import CUDA_ROWS_TOLERANCE
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.inputs.signature import IdPolicy
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.support.helpers import needs_gpu
from tests.support.models.export_models import CUDA_CASES, assert_close, bare, batch_of

pytestmark = needs_gpu
TARGETS = {"one": ("cuda:0",), "two ranks on one device": ("cuda:0", "cuda:0")}
# Rows are read in half precision there; dense layers may not use TF32.
RELATIVE = CUDA_ROWS_TOLERANCE


def _both(
    path: Path, name: str, devices: tuple[str, ...], **options: object
) -> tuple[LoadedArtifact, LoadedArtifact]:
    case = CUDA_CASES[name]
    config = ExportConfig(
        targets=(("cpu",), devices),
        table_data_types=case.table_data_types,
        **options,  # type: ignore[arg-type]
    )
    report = export_model(case.make(), path, config)
    on_gpu = load_artifact(path, target=",".join(devices))
    assert report.verified_on[on_gpu.target_name] == on_gpu.target_name
    return load_artifact(path, target="cpu"), on_gpu


@pytest.mark.parametrize("devices", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", CUDA_CASES)
def test_a_cuda_target_predicts_what_the_cpu_predicts(
    tmp_path: Path, name: str, devices: tuple[str, ...]
) -> None:
    on_cpu, on_gpu = _both(tmp_path / "a", name, devices)
    for num_rows, empty in ((0, False), (1, False), (2, False), (300, False), (3, True)):
        batch = batch_of(on_cpu.signature, num_rows, seed=num_rows, empty=empty)
        found = on_gpu.forward(*batch.inputs())
        assert {t.device.type for t in found.values()} == {"cpu"}
        assert_close(found, on_cpu.forward(*batch.inputs()), RELATIVE)


@pytest.mark.parametrize("policy", [IdPolicy.ZERO, IdPolicy.HASH])
def test_a_plan_of_all_kinds(tmp_path: Path, policy: IdPolicy) -> None:
    model = bare()
    users, goods, wide, tiny = model.embedding_bag_configs()
    plan = ShardingPlan(
        plan={
            "": {
                "users": row_wise(users, [1, 0]),
                "goods": table_wise(goods, 1),
                "wide": column_wise(wide, [1, 0]),
                "tiny": table_wise(tiny, 0),
            }
        }
    )
    targets = (("cpu", "cpu"), ("cuda:0", "cuda:0"))
    export_model(model, tmp_path / "a", ExportConfig(targets=targets, plan=plan, id_policy=policy))
    on_cpu, on_gpu = (load_artifact(tmp_path / "a", target=",".join(devices)) for devices in targets)
    batch = batch_of(on_cpu.signature, 300)
    batch.values[::3] += 1000
    batch.values[1::3] -= 1000
    assert_close(on_gpu.forward(*batch.inputs()), on_cpu.forward(*batch.inputs()), RELATIVE)


def test_bad_ids_raise_and_the_device_lives_on(tmp_path: Path) -> None:
    on_cpu, on_gpu = _both(tmp_path / "a", "bare collection", ("cuda:0",))
    batch = batch_of(on_cpu.signature, 4)
    wrong = batch.values.clone()
    wrong[0] = 2**40
    with pytest.raises(RuntimeError):
        on_gpu.forward(batch.lengths, wrong)
    assert_close(on_gpu.forward(*batch.inputs()), on_cpu.forward(*batch.inputs()), RELATIVE)


def test_dense_layers_in_bfloat16(tmp_path: Path) -> None:
    on_cpu, on_gpu = _both(tmp_path / "a", "dlrm", ("cuda:0",), dense_dtype="bfloat16")
    batch = batch_of(on_cpu.signature, 100)
    assert_close(on_gpu.forward(*batch.inputs()), on_cpu.forward(*batch.inputs()), 2.0**-5)


def test_rows_are_aligned_to_16_bytes_on_the_device(tmp_path: Path) -> None:
    _, on_gpu = _both(tmp_path / "a", "dlrm", ("cuda:0",))
    before = torch.cuda.memory_allocated()
    again = load_artifact(tmp_path / "a", target="cuda:0")
    # Four tables of 50, 80, 110 and 140 rows of width 16: 4 + 16 bytes become 32.
    assert torch.cuda.memory_allocated() - before >= (50 + 80 + 110 + 140) * 32
    assert again.target_name == on_gpu.target_name


def test_threads_get_the_same_answers(tmp_path: Path) -> None:
    _, on_gpu = _both(tmp_path / "a", "dlrm", ("cuda:0",))
    batches = [batch_of(on_gpu.signature, rows, seed=rows) for rows in (1, 2, 5, 8) * 4]
    alone = [on_gpu.forward(*batch.inputs()) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: on_gpu.forward(*batch.inputs()), batches))
    for one, other in zip(alone, together, strict=True):
        assert_close(other, one, RELATIVE)


def test_an_artifact_made_for_a_gpu_first_loads_on_it(tmp_path: Path) -> None:
    config = ExportConfig(targets=(("cuda:0",), ("cpu",)))
    export_model(bare(), tmp_path / "a", config)
    assert load_artifact(tmp_path / "a").target_name == "cuda:0"
    shutil.rmtree(tmp_path / "a")
