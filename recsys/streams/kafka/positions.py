"""Where the deltas of each artifact begin in a topic, kept in the cache's folder: a start reads no older messages.

The first start reads the topic from its beginning. What it learns holds for as long as the brokers are the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from recsys.base.files import replacing

_NAME = "positions.json"


class Positions:
    """The first offset of each artifact in each partition, and how far each partition was read.

    Args:
        folder: the cache's folder.
        place: names the brokers and the topic.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self._path = folder / _NAME
        self._place = place
        self._firsts: dict[str, dict[int, int]] = {}
        self._read: dict[int, int] = {}
        self._load()

    def start(self, partition: int, artifacts: Collection[str]) -> int:
        """Return the offset from which a partition holds all deltas of artifacts; 0 if that is not known."""
        read = self._read.get(partition, 0)
        return min((self._firsts.get(artifact, {}).get(partition, read) for artifact in artifacts), default=0)

    def note(self, artifact: str, partition: int, offset: int) -> None:
        """Note a message."""
        firsts = self._firsts.setdefault(artifact, {})
        firsts[partition] = min(firsts.get(partition, offset), offset)

    def save(self, read: Iterable[tuple[int, int]]) -> None:
        """Keep what was noted, and how far partitions were read. A disk that fails costs a later start its time."""
        now = {**self._read, **{at: offset for at, offset in read if offset > self._read.get(at, 0)}}
        if now == self._read:
            return
        self._read = now
        data = {"place": self._place, "read": now, "firsts": self._firsts}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as partial:
                partial.write_text(json.dumps(data), encoding="utf-8")
        except OSError:
            return

    def forget(self) -> None:
        """Forget everything: the topic was made again."""
        self._firsts, self._read = {}, {}
        self._path.unlink(missing_ok=True)

    def _load(self) -> None:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            if data["place"] == self._place:
                self._read = _offsets(data["read"])
                self._firsts = {str(artifact): _offsets(found) for artifact, found in data["firsts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # there is none, or it is damaged
            self._firsts, self._read = {}, {}


def _offsets(data: dict[str, int]) -> dict[int, int]:
    return {int(partition): max(0, int(offset)) for partition, offset in data.items()}
