"""The process beside a training that makes deltas of snapshots and sends them."""
