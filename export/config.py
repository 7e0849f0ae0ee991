"""The options of an export, validated once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from export.options import AUTO, DENSE_DTYPE_NAMES, GRAPH_FORMATS
from recsys.base.hashing import STRING_HASHES
from recsys.configs import DataType
from recsys.errors import ExportError
from recsys.inputs.signature import BATCHES, IdPolicy
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan

#: Stands for every feature in ``ExportConfig.strings``.
ALL_FEATURES = "all"
_AUC_BOUND = 0.0005
_DIFFERENCE_BOUND = 0.01
# Options of forward that are lists of names.
_NAMES_OF_FORWARD = ("float_features", "defaults", "outputs")
DENSE_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DENSE_DTYPE_NAMES}


@dataclass(frozen=True, kw_only=True)
class PlainOptions:
    """What the user says of a plain model.

    Attributes:
        method: The method that predicts, instead of ``forward``.
        inputs: Example inputs: a tensor, a tuple of positional arguments of ``forward``, or a dict of keyword
            arguments; None for those of the factory's module or of the model.
        outputs: The names of the outputs to keep; all if it is empty. Inputs that lead to others alone are left out.
        tables: Names of weights that are tables, whatever reads them.
        dense: Names of those that stay dense.
        padding: By feature whose rows may have fewer IDs than the example's: ``left``, ``right``, ``none``, or
            ``left:ID`` with the ID that stands for none.
    """

    method: str = "forward"
    inputs: Any = None
    outputs: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    padding: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps, for deltas; nothing of what was not said."""
        plain = {"tables": list(self.tables), "dense": list(self.dense), "padding": dict(self.padding)}
        method = {} if self.method == "forward" else {"method": self.method}
        return {**method, **{name: value for name, value in plain.items() if value}}


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """How to export a model.

    Attributes:
        name: The model's name in the artifact and on the wire.
        data_type: The data type of tables for which none is named.
        table_data_types: By table name or path.
        targets: One list of devices for each target.
        plan: The plan of every target that ``target_plans`` does not name; placed by the planner if None.
        target_plans: Plans by target name.
        device_memory_bytes: For rows on each device, for the placement; None for no bound.
        id_policy: The ID policy of tables for which none is named; None for what the model's schema says, else reject.
        table_id_policies: By table name or path.
        dense_dtype: ``float32`` or ``bfloat16``.
        linear_dtype: The type in which linear layers multiply: ``float32``, ``bfloat16`` or ``int8``. The last two need
            targets on the CPU, a program, and loaders with the native kernels. ``auto`` chooses the fastest here whose
            difference to float32 is within a bound.
        auto_bound: The bound of ``auto``: of the difference in AUC with ``auto_data``, else of the largest difference
            of an output; None for 0.0005 and 0.01.
        auto_data: For ``auto``, a table of labelled examples, read by the schema of the model.
        dense_widths: Of dense arguments where several widths fit the model; 0 for one that is ``[B]``.
        features: The features of sparse arguments, in order, where the model's code does not tell: those that no table
            reads, and which of two arguments that are put together holds which.
        same_lengths: Groups of features, by the names that the signature gives them, whose bags have equal lengths, row
            by row, in every request, beside those that the model's code tells.
        float_features: The arguments of ``features`` whose values are float32 numbers; requests send them as weights.
        defaults: The inputs that are left at the defaults that ``forward`` gives them.
        outputs: The names of the outputs to keep; all if it is empty. Outputs within others are named by dots.
        context: The dense and sparse inputs, by the names that the signature gives them, that a ranking request gives
            once for all of its rows; with any, the artifact has a ranking form (``recsys.inputs.signature``).
        strings: For features, by the names that the signature gives them, the hash that turns a text into an ID
            (``recsys.base.hashing.STRING_HASHES``); requests may then give these features' texts. ``all`` stands for
            every feature that is not named.
        separators: For features, by the names that the signature gives them, what stands between the values of lists
            that tables of the training hold as texts.
        submodule: The path of the part of the checkpoint's model that is exported, which deltas take too; empty for the
            whole.
        plain: What the user says of a model of plain PyTorch.
        batch: What a batch is: ``rows`` of any requests, which must not depend on each other; or one ``request``, which
            the servers then never put together with others.
        samples: Requests in JSON, or a table, to verify with. If None, the rows that the checkpoint holds, or random
            ones.
        accept_unproven: Export although all outputs hardly vary over the samples, so that equal ones prove nothing.
        graph_format: How graphs are written beside programs: ``torchscript``, ``pt2`` (ExportedPrograms) or ``both``.
        single_file: Write one TorchScript file instead of a directory.
        overwrite: Replace what is at the destination.
    """

    name: str = "model"
    data_type: DataType = DataType.INT8
    table_data_types: Mapping[str, DataType] = field(default_factory=dict)
    targets: tuple[tuple[str, ...], ...] = (("cpu",),)
    plan: ShardingPlan | None = None
    target_plans: Mapping[str, ShardingPlan] = field(default_factory=dict)
    device_memory_bytes: int | None = None
    id_policy: IdPolicy | None = None
    table_id_policies: Mapping[str, IdPolicy] = field(default_factory=dict)
    dense_dtype: str = "float32"
    linear_dtype: str = "float32"
    auto_bound: float | None = None
    auto_data: Path | None = None
    dense_widths: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    same_lengths: tuple[tuple[str, ...], ...] = ()
    float_features: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    strings: Mapping[str, str] = field(default_factory=dict)
    separators: Mapping[str, str] = field(default_factory=dict)
    submodule: str = ""
    plain: PlainOptions = field(default_factory=PlainOptions)
    batch: str = "rows"
    samples: Path | None = None
    accept_unproven: bool = False
    graph_format: str = "torchscript"
    single_file: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.dense_dtype not in DENSE_DTYPES:
            raise ExportError(f"dense_dtype: got {self.dense_dtype!r}, expected {' or '.join(DENSE_DTYPES)}")
        if self.linear_dtype not in (*LINEAR_DTYPES, AUTO):
            expected = " or ".join((*LINEAR_DTYPES, AUTO))
            raise ExportError(f"linear_dtype: got {self.linear_dtype!r}, expected {expected}")
        for name in ("auto_bound", "auto_data"):
            if getattr(self, name) is not None and self.linear_dtype != AUTO:
                raise ExportError(
                    f"{name}: got it with linear_dtype {self.linear_dtype!r}, expected {AUTO!r}"
                )
        if not 0 <= self.linear_bound < math.inf:
            raise ExportError(f"auto_bound: got {self.linear_bound}, expected a number of at least 0")
        if self.linear_dtype != "float32":
            self._check_linear_dtype()
        for feature, name in self.strings.items():
            if name not in STRING_HASHES:
                raise ExportError(
                    f"strings[{feature!r}]: got {name!r}, expected {' or '.join(STRING_HASHES)}"
                )
        if self.batch not in BATCHES:
            raise ExportError(f"batch: got {self.batch!r}, expected {' or '.join(BATCHES)}")
        self._check_features()
        if not self.targets:
            raise ExportError("targets: got none, expected at least one list of devices")
        names = [target_name(target) for target in self.targets]
        if any("meta" in name.split(",") for name in names):
            raise ExportError("devices: got 'meta', expected cpu or cuda:N")
        if len(set(names)) != len(names):
            raise ExportError(f"targets: got {names}, expected each once")
        unknown = sorted(set(self.target_plans) - set(names))
        if unknown:
            raise ExportError(f"target_plans: got unknown targets {unknown}, expected some of {names}")
        if self.single_file and (len(self.targets) != 1 or set(self.targets[0]) != {"cpu"}):
            raise ExportError(f"single_file: got targets {names}, expected one, of cpu devices")
        if self.single_file and self.context:
            raise ExportError(
                f"single_file: got context {list(self.context)}, expected none: a single file holds one graph, and a "
                "ranking form is a second one; write a directory"
            )

        if self.graph_format not in GRAPH_FORMATS:
            raise ExportError(f"format: got {self.graph_format!r}, expected {' or '.join(GRAPH_FORMATS)}")
        if self.is_exported:
            self._check_exported()

    def _check_features(self) -> None:
        for argument, features in self.features.items():
            if not features or not all(features) or len(set(features)) != len(features):
                raise ExportError(f"features[{argument!r}]: got {list(features)}, expected different names")
        missing = sorted(set(self.float_features) - set(self.features))
        if missing:
            raise ExportError(f"float_features: got {missing}, expected only arguments of features")

    def of_forward(self) -> dict[str, Any]:
        """Return as plain data the options that say what of the model is exported, without those that were not given.

        A manifest holds them: deltas trace the new checkpoint's model as the old one's was.
        """
        plain: dict[str, Any] = {
            "features": {name: list(features) for name, features in self.features.items()},
            "same_lengths": [list(group) for group in self.same_lengths],
            "dense_widths": {
                name: width for name, width in self.dense_widths.items() if self.outputs or width == 0
            },
            **{name: list(getattr(self, name)) for name in _NAMES_OF_FORWARD},
            "submodule": self.submodule,
            "plain": self.plain.to_json(),
        }
        return {name: value for name, value in plain.items() if value}

    @property
    def is_exported(self) -> bool:
        """Whether graphs are written as ExportedPrograms."""
        return self.graph_format != "torchscript"

    @property
    def is_scripted(self) -> bool:
        """Whether graphs are written in TorchScript."""
        return self.graph_format != "pt2"

    def _check_exported(self) -> None:
        elsewhere = [target_name(target) for target in self.targets if set(target) != {"cpu"}]
        if elsewhere:
            raise ExportError(
                f"format: got {self.graph_format!r} for targets {elsewhere}, expected 'torchscript': "
                "ExportedPrograms are made for the CPU only"
            )
        if self.single_file:
            raise ExportError(
                f"format: got {self.graph_format!r} for a single file, expected 'torchscript': it is a TorchScript file"
            )

    @property
    def linear_bound(self) -> float:
        """Return the bound of ``auto``."""
        if self.auto_bound is not None:
            return self.auto_bound
        return _DIFFERENCE_BOUND if self.auto_data is None else _AUC_BOUND

    def _check_linear_dtype(self) -> None:
        elsewhere = [target_name(target) for target in self.targets if set(target) != {"cpu"}]
        if elsewhere:
            raise ExportError(
                f"linear_dtype: got {self.linear_dtype!r} for targets {elsewhere}, expected 'float32': other products "
                "need the native kernels"
            )
        if self.dense_dtype != "float32":
            raise ExportError(
                f"linear_dtype: got {self.linear_dtype!r} with dense_dtype {self.dense_dtype!r}, expected 'float32': "
                "the layers around the products are float32"
            )
        missing = operators.why_missing()
        if missing:
            raise ExportError(f"linear_dtype: got {self.linear_dtype!r}, but {missing}")


