"""Small tables in the layouts of published ones, after their descriptions, with labels that follow from the columns.

Each function writes files of some hundred rows into a folder and returns what ``--data`` takes.
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

NUM_ROWS = 400
_NUM_USERS, _NUM_ITEMS = 40, 24
_START = datetime(2018, 1, 1, tzinfo=UTC)


class Clicks:
    """Users who meet items in the order of time; what they like follows from both.

    Attributes:
        users, items: The numbers of each row's user and item.
        likes: Whether the user likes the item.
        times: Of the rows, each later than the one before.
    """

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.users = self.draw.integers(0, _NUM_USERS, NUM_ROWS)
        self.items = self.draw.integers(0, _NUM_ITEMS, NUM_ROWS)
        chance = np.where(self.items % 2 == 0, 0.75, 0.15) + np.where(self.users % 4 == 0, 0.1, -0.05)
        self.likes = self.draw.random(NUM_ROWS) < chance
        self.times = [_START + timedelta(minutes=97 * i) for i in range(NUM_ROWS)]

    def seconds(self, row: int) -> int:
        """Return a row's time in seconds since 1970."""
        return int(self.times[row].timestamp())

    def some(self, chance: float) -> bool:
        """Return whether something happens."""
        return bool(self.draw.random() < chance)


def _code(kind: str, number: int, letters: int = 22) -> str:
    """Return a code of letters and digits, as published tables have in place of names."""
    draw = np.random.default_rng([*kind.encode(), number])
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "".join(draw.choice(list(alphabet), letters))


def _hex(kind: str, number: int) -> str:
    return f"{int(np.random.default_rng([*kind.encode(), number]).integers(2**32)):08x}"


