"""A quantized model's collections planned and sharded over the devices of one process, by TorchRec's name."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from recsys.errors import PlanError
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.devices import DeviceOptions, plan_devices
from recsys.quant import QuantCollection
from recsys.rows.format import row_alignment_for
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan


def shard_quant_model(  # noqa: PLR0913  (TorchRec's arguments)
    model: nn.Module,
    world_size: int = 1,
    compute_device: str = "cuda",
    sharding_device: str = "meta",
    sharders: Sequence[object] | None = None,
    device_memory_size: int | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    ddr_cap: int | None = None,
    sharding_plan: ShardingPlan | None = None,
) -> tuple[nn.Module, ShardingPlan]:
    """Shard a model's quantized collections over the devices of this process.

    Args:
        model: The model, as from ``quantize_inference_model``. It is not changed.
        world_size: The number of devices.
        compute_device: Their type: ``"cpu"`` or ``"cuda"``.
        sharding_device: Has no effect: rows go from where they are to their devices.
        sharders: Only collections of their ``module_type`` are sharded; all by default.
        device_memory_size: Memory for rows on each device, in bytes; None for no bound.
        constraints: Only None is taken; a ``sharding_plan`` says what goes where.
        ddr_cap: The bound for ``"cpu"``, in place of ``device_memory_size``.
        sharding_plan: The plan; None places whole tables, and cuts by rows those that fit on no device.

    Returns:
        A copy of the model with sharded collections, and the plan.

    Raises:
        PlanError: There is no quantized collection, or the tables do not fit, or the plan does not.
    """
    del sharding_device
    if constraints is not None:
        raise PlanError("constraints: got some, expected None: whole tables are placed; give a sharding_plan")
    found = _collections(model, sharders)
    devices = [
        compute_device if compute_device == "cpu" else f"{compute_device}:{i}" for i in range(world_size)
    ]
    env = ShardingEnv.over_devices(devices)
    if sharding_plan is None:
        options = DeviceOptions(
            world_size=world_size,
            budget_bytes=ddr_cap if compute_device == "cpu" else device_memory_size,
            row_alignment=max(row_alignment_for(device) for device in env.devices),
        )
        sharding_plan = plan_devices({path: module.tables() for path, module in found.items()}, options)
    sharded: dict[int, Any] = {
        id(module): module.shard(sharding_plan.of(path), env) for path, module in found.items()
    }
    # The copy holds the sharded collections in the places of the others.
    return copy.deepcopy(model, sharded), sharding_plan


def _collections(model: nn.Module, sharders: Sequence[object] | None) -> dict[str, QuantCollection]:
    kinds = tuple(cast(Any, sharder).module_type for sharder in sharders or ())
    found = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, QuantCollection) and (sharders is None or isinstance(module, kinds))
    }
    if not found:
        raise PlanError(
            f"model: {type(model).__name__} holds no quantized collection, expected one; see quantize_inference_model"
        )
    return found
