"""recsys-plan: plan how a model's tables are sharded, measure the machine, compare plans."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from recsys.base.files import read_json, replacing
from recsys.checkpoint import build_model, load_checkpoint
from recsys.embedding import takes_weights
from recsys.errors import PlanError
from recsys.find_collections import find_collections
from recsys.planner.cost.calibrate import CalibrateOptions, calibrate
from recsys.planner.cost.constraints import read_constraints
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.tables import collection_tables, tables_from_json
from recsys.planner.cost.topology import Topology, default_topology, read_topology
from recsys.planner.evaluate import differences
from recsys.planner.fit import Problem
from recsys.planner.options import STORED, parse
from recsys.planner.planner import EmbeddingShardingPlanner
from recsys.planner.report.page import page
from recsys.planner.report.report import print_summary
from recsys.planner.report.summary import summarize
from recsys.rows.format import CUDA_ROW_ALIGNMENT, HOST_ROW_ALIGNMENT
from recsys.sharding.plan.plan import ShardingPlan, read_plan

_PIPE_WIDTH = 150


class _UsageError(ValueError):
    """The command line is invalid."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 on success, 1 on failure, 2 for bad usage."""
    arguments = parse(argv)
    commands = {"plan": _plan, "calibrate": _calibrate, "diff": _diff}
    try:
        return commands[arguments.command](arguments)
    except _UsageError as error:
        print(f"recsys-plan: {error}", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"recsys-plan: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-plan: interrupted, nothing was written", file=sys.stderr)
        return 1


def _plan(arguments: argparse.Namespace) -> int:
    source: Path = arguments.model
    stem = source.name.removesuffix(".pt").removesuffix(".json")
    out = arguments.out or (None if arguments.plan else source.with_name(f"{stem}.plan.json"))
    if out is not None and out.exists() and not arguments.force:
        raise _UsageError(
            f"--out: {out.name!r} is there already; --force replaces it, --out names another file"
        )
    html = arguments.html or source.with_name(f"{stem}.plan.html")
    _check_folder("--out", arguments.out)
    _check_folder("--html", None if arguments.no_html else arguments.html)
    workload = _workload(arguments)
    topology = _topology(arguments)
    planner = EmbeddingShardingPlanner(
        topology,
        arguments.batch_size,
        constraints=None if arguments.constraints is None else read_constraints(arguments.constraints),
        workload=workload,
        reserved_fraction=arguments.reserve / 100,
    )
    plan = None if arguments.plan is None else _plan_of(arguments.plan, topology.world_size)
    problem = _problem(source, planner, arguments.dtype)
    result = planner.result(problem) if plan is None else planner.evaluated(problem, plan)
    summary = summarize(result)
    if out is not None:
        _write(out, json.dumps(result.plan.to_json(), indent=1) + "\n")
    if not arguments.no_html:
        _write(html, page(result, summary, title=source.name))
    if arguments.json:
        print(json.dumps({"plan": result.plan.to_json(), "report": summary.to_json()}))
    else:
        console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        print_summary(summary, console)
        for path in [*([] if out is None else [out]), *([] if arguments.no_html else [html])]:
            console.print(str(path), style="bold", soft_wrap=True, markup=False, highlight=False)
    return 1 if summary.over_capacity else 0


def _topology(arguments: argparse.Namespace) -> Topology:
    """Return the topology of the file, or the default; options override single numbers."""
    if arguments.topology is not None:
        topology = read_topology(arguments.topology)
        if arguments.device not in (None, topology.compute_device):
            raise _UsageError(
                f"--device: got {arguments.device}, the topology's is {topology.compute_device}"
            )
        world_size = arguments.world_size or topology.world_size
        local = arguments.local_world_size or min(topology.local_world_size, world_size)
        topology = topology.replaced(world_size=world_size, local_world_size=local)
    else:
        try:
            topology = default_topology(
                arguments.device or "cuda",
                world_size=arguments.world_size or 1,
                local_world_size=arguments.local_world_size,
            )
        except PlanError as error:
            raise _UsageError(str(error)) from None
    if arguments.hbm is not None:
        if topology.hbm is None:
            raise _UsageError("--hbm: a cpu has none; use --ddr")
        topology = topology.replaced(hbm=replace(topology.hbm, capacity_bytes=arguments.hbm))
    if arguments.ddr is not None:
        topology = topology.replaced(ddr=replace(topology.ddr, capacity_bytes=arguments.ddr))
    return topology


