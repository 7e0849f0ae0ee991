"""The place in the user's code where an error arose: file, line and layer, and what to change there."""

from __future__ import annotations

import linecache
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch
from torch import nn

import export
import recsys
from recsys.errors import ExportError, VerificationError

# Code that is not the model's: ours, torch's and Python's.
_NOT_THEIRS = tuple(
    f"{Path(folder).resolve()}/"
    for folder in (
        Path(recsys.__file__).parent,
        Path(export.__file__).parent,
        Path(torch.__file__).parent,
        sysconfig.get_paths()["stdlib"],
    )
)
#: Where torch's code lies.
TORCH = f"{Path(torch.__file__).parent}/"
# What torch.fx says, and what it means to someone who does not know torch.fx.
_IN_OTHER_WORDS = (
    (r"Proxy object cannot be iterated\..*", "a tensor of a batch cannot be iterated"),
    (
        "symbolically traced variables cannot be used as inputs to control flow",
        "control flow (if, while, and, or, assert) that follows from what a batch holds, or from its number of rows",
    ),
    (r" for tensor subclasses\.$", " for a batch's tensors"),
    (r"\(got Placeholder\)", "(got a tensor of a batch)"),
    (r"Proxy\(\w+\)", "a traced value"),
    (r"vmap\(.*", "torch.vmap takes no tensors of a batch"),
    ("`__cuda_array_interface__` must be a dict", "torch.tensor of what a batch holds"),
)
# A place that a message already has.
_HAS_PLACE = re.compile(r"\bAt \S+:\d+ in ")
# What a model is called within the modules that we, and torch.export, put around it.
_AROUND = re.compile(r"^(_export_root\.|root\.)*(model(\.|$))?")
_EXPORT = str(Path(export.__file__).parent)
# What runs the graph of a plain model in place of its code.
_RUNNERS = ("export/plain/call.py", "export/graph/tracing/recorder.py")
# Packages there whose modules may be a model's code.
_PACKAGES = ("site-packages/", "dist-packages/", f"{Path(recsys.__file__).resolve().parent}/models/")
_ADVICE = (
    (
        "keys: got .* more than once|features: missing",
        "say which argument holds which features: --features ARGUMENT=F1,F2, all of its features",
    ),
    (
        "^KeyError",
        "if it is a feature that no collection looks up, say which argument holds it: --features ARGUMENT=F1,F2, with "
        "all of its features",
    ),
    (
        "is given packed rows",
        "let this layer take the padded tensor [B, L, D]: loop over range(x.size(1)), and take each row's state by "
        "gather at its length - 1",
    ),
    (
        "packed rows",
        "run nn.GRU, nn.LSTM or nn.RNN alone over packed rows, of any depth and in both directions, and unpack what "
        "they return by pad_packed_sequence(..., total_length=x.size(1)); or run layers over the padded rows, and "
        "gather the state at each row's length - 1",
    ),
    (
        "cannot be iterated",
        "split it with unbind, split or chunk into a number that the module knows, in place of a loop, * or unpacking; "
        "in place of a loop over rows, work on all at once: x.gather(1, places) reads a place of each row, "
        "x.scatter(1, places, values) sets one, torch.where chooses",
    ),
    (
        "width of a dense argument",
        "say how wide the argument is by --dense-width NAME=N, or let a layer take it first",
    ),
    (
        "control flow",
        "choose between values with torch.where, and decide by an attribute of the module or a size that every batch "
        "has. A branch for empty histories goes together with the selection x[mask] that it guards: run all rows, with "
        "lengths.clamp(min=1), then torch.where(mask, result, 0). Put what only training needs under `if "
        "self.training:`",
    ),
    (
        r"\.numpy\(\) is not supported|expected np\.ndarray \(got",
        "write the whole function from this line to its return with torch, for all rows at once: "
        "(x.unsqueeze(2) == x.unsqueeze(1)).long().argmax(2) in place of np.unique over each row, gather to reverse or "
        "shift rows, and scatter, torch.where, sort or cumsum. Only a small result may be computed before the model "
        "and given to forward as an input",
    ),
    (
        "instead found type",
        "what torch.jit.script compiled cannot be traced: in the factory's module, replace it where forward looks it "
        "up (package.module.name = …) by Python that does the same",
    ),
    (r"^TypeError: squeeze\(\)", "name the dimension, such as squeeze(1)"),
    (r"one_hot\(\) without", "say how many: one_hot(ids, NUM_CLASSES)"),
    (
        "vmap",
        "write the function for all rows at once, by broadcasting, einsum or bmm, in place of torch.vmap",
    ),
    (
        "number of its parts differs",
        "take a number of rows by x.size(0) in place of len(x), and split tensors with unbind, split or chunk into a "
        "number that the module knows, in place of list, tuple or *",
    ),
    (
        "torch.autocast",
        "take autocast out, or switch it on for training alone (enabled=self.training): --dense-dtype bfloat16 lets "
        "all layers compute in bfloat16",
    ),
    (
        "item assignment",
        "make a new tensor with torch.where, masked_fill, scatter or cat in place of an assignment",
    ),
    (
        "differs between batches",
        "work on whole tensors: no loop, index or size of Python's may follow from the number of rows or IDs, or from "
        "what tensors hold",
    ),
    (
        r"interpreted as an integer|(?<!indices )must be (real|int)|(int|float)\(\) argument|not an integer",
        "take sizes from shapes (x.size(0)), and no int() or float() of a tensor",
    ),
    (
        "must match the size|is invalid for input of size",
        "sequences of requests may be empty, and those of one row may differ in length: pad each to a length of its "
        "own, or give --samples with requests as the model expects them; the width of a dense argument is set by "
        "--dense-width NAME=N",
    ),
    (
        "Target size",
        "leave the loss out: --submodule PATH exports the model within",
    ),
    (
        "mat1 and mat2|size mismatch|normalized_shape|same reduction dim",
        "the width of a dense argument is that of the first layer it goes into: give another with "
        "--dense-width NAME=N, or change what the layer takes",
    ),
    (
        "index out of range|is out of bounds for dim",
        "an ID or a position lies beyond the rows that this layer has: look IDs up in an EmbeddingBagCollection or "
        "EmbeddingCollection, which checks them, bring them into range in forward (clamp, %), or give --samples "
        "with requests as the model expects them",
    ),
    (
        "tensors used as indices|scalar types: Long, Int|if input is 2D",
        "dense arguments are float32 [B, width]: make IDs of one by x.squeeze(1).long(), or take them from a feature "
        "of a KeyedJaggedTensor by to_padded_dense(length).long()",
    ),
    (
        "__cuda_array_interface__|new\\(\\): (invalid|data)|could not determine the shape",
        "make a tensor of a traced size by torch.full((x.size(0),), k), and one of traced tensors by torch.stack: "
        "torch.tensor takes neither",
    ),
    (
        r"\w\.\w+\(\) .*(unexpected keyword argument|positional argument)",
        "TorchRec's names take the arguments of TorchRec 1.8",
    ),
    (
        "argument of type",
        "layers of torch and functions under torch.fx.wrap take tensors: give them values() and lengths()",
    ),
)
# Errors that say all by themselves.
_PLAIN = (KeyError, IndexError, AssertionError)
_DEFAULT_ADVICE = "forward must not depend on the values of tensors (no `if`, `bool`, `int` or `len` of them)"
_OWN_CHECK = (
    "a check of the model's own fails for traced values: take it out or, in a package, replace the function in the "
    "factory's module, where forward looks it up (package.module.name = …)"
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the model's code, in a function."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        """Return ``file:line in function: `code```."""
        code = linecache.getline(self.file, self.number).strip()
        return f"{_short(self.file)}:{self.number} in {self.function}: `{code[:100]}`"


def line_of_caller(frame: FrameType | None) -> Line | None:
    """Return the innermost line of the model's code among a frame and its callers, up to the export; None without."""
    fallback: Line | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(_EXPORT):
        if _is_theirs(frame.f_code.co_filename, packages=True):
            code = frame.f_code
            line = Line(file=code.co_filename, number=frame.f_lineno, function=code.co_qualname)
            if _is_theirs(frame.f_code.co_filename, packages=False):
                return line
            fallback = fallback or line
        frame = frame.f_back
    return fallback or _line_of_graph(frame)


def _line_of_graph(frame: FrameType | None) -> Line | None:
    """Return the line of the model's code whose node a graph is being run at (``export.plain.call``)."""
    while frame is not None and frame.f_code.co_filename.startswith(_EXPORT):
        if frame.f_code.co_filename.endswith(_RUNNERS):
            line = frame.f_locals.get("model_line")
            if isinstance(line, Line):
                return line
        frame = frame.f_back
    return None


def place_of(error: BaseException) -> str:
    """Return where in the model's code an error arose, as ``file:line in function, layer 'path'``; empty if unknown."""
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__)]
    theirs = [(frame, line) for frame, line in frames if _is_theirs(frame.f_code.co_filename, packages=False)]
    theirs = theirs or [
        (frame, line) for frame, line in frames if _is_theirs(frame.f_code.co_filename, packages=True)
    ]
    if not theirs:
        of_graph = next((at for frame, _ in reversed(frames) if (at := _line_of_graph(frame))), None)
        return "" if of_graph is None else str(of_graph)
    frame, line = theirs[-1]
    file = frame.f_code.co_filename
    code = linecache.getline(file, line).strip()
    path, layer = _layer([frame for frame, _ in frames])
    of = f", layer {path!r} ({layer})" if path else ""
    return f"{_short(file)}:{line} in {frame.f_code.co_qualname}{of}: `{code[:100]}`"


