"""The options of recsys-export."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from export.choices import AUTO, DENSE_DTYPE_NAMES, GRAPH_FORMATS
from recsys.base.cli import Parser, add_program_options, count
from recsys.base.hashing import STRING_HASHES
from recsys.data_type import LINEAR_DTYPES, DataType
from recsys.inputs.signature import BATCHES, IdPolicy

_EPILOG = """\
examples:
  recsys-export model.pt                                     INT8, one cpu target, into model.artifact/
  recsys-export model.pt --devices cpu,cpu --devices cuda:0  two targets that share their rows
  recsys-export model.pt --table-dtype user=int4 --id-policy hash
  recsys-export state.pt --model mypackage.models:make_ranker --model-args '{"dim": 64}'
  recsys-export run/                                         the newest checkpoint of a training run on many ranks
  recsys-export checkpoint/ --model mypackage.models:make    what torch.distributed.checkpoint wrote
  recsys-export rank0.pt rank1.pt --model mypackage.models:make   the state dicts that each rank saved
  recsys-export towers.pt --top-k 100 --items vectors.parquet     the best items for a user, out of those of the file
  recsys-export model.pt --linear-dtype auto --auto-data clicks.csv   the fastest linear layers that keep the AUC
  recsys-export --delta old.pt new.pt --artifact old.artifact     what changed, into new.delta, for the artifact

