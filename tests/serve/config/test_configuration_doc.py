"""docs/serve/configuration.md says what the dataclasses say, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

from serve.config.sources import effective
from tests.support.serve.configuration_doc import PAGE, with_tables


def test_the_tables_are_those_of_the_dataclasses() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page), "run: python -m tests.support.serve.configuration_doc"


def test_the_example_can_be_read(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    file = tmp_path / "serve.toml"
    file.write_text(found[1])
    settings = effective({}, {}, file).settings
    ranker = settings.server.settings_of("ranker")
    assert (ranker.limits.max_delay_us, ranker.limits.max_batch_rows, ranker.cpus) == (500, 256, (0, 1, 2, 3))
    assert settings.source.repository == tmp_path / "models"


def test_the_flag_and_the_environment_name_of_the_page_are_real() -> None:
    environment = {"RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS": "256"}
    assert effective({}, environment, None).settings.server.defaults.limits.max_batch_rows == 256
