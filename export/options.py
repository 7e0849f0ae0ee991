"""The options of recsys-export."""

from __future__ import annotations

from recsys.base.hashing import STRING_HASHES
from recsys.data_type import LINEAR_DTYPES, DataType
from recsys.inputs.signature import BATCHES, IdPolicy
from recsys.options.kinds import (
    ADDRESS,
    COUNT,
    NAMES,
    PATH,
    SIZE,
    SWITCH,
    TEXT,
    Kind,
    number,
    one_of,
    text_like,
)
from recsys.options.table import Command, Group, Option, json_option

#: How graphs are written.
GRAPH_FORMATS = ("torchscript", "pt2", "both")
#: Types of the dense layers, by torch's names.
DENSE_DTYPE_NAMES = ("float32", "bfloat16")
#: The type of linear layers that stands for the fastest within a bound.
AUTO = "auto"

_EPILOG = """\
examples:
  recsys-export model.pt                                     INT8, one cpu target, into model.artifact/
  recsys-export model.pt --target cpu,cpu --target cuda:0   two targets that share their rows
  recsys-export model.pt --table-dtype user=int4 --id-policy hash
  recsys-export state.pt --factory mypackage.models:make_ranker --factory-args '{"dim": 64}'
  recsys-export state.pt --factory mypackage.models:make     of plain PyTorch, with example_inputs beside make
  recsys-export run/                                         the newest checkpoint of a training run on many ranks
  recsys-export checkpoint/ --factory mypackage.models:make  what torch.distributed.checkpoint wrote
  recsys-export rank0.pt rank1.pt --factory mypackage.models:make   the state dicts that each rank saved
  recsys-export towers.pt --top-k 100 --items vectors.parquet     the best items for a user, out of those of the file
  recsys-export model.pt --linear-dtype auto --auto-data clicks.csv   the fastest linear layers that keep the AUC
  recsys-export --delta old.pt new.pt --artifact old.artifact     what changed, into new.delta, for the artifact
  recsys-export --push-rows redis://10.0.0.7:6379 new.artifact    the rows of its large tables, for recsys-serve --rows
  recsys-export --compact deltas/ --out chain.delta               one delta instead of many

exit codes: 0 written, 1 the model or its file cannot be exported so, 2 bad usage
"""
ROW_TYPES = {t.value.lower(): t for t in DataType if t is not DataType.BF16}
#: Behind an argument of --features whose values are numbers.
FLOAT = ":float"
#: Between features of --features whose bags have equal lengths.
EQUAL = "+"
POLICIES = {p.value: p for p in IdPolicy if p is not IdPolicy.MAPPED}


def _repeated(name: str, kind: Kind, about: str, *, old: tuple[str, ...] = ()) -> Option:
    return Option(name, kind, about, repeated=True, default=[], old=old)


