from __future__ import annotations

import pytest

from recsys.base.table_names import short_names


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], []),
        (["user"], ["user"]),
        (["model.sparse_arch.embedding_bag_collection.user", "model.item"], ["user", "item"]),
        (["left.user", "right.user", "right.item"], ["left.user", "right.user", "item"]),
        # A path that another one ends with, and a whole name.
        (["a.x.user", "b.x.user", "c.y.user"], ["a.x.user", "b.x.user", "y.user"]),
        (["user", "model.user"], ["user", "model.user"]),
        (["x.user", "model.x.user", "model.user"], ["x.user", "model.x.user", "model.user"]),
        # Parts without letters.
        (["model.", ".user", "."], ["model.", "user", "."]),
    ],
)
def test_names_are_as_short_as_they_are_unique(names: list[str], short: list[str]) -> None:
    assert [short_names(names)[name] for name in names] == short