exit codes: 0 written, 1 the model or its file cannot be exported so, 2 bad usage
"""
ROW_TYPES = {t.value.lower(): t for t in DataType if t is not DataType.BF16}
#: Behind an argument of --features whose values are numbers.
FLOAT = ":float"
#: Between features of --features whose bags have equal lengths.
EQUAL = "+"
POLICIES = {p.value: p for p in IdPolicy if p is not IdPolicy.MAPPED}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments."""
    return make_parser().parse_args(argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = Parser(
        prog="recsys-export",
        description="Quantize, shard, trace and script a trained model; verify it; write an artifact.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "checkpoint",
        type=Path,
        nargs="+",
        help="what recsys-train wrote; with --model a state dict, a directory of torch.distributed.checkpoint, "
        "or the files of all ranks",
    )
    add("--out", type=Path, help="the artifact (default: the checkpoint's name with .artifact)")
    add(
        "--name",
        help="the model's name on the wire (default: NAME of --out NAME.artifact, else the checkpoint's)",
    )
    add("--force", action="store_true", help="replace an artifact that is there")
    add("--single-file", action="store_true", help="one TorchScript file for torch::jit::load")
    add("--json", action="store_true", help="print the report as JSON")
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument(
        "--format",
        default="torchscript",
        choices=list(GRAPH_FORMATS),
        dest="graph_format",
        help="how graphs are written beside programs: torchscript (default), pt2 (as ExportedPrograms) or both",
    )
    rows = parser.add_argument_group("tables")
    rows.add_argument(
        "--dtype", default="int8", choices=list(ROW_TYPES), help="row type of every table (default: int8)"
    )
    rows.add_argument("--table-dtype", action="append", default=[], metavar="TABLE=TYPE", help="of one table")
    rows.add_argument(
        "--id-policy",
        action="append",
        default=[],
        metavar="[TABLE=]POLICY",
        help="IDs out of range: reject (default), hash (modulo rows) or zero (a zero row); or fmix64: all IDs mixed, "
        "then modulo rows (default: as the training, by the checkpoint's schema)",
    )
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "--devices",
        action="append",
        metavar="D,D,...",
        help="a target's devices, such as cpu,cpu; repeatable (default: cpu)",
    )
    devices.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="[TARGET=]FILE",
        help="a sharding plan in JSON, for one target (such as cpu,cpu=plan.json) or for all",
    )
    devices.add_argument("--device-memory", metavar="SIZE", help="for rows on each device, such as 16GB")
    dense = parser.add_argument_group("dense layers")
    dense.add_argument(
        "--dense-dtype",
        default="float32",
        choices=list(DENSE_DTYPE_NAMES),
        help="of the dense layers (default: float32)",
    )
    dense.add_argument(
        "--linear-dtype",
        default="float32",
        choices=[*LINEAR_DTYPES, AUTO],
        help="in which linear layers multiply, on the CPU; all but float32 need what make native builds; auto: the "
        "fastest here that is close enough to float32 (default: float32)",
    )
    dense.add_argument(
        "--auto-data", type=Path, metavar="TABLE", help="labelled examples, by whose AUC auto judges"
    )
    dense.add_argument(
        "--auto-bound",
        type=float,
        metavar="X",
        help="of auto: difference in AUC (default: 0.0005), or without data the largest of an output (default: 0.01)",
    )
    dense.add_argument(
        "--dense-width",
        action="append",
        default=[],
        metavar="NAME=N",
        help="width of a dense argument; 0 where forward takes it as [B]",
    )
    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--strings",
        action="append",
        default=[],
        metavar="FEATURE[=HASH]",
        help="requests may give this feature's texts, which the server hashes to IDs (all: every feature's; "
        f"default hash: {STRING_HASHES[0]}); repeatable",
    )
    requests.add_argument(
        "--batch",
        default="rows",
        choices=list(BATCHES),
        help="what a batch is: rows of any requests, which must not depend on each other (default), or one request, "
        "which the servers then never put together with others",
    )
    requests.add_argument(
        "--features",
        action="append",
        default=[],
        metavar="ARGUMENT[:float]=F1,F2+F3",
        help="the features of a KeyedJaggedTensor argument, where the model's code does not tell; F2+F3 have equal "
        "numbers of IDs in every row; with :float their values are numbers, which requests send as weights; repeatable",
    )
    requests.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="NAME",
        help="an input that is left at the default that forward gives it; repeatable",
    )
    requests.add_argument(
        "--outputs",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="the outputs to keep (default: all); those within another are named output_1.0, other.key",
    )
    ranking = parser.add_argument_group("ranking")
    ranking.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="inputs that a ranking request gives once for all of its rows, such as the user's",
    )
    retrieval = parser.add_argument_group("retrieval")
    retrieval.add_argument(
        "--top-k",
        type=count,
        metavar="K",
        help="of two towers, answer a user's features with the K items that score best and their scores",
    )
    retrieval.add_argument(
        "--items",
        type=Path,
        metavar="FILE",
        help="with --top-k: the items' vectors, as recsys-data item-vectors writes them; answers give their rows",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="a factory of yours, for a plain state dict"
    )
    model.add_argument("--model-args", metavar="JSON", help="the factory's keyword arguments")
    model.add_argument(
        "--submodule",
        default="",
        metavar="PATH",
        help="export this part of the model, such as a tower, or the model within one that computes a loss",
    )
    model.add_argument(
        "--unsafe-pickle",
        action="store_true",
        help="the checkpoint is a pickled module: loading it RUNS ANY CODE that the file holds",
    )
    model.add_argument(
        "--samples",
        type=Path,
        metavar="PATH",
        help="rows to verify with: requests in JSON, one a line, or a CSV or Parquet table (default: the held-out "
        "rows that recsys-train keeps in the checkpoint, else random ones)",
    )
    model.add_argument(
        "--accept-unproven",
        action="store_true",
        help="export a model whose outputs hardly vary over these rows: equal outputs prove nothing then",
    )
    _add_delta_options(parser)
    add_program_options(parser)
    return parser


def _add_delta_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of deltas."""
    group = parser.add_argument_group("deltas")
    group.add_argument(
        "--delta",
        action="store_true",
        help="write the rows that differ between two checkpoints, OLD NEW, for the artifact of the old one",
    )
    group.add_argument(
        "--artifact", type=Path, help="the artifact (default: the old checkpoint's name with .artifact)"
    )
    group.add_argument(
        "--after",
        type=Path,
        action="append",
        default=[],
        metavar="DELTA",
        help="a delta that was made for the artifact before, whose new checkpoint is now the old one; repeatable, in "
        "order",
    )
    group.add_argument(
        "--tables-only",
        action="store_true",
        help="where dense weights differ too, leave them as they are",
    )
