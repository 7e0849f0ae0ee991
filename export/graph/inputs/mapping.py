"""The arguments of a model's ``forward``: which are dense, which are sparse, and which collections look them up.

What the model's schema says of its inputs is added to them, unless the user says otherwise: that is the signature.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from torch import nn

from export.config import ALL_FEATURES, ExportConfig
from export.graph.inputs.equal_lengths import equal_lengths
from export.graph.inputs.features import Declared, discover
from export.graph.inputs.forward import StandIn, arguments
from export.graph.inputs.pruning import reached_inputs
from export.plain.model import PlainModel
from export.tables import StoredModel
from recsys.configs import EmbeddingBagConfig
from recsys.errors import ExportError
from recsys.inputs.columns import HASHED_KINDS
from recsys.inputs.crosses import crossed_features
from recsys.inputs.example_rows import example_rows_of
from recsys.inputs.schema import Schema
from recsys.inputs.signature import DenseInput, IdPolicy, Signature, SparseInput, TableUse, value_of
from recsys.sharding.sharded import ShardedCollection


@dataclass(kw_only=True)
class InputMapping:
    """The mapping of the exported inputs to a model's arguments.

    Attributes:
        dense: For each dense argument its width.
        sparse: For each KeyedJaggedTensor argument its features, in the wire's order.
        collections: For each collection, by path, the sparse arguments whose features it looks up.
        computed: For each collection that has such, the features whose IDs or weights the model computes.
        weighted: The sparse arguments that carry weights.
        given_weights: The collections whose weights are given, and not computed by the model.
        floats: The sparse arguments whose values are the weights of their inputs, float32.
        read_weights: For each argument the features whose weights, or float values, the model itself reads.
        unread: Arguments that the model's code does not use.
        absent: Arguments that requests do not give: none of the chosen outputs descends from them, or others that they
            are put together with hold all features.
        same_lengths: Groups of features, each with its argument, whose bags must have equal lengths, row by row.
        are_chosen: Whether the outputs are some of the model's.
        casts_outputs: Whether the model returns other dtypes than float32.
        integers: The outputs that hold integers or bools.
    """

    dense: dict[str, int] = field(default_factory=dict)
    sparse: dict[str, list[str]] = field(default_factory=dict)
    collections: dict[str, list[str]] = field(default_factory=dict)
    computed: dict[str, set[str]] = field(default_factory=dict)
    weighted: set[str] = field(default_factory=set)
    given_weights: set[str] = field(default_factory=set)
    floats: set[str] = field(default_factory=set)
    read_weights: dict[str, set[str]] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    absent: dict[str, StandIn] = field(default_factory=dict)
    same_lengths: list[list[tuple[str, str]]] = field(default_factory=list)
    are_chosen: bool = False
    casts_outputs: bool = False
    integers: frozenset[str] = frozenset()

    @property
    def has_weights(self) -> bool:
        """Whether requests carry weights, or float values, beside IDs."""
        return bool(self.weighted or self.floats)

    def wire_name(self, argument: str, feature: str) -> str:
        """Return a feature's wire name; prefixed with the argument if two arguments have the feature."""
        holders = [name for name, features in self.sparse.items() if feature in features]
        return feature if len(holders) == 1 else f"{argument}.{feature}"

    def part(self, names: Collection[str]) -> InputMapping:
        """Return the input_mapping restricted to sparse features with these wire names."""
        kept = {
            argument: [feature for feature in features if self.wire_name(argument, feature) in names]
            for argument, features in self.sparse.items()
        }
        return replace(self, sparse={argument: features for argument, features in kept.items() if features})

    @property
    def wire_names(self) -> list[str]:
        """The sparse features as the signature names them, in its order."""
        return [self.wire_name(name, f) for name, features in self.sparse.items() for f in features]


