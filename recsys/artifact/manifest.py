"""The manifest of an artifact: everything about an exported model except its graphs and rows.

Shape letters: D embedding dimension, R rows.

The manifest is untrusted JSON: every field is checked when it is read. Empty fields may be missing. Its fields:

* ``format``, ``format_version``: ``recsys-artifact`` and 1; 2 if a target has no TorchScript; 3 if a batch is one
  request or an output is int64; 4 with ``mappings``. Readers refuse higher versions.
* ``bytes_sha256``: SHA-256 of the manifest's bytes before this field's name. ``manifest_sha256``, for releases before
  0.2.0: that of the JSON without this field, keys sorted, no spaces.
* ``name``, ``versions``: the model's name; the packages that it was made with.
* ``signature``: inputs and outputs (``recsys.inputs.signature``).
* ``tables``: ``name``, ``num_embeddings``, ``embedding_dim``, ``data_type``, ``pooling``; ``zero_row``: whether a row
  of zeros follows the last; ``sqnr_db``: signal to quantization noise in dB, null if nothing was lost.
* ``rows``: ``path`` and ``size_bytes`` of the rows file (null in a single file); ``blocks`` in the order of the file:
  ``table``, ``columns`` (first and end), ``num_rows``, ``row_bytes``, ``offset_bytes``, ``sha256``.
* ``targets``: the graphs for each list of devices (``recsys.artifact.targets.Target``).
* ``skeletons``: ``path``, ``size_bytes`` and ``sha256`` of each part that holds a graph, a program or a mapping.
* ``mappings``: which raw IDs own which rows (``recsys.artifact.mappings``). Release 0.2.0 and before kept them in
  graphs.
* ``schema``: the columns that the inputs were made of (``recsys.inputs.schema``).
* ``verification``: what the exporter measured: rows compared, differences to the float model and of both forms,
  ``linear_dtypes`` of ``--linear-dtype auto``.
* ``answers``: up to 16 rows (``num_rows``; ``dense``, ``lengths``, ``values``, ``weights`` as ``forward`` takes them)
  with their ``outputs``, and the ``tolerance``, relative to an output's largest number. float32 numbers are the whole
  numbers of their bits. Loaders compare programs with them, servers warm up with them.
* ``examples``: rows of the training or of ``--samples``, as a request in JSON.
* ``data_sketch``: what the training data looks like: ``num_rows``, ``dense`` by column, ``sparse`` by feature
  (``recsys.inputs.sketch``).
* ``options``: which parts of the model were exported, as the export gave them, for deltas.

A block of the rows file is some columns of all rows of a table, row after row, in the format of ``recsys.rows.format``
at alignment 1. It starts at a multiple of 128 bytes; 128 bytes follow the last block. Each cut of columns has a block,
with the scale and bias of the whole row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from recsys.artifact.batches.answers import Answers
from recsys.artifact.batches.samples import Batch, batch_of_request
from recsys.artifact.mappings import MappingInfo, check_mappings
from recsys.artifact.targets import (
    SINGLE_FILE,
    Target,
    check_ranking,
    check_target_plan,
    file_name,
    target_from_json,
)
from recsys.base.files import parse_json
from recsys.base.json_checks import (
    ALWAYS,
    a_list,
    check_format_version,
    check_once,
    digits,
    json_field,
    mapping,
    one_of,
    read_record,
    record_to_json,
    whole,
    wrong,
)
from recsys.errors import ForeignFileError, ManifestError, PlanError, SchemaError
from recsys.inputs.example_rows import DATA_SKETCH
from recsys.inputs.schema import Schema
from recsys.inputs.signature import POOLINGS, IdPolicy, Signature
from recsys.inputs.sketch import DataSketch
from recsys.rows.layout import BLOCK_ALIGNMENT_BYTES, BlobLayout, RowBlock
from recsys.rows.quantize import StoredTable

FORMAT = "recsys-artifact"
#: Incremented when readers of the previous version cannot read new manifests. Fields that such readers may
#: ignore do not increment it: they serve an artifact with a ranking form (``signature.context``,
#: ``targets[].ranking``) as one without. Version 2 is written only where a target has no TorchScript graph, version 3
#: only where a batch is one request (``signature.batch``) or an output is int64 (``signature.outputs[].dtype``),
#: version 4 only where mappings of raw IDs are parts of their own (``mappings``).
FORMAT_VERSION = 4
#: The digest of the bytes before this field's name.
_DIGEST = "bytes_sha256"
#: The digest of the JSON without this field, keys sorted, no spaces.
_OLD_DIGEST = "manifest_sha256"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file of the artifact."""

    path: Annotated[str, file_name]
    size_bytes: Annotated[int, whole]
    sha256: Annotated[str, digits(64)]


