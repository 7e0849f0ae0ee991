"""MovieLens as a click stream: a rating of at least 4 is a click, the last 10 % by time are held out.

History features (a user's recent likes, the like rates of users and items) are taken as of the time of the
example: from training ratings with a strictly smaller timestamp. For held-out examples that is exactly the
training part, so neither the future nor a held-out label leaks.

Shape letters: N number of ratings.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Bags, Dataset, Examples, Ints, Reference, held_out_rows
from recsys.data.fingerprint import fingerprint
from recsys.data.lines import DataError
from recsys.data.sources.movielens_files import Item, MovieLens, Ratings, User, read_movielens
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.metrics.exact import auc

DENSE_NAMES = (
    "item_like_rate",  # log-odds of the smoothed share of likes so far
    "item_num_ratings",  # log(1 + ratings so far)
    "user_like_rate",
    "user_num_ratings",
    "release_year",  # decades before 2000; 0 where unknown
    "age",  # decades above 30; 0 where unknown
)
MAX_LIKED_ITEMS = 20
SMOOTHING = 5.0  # prior ratings of the mean rate for each item; the baseline's best of 1, 5, 10, 20, 50
_AGE_BOUNDS = (18, 25, 35, 45, 50, 56)  # MovieLens-1M's own age groups


@dataclass
class _Rate:
    num_likes: float = 0.0
    num_ratings: int = 0

    def log_odds(self, mean: float) -> float:
        likes = self.num_likes + SMOOTHING * mean
        return math.log(likes / (self.num_ratings + SMOOTHING - likes))


@dataclass
class _History:
    """The history before one moment."""

    mean: float
    items: defaultdict[int, _Rate] = field(default_factory=lambda: defaultdict(_Rate))
    users: defaultdict[int, _Rate] = field(default_factory=lambda: defaultdict(_Rate))
    liked: defaultdict[int, deque[int]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=MAX_LIKED_ITEMS))
    )

    def add(self, user: int, item: int, like: float) -> None:
        for rate in (self.items[item], self.users[user]):
            rate.num_likes += like
            rate.num_ratings += 1
        if like:
            self.liked[user].append(item)

    def numbers(self, user: int, item: int) -> tuple[float, float, float, float]:
        by_item, by_user = self.items[item], self.users[user]
        return (
            by_item.log_odds(self.mean),
            math.log1p(by_item.num_ratings),
            by_user.log_odds(self.mean),
            math.log1p(by_user.num_ratings),
        )


def movielens(folder: Path, limit_rows: int | None = None) -> Dataset:
    """Return the data set of a folder with MovieLens files.

    The sparse features ``user``, ``item`` and ``liked_items`` are the files' own IDs; the others are positions
    in the sorted lists of what the files hold (``genre``, ``occupation``, ``gender``) or groups (``age_group``,
    ``zip_region``, the first digit of the US zip code).

    Args:
        folder: See ``movielens_files``.
        limit_rows: Number of first ratings by time to keep.

    Raises:
        DataError: The files are missing or malformed, or there are fewer than two ratings.
    """
    data = read_movielens(folder, limit_rows)
    num_rows = len(data.ratings.likes)
    if num_rows < 2:
        raise DataError(f"{folder}: got {num_rows} ratings, expected at least 2")
    num_train = num_rows - held_out_rows(num_rows)
    examples = _examples(data, num_train)
    train_rows, held_out = np.arange(num_train), np.arange(num_train, num_rows)
    return Dataset(
        name="movielens",
        schema=Schema(
            labels=(LabelColumn(name="like"),),
            dense=tuple(DenseColumn(name=name) for name in DENSE_NAMES),
            tables=_tables(data),
        ),
        num_train_rows=num_train,
        num_held_out_rows=num_rows - num_train,
        train=partial(_blocks, examples.take(train_rows)),
        held_out=partial(_blocks, examples.take(held_out)),
        reference=partial(_popularity, data.ratings, num_train),
        fingerprint=partial(
            fingerprint, sorted(path for path in folder.iterdir() if path.is_file()), limit_rows
        ),
    )


def _blocks(examples: Examples) -> Iterator[Examples]:
    yield examples


def _popularity(ratings: Ratings, num_train: int) -> Reference:
    """Return each item's smoothed like rate in the training part, as the score of all its held-out examples."""
    size = int(ratings.items.max()) + 1
    items, likes = ratings.items[:num_train], ratings.likes[:num_train]
    num_likes = np.bincount(items, likes, size)
    num_ratings = np.bincount(items, minlength=size)
    rate = (num_likes + SMOOTHING * likes.mean()) / (num_ratings + SMOOTHING)
    return Reference(
        name="popularity",
        text="popularity baseline (each item's smoothed like rate in the training part)",
        auc=auc(rate[ratings.items[num_train:]], ratings.likes[num_train:]),
    )


