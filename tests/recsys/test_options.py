"""Values of command line options."""

from __future__ import annotations

import argparse

import pytest

from recsys.options import count, counts, size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        ("1KB", 1000),
        ("80GB", 80 * 10**9),
        ("80g", 80 * 10**9),
        ("1.5 TB", 1_500_000_000_000),
        ("16GiB", 16 << 30),
        ("2Ki", 2048),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "5iB", "1e9", "GB", "²GB", "1.GB", "1" * 20])
def test_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 80GB or 80GiB"):
        size(text)


def test_counts() -> None:
    assert count("17") == 17
    assert counts("1,20,300") == (1, 20, 300)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "²", "1,", "9" * 5000])
def test_no_counts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number of at least 1"):
        counts(text)
