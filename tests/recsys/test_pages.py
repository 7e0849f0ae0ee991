from __future__ import annotations

import pytest

from recsys.pages import breakable


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("user", "user"),
        ("advertiser.user_id", "advertiser.user_id"),
        ("advertiser.user_id.values", "advertiser.<wbr>user_<wbr>id.<wbr>values"),
        ("fbgemm::bounds_check_", "fbgemm::<wbr>bounds_<wbr>check_"),
        ("/v1/models/shop:predict", "/<wbr>v1/<wbr>models/<wbr>shop:<wbr>predict"),
        ("_a__b_abcdefghijklmno", "_<wbr>a__<wbr>b_<wbr>abcdefghijklmno"),
        ("<a_b>&'abcdefghijklmno", "&lt;a_<wbr>b&gt;&amp;&#39;abcdefghijklmno"),
    ],
)
def test_lines_break_between_the_parts_of_names(name: str, text: str) -> None:
    assert breakable(name) == text
