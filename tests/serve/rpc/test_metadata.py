from __future__ import annotations

from serve.rpc.metadata import PerServable
from serve.wire import predict_pb2 as wire


class Version:
    """A loaded version, as far as messages about it are concerned."""


def test_messages_of_a_version_are_made_once_and_again_when_it_changes() -> None:
    messages: PerServable[wire.ModelMetadata] = PerServable()
    version, other = Version(), Version()
    made: list[str] = []

    def get(of: Version, key: str) -> str:
        def make() -> wire.ModelMetadata:
            made.append(key)
            return wire.ModelMetadata(model=key)

        return messages.get(of, key, make).model  # type: ignore[arg-type]

    assert [get(version, "a"), get(version, "a"), get(other, "a"), get(version, "b")] == ["a", "a", "a", "b"]
    assert made == ["a", "a", "b"]
    # A client that asks for ever new ones fills no memory.
    for i in range(100):
        assert get(version, str(i)) == str(i)
    (kept, _) = messages._made.values()
    assert len(kept) <= 16


def test_a_version_that_has_left_is_not_kept() -> None:
    messages: PerServable[wire.ModelMetadata] = PerServable()
    version = Version()
    messages.get(version, None, wire.ModelMetadata)  # type: ignore[arg-type]
    del version
    assert not messages._made