def place_of_forward(model: nn.Module) -> str:
    """Return where a model's ``forward`` stands, as ``file:line in class.forward``."""
    code = type(model).forward.__code__
    return f"{_short(code.co_filename)}:{code.co_firstlineno} in {type(model).__qualname__}.forward"


def advice(error: BaseException) -> str:
    """Return what to change for an error of torch or torch.fx; empty for others."""
    text = f"{type(error).__name__}: {error}"
    return next((said for pattern, said in _ADVICE if re.search(pattern, text)), "")


def explained(error: BaseException, default: str = _DEFAULT_ADVICE, place: str = "") -> str:
    """Return an error's kind and message, its place, and what to change there.

    Args:
        error: The error.
        default: The advice where there is none for it.
        place: Where it arose, if no line of the model's code ran then.
    """
    place = place_of(error) or place
    default = _OWN_CHECK if default and ": `raise " in place else default
    said = advice(error) or ("" if isinstance(error, _PLAIN) else default)
    at = f". At {place}" if place else ""
    return (
        f"{type(error).__name__}: {_first_line(error)}{at}{f'. {said[0].upper()}{said[1:]}' if said else ''}"
    )


@contextmanager
def source_locations() -> Iterator[None]:
    """Say where the model's code caused an error of the export, and what to change there.

    Raises:
        ExportError: As it was raised, with the place if it had none.
        VerificationError: The artifact's graph failed.
    """
    try:
        yield
    except ExportError as error:
        cause = error.__cause__
        place = "" if cause is None else place_of(cause)
        if not place or cause is None or place in str(error) or _HAS_PLACE.search(str(error)):
            raise
        said = advice(cause)
        raise type(error)(f"{error}. At {place}{f'. {said[0].upper()}{said[1:]}' if said else ''}") from cause
    except RuntimeError as error:
        if "TorchScript interpreter" not in str(error):
            raise
        failed = re.search(r"\n(.*)\n\s*~+ <--- HERE", str(error))
        at = f" at `{failed[1].strip()[:100]}`" if failed else ""
        raise VerificationError(
            f"model: the artifact's graph failed{at}: {str(error).strip().splitlines()[-1]}"
        ) from error


