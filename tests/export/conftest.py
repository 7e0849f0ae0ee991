from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from tests.support.models.export_models import CASES, CopyCase, ExportedCase


@pytest.fixture(scope="session")
def case_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Exports a case of ``tests.support.models.export_models`` once: its artifact. Not to be written to."""
    folder = tmp_path_factory.mktemp("models")

    def get(name: str) -> Path:
        path = folder / name
        if not path.exists():
            case = CASES[name]
            export_model(case.make(), path, ExportConfig(table_data_types=case.table_data_types))
        return path

    return get


@pytest.fixture(scope="session")
def case_named(case_path: Callable[[str], Path]) -> Callable[[str], ExportedCase]:
    """Loads a case that is exported once: the case, its float model, its artifact."""
    made: dict[str, ExportedCase] = {}

    def get(name: str) -> ExportedCase:
        if name not in made:
            artifact = load_artifact(case_path(name), scripted=True)
            made[name] = (CASES[name], CASES[name].make(), artifact)
        return made[name]

    return get


@pytest.fixture(scope="session")
def copy_case(case_path: Callable[[str], Path]) -> CopyCase:
    """Copies the artifact of a case to a path, as if it were exported there."""

    def copy(name: str, path: Path) -> Path:
        return Path(shutil.copytree(case_path(name), path))

    return copy
