"""The page docs/develop/architecture.md shows every room of the Python packages, each with its docstring."""

from __future__ import annotations

import pytest

from tests.docs.rooms import MARK, ROOT, on_page_markdown, rooms

PAGE = ROOT / "docs" / "develop" / "architecture.md"


@pytest.mark.parametrize("package", ["serve", "recsys", "export"])
def test_every_room_says_what_it_is(package: str) -> None:
    lines = list(rooms(ROOT / package))
    folders = {path.parent for path in (ROOT / package).rglob("__init__.py")} - {ROOT / package}
    inside = [path for path in folders if len(path.relative_to(ROOT).parts) <= 3]
    assert len(lines) == len(inside)
    assert all(line.partition("`: ")[2] for line in lines)


def test_the_order_is_that_of_the_imports() -> None:
    names = [line.split("`")[1] for line in rooms(ROOT / "serve") if not line.startswith(" ")]
    assert names.index("app/") < names.index("engine/") < names.index("config/")


def test_the_page_has_the_rooms_in_place_of_its_marks() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MARK.findall(text) == ["serve", "recsys", "export"]
    shown = on_page_markdown(text)
    assert not MARK.search(shown)
    assert "* `jagged/`: Jagged and keyed data types." in shown