def _write(path: Path, lines: Iterable[str], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def _table(header: str, rows: Iterable[Sequence[object]], separator: str = ",") -> Iterable[str]:
    yield from [header] if header else []
    for row in rows:
        yield separator.join("" if value is None else str(value) for value in row)


def criteo(folder: Path) -> Path:
    """Display advertising challenge: no header, tabs, a label, 13 counts and 26 codes, empty where missing."""
    clicks = Clicks(1)

    def rows() -> Iterable[list[object]]:
        for i in range(NUM_ROWS):
            counts = [None if clicks.some(0.2) else clicks.draw.integers(-1, 500) for _ in range(13)]
            codes = [None if clicks.some(0.1) else _hex(f"C{k}", clicks.draw.integers(20)) for k in range(24)]
            yield [
                int(clicks.likes[i]),
                *counts,
                _hex("user", clicks.users[i]),
                _hex("ad", clicks.items[i]),
                *codes,
            ]

    return _write(folder / "train.txt", _table("", rows(), "\t"))


def avazu(folder: Path) -> Path:
    """Click-through rate challenge: train.gz, a header, an ID of 20 digits a row, hours as YYMMDDHH."""
    clicks = Clicks(2)
    names = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,"
    names += "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"

    def rows() -> Iterable[list[object]]:
        for i in range(NUM_ROWS):
            site, draw = int(clicks.items[i]), clicks.draw.integers
            yield [
                *(10_000_000_000_000_000_000 + i * 7919, int(clicks.likes[i])),
                *(clicks.times[i].strftime("%y%m%d%H"), 1005, draw(2)),
                *(_hex("site", site), _hex("domain", site // 2), _hex("category", site // 6)),
                *("ecad2386", "7801e8d9", "07d7df22", "a99f214a", _hex("ip", draw(300))),
                *(_hex("model", draw(30)), 1, [0, 2, 3][draw(3)], 15701 + draw(9), 320, 50, 1722, 0, 35),
                *(-1 if clicks.some(0.5) else 100084, 79),
            ]

    return _write(folder / "train.gz", _table(names, rows()))


def movielens(folder: Path) -> Path:
    """MovieLens 1M: three files without headers, two colons between fields, titles in Latin-1."""
    clicks = Clicks(3)
    folder = folder / "ml-1m"
    ratings = (
        [
            clicks.users[i] + 1,
            clicks.items[i] + 1,
            clicks.draw.integers(4, 6) if clicks.likes[i] else clicks.draw.integers(1, 4),
            clicks.seconds(i),
        ]
        for i in range(NUM_ROWS)
    )
    path = _write(folder / "ratings.dat", _table("", ratings, "::"))
    (folder / "movies.dat").write_bytes("1::Les Misérables (1995)::Drama|Musical\n".encode("latin-1"))
    _write(folder / "users.dat", ["1::F::1::10::48067", "2::M::56::16::70072"])
    return path


def amazon(folder: Path) -> Path:
    """Reviews of 2018, of a category's 5-core: lines of JSON, in which some keys come now and then."""
    clicks = Clicks(4)

    def review(i: int) -> dict[str, Any]:
        stars = clicks.draw.integers(4, 6) if clicks.likes[i] else clicks.draw.integers(1, 4)
        user = int(clicks.users[i])
        found: dict[str, Any] = {"overall": float(stars)}
        if clicks.some(0.2):
            found["vote"] = f"{clicks.draw.integers(2, 2_000):,}"
        found |= {
            "verified": clicks.some(0.8),
            "reviewTime": f"{clicks.times[i]:%m} {clicks.times[i].day}, {clicks.times[i].year}",
            "reviewerID": "A" + _code("user", user, 13),
            "asin": "B" + _code("item", int(clicks.items[i]), 9),
        }
        if clicks.some(0.4):
            found["style"] = {"Size:": " Large", "Color:": " Charcoal"}
        found |= {"reviewerName": f"Name of {user}", "reviewText": f"I have had it for {i} days.\nOK."}
        found |= {"summary": f"Review {i}", "unixReviewTime": clicks.seconds(i) // 86_400 * 86_400}
        if clicks.some(0.1):
            found["image"] = [f"https://images.example/{i}._SY88.jpg"]
        return found

    return _write(folder / "Appliances_5.json.gz", (json.dumps(review(i)) for i in range(NUM_ROWS)))


def ali_ccp(folder: Path) -> Path:
    """Click and conversion prediction: sample_skeleton_train.csv has no header.

    The last of its six fields is a list of features, ``field\\x02feature\\x03value``, with ``\\x01`` between them.
    """
    clicks = Clicks(5)

    def rows() -> Iterable[list[object]]:
        for i in range(NUM_ROWS):
            item = int(clicks.items[i])
            features = [("205", 4_000_000 + item, 1.0), ("206", 9_000_000 + item // 4, 1.0), ("301", 9, 1.0)]
            features += [
                ("508", 9_100_000 + k, 2.30259) for k in range(clicks.draw.integers(4)) if clicks.some(0.7)
            ]
            listed = "\x01".join(f"{field}\x02{feature}\x03{value}" for field, feature, value in features)
            bought = int(clicks.likes[i] and clicks.some(0.3))
            index = _code("user", int(clicks.users[i]), 16).lower()
            yield [i + 1, int(clicks.likes[i]), bought, index, len(features), listed]

    return _write(folder / "sample_skeleton_train.csv", _table("", rows()))


def kuairand(folder: Path) -> Path:
    """KuaiRand-Pure: a log with days, clock times and milliseconds, and a dozen kinds of feedback."""
    clicks = Clicks(6)
    names = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    names += "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
    beijing = timedelta(hours=8)

    def rows() -> Iterable[list[object]]:
        for i in range(NUM_ROWS):
            like, duration = bool(clicks.likes[i]), int(clicks.draw.integers(5_000, 200_000))
            at = clicks.times[i] + beijing
            played = int(duration * clicks.draw.random() * (1 if like else 0.1))
            yield [
                *(
                    clicks.users[i],
                    clicks.items[i],
                    f"{at:%Y%m%d}",
                    int(f"{at:%H}00"),
                    clicks.seconds(i) * 1000 + 7,
                ),
                *(int(like), int(like and clicks.some(0.1)), 0, int(clicks.some(0.02)), 0, 0),
                *(int(like and played > 18_000), played, duration, 0, 0, int(clicks.some(0.02)), 0),
                clicks.draw.integers(0, 5),
            ]

    return _write(folder / "data" / "log_standard_4_08_to_4_21_pure.csv", _table(names, rows()))


def yelp(folder: Path) -> Path:
    """Yelp's reviews: lines of JSON with codes of 22 letters, counts of votes, texts and times as texts."""
    clicks = Clicks(7)

    def review(i: int) -> dict[str, Any]:
        stars = clicks.draw.integers(4, 6) if clicks.likes[i] else clicks.draw.integers(1, 4)
        return {
            "review_id": _code("review", i),
            "user_id": _code("user", int(clicks.users[i])),
            "business_id": _code("item", int(clicks.items[i])),
            "stars": float(stars),
            "useful": int(clicks.draw.integers(0, 4)),
            "funny": 0,
            "cool": int(clicks.draw.integers(0, 3)),
            "text": f'The {i}th time I came here, "again".\n\nGood food.',
            "date": f"{clicks.times[i]:%Y-%m-%d %H:%M:%S}",
        }

    return _write(
        folder / "yelp_academic_dataset_review.json", (json.dumps(review(i)) for i in range(NUM_ROWS))
    )


def tenrec(folder: Path) -> Path:
    """Tenrec's ctr_data_1M.csv: several actions, some of them missing, and the last ten items in columns."""
    clicks = Clicks(8)
    names = "user_id,item_id,click,follow,like,share,video_category,watching_times,gender,age,"
    names += ",".join(f"hist_{k}" for k in range(1, 11))

    def rows() -> Iterable[list[object]]:
        for i in range(NUM_ROWS):
            like, user = bool(clicks.likes[i]), int(clicks.users[i])
            category = "nan" if clicks.some(0.1) else f"{clicks.items[i] % 5}.0"
            # Empty where an action is not known.
            actions = [None if clicks.some(0.05) else float(like and clicks.some(0.1)) for _ in range(3)]
            history = clicks.draw.integers(0, _NUM_ITEMS, 10)
            yield [
                *(user + 1, clicks.items[i] + 14_000, int(like), *actions, category),
                *(clicks.draw.integers(1, 5) if like else 0, user % 3, user % 8, *history),
            ]

    return _write(folder / "ctr_data_1M.csv", _table(names, rows()))


def recbole(folder: Path) -> Path:
    """RecBole's atomic files: names and types in the header, tabs, blanks between the tokens of a sequence."""
    clicks = Clicks(9)
    names = [
        "user_id:token",
        "item_id:token",
        "label:float",
        "timestamp:float",
        "history:token_seq",
        "dwell:float",
    ]

    def rows() -> Iterable[list[object]]:
        for i in range(NUM_ROWS):
            history = clicks.draw.integers(0, _NUM_ITEMS, clicks.draw.integers(1, 6))
            yield [
                *(
                    f"u{clicks.users[i]}",
                    f"i{clicks.items[i]}",
                    f"{float(clicks.likes[i])}",
                    f"{clicks.seconds(i)}.0",
                ),
                *(" ".join(f"i{k}" for k in history), f"{clicks.draw.random():.3f}"),
            ]

    folder = folder / "tiny"
    _write(folder / "tiny.item", ["item_id:token\ttitle:token_seq", "i1\tToy Story"])
    _write(folder / "tiny.user", ["user_id:token\tage:float", "u1\t24"])
    return _write(folder / "tiny.inter", _table("\t".join(names), rows(), "\t"))


def duckdb(folder: Path) -> Path:
    """``COPY clicks TO 'clicks' (FORMAT parquet, PARTITION_BY (day))``, with DuckDB's types.

    HUGEINT is texts of digits there, UUID 16 bytes, ENUM texts.
    """
    clicks = Clicks(10)
    draw = clicks.draw
    columns = {
        "clicked": pa.array(clicks.likes.tolist(), pa.bool_()),
        "user_uuid": pa.array(
            [uuid.UUID(int=int(user) * (2**127 // 41)).bytes for user in clicks.users], pa.uuid()
        ),
        "item_id": pa.array([str(2**70 + int(item)) for item in clicks.items]),
        "price": pa.array(
            [Decimal(int(cents)).scaleb(-2) for cents in draw.integers(100, 9_999, NUM_ROWS)],
            pa.decimal128(18, 2),
        ),
        "tags": pa.array([[f"t{item % 5}", f"t{item % 3}"] for item in clicks.items], pa.list_(pa.string())),
        "seen_ids": pa.array(
            [draw.integers(0, 30, draw.integers(0, 4)).tolist() for _ in range(NUM_ROWS)],
            pa.list_(pa.int32()),
        ),
        "device": pa.array([["phone", "tablet"][user % 2] for user in clicks.users]),
        "slot": pa.array(draw.integers(0, 5, NUM_ROWS), pa.uint8()),
        "ts": pa.array(clicks.times, pa.timestamp("us", tz="UTC")),
        "place": pa.array([{"x": 1, "y": int(user)} for user in clicks.users]),
    }
    table = pa.table(columns)
    days = [date.fromordinal(at.date().toordinal() // 10 * 10) for at in clicks.times]
    for day in sorted(set(days)):
        part = folder / "clicks" / f"day={day}" / "data_0.parquet"
        part.parent.mkdir(parents=True)
        parquet.write_table(table.filter(pa.array([d == day for d in days])), part)
    return folder / "clicks"
