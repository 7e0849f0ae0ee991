"""Plans in files."""

from __future__ import annotations

from pathlib import Path

from recsys.base.files import read_json
from recsys.errors import PlanError
from recsys.sharding.plan.plan import ShardingPlan


def read_plan(path: Path) -> ShardingPlan:
    """Return a plan from a JSON file, as ``ShardingPlan.to_json`` gives it.

    Raises:
        PlanError: The file cannot be read, is not JSON, or is not a plan; the message names the file.
    """
    data = read_json(path, "plan", PlanError)
    try:
        return ShardingPlan.from_json(data)
    except PlanError as error:
        raise PlanError(f"plan {path.name!r}: {error}; expected what recsys-plan --out wrote") from None