def read_of_forward(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest's options as keyword arguments of ``ExportConfig``.

    Raises:
        ExportError: They are not what ``of_forward`` returns.
    """
    read: dict[str, Any] = {}
    for name, value in options.items():
        if name in _NAMES_OF_FORWARD and _are_names(value):
            read[name] = tuple(value)
        elif name == "same_lengths" and isinstance(value, list) and all(map(_are_names, value)):
            read[name] = tuple(map(tuple, value))
        elif name == "submodule" and isinstance(value, str):
            read[name] = value
        elif name == "plain" and isinstance(value, dict) and _are_plain(value):
            read[name] = PlainOptions(
                method=str(value.get("method", "forward")),
                tables=tuple(value.get("tables", ())),
                dense=tuple(value.get("dense", ())),
                padding=value.get("padding", {}),
            )
        elif name == "features" and isinstance(value, dict) and all(map(_are_names, value.values())):
            read[name] = {argument: tuple(features) for argument, features in value.items()}
        elif (
            name == "dense_widths" and isinstance(value, dict) and all(type(w) is int for w in value.values())
        ):
            read[name] = value
        else:
            raise ExportError(
                f"manifest.options.{name[:80]}: got {str(value)[:80]!r}, expected an option as this release writes it; "
                "make the delta with the release that made the artifact"
            )
    return read


def _are_plain(value: Mapping[str, Any]) -> bool:
    padding = value.get("padding", {})
    return (
        isinstance(padding, dict)
        and all(_are_names(value.get(name, [])) for name in ("tables", "dense"))
        and (all(isinstance(one, str) for one in padding.values()))
    )


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def target_name(devices: tuple[str, ...]) -> str:
    """Return a target's name: its devices."""
    return ",".join(str(device) for device in ShardingEnv.over_devices(devices).devices)