def _workload(arguments: argparse.Namespace) -> Workload:
    if arguments.dtype is None:
        return Workload(optimizer=arguments.row_optimizer or "rowwise_adagrad")
    if arguments.row_optimizer is not None:
        raise _UsageError("--row-optimizer: got it with --dtype, which plans inference; expected one of them")
    device = arguments.device or (
        "cuda" if arguments.topology is None else read_topology(arguments.topology).compute_device
    )
    alignment = CUDA_ROW_ALIGNMENT if device == "cuda" else HOST_ROW_ALIGNMENT
    return Workload(is_training=False, optimizer="sgd", row_alignment=alignment)


def _plan_of(path: Path, world_size: int) -> ShardingPlan:
    """Return the plan in a file, which must not need more ranks."""
    plan = read_plan(path)
    if plan.num_ranks > world_size:
        raise _UsageError(
            f"--plan: got a plan for {plan.num_ranks} ranks, expected one for {world_size}: --world-size "
            f"{plan.num_ranks} estimates it"
        )
    return plan


def _problem(source: Path, planner: EmbeddingShardingPlanner, data_type: str | None) -> Problem:
    stored = None if data_type is None else STORED[data_type]
    if source.suffix == ".json":
        data = read_json(source, "tables", PlanError)
        if _is_plan(data):
            raise _UsageError(
                f"MODEL: got {source.name!r}, a sharding plan; expected a checkpoint or a list of tables: recsys-plan "
                f"MODEL --plan {source.name} estimates the plan"
            )
        return planner.problem_of(tables_from_json(data, stored))
    if source.is_dir():
        raise _UsageError(
            f"got the folder {str(source)!r}, expected a file: what recsys-train --out wrote, or tables"
        )
    model = build_model(load_checkpoint(source))
    if stored is None:
        return planner.problem(model)
    collections = find_collections(model, error=PlanError)
    weighted = frozenset(path for path, found in collections.items() if takes_weights(found))
    return planner.problem_of(collection_tables(collections, stored), weighted)


def _is_plan(data: Any) -> bool:
    try:
        ShardingPlan.from_json(data)
    except PlanError:
        return False
    return True


def _calibrate(arguments: argparse.Namespace) -> int:
    _check_folder("--out", arguments.out)
    measured = calibrate(
        CalibrateOptions(device=arguments.device, num_ranks=arguments.world_size, seconds=arguments.seconds)
    )
    _write(arguments.out, json.dumps(measured.topology.to_json(), indent=1) + "\n")
    if arguments.json:
        print(json.dumps({"topology": measured.topology.to_json(), "out": str(arguments.out)}))
        return 0
    for line in measured.lines():
        print(line)
    print(arguments.out)
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    try:
        lines = differences(read_plan(arguments.before), read_plan(arguments.after))
    except PlanError as error:
        # Exit status 1 means that the plans differ, as for diff(1).
        raise _UsageError(str(error)) from None
    if arguments.json:
        print(json.dumps({"differences": lines}))
        return 1 if lines else 0
    for line in lines:
        print(line)
    return 1 if lines else 0


def _check_folder(option: str, path: Path | None) -> None:
    """Check that the folder exists before planning."""
    if path is not None and not path.absolute().parent.is_dir():
        raise _UsageError(f"{option}: got {str(path)!r}, expected a file in a folder that exists")


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