def _first_and_end(data: Any, key: str, at: str) -> tuple[int, int]:
    columns = json_field(data, key, at)
    if not isinstance(columns, list) or len(columns) != 2 or not all(type(c) is int for c in columns):
        raise wrong(at, key, columns, "first column and end")
    return columns[0], columns[1]


@dataclass(frozen=True, kw_only=True)
class _Block:
    """A block of the rows file."""

    table: str
    columns: Annotated[tuple[int, int], _first_and_end]
    num_rows: int
    row_bytes: int
    offset_bytes: Annotated[int, whole]
    sha256: Annotated[str, digits(64)]


def _decibels(data: Any, key: str, at: str) -> float | None:
    """Return a number that a float holds, or None."""
    value = json_field(data, key, at)
    if value is None:
        return None
    try:
        is_number = not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        is_number = False
    if not is_number:
        raise wrong(at, key, value, "a number or null")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class TableInfo:
    """A table and its quantization error.

    Attributes:
        table: How its rows are stored.
        pooling: ``sum``, ``mean`` or ``none``.
        sqnr_db: Signal to quantization noise in dB; None if nothing was lost.
    """

    table: StoredTable
    pooling: Annotated[str, one_of(POOLINGS)]
    sqnr_db: Annotated[float | None, _decibels]


def _texts(data: Any, key: str, at: str) -> dict[str, str]:
    return {name: str(value)[:80] for name, value in mapping(data, key, at).items()}


