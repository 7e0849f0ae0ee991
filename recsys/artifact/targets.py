"""The targets of a manifest: their graphs, by format, and the devices that they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any

import torch

from recsys.base.json_checks import a_list, json_field, mapping, one_of, read_record, text, whole, wrong
from recsys.configs import BaseEmbeddingConfig
from recsys.errors import ManifestError, PlanError
from recsys.inputs.signature import Signature
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import StoredTable
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan, check_plan

#: The skeleton of a single file, which is the TorchScript file itself.
SINGLE_FILE = "self"
#: Types of dense weights, by their names.
DENSE_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """A tensor without its numbers; ``dtype`` is torch's name, such as ``float32``."""

    dtype: str
    shape: tuple[int, ...]


def file_name(data: Any, key: str, at: str) -> str:
    """Return a plain file name: a manifest must not point outside its directory.

    Raises:
        ManifestError: It is another text. All functions here raise this error.
    """
    value = text(data, key, at)
    if PurePosixPath(value).name != value or value in (".", "..") or "\\" in value or "\0" in value:
        raise wrong(at, key, value, "a plain file name")
    # A lone surrogate has no bytes; 255 is the longest name that Linux file systems take.
    if len(value.encode("utf-8", "surrogatepass")) > 255 or value != value.encode("utf-8", "ignore").decode():
        raise wrong(at, key, value, "a file name of at most 255 bytes of UTF-8")
    return value


def _script(data: Any, key: str, at: str) -> str | None:
    """Return the part of a graph in TorchScript; null is for graphs that are exported in its place."""
    has_others = isinstance(data, dict) and "exported" in data
    return None if has_others and json_field(data, key, at) is None else file_name(data, key, at)


def _ranks(data: Any, key: str, at: str) -> dict[str, int]:
    found = mapping(data, key, at)
    for path in found:
        whole(found, path, f"{at}.{key}")
    return found


@dataclass(frozen=True, kw_only=True)
class RankingGraph:
    """A target's second graph, ``forward_ranking`` (see ``recsys.inputs.signature``), over the same stored rows.

    Attributes:
        skeleton: The part that holds it; None without TorchScript.
        rows: As in the target.
        ranks: As in the target.
        exported: As in the target.
        program: As in the target.
    """

    skeleton: Annotated[str | None, _script]
    rows: Annotated[Mapping[str, int], _ranks]
    ranks: Annotated[Mapping[str, int], _ranks]
    program: Annotated[str | None, file_name] = None
    exported: Annotated[str | None, file_name] = None


