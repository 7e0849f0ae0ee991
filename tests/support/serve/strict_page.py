"""A strict reader of HTML pages, for tests."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br", "link", "img", "input", "hr"}


class StrictPage(HTMLParser):
    """Every element is closed in order; texts and attributes are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed_page(text: str) -> StrictPage:
    """Read a page; every element must be closed."""
    made = StrictPage()
    # A place where a line may break is no part of a text.
    made.feed(text.replace("<wbr>", ""))
    made.close()
    assert made.open == []
    return made