def is_of_model(file: str | None) -> bool:
    """Return whether a file's code may be a model's, a package's among them, and is not ours, torch's or Python's."""
    return file is not None and _is_theirs(file, packages=True)


@cache  # asked of every frame below each operation of a recorded run
def _is_theirs(file: str, *, packages: bool) -> bool:
    if file.startswith(("<", TORCH)):
        return False
    if any(part in file for part in _PACKAGES):
        return packages
    return not str(Path(file).resolve()).startswith(_NOT_THEIRS)


def _layer(frames: list[FrameType]) -> tuple[str, str]:
    """Return the path of the innermost module that was running, and its kind."""
    parts: list[str] = []
    inside: nn.Module | None = None
    for frame in frames:
        module = frame.f_locals.get("self")
        if not isinstance(module, nn.Module) or module is inside:
            continue
        if inside is not None:
            path = next((path for path, part in inside.named_modules() if part is module), None)
            if path is None:
                continue
            parts.append(path)
        inside = module
    path = ".".join(parts)
    path = _AROUND.sub("", path)
    kind = type(inside).__name__
    size = inside.extra_repr() if inside is not None else ""
    return path, f"{kind}({size})" if size else kind


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _first_line(error: BaseException) -> str:
    found = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    for pattern, said in _IN_OTHER_WORDS:
        found = re.sub(pattern, said, found)
    return found
