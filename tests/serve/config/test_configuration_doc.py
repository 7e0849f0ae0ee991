"""docs/serve/configuration.md says what the dataclasses say, and its example works."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from serve.config.options import sections
from serve.config.sources import effective
from tests.support.serve.configuration_doc import MARK, PAGE, on_page_markdown


def test_the_site_has_a_row_of_every_setting() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="serve/configuration.md"))
    text = on_page_markdown(PAGE.read_text(encoding="utf-8"), page)
    assert MARK not in text
    for section in sections():
        assert section.about in text
        assert not [option.path for option in section.options if f"| `{option.path[-1]}` | `" not in text]


def test_the_page_names_every_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not [
        section.path for section in sections() if section.path and f"[{'.'.join(section.path)}]" not in page
    ]


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
