"""The changelog says each thing once."""

from __future__ import annotations

import re
from itertools import combinations

from tests.docs.pages import ROOT

#: How many of the words of an entry another entry of its release may share.
MOST_SHARED = 0.7


def words_of(entry: str) -> set[str]:
    """The words that tell an entry from others, without the addresses of links."""
    return set(re.findall(r"[\w-]{4,}", re.sub(r"\]\([^)]*\)", "]", entry)))


def repeated(changelog: str) -> list[tuple[str, str]]:
    """Pairs of entries of one release of which one says nearly all that the other says."""
    found = []
    for release in changelog.split("\n## "):
        entries = re.findall(r"^ *\* (.*(?:\n +[^ *].*)*)", release, re.MULTILINE)
        words = {entry: words_of(entry) for entry in entries}
        found += [(entry, entry) for entry in words if entries.count(entry) > 1]
        for one, other in combinations(words, 2):
            fewest = min(len(words[one]), len(words[other]))
            if fewest > 3 and len(words[one] & words[other]) > MOST_SHARED * fewest:
                found.append((one, other))
    return found


def test_no_entry_stands_twice() -> None:
    assert repeated((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


def test_an_entry_that_stands_twice_is_found() -> None:
    entry, other = "The port answers rows without a copy.", "Exports verify both forms of rankings."
    said_again = "The port answers rows without a copy, as objects too."
    changelog = f"## Unreleased\n\n* {entry}\n* {other}\n* {said_again}\n\n## 0.1.0\n\n* {entry}\n"
    assert repeated(changelog) == [(entry, said_again)]