_RESULT = (
    Option(
        "checkpoint",
        PATH,
        "what recsys-train wrote; with --factory a state dict, a directory of torch.distributed.checkpoint, "
        "or the files of all ranks",
        required=True,
        repeated=True,
    ),
    Option(
        "--out",
        ADDRESS,
        "the artifact, or its address in an object store, such as s3://bucket/models/ranker/4 (default: the "
        "checkpoint's name with .artifact)",
    ),
    Option(
        "--name",
        TEXT,
        "the model's name on the wire (default: NAME of --out NAME.artifact, else the checkpoint's)",
        metavar="NAME",
    ),
    Option("--force", SWITCH, "replace an artifact that is there"),
    Option("--single-file", SWITCH, "one TorchScript file for torch::jit::load"),
    Option(
        "--explain",
        SWITCH,
        "only tell what the export would make of a model: tables, inputs and what stands in the way; instead of a "
        "checkpoint MODULE:FUNCTION or FILE.py:FUNCTION may be given",
    ),
    json_option("print the report as one JSON object and nothing else"),
)
_GRAPHS = (
    Option(
        "--format",
        one_of(list(GRAPH_FORMATS)),
        "how graphs are written beside programs: torchscript, pt2 (as ExportedPrograms) or both",
        default="torchscript",
        dest="graph_format",
    ),
)
_TABLES = (
    Option("--dtype", one_of(list(ROW_TYPES)), "row type of every table", default="int8"),
    _repeated("--table-dtype", text_like("user=int4", "TABLE=TYPE"), "of one table"),
    _repeated(
        "--id-policy",
        text_like("user=hash", "[TABLE=]POLICY"),
        "IDs out of range: reject (default), hash (modulo rows) or zero (a zero row); or fmix64: all IDs mixed, "
        "then modulo rows (default: as the training, by the checkpoint's schema)",
    ),
)
_DEVICES = (
    _repeated(
        "--target",
        text_like("cpu,cpu", "D,D,..."),
        "a target, by its devices, such as cpu,cpu; repeatable (default: cpu)",
        old=("--devices",),
    ),
    _repeated(
        "--plan",
        text_like("cpu,cpu=plan.json", "[TARGET=]FILE"),
        "a sharding plan in JSON, for one target (such as cpu,cpu=plan.json) or for all",
    ),
    Option("--device-memory", SIZE, "for rows on each device, such as 16GB"),
)
_DENSE = (
    Option("--dense-dtype", one_of(list(DENSE_DTYPE_NAMES)), "of the dense layers", default="float32"),
    Option(
        "--linear-dtype",
        one_of([*LINEAR_DTYPES, AUTO]),
        "in which linear layers multiply, on the CPU; all but float32 need what make native builds; auto: the "
        "fastest here that is close enough to float32",
        default="float32",
    ),
    Option("--auto-data", PATH, "labelled examples, by whose AUC auto judges", metavar="TABLE"),
    Option(
        "--auto-bound",
        number(above=0),
        "of auto: difference in AUC (default: 0.0005), or without data the largest of an output (default: 0.01)",
    ),
    _repeated(
        "--dense-width",
        text_like("dense=13", "NAME=N"),
        "width of a dense argument; 0 where forward takes it as [B]",
    ),
)
_REQUESTS = (
    _repeated(
        "--strings",
        text_like("site_id", "FEATURE[=HASH]"),
        "requests may give this feature's texts, which the server hashes to IDs (all: every feature's; "
        f"default hash: {STRING_HASHES[0]}); repeatable",
    ),
    Option(
        "--batch",
        one_of(list(BATCHES)),
        "what a batch is: rows of any requests, which must not depend on each other, or one request, "
        "which the servers then never put together with others",
        default="rows",
    ),
    _repeated(
        "--features",
        text_like("kjt=user,item", "ARGUMENT[:float]=F1,F2+F3"),
        "the features of a KeyedJaggedTensor argument, where the model's code does not tell; F2+F3 have equal "
        "numbers of IDs in every row; with :float their values are numbers, which requests send as weights; repeatable",
    ),
    _repeated(
        "--default",
        text_like("mask", "NAME"),
        "an input that is left at the default that forward gives it; repeatable",
    ),
    _repeated(
        "--outputs",
        NAMES,
        "the outputs to keep (default: all); those within another are named output_1.0, other.key",
    ),
)
_RANKING = (
    _repeated(
        "--context",
        NAMES,
        "inputs that a ranking request gives once for all of its rows, such as the user's",
    ),
)
_RETRIEVAL = (
    Option(
        "--top-k",
        COUNT,
        "of two towers, answer a user's features with the K items that score best and their scores",
        metavar="K",
    ),
    Option(
        "--items",
        PATH,
        "with --top-k: the items' vectors, as recsys-data item-vectors writes them; answers give their rows",
    ),
)
_MODEL = (
    Option(
        "--factory",
        TEXT,
        "a factory of yours, for a plain state dict",
        metavar="MODULE:FUNCTION",
        old=("--model",),
    ),
    Option("--factory-args", TEXT, "the factory's keyword arguments", metavar="JSON", old=("--model-args",)),
    Option(
        "--submodule",
        TEXT,
        "export this part of the model, such as a tower, or the model within one that computes a loss",
        metavar="PATH",
        default="",
    ),
    Option(
        "--unsafe-pickle",
        SWITCH,
        "the checkpoint is a pickled module: loading it RUNS ANY CODE that the file holds",
    ),
    Option(
        "--samples",
        PATH,
        "rows to verify with: requests in JSON, one a line, or a CSV or Parquet table (default: the held-out "
        "rows that recsys-train keeps in the checkpoint, else random ones)",
        metavar="PATH",
    ),
    Option(
        "--accept-unproven",
        SWITCH,
        "export a model whose outputs hardly vary over these rows: equal outputs prove nothing then",
    ),
)
_PLAIN = (
    Option(
        "--inputs",
        PATH,
        "example inputs, a tensor or a tuple or dict of tensors as torch.save writes it (default: example_inputs of "
        "the factory's module)",
    ),
    Option("--method", TEXT, "the method that predicts", metavar="NAME", default="forward"),
    _repeated("--tables", NAMES, "weights that are tables, although they would stay dense"),
    _repeated("--dense", NAMES, "weights that stay dense, although they would be tables"),
    _repeated(
        "--padding",
        text_like("history=left:0", "FEATURE=SIDE[:ID]"),
        "where rows may have fewer IDs than the example's: on the left or right, and the ID that stands for none; or "
        "none (default: as the example shows it)",
    ),
)
_DELTAS = (
    Option(
        "--delta",
        SWITCH,
        "write the rows that differ between two checkpoints, OLD NEW, for the artifact of the old one",
    ),
    Option("--artifact", PATH, "the artifact (default: the old checkpoint's name with .artifact)"),
    Option(
        "--after",
        PATH,
        "a delta that was made for the artifact before, whose new checkpoint is now the old one; repeatable, in "
        "order",
        metavar="DELTA",
        repeated=True,
        default=[],
    ),
    Option("--tables-only", SWITCH, "where dense weights differ too, leave them as they are"),
    Option(
        "--check-all",
        SWITCH,
        "compare every row of the old checkpoint with the artifact, not only those that changed and some others",
    ),
    Option(
        "--compact",
        SWITCH,
        "write one delta for a chain: name its files, or one folder that holds them, instead of checkpoints",
    ),
)
_PUSH = (
    Option(
        "--push-rows",
        TEXT,
        "write the rows of large tables to Redis or Valkey nodes, which recsys-serve --rows reads: name an artifact's "
        "folder, or a delta of it, instead of a checkpoint; goes on where it was interrupted",
        metavar="redis://HOST:PORT,...",
    ),
    Option(
        "--rows-over-bytes",
        SIZE,
        "tables with more bytes of rows are written (default: 1GiB)",
        default=1 << 30,
    ),
    Option(
        "--check-rows",
        SWITCH,
        "write nothing: read an artifact's rows back from the nodes, and compare them with its SHA-256",
    ),
)
COMMAND = Command(
    program="recsys-export",
    section="export",
    about="Quantize, shard, trace and script a trained model; verify it; write an artifact.",
    epilog=_EPILOG,
    groups=(
        Group("", _RESULT),
        Group("graphs", _GRAPHS),
        Group("tables", _TABLES),
        Group("devices", _DEVICES),
        Group("dense layers", _DENSE),
        Group("requests", _REQUESTS),
        Group("ranking", _RANKING),
        Group("retrieval", _RETRIEVAL),
        Group("model", _MODEL),
        Group("plain PyTorch", _PLAIN),
        Group("deltas", _DELTAS),
        Group("rows outside the servers", _PUSH),
    ),
)
parse = COMMAND.parse