def _tables(data: MovieLens) -> tuple[TableSpec, ...]:
    return (
        TableSpec(name="user", num_embeddings=max(data.users) + 1, feature_names=("user",)),
        TableSpec(name="item", num_embeddings=max(data.items) + 1, feature_names=("item",)),
        TableSpec(
            name="liked_items",
            num_embeddings=max(data.items) + 1,
            feature_names=("liked_items",),
            pooling="MEAN",
        ),
        TableSpec(name="genre", num_embeddings=len(_genres(data)), feature_names=("genre",), pooling="MEAN"),
        TableSpec(name="occupation", num_embeddings=len(_occupations(data)), feature_names=("occupation",)),
        TableSpec(name="gender", num_embeddings=len(_genders(data)), feature_names=("gender",)),
        TableSpec(name="age_group", num_embeddings=len(_AGE_BOUNDS) + 1, feature_names=("age_group",)),
        TableSpec(name="zip_region", num_embeddings=10, feature_names=("zip_region",)),
    )


def _genres(data: MovieLens) -> list[str]:
    return sorted({genre for item in data.items.values() for genre in item.genres}) or ["unknown"]


def _occupations(data: MovieLens) -> list[str]:
    return sorted({user.occupation for user in data.users.values()})


def _genders(data: MovieLens) -> list[str]:
    return sorted({user.gender for user in data.users.values()})


def _examples(data: MovieLens, num_train: int) -> Examples:
    ratings = data.ratings
    users = [data.users[user] for user in ratings.users.tolist()]
    items = [data.items[item] for item in ratings.items.tolist()]
    past, liked = _as_of(ratings, num_train)
    about = np.array([_about(user, item) for user, item in zip(users, items, strict=True)])
    genres = {genre: i for i, genre in enumerate(_genres(data))}
    occupations = {name: i for i, name in enumerate(_occupations(data))}
    genders = {name: i for i, name in enumerate(_genders(data))}
    ages = np.array([-1 if user.age is None else user.age for user in users])
    groups = np.searchsorted(_AGE_BOUNDS, ages, side="right")
    zips = np.array([int(u.zip_code[0]) if u.zip_code[:1].isdecimal() else -1 for u in users])
    bags = {
        "user": Bags.single(ratings.users),
        "item": Bags.single(ratings.items),
        "liked_items": liked,
        "genre": Bags.from_lists([[genres[g] for g in item.genres] for item in items]),
        "occupation": Bags.single(np.array([occupations[user.occupation] for user in users])),
        "gender": Bags.single(np.array([genders[user.gender] for user in users])),
        "age_group": Bags.optional(np.where(ages < 0, -1, groups)),
        "zip_region": Bags.optional(zips),
    }
    dense = np.concatenate([past, about], axis=1).astype(np.float32)
    return Examples(dense=dense, bags=bags, labels=ratings.likes.astype(np.float32)[:, None])


def _about(user: User, item: Item) -> tuple[float, float]:
    year = 0.0 if item.year is None else (2000 - item.year) / 10
    return year, 0.0 if user.age is None else (user.age - 30) / 10


def _as_of(ratings: Ratings, num_train: int) -> tuple[NDArray[np.float64], Bags]:
    """Return each example's history from strictly earlier training examples: ``[N, 4]`` numbers and liked items."""
    history = _History(mean=float(ratings.likes[:num_train].mean().clip(0.01, 0.99)))
    rows = list(zip(ratings.users.tolist(), ratings.items.tolist(), ratings.likes.tolist(), strict=True))
    numbers: list[tuple[float, float, float, float]] = []
    liked: list[Sequence[int]] = []
    num_added = 0
    for start in _first_of_equal(ratings.times).tolist():
        for user, item, like in rows[num_added : min(start, num_train)]:
            history.add(user, item, like)
        num_added = max(num_added, min(start, num_train))
        user, item, _ = rows[len(numbers)]
        numbers.append(history.numbers(user, item))
        liked.append(tuple(history.liked[user]))
    return np.array(numbers), Bags.from_lists(liked)


def _first_of_equal(times: Ints) -> Ints:
    """Return for each of the sorted times the position of the first equal one, ``[N]``."""
    return np.searchsorted(times, times, side="left")
