"""The package itself: its version, and the names that it imports on first access."""

from __future__ import annotations

import re

import pytest

import recsys


def test_the_version_is_that_of_the_installed_package() -> None:
    assert recsys.__version__ == "unknown" or re.match(r"\d+\.\d+", recsys.__version__)


def test_exactly_the_public_names_are_listed_and_there() -> None:
    assert dir(recsys) == sorted([*recsys.__all__, "__version__"])
    assert recsys.__all__ == sorted(set(recsys.__all__))
    for name in recsys.__all__:
        assert getattr(recsys, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        recsys.no_such_name  # noqa: B018