class UnreadTablesError(ExportError):
    """Collections in which ``forward`` looks nothing up.

    Args:
        message: What to say.
        paths: The collections' paths.
    """

    def __init__(self, message: str, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.paths = paths


def map_inputs(
    model: nn.Module,
    sharded: Mapping[str, ShardedCollection],
    weighted: Collection[str],
    declared: Declared,
) -> InputMapping:
    """Determine the use of a model's arguments by tracing it.

    Args:
        model: The float model.
        sharded: Its collections by path, sharded and without rows.
        weighted: Those whose lookups take weights.
        declared: What the user says of arguments.

    Raises:
        ExportError: The model cannot be traced, or an argument's use cannot be determined.
    """
    dense, sparse = arguments(model)
    _check_names("features", declared.features, sparse)
    _check_names("dense_widths", declared.dense_widths, dense)
    found = discover(model, (dense, sparse), sharded, weighted, declared)
    unread = {name for name in dense if name not in found.dense}
    input_mapping = InputMapping(unread=unread, are_chosen=declared.are_chosen)
    absent = {*found.empty} | ({*dense, *sparse} - reached_inputs(found) if declared.are_chosen else set())
    unread_tables = [path for path in sharded if path not in found.reached]
    if unread_tables:
        raise UnreadTablesError(
            f"collection {unread_tables[0]!r}: no KeyedJaggedTensor argument of forward reaches it",
            unread_tables,
        )
    for path in sharded:
        input_mapping.collections[path] = sorted(found.reached[path] - absent, key=sparse.index)
        if found.computed[path] or path in found.weighing:
            input_mapping.computed[path] = found.computed[path]
        if path in weighted and path not in found.weighing:
            input_mapping.weighted |= set(input_mapping.collections[path])
            input_mapping.given_weights.add(path)
    for name in sparse:
        features = list(declared.features.get(name, ())) or found.features[name]
        if name in absent:
            group = found.empty.get(name, {name})
            is_weighted = any(group & found.reached[path] for path in sharded if path in weighted)
            input_mapping.absent[name] = StandIn(features=features, is_weighted=is_weighted)
            continue
        if not features:
            input_mapping.unread.add(name)
            continue
        input_mapping.sparse[name] = features
        if name in declared.floats:
            input_mapping.floats.add(name)
            input_mapping.read_weights[name] = set(features)
        elif found.weighted[name]:
            input_mapping.weighted.add(name)
            input_mapping.read_weights[name] = found.weighted[name]
    _check_read(input_mapping, sparse, declared)
    input_mapping.same_lengths = equal_lengths(found)
    unknown = []
    for name in dense:
        if name in input_mapping.unread and name in declared.optional:
            continue
        width = found.widths.get(name)
        if name in absent:
            input_mapping.absent[name] = StandIn(width=width or 1)
        elif width is None:
            unknown.append(name)
        else:
            input_mapping.dense[name] = width
    if unknown:
        its, take = ("their widths", "take them") if len(unknown) > 1 else ("its width", "take it")
        raise ExportError(
            f"forward({', '.join(unknown)}): cannot tell {its} from the layers that {take}, expected "
            f"{' '.join(f'--dense-width {name}=N' for name in unknown)}, with 0 for one that forward takes as [B]"
        )
    return input_mapping


def _check_read(input_mapping: InputMapping, sparse: Sequence[str], declared: Declared) -> None:
    unused = [name for name in sparse if name in input_mapping.unread and name not in declared.optional]
    if unused:
        raise ExportError(
            f"forward({', '.join(unused)}): no collection looks these up, and forward reads none of their features by "
            f"name; expected --features {unused[0]}=F1,F2 where it reads them as a whole"
        )


def _check_names(field_name: str, given: Collection[str], expected: Collection[str]) -> None:
    unknown = sorted(set(given) - set(expected))
    if unknown:
        raise ExportError(f"{field_name}: got unknown arguments {unknown}, expected some of {list(expected)}")


def signature_of(
    model: nn.Module,
    original: nn.Module,
    input_mapping: InputMapping,
    stored: StoredModel,
    config: ExportConfig,
) -> Signature:
    """Return the signature without its outputs, which a run of the float model tells.

    Args:
        model: The model whose arguments were mapped.
        original: The user's.
        input_mapping: The use of its arguments.
        stored: Its tables.
        config: What the user says of inputs.

    Raises:
        ExportError: The user names an input that there is not, or texts where a table takes no hashes.
    """
    sparse = _with_texts(_sparse_inputs(input_mapping, stored, config), config)
    return Signature(
        dense=_dense_inputs(input_mapping, model),
        sparse=_with_sizes(sparse, original),
        outputs=(),
        context=_context(input_mapping, config.context),
        by_request=config.batch == "request",
    )


def _sparse_inputs(
    input_mapping: InputMapping, stored: StoredModel, config: ExportConfig
) -> tuple[SparseInput, ...]:
    """Return the sparse inputs, argument by argument, with the equal lengths that the user tells.

    Raises:
        ExportError: A name is not an input.
    """
    unknown = sorted({name for group in config.same_lengths for name in group} - {*input_mapping.wire_names})
    if unknown:
        raise ExportError(
            f"features: got equal lengths of {unknown}, expected some of {input_mapping.wire_names[:20]}"
        )
    found = []
    for argument, features in input_mapping.sparse.items():
        for feature in features:
            uses, pooling = [], "none"
            weighted = feature in input_mapping.read_weights.get(argument, ())
            for path, tables in stored.tables.items():
                if argument not in input_mapping.collections[path] or feature in input_mapping.computed.get(
                    path, ()
                ):
                    continue
                for table in tables:
                    if feature in table.feature_names:
                        name = stored.paths[path][table.name]
                        weighted |= path in input_mapping.given_weights
                        uses.append(
                            TableUse(
                                name=name,
                                num_embeddings=table.num_embeddings,
                                id_policy=stored.policies.get(name, IdPolicy.REJECT),
                            )
                        )
                        if isinstance(table, EmbeddingBagConfig):
                            pooling = table.pooling.value.lower()
            found.append(
                SparseInput(
                    name=input_mapping.wire_name(argument, feature),
                    tables=tuple(uses),
                    pooling=pooling,
                    weighted=weighted,
                )
            )
    return _with_same_lengths(found, [*_named_groups(input_mapping), *config.same_lengths])


def _named_groups(input_mapping: InputMapping) -> list[list[str]]:
    """Return the groups of features with equal lengths by their wire names."""
    return [
        [
            input_mapping.wire_name(argument, feature)
            for argument, feature in group
            if feature in input_mapping.sparse.get(argument, ())
        ]
        for group in input_mapping.same_lengths
    ]


def _with_same_lengths(
    inputs: Sequence[SparseInput], groups: Iterable[Collection[str]]
) -> tuple[SparseInput, ...]:
    """Return inputs of which each in a group has the lengths of the first in it, beside what they have already."""
    first_of = {use.name: use.same_lengths_as or use.name for use in inputs}
    for group in groups:
        united = {first_of[name] for name in group}
        named = [use.name for use in inputs if first_of[use.name] in united]
        first_of.update(dict.fromkeys(named, "".join(named[:1])))
    return tuple(
        replace(use, same_lengths_as="" if first_of[use.name] == use.name else first_of[use.name])
        for use in inputs
    )


def _dense_inputs(input_mapping: InputMapping, model: nn.Module) -> tuple[DenseInput, ...]:
    """Return the dense inputs, with the schema's columns, and whether the model fills missing numbers."""
    inputs = tuple(DenseInput(name=name, width=width) for name, width in input_mapping.dense.items())
    schema = schema_of(model)
    if schema is None:
        return inputs
    fills = not all(column.is_plain for column in schema.dense)
    starts = accumulate((one.width for one in inputs), initial=0)
    return tuple(
        replace(one, missing=fills, columns=schema.dense_names[start : start + one.width])
        for one, start in zip(inputs, starts, strict=False)
    )


def schema_of(model: nn.Module) -> Schema | None:
    """Return the schema that a model has as its attribute ``inputs``; None without one."""
    found = getattr(model, "inputs", None)
    return found if isinstance(found, Schema) else None


def with_inputs_of(model: nn.Module, config: ExportConfig) -> ExportConfig:
    """Return the options with what the model's schema says where the user gave none.

    What training did to IDs, serving does: a table that hashed its IDs takes any ID, and columns of texts are
    sent as texts. ``dense_widths`` of the model are its dense arguments' widths.
    """
    widths = {**getattr(model, "dense_widths", {}), **config.dense_widths}
    config = replace(config, dense_widths=widths)
    schema = schema_of(model)
    if schema is None:
        return config
    strings = {
        name: table.strings for table in schema.tables if table.strings for name in table.feature_names
    }
    hashed = {table.name: IdPolicy(table.ids) for table in schema.tables if table.is_hashed}
    # Options name tables by name or by path.
    by_name = {path.rpartition(".")[2]: policy for path, policy in config.table_id_policies.items()}
    for name, policy in hashed.items():
        given = by_name.get(name.rpartition(".")[2], config.id_policy)
        if given is not None and given is not policy and given.value in HASHED_KINDS:
            raise ExportError(
                f"id_policy: got {given.value!r} for table {name!r}, expected {policy.value!r}: training hashed its "
                "IDs by it, and by another they read rows of others; leave the option out"
            )
    policies = hashed if config.id_policy is None else {}
    # The model gives rows of crossed features, or what their tables must refuse.
    policies |= {cross.name: IdPolicy.REJECT for cross in schema.crosses}
    return replace(
        config,
        strings={**strings, **config.strings},
        separators={
            name: table.separator
            for table in schema.tables
            if table.separator
            for name in table.feature_names
            if not _quotes_separators(model, name, table.separator)
        },
        table_id_policies={**policies, **config.table_id_policies},
    )


def _quotes_separators(model: nn.Module, feature: str, separator: str) -> bool:
    """Return whether values of a feature in the training's table look like lists, as those within quotes may.

    Requests send such values too, so that a list as one text cannot be told from them.
    """
    held = example_rows_of(model)
    bags = [] if held is None else held.sparse.get(feature, [])
    texts = (value for bag in bags for value in bag if isinstance(value, str))
    return any(value_of(text.encode(), separator) is None for text in texts)


def _context(input_mapping: InputMapping, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs of the context in the signature's order.

    Raises:
        ExportError: A name is not an input.
    """
    inputs = [*input_mapping.dense, *input_mapping.wire_names]
    unknown = sorted(set(wanted) - set(inputs))
    if unknown:
        raise ExportError(f"context: got unknown inputs {unknown}, expected some of {inputs[:20]}")
    return tuple(name for name in inputs if name in wanted)


def _with_sizes(inputs: Sequence[SparseInput], model: nn.Module) -> tuple[SparseInput, ...]:
    """Return the inputs with the numbers of IDs that the model takes.

    A plain model's (``export.plain``) takes as many as its example has; a model that crosses a feature takes one, or
    none.
    """
    sizes: Mapping[str, int] = model.num_ids if isinstance(model, PlainModel) else {}
    schema = schema_of(model)
    crossed = crossed_features(schema.crosses if schema else ())
    return tuple(
        replace(
            feature,
            num_ids=1 if feature.name in crossed else sizes.get(feature.name),
            fixed=feature.name in sizes,
            max_ids=1 if feature.name in crossed else None,
        )
        for feature in inputs
    )


def _with_texts(inputs: Sequence[SparseInput], config: ExportConfig) -> tuple[SparseInput, ...]:
    """Return the inputs with the hashes of their texts and the separators of their lists.

    Raises:
        ExportError: A name is not an input, or a table of a hashed input takes no IDs beyond its rows.
    """
    names, strings = [feature.name for feature in inputs], config.strings
    unknown = sorted(set(strings) - {*names, ALL_FEATURES})
    if unknown:
        raise ExportError(
            f"strings: got unknown features {unknown}, expected {ALL_FEATURES} or some of {names[:20]}"
        )
    hashed = [
        replace(
            feature,
            strings=strings.get(feature.name, strings.get(ALL_FEATURES, "")),
            separator=config.separators.get(feature.name, ""),
        )
        for feature in inputs
    ]
    for feature in hashed:
        for table in feature.tables if feature.strings else ():
            if table.id_policy in (IdPolicy.REJECT, IdPolicy.ZERO):
                raise ExportError(
                    f"strings[{feature.name!r}]: got {feature.strings!r}, but table {table.name!r} has the ID policy "
                    f"{table.id_policy.value}, expected hash, fmix64 or a managed table: hardly any hash is a row"
                )
    return tuple(hashed)
