"""Whether the native kernels run a target's program on this machine."""

from __future__ import annotations

import logging

from recsys.artifact.targets import Target
from recsys.errors import TargetError
from recsys.kernels import operators

_LOGGER = logging.getLogger(__name__)


def has_running_programs(target: Target, *, scripted: bool = False, is_recorded: bool = False) -> bool:
    """Return whether the native kernels run a target's program here; its TorchScript runs otherwise.

    Args:
        target: The target.
        scripted: Whether TorchScript is asked for.
        is_recorded: Whether CUDA graphs are asked for.

    Raises:
        TargetError: Nothing of it runs here.
    """
    name, dtype, missing = repr(target.name), target.linear_dtype, ""
    if _takes_kernels(target) and not scripted and not is_recorded:
        missing = operators.why_missing()
        if not _has_programs(target) and target.skeleton is not None and dtype != "float32":
            raise TargetError(
                f"target {name}: needs linear layers in {dtype}, but holds no program, which alone multiplies in it: "
                f"run recsys-export --linear-dtype {dtype} again"
            )
        if _has_programs(target) and missing and dtype != "float32":
            raise TargetError(f"target {name}: needs linear layers in {dtype}, but {missing}")
        if _has_programs(target) and not missing:
            _check_instructions()
            return True
    if target.skeleton is not None:
        return False
    if not _has_programs(target):
        reason = "no program"
    elif scripted:
        reason = "TorchScript is asked for"
    else:
        reason = f"its program cannot run: {missing or 'CUDA graphs are asked for'}"
    raise TargetError(
        f"target {name}: holds no TorchScript, and {reason}; run recsys-export --format both (an ExportedProgram is "
        "run by load_exported_artifact in Python alone)"
    )


def _has_programs(target: Target) -> bool:
    return all(graph.program is not None for graph in target.graphs)


def _takes_kernels(target: Target) -> bool:
    """Return whether a target's program, if it has one, is for the native kernels."""
    return target.dense_dtype == "float32" and all(device == "cpu" for device in target.devices)


def _check_instructions() -> None:
    try:
        operators.instructions()
    except RuntimeError as error:
        raise TargetError(str(error)) from None


def log_gain(target: Target) -> None:
    """Say what a new export would gain, if it would."""
    if _takes_kernels(target) and not _has_programs(target) and not operators.why_missing():
        _LOGGER.info(
            "target %r: holds no program, so torch's operators run it: recsys-export makes a program, which the native "
            "kernels run faster, or its report says why there is none",
            target.name,
        )


def log_kernels(target: Target) -> None:
    """Say in which type linear layers multiply where it is not the target's, and why not by tiles that there are."""
    products, instructions = operators.multiplies_in(target.linear_dtype), operators.instructions()
    if products != target.linear_dtype:
        _LOGGER.info(
            "target %r: linear layers in %s multiply in %s here: %s has no faster instruction for their products",
            target.name,
            target.linear_dtype,
            products,
            instructions,
        )
    why = operators.why_no_tiles()
    if why:
        _LOGGER.info(
            "target %r: linear layers multiply by %s, not by amx: %s", target.name, instructions, why
        )
