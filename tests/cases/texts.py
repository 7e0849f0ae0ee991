"""Requests with texts in place of IDs, and how requests are changed.

Shape letters: N number of texts of one input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.serve.messages.wrong import good


def array(dtype: str, *values: float) -> bytes:
    """Numbers as a wire has them."""
    return np.array(values, dtype).tobytes()


def spoiled(make: Callable[[], Any], *changes: Callable[[Any], object]) -> Any:
    """A new request after changes."""
    request = make()
    for change in changes:
        change(request)
    return request


def setting(kind: str, at: int, **values: object) -> Callable[[Any], None]:
    """A change of an input's fields."""

    def change(request: Any) -> None:
        for key, value in values.items():
            setattr(getattr(request, kind)[at], key, value)

    return change


#: Beginnings of this text reach every branch of the hash.
_LONG = bytes(i * 7 % 256 for i in range(100))
DECIMALS = {
    "zeros": (b"0", b"-0", b"000"),
    "leading-zeros": (b"-0007", b"0" * 5000 + b"7"),
    "largest": (b"9223372036854775807", b"-9223372036854775808"),
    "empty": (b"1", b""),
    "sign": (b"1", b"-"),
    "plus": (b"+1",),
    "space": (b" 1",),
    "space-after": (b"1 ",),
    "newline": (b"1\n",),
    "fraction": (b"1.0",),
    "underscore": (b"1_0",),
    "letters": (b"1", b"2", b"it's"),
    "other-digits": ("١".encode(),),
    "too-large": (b"9223372036854775808",),
    "too-small": (b"-9223372036854775809",),
    "far-too-large": (b"1" * 5000,),
    "nul": (b"1\0",),
    "no-utf8": (b"\xff\\\xc3",),
    "cut-utf8": (b"x" * 60 + "\U0001f600".encode() * 5,),
    "wide": ("é".encode() * 66,),
}


#: Inputs that tables hold as lists: the name, the input, and the texts.
LIST_TEXTS = (
    ("values", 2, (b"a", b" a\t", b"b c\r\n", b"a,b", b"[", b"(a]", b"\xff ")),
    ("of-texts", 2, (b"a", b"b, c")),
    ("of-one", 2, (b"[a]",)),
    ("in-blanks", 2, (b" {a} ",)),
    ("in-parentheses", 2, (b"('a')",)),
    ("empty", 2, (b"[]",)),
    ("blanks", 2, (b"a", b" \n")),
    ("numbers", 1, (b"1", b" 2\n", b"3.0")),
    ("of-numbers", 1, (b"1|2|3",)),
    ("of-letters", 1, (b"1", b"x")),
    ("after-an-empty-text", 2, (b"", b"a, b")),
)


def texts_at(at: int, *texts: bytes) -> Callable[[Any], None]:
    """Texts in place of an input's IDs, all in its last row."""

    def change(request: Any) -> None:
        sparse = request.sparse[at]
        num_rows = len(sparse.lengths) // 4
        setting("sparse", at, lengths=array("<i4", *[0] * (num_rows - 1), len(texts)), values=b"")(request)
        sparse.strings.extend(texts)

    return change


def with_texts() -> Iterator[tuple[str, Any]]:
    """Requests with texts in place of IDs, right and wrong."""
    yield "hashed", spoiled(good, texts_at(2, *(_LONG[:size] for size in (*range(1, 40), 64, 100))))
    yield "no-utf8", spoiled(good, texts_at(2, b"\xff\xfe", b"\0"))
    yield (
        "of-several",
        spoiled(good, texts_at(0, b"3", b"49"), texts_at(2, b"a", b"b"), texts_at(3, b"0", b"19")),
    )
    yield "ids-of-a-hashed-input", good()
    yield "empty", spoiled(good, texts_at(2, b"a", b""))
    for name, texts in DECIMALS.items():
        yield f"decimal-{name}", spoiled(good, texts_at(1, b"6", *texts))
        yield f"raw-{name}", spoiled(good, texts_at(2, *texts))
    yield "beside-values", spoiled(good, texts_at(2, b"a", b"b"), setting("sparse", 2, values=bytes(16)))
    yield (
        "beside-ragged-values",
        spoiled(good, texts_at(2, b"a", b"b"), setting("sparse", 2, values=bytes(3))),
    )
    yield "too-few", spoiled(good, texts_at(2, b"a"), setting("sparse", 2, lengths=array("<i4", 1, 1)))
    yield (
        "lengths-first",
        spoiled(good, texts_at(2, b"a", b""), setting("sparse", 3, lengths=array("<i4", 1, 2))),
    )
    yield "sizes-first", spoiled(good, texts_at(2, b"a", b""), setting("sparse", 3, lengths=b""))
    yield "before-ids", spoiled(good, texts_at(2, b""), setting("sparse", 0, values=array("<i8", 3, 4, 50)))
    yield "bad-id", spoiled(good, texts_at(0, b"3", b"50"))
    yield "negative-id", spoiled(good, texts_at(0, b"-1"))
    yield "weights", spoiled(good, texts_at(3, b"1", b"2", b"3"))
    yield (
        "weights-of-an-unweighted-input",
        spoiled(good, texts_at(2, b"a"), setting("sparse", 2, weights=bytes(4))),
    )
    for name, text in {"right": b"b", "wrong": b""}.items():
        yield f"context-{name}", spoiled(good, texts_at(2, b"a", text), texts_at(0, b"1"), into_context(2))
        yield (
            f"repeated-{name}",
            spoiled(good, texts_at(2, b"a", text), texts_at(0, b"1", b"2"), into_context(0)),
        )
    yield "of-the-context-first", spoiled(good, texts_at(0, b"x"), texts_at(2, b""), into_context(2))


def into_context(at: int) -> Callable[[Any], None]:
    """Give an input once for all rows."""

    def change(request: Any) -> None:
        request.context_sparse.add().CopyFrom(request.sparse[at])
        request.context_sparse[0].lengths = array("<i4", len(request.sparse[at].strings))
        del request.sparse[at]

    return change
