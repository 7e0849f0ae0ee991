"""The files of MovieLens in the three common forms.

* RecBole's atomic files: ``<name>.inter``, ``<name>.item``, ``<name>.user``, tab-separated with a typed header
  (https://recbole.io/docs/user_guide/data/atomic_files.html);
* the classic MovieLens-100k: ``u.data`` (tabs), ``u.item`` and ``u.user`` (``|``, Latin-1);
* MovieLens-1M: ``ratings.dat``, ``movies.dat``, ``users.dat`` (``::``, Latin-1).

The classic forms are described in the README that GroupLens ships with each data set.

Shape letters: N number of ratings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.data.lines import DataError, malformed, split_lines, whole_number

# The order of the 19 flags at the end of each line of u.item (u.genre in GroupLens' archive).
CLASSIC_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *(
        "Fantasy",
        "Film-Noir",
        "Horror",
        "Musical",
        "Mystery",
        "Romance",
        "Sci-Fi",
        "Thriller",
        "War",
        "Western",
    ),
)
_YEAR = re.compile(r"(\d{4})")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A film: its genres, and its release year where known."""

    genres: tuple[str, ...]
    year: int | None


@dataclass(frozen=True, kw_only=True)
class User:
    """A viewer. Occupation and gender as the files spell them; age in years where known."""

    age: int | None
    gender: str
    occupation: str
    zip_code: str


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """All ratings, by time; equal times in the order of the file.

    Attributes:
        users: int64 ``[N]``, the files' user IDs.
        items: int64 ``[N]``, the files' item IDs.
        likes: float32 ``[N]``, 1 where the rating is at least 4.
        times: int64 ``[N]``, seconds since 1970.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    likes: NDArray[np.float32]
    times: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class MovieLens:
    """The contents of the files; every user and item of the ratings is described."""

    ratings: Ratings
    items: dict[int, Item]
    users: dict[int, User]


def read_movielens(folder: Path, limit_rows: int | None = None) -> MovieLens:
    """Read a folder that holds one of the three forms.

    Args:
        folder: The folder of the files.
        limit_rows: Number of first ratings by time to keep.

    Raises:
        DataError: The folder has none of the forms, a file is missing, or a line is malformed.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    inter = sorted(folder.glob("*.inter"))
    if len(inter) > 1:
        raise DataError(f"{folder}: got {[p.name for p in inter]}, expected one .inter file")
    if inter:
        ratings = _ratings(inter[0], "\t", header=True)
        items = dict(_atomic_items(inter[0].with_suffix(".item")))
        users = dict(_users(inter[0].with_suffix(".user"), "\t", header=True))
    elif (folder / "u.data").is_file():
        ratings = _ratings(folder / "u.data", "\t")
        items = dict(_classic_items(folder / "u.item"))
        users = dict(_users(folder / "u.user", "|"))
    elif (folder / "ratings.dat").is_file():
        ratings = _ratings(folder / "ratings.dat", "::")
        items = dict(_million_items(folder / "movies.dat"))
        users = dict(_million_users(folder / "users.dat"))
    else:
        raise DataError(f"{folder}: got no *.inter, u.data or ratings.dat, expected one of them")
    if limit_rows is not None:
        ratings = Ratings(
            users=ratings.users[:limit_rows],
            items=ratings.items[:limit_rows],
            likes=ratings.likes[:limit_rows],
            times=ratings.times[:limit_rows],
        )
    for name, ids, known in (("user", ratings.users, users), ("item", ratings.items, items)):
        unknown = sorted(set(ids.tolist()) - set(known))
        if unknown:
            raise DataError(f"{folder}: {name}s {unknown[:5]} have ratings but no line in the {name} file")
    return MovieLens(ratings=ratings, items=items, users=users)


def _ratings(path: Path, separator: str, header: bool = False) -> Ratings:
    rows: list[tuple[int, int, float, int]] = []
    for line, (user, item, rating, time) in split_lines(path, separator, 4, header=header):
        try:
            stars = float(rating)
        except ValueError:
            stars = -1.0
        if not 0 <= stars <= 5:
            raise malformed(path, line, f"rating: got {rating[:40]!r}, expected a number from 0 to 5")
        rows.append(
            (
                whole_number(user, path, line, "user"),
                whole_number(item, path, line, "item"),
                stars,
                whole_number(time, path, line, "timestamp"),
            )
        )
    if not rows:
        raise DataError(f"{path.name}: got no ratings")
    users, items, stars_by_row, times = zip(*rows, strict=True)
    order = np.argsort(np.array(times, dtype=np.int64), kind="stable")
    return Ratings(
        users=np.array(users, dtype=np.int64)[order],
        items=np.array(items, dtype=np.int64)[order],
        likes=(np.array(stars_by_row) >= 4).astype(np.float32)[order],
        times=np.array(times, dtype=np.int64)[order],
    )


def _atomic_items(path: Path) -> Iterator[tuple[int, Item]]:
    for line, (item, _, year, genres) in split_lines(path, "\t", 4, header=True):
        yield whole_number(item, path, line, "item"), Item(genres=tuple(genres.split()), year=_year(year))


def _classic_items(path: Path) -> Iterator[tuple[int, Item]]:
    num_fields = 5 + len(CLASSIC_GENRES)
    for line, fields in split_lines(path, "|", num_fields, encoding="latin-1"):
        flags = fields[5:]
        if not set(flags) <= {"0", "1"}:
            raise malformed(path, line, f"genres: got {flags}, expected flags of 0 and 1")
        genres = tuple(g for g, flag in zip(CLASSIC_GENRES, flags, strict=True) if flag == "1")
        yield whole_number(fields[0], path, line, "item"), Item(genres=genres, year=_year(fields[2]))


def _million_items(path: Path) -> Iterator[tuple[int, Item]]:
    for line, (item, title, genres) in split_lines(path, "::", 3, encoding="latin-1"):
        year = _year(title.rpartition("(")[2])
        yield whole_number(item, path, line, "item"), Item(genres=tuple(genres.split("|")), year=year)


def _users(path: Path, separator: str, header: bool = False) -> Iterator[tuple[int, User]]:
    for line, fields in split_lines(path, separator, 5, encoding="latin-1", header=header):
        yield _user(fields, path, line)


def _million_users(path: Path) -> Iterator[tuple[int, User]]:
    for line, (user, gender, age, *rest) in split_lines(path, "::", 5, encoding="latin-1"):
        yield _user((user, age, gender, *rest), path, line)


def _user(fields: Sequence[str], path: Path, line: int) -> tuple[int, User]:
    user, age, gender, occupation, zip_code = fields
    return (
        whole_number(user, path, line, "user"),
        User(
            age=whole_number(age, path, line, "age"),
            gender=gender,
            occupation=occupation,
            zip_code=zip_code,
        ),
    )


def _year(text: str) -> int | None:
    match = _YEAR.search(text)
    return int(match[1]) if match else None