def _ranking(data: Any, key: str, at: str) -> RankingGraph | None:
    return None if data[key] is None else read_record(RankingGraph, _renamed(data[key]), f"{at}.{key}")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The model for one list of devices.

    Attributes:
        name: The devices, joined by commas.
        devices: The device of each rank; the first runs the dense layers.
        plan: The shards, and the rank of each.
        skeleton: The part that holds the graph in TorchScript and the dense weights; None without it.
        rows: For each buffer of the skeleton that takes rows, its attribute path and its rank.
        ranks: For each tensor of the skeleton that does not stay in host memory, its path and rank.
        dense_dtype: The dtype of the dense layers and the lookups' output.
        ranking: The ranking form; present if and only if the signature has a context.
        linear_dtype: The type in which linear layers multiply: ``float32``, or ``bfloat16`` or ``int8``, for which
            loaders need a program and the native kernels (``recsys.kernels.operators``).
        exported: The part that holds the graph as an ExportedProgram (``recsys.artifact.exported``); None without. Its
            inputs are those of the TorchScript graph, but lengths are ``[F, B]``, and the rows are the last; its
            outputs are a tuple in the signature's order.
        program: The part that holds the graph as a program (``export.lower``), which loaders run where the kernels are
            built; None for a graph that does more than its steps.
    """

    name: str
    devices: tuple[str, ...]
    plan: ShardingPlan
    skeleton: Annotated[str | None, _script]
    rows: Annotated[Mapping[str, int], _ranks]
    ranks: Annotated[Mapping[str, int], _ranks]
    program: Annotated[str | None, file_name] = None
    exported: Annotated[str | None, file_name] = None
    dense_dtype: Annotated[str, one_of(("float32", "bfloat16"))]
    linear_dtype: Annotated[str, one_of(LINEAR_DTYPES)] = "float32"
    ranking: Annotated[RankingGraph | None, _ranking] = None

    @cached_property
    def env(self) -> ShardingEnv:
        """The devices; this machine may lack some."""
        return ShardingEnv.over_devices(self.devices)

    @property
    def graphs(self) -> list[Target | RankingGraph]:
        """The plain form, and the ranking form if there is one."""
        return [self] if self.ranking is None else [self, self.ranking]

    @property
    def parts(self) -> set[str]:
        """The parts that hold its graphs."""
        formats = [(graph.skeleton, graph.program, graph.exported) for graph in self.graphs]
        return {part for parts in formats for part in parts if part is not None}


def target_from_json(data: Any, at: str) -> Target:
    """Return a target.

    Raises:
        ManifestError: A field is wrong.
        PlanError: The plan is wrong.
    """
    data = _renamed(data)
    devices = tuple(str(device) for _, device in a_list(data, "devices", at))
    target = read_record(Target, data, at, devices=devices)
    _check_devices(target, at)
    world_size = target.env.world_size
    if any(rank >= world_size for rank in target.plan.ranks()):
        raise wrong(at, "plan", sorted(target.plan.ranks()), f"ranks below {world_size}")
    if target.exported is not None and any(device != "cpu" for device in devices):
        raise ManifestError(
            f"{at}.exported: got a graph for {target.name!r}, expected none: only cpu has them"
        )
    for graph in target.graphs:
        place = at if graph is target else f"{at}.ranking"
        for key in ("rows", "ranks"):
            for path, rank in getattr(graph, key).items():
                if rank >= world_size:
                    raise wrong(f"{place}.{key}", path, rank, f"a rank below {world_size}")
    if len({(graph.skeleton is None, graph.exported is None) for graph in target.graphs}) > 1:
        raise ManifestError(f"{at}.ranking: got other graph formats than the plain form's, expected the same")
    return target


def _renamed(graph: Any) -> Any:
    """Return a graph's fields as this release writes them.

    Earlier ones wrote ``compiled``: a package, which nothing loads any more, beside an ExportedProgram and perhaps a
    program. Where there is TorchScript, that runs.
    """
    compiled = graph.get("compiled") if isinstance(graph, dict) else None
    if not isinstance(compiled, dict):
        return graph
    names = {"exported": "exported"} | ({"operators": "program"} if graph.get("skeleton") is None else {})
    return {new: compiled[old] for old, new in names.items() if old in compiled} | graph


def check_ranking(signature: Signature, has_ranking: Sequence[bool], is_single_file: bool) -> None:
    """Check that targets have a ranking form if, and only if, the signature names a context.

    Args:
        signature: The signature of the model.
        has_ranking: For each target, whether it has a ranking form.
        is_single_file: A single file holds one graph.

    Raises:
        ManifestError: A target has one too many, or lacks one.
    """
    if signature.context and is_single_file:
        raise ManifestError(
            "signature.context: got inputs in a single file, expected none: it holds one graph"
        )
    for i, has in enumerate(has_ranking):
        if has != bool(signature.context):
            expected = "a graph, because signature.context names inputs" if signature.context else "null"
            raise ManifestError(
                f"manifest.targets[{i}].ranking: got {'a graph' if has else 'none'}, expected {expected}"
            )


def _check_devices(target: Target, at: str) -> None:
    """Check that a target's name is its devices, and that their kind is supported."""
    if any(device.type == "meta" for device in target.env.devices):
        raise ManifestError(f"{at}.devices: got 'meta', expected cpu or cuda:N")
    expected = ",".join(str(device) for device in target.env.devices)
    if target.name != expected:
        raise ManifestError(f"{at}.name: got {target.name!r}, expected its devices, {expected!r}")


def check_target_plan(
    plan: ShardingPlan, world_size: int, tables: Mapping[str, StoredTable], layout: BlobLayout, at: str
) -> None:
    """Check that a target's plan places every table, in shards of whole column blocks.

    Raises:
        ManifestError: It does not.
    """
    paths = {(path, name): table_path(path, name) for path, group in plan.plan.items() for name in group}
    named = set(paths.values())
    if named != set(tables):
        missing, unknown = sorted(set(tables) - named), sorted(named - set(tables))
        raise ManifestError(f"{at}.plan: missing tables {missing[:8]}, unknown tables {unknown[:8]}")
    cuts = {(block.table, block.column_start, block.column_end) for block in layout.blocks}
    for path, group in plan.plan.items():
        configs = []
        for name in group:
            table = tables[paths[path, name]]
            configs.append(
                BaseEmbeddingConfig(
                    name=name, num_embeddings=table.num_embeddings, embedding_dim=table.embedding_dim
                )
            )
        try:
            check_plan(configs, group, world_size)
        except PlanError as error:
            raise ManifestError(f"{at}.{error}") from None
        for name, sharding in group.items():
            for shard in sharding.shards:
                if (paths[path, name], *shard.columns) not in cuts:
                    raise ManifestError(
                        f"{at}.plan: table {name!r} got a shard of columns {shard.columns}, expected those of a block"
                    )
