"""The planner: which rank holds which shard of which table, and what a step costs."""
