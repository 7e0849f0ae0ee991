from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from recsys.artifact.load import LoadedArtifact
from tests.support.models.export_models import CASES, ModelCase, exported

Exported = tuple[ModelCase, nn.Module, LoadedArtifact]


@pytest.fixture(scope="session")
def case_named(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Exports a case of ``tests.support.models.export_models`` once: the case, its float model, its artifact."""
    made: dict[str, Exported] = {}

    def get(name: str) -> Exported:
        if name not in made:
            case = CASES[name]
            model = case.make()
            path = tmp_path_factory.mktemp("models") / "artifact"
            made[name] = (case, model, exported(model, path, table_data_types=case.table_data_types)[1])
        return made[name]

    return get
