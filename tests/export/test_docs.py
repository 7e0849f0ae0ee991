"""The model and the plan of docs/export/export.md, exported as that page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from recsys.sharding.plan.plan import ShardingPlan

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "export" / "export.md").read_text()


def test_the_pages_model_is_exported_with_the_pages_plan(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(import recsys\n.*?)```", PAGE, re.DOTALL)
    (plan,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(code, names)
    torch.manual_seed(0)
    config = ExportConfig(
        name="ranker",
        targets=(("cpu", "cpu"),),
        plan=ShardingPlan.from_json(json.loads(plan)),
    )
    export_model(names["Ranker"](dim=64), tmp_path / "a", config)
    manifest = load_artifact(tmp_path / "a").manifest
    assert [dense.name for dense in manifest.signature.dense] == ["context"]
    assert [use.name for use in manifest.signature.sparse] == ["user", "item", "seen"]
    assert [output.name for output in manifest.signature.outputs] == ["score"]
    assert [info.table.name for info in manifest.tables] == ["ebc.users", "ebc.products"]
