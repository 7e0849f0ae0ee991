"""Plans for one target or for all, in the configuration and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from export.cli import main
from export.config import ExportConfig
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import row_wise, table_wise
from tests.support.models.export_models import bare, batch_of, exported

TABLES = bare().embedding_bag_configs()
BY_ROWS = ShardingPlan(plan={"": {t.name: row_wise(t, [1, 0]) for t in TABLES}})
WHOLE = ShardingPlan(plan={"": {t.name: table_wise(t, 0) for t in TABLES}})
ON_SECOND = ShardingPlan(plan={"": {t.name: table_wise(t, 1) for t in TABLES}})
TARGETS = (("cpu",), ("cpu", "cpu"), ("cuda:0", "cuda:1"))
NAMES = ["cpu", "cpu,cpu", "cuda:0,cuda:1"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    torch.save(bare().state_dict(), tmp_path / "bare.pth")
    for name, plan in (("whole", WHOLE), ("rows", BY_ROWS), ("second", ON_SECOND)):
        (tmp_path / f"{name}.json").write_text(json.dumps(plan.to_json()))
    return tmp_path / "bare.pth"


def _run(state: Path, *options: str) -> int:
    model = ["--factory", "tests.support.models.factories:make_bare", "--out", str(state.with_name("a"))]
    devices = [option for target in TARGETS for option in ("--target", ",".join(target))]
    return main([str(state), *model, *devices, *options])


def test_each_target_has_the_plan_that_names_it(tmp_path: Path) -> None:
    plans = {"cpu,cpu": BY_ROWS, "cuda:0,cuda:1": ON_SECOND}
    _, whole = exported(bare(), tmp_path / "a", targets=TARGETS, plan=WHOLE, target_plans=plans)
    assert {t.name: t.plan for t in whole.manifest.targets} == {"cpu": WHOLE, **plans}
    batch = batch_of(whole.signature, 20)
    cut = load_artifact(tmp_path / "a", target="cpu,cpu").forward(*batch.inputs())
    for name, expected in whole.forward(*batch.inputs()).items():
        torch.testing.assert_close(cut[name], expected)


def test_a_target_that_no_plan_names_is_placed(tmp_path: Path) -> None:
    _, artifact = exported(bare(), tmp_path / "a", targets=TARGETS, target_plans={"cpu,cpu": BY_ROWS})
    plans = {t.name: t.plan for t in artifact.manifest.targets}
    assert plans["cpu,cpu"] == BY_ROWS
    assert {s.sharding_type for s in plans["cuda:0,cuda:1"].of("").values()} == {"table_wise"}


def test_unknown_targets_are_named() -> None:
    with pytest.raises(
        ExportError, match=r"target_plans: got unknown targets \['cpu,cuda:7'\], expected some of \['cpu'\]"
    ):
        ExportConfig(target_plans={"cpu,cuda:7": WHOLE})


def test_the_command_takes_plans_by_target_and_one_for_the_rest(state: Path) -> None:
    folder = state.parent
    rows, second = f"cpu,cpu={folder / 'rows.json'}", f"cuda:0,cuda:1={folder / 'second.json'}"
    assert _run(state, "--plan", rows, "--plan", second, "--plan", str(folder / "whole.json")) == 0
    targets = load_artifact(state.with_name("a")).manifest.targets
    assert [t.name for t in targets] == NAMES
    assert [t.plan for t in targets] == [WHOLE, BY_ROWS, ON_SECOND]


def test_the_command_takes_one_plan_for_all(state: Path) -> None:
    assert _run(state, "--plan", str(state.with_name("whole.json"))) == 0
    targets = load_artifact(state.with_name("a")).manifest.targets
    assert [t.plan for t in targets] == [WHOLE] * 3


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cpu,cpu,cpu=whole.json", "target_plans: got unknown targets ['cpu,cpu,cpu'], expected some of"),
        ("=whole.json", "expected [TARGET=]FILE"),
        ("cpu=", "expected [TARGET=]FILE"),
        ("cpu=nowhere.json", "plan: cannot read 'nowhere.json': FileNotFoundError"),
    ],
    ids=["unknown", "no target", "no file", "missing file"],
)
def test_the_command_refuses_with_2(
    state: Path,
    option: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(state.parent)
    assert _run(state, "--plan", option) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not state.with_name("a").exists()
