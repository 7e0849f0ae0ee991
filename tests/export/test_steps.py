"""The steps of an export: each is entered once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from export import pipeline
from export.config import ExportConfig
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import read_manifest
from recsys.models.click import build_dlrm

_TABLES = [{"name": "t", "num_embeddings": 20, "embedding_dim": 8, "feature_names": ["f"]}]


def test_each_step_is_entered_once(tmp_path: Path) -> None:
    model = build_dlrm(
        tables=_TABLES, dense_in_features=4, dense_arch_layer_sizes=[8], over_arch_layer_sizes=[8, 1]
    )
    entered: Counter[CodeType] = Counter()
    written: list[str] = []

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        entered[frame.f_code] += 1
        if frame.f_code is Path.write_text.__code__:
            written.append(frame.f_locals["self"].name)

    sys.setprofile(count)
    try:
        pipeline.export_model(model.eval(), tmp_path / "model", ExportConfig(name="model"))
    finally:
        sys.setprofile(None)

    steps = [vars(pipeline).get(name) for name in pipeline.export_model.__code__.co_names]
    times = {
        step.__name__: entered[step.__code__]
        for step in steps
        if isinstance(step, FunctionType)
        and step.__module__.startswith("export.")
        and not hasattr(step, "__wrapped__")  # what is entered with ``with`` goes around the steps
    }
    # Those of options that are not chosen.
    others = {"choose_linear_dtype", "write_single_file"}
    assert {name: count for name, count in times.items() if count != 1} == dict.fromkeys(others, 0)
    assert {"float_model", "prepare", "verify", "write_programs"} <= times.keys()
    assert written == [MANIFEST_NAME]
    assert read_manifest(tmp_path / "model").answers