def _sketch(data: Any, key: str, at: str) -> DataSketch:
    return DataSketch.from_json(data[key], f"{at}.{key}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module.

    Attributes:
        name: The model's name.
        versions: The versions of the packages that the artifact was made with.
        signature: Inputs and outputs.
        tables: In the order of their rows.
        layout: The offset of each block in the rows file.
        block_sha256: The digest of each block of the layout.
        targets: One or more.
        skeletons: The parts that hold graphs or mappings.
        rows_path: The part that holds the rows; None in a single file, where the graph holds them.
        verification: The exporter's measurements, for information.
        options: The export's options that say what of the model is exported, as it wrote them, for deltas.
        schema: The columns that the inputs were made of in training; None if they are not known.
        examples: Rows like those that the model was trained on, as a request in JSON; empty if none are known.
        data_sketch: What the training data looks like, for servers; None if it is not known.
        answers: Rows with the answers that the export has verified (``recsys.artifact.batches.answers``), or empty.
        mappings: The mappings of raw IDs to rows that are parts; earlier releases kept them in the graphs.
        stored: The text that it was read from; None if it was made or changed in memory.
    """

    name: str
    versions: Annotated[Mapping[str, str], _texts]
    signature: Signature
    tables: tuple[TableInfo, ...]
    layout: BlobLayout
    block_sha256: tuple[str, ...]
    targets: tuple[Target, ...]
    skeletons: tuple[Part, ...]
    rows_path: str | None
    verification: Annotated[Mapping[str, Any], ALWAYS] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    schema: Schema | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    data_sketch: Annotated[DataSketch | None, _sketch] = None
    mappings: tuple[MappingInfo, ...] = ()
    # Not of ``init``, so that a changed copy does not have it.
    stored: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def dumps(self) -> str:
        """Return the manifest as text, including its digests."""
        data = self._to_json()
        lines = (f" {json.dumps(key)}: {_text(key, value)},\n" for key, value in data.items())
        text = "{\n" + "".join(lines) + " "
        data[_DIGEST] = hashlib.sha256(text.encode()).hexdigest()
        # Readers of earlier releases compare this one.
        whole = _canonical_digest(data)
        return f'{text}"{_DIGEST}": "{data[_DIGEST]}",\n "{_OLD_DIGEST}": "{whole}"\n}}\n'

    def fitting_examples(self) -> Mapping[str, Any]:
        """Return the examples; nothing if they do not fit the signature."""
        try:
            self.example_batch()
        except ManifestError:
            return {}
        return self.examples

    def example_batch(self) -> Batch | None:
        """Return the examples as a batch; None without any.

        Raises:
            ManifestError: They do not fit the signature.
        """
        if not self.examples:
            return None
        try:
            return batch_of_request(self.examples, self.signature, "manifest.examples")
        except ValueError as error:
            raise ManifestError(str(error)) from None

    def verified_rows(self) -> Batch | None:
        """Return rows that the model takes, as its export has verified; None without any.

        Raises:
            ManifestError: They are damaged.
        """
        return Answers.from_json(self.answers, self.signature).batch if self.answers else None

    @property
    def format_version(self) -> int:
        """The first version of the format whose readers can load every target, and serve it right."""
        if self.mappings:
            return 4
        if self.signature.by_request or self.signature.has_integers:
            return 3
        return 1 if all(target.skeleton is not None for target in self.targets) else 2

    def _to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": self.format_version,
            "name": self.name,
            "versions": dict(self.versions),
            "signature": self.signature.to_json(),
            "tables": [_table_to_json(info) for info in self.tables],
            "rows": {
                "path": self.rows_path,
                "size_bytes": self.layout.num_bytes,
                "blocks": [
                    record_to_json(
                        _Block(
                            table=block.table,
                            columns=(block.column_start, block.column_end),
                            num_rows=block.num_rows,
                            row_bytes=block.row_bytes,
                            offset_bytes=block.offset_bytes,
                            sha256=digest,
                        )
                    )
                    for block, digest in zip(self.layout.blocks, self.block_sha256, strict=True)
                ],
            },
            "targets": [record_to_json(target) for target in self.targets],
            "skeletons": [record_to_json(part) for part in self.skeletons],
            **({"mappings": [record_to_json(info) for info in self.mappings]} if self.mappings else {}),
            "verification": dict(self.verification),
            **({"options": dict(self.options)} if self.options else {}),
            **({} if self.schema is None else {"schema": self.schema.to_json()}),
            **({"examples": dict(self.examples)} if self.examples else {}),
            **({"answers": dict(self.answers)} if self.answers else {}),
            **({} if self.data_sketch is None else {DATA_SKETCH: self.data_sketch.to_json()}),
        }

    @classmethod
    def loads(cls, content: str | bytes) -> Manifest:
        """Read a manifest.

        Raises:
            ForeignFileError: It is not a manifest of this project.
            NewerVersionError: A later release wrote it.
            ManifestError: It is damaged; the message names the field.
        """
        data = parse_json(content, "manifest", ManifestError)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ForeignFileError(f"manifest: its format is not {FORMAT!r}; this is not an exported model")
        check_format_version(data, FORMAT_VERSION, "manifest")
        stored = content.encode() if isinstance(content, str) else content
        if not _has_its_digest(stored, data):
            raise ManifestError("manifest: its own digest does not match; it was changed or damaged")
        try:
            manifest = cls._from_json(data)
        except PlanError as error:
            raise ManifestError(f"manifest: {error}") from None
        except SchemaError as error:
            raise ManifestError(f"manifest.{error}") from None
        object.__setattr__(manifest, "stored", stored)
        return manifest

    @classmethod
    def _from_json(cls, data: Any) -> Manifest:
        tables = tuple(_table_from_json(t, at) for at, t in a_list(data, "tables", "manifest"))
        check_once([info.table.name for info in tables], "manifest.tables")
        stored = {info.table.name: info.table for info in tables}
        layout, digests, path = _rows_from_json(json_field(data, "rows", "manifest"), stored)
        _check_columns(layout, stored)
        targets = tuple(target_from_json(t, at) for at, t in a_list(data, "targets", "manifest"))
        if not targets:
            raise ManifestError("manifest.targets: got none, expected at least one")
        check_once([target.name for target in targets], "manifest.targets")
        for i, target in enumerate(targets):
            check_target_plan(target.plan, len(target.devices), stored, layout, f"manifest.targets[{i}]")
        manifest = read_record(
            cls,
            data,
            "manifest",
            tables=tables,
            layout=layout,
            block_sha256=digests,
            targets=targets,
            rows_path=path,
        )
        parts = {part.path: part.size_bytes for part in manifest.skeletons}
        # The graph of a single file is the file itself.
        known = set(parts) if path is not None else {*parts, SINGLE_FILE}
        unknown = {part for target in targets for part in target.parts} - known
        if unknown:
            raise ManifestError(f"manifest.targets: skeletons {sorted(unknown)} are not among the parts")
        check_once([part.path for part in manifest.skeletons], "manifest.skeletons")
        check_mappings(
            manifest.mappings, {name: table.num_embeddings for name, table in stored.items()}, parts
        )
        _check_signature(manifest.signature, stored)
        check_ranking(manifest.signature, [target.ranking is not None for target in targets], path is None)
        return manifest


def _text(key: str, value: Any) -> str:
    """Return the text of one field: lists of numbers that nobody reads take one line."""
    if key in ("examples", "answers", DATA_SKETCH):
        return json.dumps(value)
    return json.dumps(value, indent=1).replace("\n", "\n ")  # strings hold no line ends


def _has_its_digest(stored: bytes, data: dict[str, Any]) -> bool:
    """Return whether the digest in a manifest is that of its bytes, or, of an earlier release, of its JSON."""
    old = data.pop(_OLD_DIGEST, None)
    if _DIGEST not in data:
        return bool(old == _canonical_digest(data))
    before = stored[: stored.rfind(f'"{_DIGEST}"'.encode())]
    return bool(data[_DIGEST] == hashlib.sha256(before).hexdigest())


def _canonical_digest(data: dict[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _table_to_json(info: TableInfo) -> dict[str, Any]:
    table = record_to_json(replace(info.table, column_cuts=()))
    return {**table, "pooling": info.pooling, "sqnr_db": info.sqnr_db}


def _table_from_json(data: Any, at: str) -> TableInfo:
    return read_record(TableInfo, data, at, table=read_record(StoredTable, data, at, column_cuts=()))


def _rows_from_json(
    rows: Any, tables: dict[str, StoredTable]
) -> tuple[BlobLayout, tuple[str, ...], str | None]:
    """Return the blocks, their digests, and the file that holds them.

    The blocks are checked against the tables and against each other: no two may overlap.
    """
    blocks, digests = [], []
    end = 0
    for at, data in a_list(rows, "blocks", "manifest.rows"):
        found = read_record(_Block, data, at)
        if found.table not in tables:
            raise wrong(at, "table", found.table, f"one of the tables {sorted(tables)[:8]}")
        table, (start, stop) = tables[found.table], found.columns
        if not 0 <= start < stop <= table.embedding_dim:
            raise wrong(
                at, "columns", list(found.columns), f"columns of a table of dim {table.embedding_dim}"
            )
        block = RowBlock(
            table=found.table,
            data_type=table.data_type,
            row_start=0,
            row_end=found.num_rows,
            column_start=start,
            column_end=stop,
            offset_bytes=found.offset_bytes,
        )
        for key, expected in (("num_rows", table.num_rows), ("row_bytes", block.row_bytes)):
            if getattr(found, key) != expected:
                raise wrong(at, key, data[key], f"{expected}, as the table says")
        if block.offset_bytes < end or block.offset_bytes % BLOCK_ALIGNMENT_BYTES:
            raise wrong(at, "offset_bytes", block.offset_bytes, f"a multiple of 128 from {end} on")
        end = block.offset_bytes + block.num_bytes
        blocks.append(block)
        digests.append(found.sha256)
    layout = BlobLayout(blocks=tuple(blocks))
    if whole(rows, "size_bytes", "manifest.rows") != layout.num_bytes:
        raise wrong(
            "manifest.rows", "size_bytes", rows["size_bytes"], f"{layout.num_bytes}, as the blocks say"
        )
    has_file = json_field(rows, "path", "manifest.rows") is not None
    return layout, tuple(digests), file_name(rows, "path", "manifest.rows") if has_file else None


def _check_columns(layout: BlobLayout, tables: Mapping[str, StoredTable]) -> None:
    """Check that each table's blocks hold each column once."""
    columns: dict[str, list[tuple[int, int]]] = {name: [] for name in tables}
    for block in layout.blocks:
        columns[block.table].append((block.column_start, block.column_end))
    for name, found in columns.items():
        at = 0
        for start, end in sorted(found):
            if start != at:
                break
            at = end
        if at != tables[name].embedding_dim or sum(end - start for start, end in found) != at:
            raise ManifestError(
                f"manifest.rows.blocks: table {name!r} got columns {sorted(found)}, expected all of its "
                f"{tables[name].embedding_dim} exactly once"
            )


def _check_signature(signature: Signature, tables: Mapping[str, StoredTable]) -> None:
    """Check that inputs use tables of the artifact, with the same number of rows."""
    for i, feature in enumerate(signature.sparse):
        for j, use in enumerate(feature.tables):
            at = f"signature.sparse[{i}].tables[{j}]"
            table = tables.get(use.name)
            if table is None:
                raise ManifestError(
                    f"{at}.name: got {use.name!r}, expected one of the tables {sorted(tables)[:8]}"
                )
            if use.num_embeddings != table.num_embeddings:
                raise ManifestError(
                    f"{at}.num_embeddings: got {use.num_embeddings}, expected {table.num_embeddings}, as the table says"
                )
            if (use.id_policy is IdPolicy.ZERO) != table.zero_row:
                raise ManifestError(
                    f"{at}.id_policy: got {use.id_policy.value}, expected zero where the table stores a row of zeros, "
                    "and nowhere else"
                )
