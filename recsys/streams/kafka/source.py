"""Read deltas of a topic.

A thread reads every message once with a consumer of its own (one of confluent-kafka must not be shared by threads). It
notes which chunk of which delta lies where, and writes chunks of deltas that are
wanted into files of the cache as they arrive. What the cache has no room for is read again when its turn comes. So
memory holds some numbers for each delta, and librdkafka's bounded queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recsys.errors import ArtifactError
from recsys.streams.address import MAX_CHUNK_BYTES, KafkaAddress
from recsys.streams.cache import DeltaCache
from recsys.streams.folder import by_age
from recsys.streams.interface import DeltaSource, StreamedDelta, StreamError
from recsys.streams.kafka.assembly import Assembly, KnownDelta, check_header, key_of
from recsys.streams.kafka.config import opened, settings, text_of
from recsys.streams.kafka.message import DeltaParts, ForeignMessageError, MessageError, read_message
from recsys.streams.kafka.positions import Positions

_log = logging.getLogger(__name__)
_POLL_S = 0.1
# Between two looks for a topic that does not exist yet.
_NO_TOPIC_S = 1.0
_MAX_DELTAS = 100_000
# For the thread to end: a call that waits for brokers holds it up.
_LAST_WORDS_S = 1.0
_OURS: Mapping[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # So that the end of a partition is that of its messages.
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 200,
    "reconnect.backoff.max.ms": 1000,
    # Memory: what waits to be read, and one answer of a broker.
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.max.bytes": 16 << 20,
    "receive.message.max.bytes": MAX_CHUNK_BYTES + (32 << 20),
    "check.crcs": True,
}


class KafkaSource(DeltaSource):
    """Follows a topic from where the expected artifacts begin in it. It need not exist yet: it is empty then.

    Args:
        address: the topic.
        cache: where deltas are put together.
    """

    def __init__(self, address: KafkaAddress, cache: DeltaCache) -> None:
        self._address = address
        self._cache = cache
        self._wake: Callable[[], None] = lambda: None
        self._artifacts: set[str] = set()
        # Held while the consumer that asks for ends and reads again is used.
        self._asking = threading.Lock()
        self._asker: Any = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # Where the thread is to read on.
        self._places: list[Any] | None = None
        # Guards what follows; notified when the thread has read on.
        self._read_on = threading.Condition()
        self._deltas: dict[tuple[str, int], KnownDelta] = {}
        self._names: dict[str, KnownDelta] = {}
        # The offset of the next message of each partition.
        self._positions: dict[int, int] = {}
        # Where those of the expected artifacts begin; None before the first scan.
        self._known_positions: Positions | None = None
        self._starts: dict[int, int] = {}
        # Deltas in the cache that were not fetched yet.
        self._fresh: set[str] = set()
        self._failure: StreamError | None = None
        self._last_error: Any = None
        self._told: set[str] = set()

    def expect(self, artifact: str) -> None:
        """See ``DeltaSource``."""
        self._artifacts.add(artifact)

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """See ``DeltaSource``."""
        self._wake = wake

    def check(self) -> str:
        """See ``DeltaSource``."""
        with self._asking:
            self._asker = self._asker or self._connected()
            return "" if self._ends() else f"there is no topic {self._address.topic!r} yet"

    def scan(self) -> list[StreamedDelta]:
        """See ``DeltaSource``. Returns once all messages are read that the brokers had when it was called."""
        with self._asking:
            self._start()
            ends = self._ends()
        self._forget_deleted(ends)
        self._assign(ends)
        self._wait({partition: high for partition, (low, high) in ends.items() if high > low})
        with self._read_on:
            if self._known_positions is not None:
                self._known_positions.save(self._positions.items())
            return by_age(delta.streamed() for delta in self._deltas.values())

    def fetch(self, delta: StreamedDelta) -> Path:
        """See ``DeltaSource``."""
        with self._read_on:
            known = self._names.get(delta.name)
            if known is None:
                raise StreamError(f"delta {delta.name}: it is no longer in topic {self._address.topic}")
            key = key_of(known.parts)
            self._fresh.discard(key)
            found = self._cache.get(key)
        if found is not None:
            return found
        with self._cache.naming_folder(delta.name):
            with self._read_on:
                assembly = self._assembly_of(known)
            try:
                with self._asking:
                    self._read_again(known, assembly)
                return assembly.finish()
            finally:
                assembly.close()

    def discard(self, delta: StreamedDelta) -> bool:
        """See ``DeltaSource``."""
        with self._read_on:
            known = self._names.get(delta.name)
            return known is not None and self._cache.remove(key_of(known.parts))

    def close(self) -> None:
        """See ``DeltaSource``."""
        with self._read_on:
            self._is_closed = True
            self._read_on.notify_all()
        if self._asking.acquire(timeout=_LAST_WORDS_S):  # else a call waits for brokers
            if self._asker is not None:
                self._asker.close()
            self._asking.release()
        if self._thread is not None:
            self._thread.join(_LAST_WORDS_S)
        with self._read_on:
            for known in self._deltas.values():
                self._give_up(known)

    def _start(self) -> None:
        if self._is_closed:
            raise StreamError("kafka: the stream is closed")
        if self._thread is not None and self._thread.is_alive():
            return
        with self._read_on:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            self._positions.clear()
        if self._asker is None:
            self._asker = self._connected()
        reader = self._connected()
        self._thread = threading.Thread(target=self._read, args=(reader,), name="kafka-deltas", daemon=True)
        self._thread.start()

    def _connected(self) -> Any:
        from confluent_kafka import Consumer

        ours = {"group.id": "recsys-serving", "auto.offset.reset": "earliest", **_OURS}
        return opened(Consumer, settings(self._address, ours, self._note_error))

    def _note_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE):
            self._last_error = error

    def _ends(self) -> dict[int, tuple[int, int]]:
        """Return the first and the next offset of each partition; none if there is no such topic."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        topic, timeout_s = self._address.topic, self._address.timeout_s
        try:
            cluster = self._asker.list_topics(topic, timeout=timeout_s)
            found = cluster.topics[topic]
            if self._known_positions is None:
                place = f"{cluster.cluster_id or self._address.brokers}/{topic}"
                self._known_positions = Positions(self._cache.folder, place)
            if found.error is not None:
                if found.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    return {}
                raise StreamError(f"kafka: topic {topic} cannot be read: {text_of(found.error)}")
            ends = {}
            for partition in found.partitions:
                ends[partition] = self._asker.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=timeout_s
                )
        except KafkaException as error:
            raise self._away(error.args[0]) from None
        self._last_error = None
        return ends

    def _away(self, error: Any) -> StreamError:
        """Return the error of brokers that do not answer. Its text is the same each time."""
        from confluent_kafka import KafkaError

        known = self._last_error or error
        is_silent = known.code() in (
            KafkaError._TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
        )
        why = "" if is_silent else f" ({known.name().strip('_')})"
        return StreamError(f"kafka: the brokers of topic {self._address.topic} cannot be reached{why}")

    def _forget_deleted(self, ends: Mapping[int, tuple[int, int]]) -> None:
        """Forget deltas whose messages the brokers have deleted for their age."""
        with self._read_on:
            for key, known in [*self._deltas.items()]:
                if all(last < ends.get(partition, (0, 0))[0] for partition, (_, last) in known.spans.items()):
                    del self._deltas[key], self._names[known.name]
                    self._give_up(known)

    def _assign(self, ends: Mapping[int, tuple[int, int]]) -> None:
        """Read partitions that are new, and again from where an artifact begins that was not expected before."""
        from confluent_kafka import TopicPartition

        topic, known = self._address.topic, self._known_positions
        assert known is not None
        with self._read_on:
            starts = {partition: known.start(partition, self._artifacts) for partition in ends}
            read = {at: max(self._positions.get(at, 0), starts[at]) for at in ends}
            if any(read[partition] > high for partition, (_, high) in ends.items()):
                self._tell(f"topic {topic} was made again; it is read from its beginning")
                for delta in self._deltas.values():
                    self._give_up(delta)
                self._deltas.clear()
                self._names.clear()
                self._positions.clear()
                known.forget()
                starts = dict.fromkeys(ends, 0)
            new = {at for at in ends if at not in self._positions or starts[at] < self._starts[at]}
            if not new:
                return
            # librdkafka goes to the first message that there is where one was deleted for its age.
            self._positions.update((partition, starts[partition]) for partition in new)
            self._starts.update((partition, starts[partition]) for partition in new)
            self._places = [TopicPartition(topic, at, self._positions[at]) for at in ends]

    def _wait(self, ends: Mapping[int, int]) -> None:
        """Wait until the thread has read as far; as long as it reads on.

        Raises:
            StreamError: the brokers send nothing, or the thread has failed.
        """
        with self._read_on:
            read, end_s = -1, 0.0
            while any(self._positions[partition] < high for partition, high in ends.items()):
                if self._failure is not None:
                    raise self._failure
                if self._is_closed:
                    raise StreamError("kafka: the stream is closed")
                now_s = time.monotonic()
                if sum(self._positions.values()) != read:
                    read, end_s = sum(self._positions.values()), now_s + self._address.timeout_s
                if now_s > end_s:
                    raise StreamError(f"kafka: the brokers send no messages of topic {self._address.topic}")
                self._read_on.wait(_POLL_S)

    def _read(self, consumer: Any) -> None:
        """Read messages until the source is closed."""
        told_s = time.monotonic()
        try:
            while not self._is_closed:
                with self._read_on:
                    places, self._places = self._places, None
                    is_empty = not self._positions
                if places is not None:
                    consumer.assign(places)
                message = consumer.poll(_POLL_S)
                # Nothing arrives of a topic that does not exist yet: a scan finds out.
                is_time = is_empty and time.monotonic() > told_s + _NO_TOPIC_S
                if is_time or (message is not None and self._take(message)):
                    told_s = time.monotonic()
                    self._wake()
        except Exception as error:
            _log.exception("deltas: topic %s is no longer read", self._address.topic)
            with self._read_on:
                self._failure = StreamError(f"kafka: reading has failed ({type(error).__name__})")
                self._read_on.notify_all()
        finally:
            consumer.close()

    def _take(self, message: Any) -> bool:
        """Note a message; return whether a delta is whole with it."""
        from confluent_kafka import KafkaError

        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._note_error(error)
            return False
        is_whole = False
        with self._read_on:
            # A message of before the thread is sent elsewhere says nothing about how far it has read there.
            if partition not in self._positions or self._places is not None:
                return False
            if error is None:
                is_whole = self._add(message, partition, offset)
                offset += 1
            self._positions[partition] = max(self._positions[partition], offset)
            self._read_on.notify_all()
        return is_whole

    def _add(self, message: Any, partition: int, offset: int) -> bool:
        """Add a message to its delta; return whether that is whole with it."""
        topic = self._address.topic
        try:
            parts, index = read_message(message.value(), message.headers())
        except ForeignMessageError as error:
            self._tell(f"topic {topic}: messages that are no deltas are passed over: {error}")
            return False
        except MessageError as error:
            self._tell(f"topic {topic}: damaged messages are passed over: {error}")
            return False
        if self._known_positions is not None:
            self._known_positions.note(parts.artifact, partition, offset)
        known = self._known(parts, message.timestamp()[1] / 1000)
        if not known.note(index, partition, offset):
            return False
        key = key_of(parts)
        try:
            if known.assembly is None and self._is_wanted(known):
                known.assembly = self._reserved(known, keep=frozenset(self._fresh))
                known.is_assembled = known.assembly is not None
            if known.assembly is not None:
                known.assembly.add(index, message.value())
            if known.is_whole:
                self._finish(known, key)
        except ArtifactError as error:
            known.error = str(error)
            self._give_up(known)
        except OSError as error:
            self._tell(f"topic {topic}: a delta cannot be kept on the disk: {error.strerror}")
            self._give_up(known)
        return known.is_whole

    def _finish(self, known: KnownDelta, key: str) -> None:
        if known.assembly is not None:
            path = known.assembly.finish()
            self._fresh.add(key)
            self._give_up(known)
        else:
            found = self._cache.get(key)
            if found is None:
                return
            path = found
        known.replaces = check_header(path, known.parts)

    def _known(self, parts: DeltaParts, sent_s: float) -> KnownDelta:
        key = (parts.id, parts.chunk_bytes)
        if key not in self._deltas:
            name = parts.name
            if name in self._names:  # of another delta
                name = f"{parts.name}~{parts.id[:8]}"
            if len(self._deltas) >= _MAX_DELTAS:
                self._tell(
                    f"topic {self._address.topic}: only the latest {_MAX_DELTAS:,} deltas are followed; compact it"
                )
                oldest = self._deltas.pop(next(iter(self._deltas)))
                del self._names[oldest.name]
                self._give_up(oldest)
            self._deltas[key] = self._names[name] = KnownDelta(parts, name, max(sent_s, 0.0))
        return self._deltas[key]

    def _is_wanted(self, known: KnownDelta) -> bool:
        """Return whether to put a delta together as its chunks arrive, from the first on."""
        is_ours = known.parts.artifact in self._artifacts
        return is_ours and known.is_assembled and self._cache.get(key_of(known.parts)) is None

    def _reserved(self, known: KnownDelta, keep: frozenset[str] = frozenset()) -> Assembly | None:
        if not self._cache.reserve(known.parts.num_bytes, keep=keep):
            return None
        try:
            return Assembly(known.parts, self._cache)
        except BaseException:
            self._cache.release(known.parts.num_bytes)
            raise

    def _assembly_of(self, known: KnownDelta) -> Assembly:
        """Return an assembly of a delta whose turn it is: others make room for it.

        Raises:
            StreamError: it is larger than the cache.
        """
        assembly = self._reserved(known)
        for other in self._deltas.values():
            if assembly is not None:
                break
            if other.assembly is not None:
                self._give_up(other)
                assembly = self._reserved(known)
        if assembly is None:
            raise self._cache.too_large(known.name, known.parts.num_bytes)
        return assembly

    def _give_up(self, known: KnownDelta) -> None:
        """End a delta's assembly, whether it is finished or not; what lacks is read again when it is wanted."""
        known.is_assembled = False
        if known.assembly is not None:
            known.assembly.close()
            known.assembly = None

    def _read_again(self, known: KnownDelta, assembly: Assembly) -> None:
        """Read the messages of a delta once more.

        Raises:
            StreamError: they are no longer there, or the brokers do not send them.
        """
        from confluent_kafka import KafkaError, TopicPartition

        topic, timeout_s = self._address.topic, self._address.timeout_s
        consumer, spans = self._asker, dict(known.spans)
        consumer.assign([TopicPartition(topic, partition, first) for partition, (first, _) in spans.items()])
        try:
            end_s = time.monotonic() + timeout_s
            while spans and not assembly.is_whole:
                message = consumer.poll(_POLL_S)
                if self._is_closed:
                    raise StreamError("kafka: the stream is closed")
                if time.monotonic() > end_s:
                    raise StreamError(f"kafka: the brokers send no messages of topic {topic}")
                if message is None:
                    continue
                error, partition = message.error(), message.partition()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue
                if error is None:
                    end_s = time.monotonic() + timeout_s
                    try:
                        parts, index = read_message(message.value(), message.headers())
                    except MessageError:
                        continue
                    if parts == known.parts:
                        assembly.add(index, message.value())
                if partition in spans and (error is not None or message.offset() >= spans[partition][1]):
                    del spans[partition]
        finally:
            consumer.unassign()
        if not assembly.is_whole:
            raise StreamError(f"delta {known.name}: some of its messages are no longer in topic {topic}")

    def _tell(self, text: str) -> None:
        """Log a text once; the source is scanned repeatedly."""
        if text not in self._told and len(self._told) < 1000:
            self._told.add(text)
            _log.warning("deltas: %s", text)
