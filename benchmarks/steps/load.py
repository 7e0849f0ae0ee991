"""The steps of ``benchmarks.loading.load`` that need a fresh process each; run by it, one JSON object a line.

``export`` builds a float model and exports it; ``hold`` loads an artifact, measures itself at each step, and
continues with the next when it reads a line from stdin.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.measure.memory import PeakSampler, memory, resident
from benchmarks.models.dlrm import EMBEDDING_DIM, NUM_DENSE, NUM_TABLES, build, requests
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.base.allocator import tune_malloc
from recsys.configs import DataType

_FLOAT_BYTES = 4
_MAX_IDS_PER_BAG = 1 << 14


def _say(data: Mapping[str, object]) -> None:
    print(json.dumps(data), flush=True)


def export(path: Path, data_type: str, num_rows: int, single_file: bool) -> None:
    """Build and export a model, and report the memory used."""
    model = build(num_rows)
    before = resident()
    config = ExportConfig(data_type=DataType[data_type.upper()], single_file=single_file)
    began = time.perf_counter()
    with PeakSampler() as sampler:
        report = export_model(model, path, config)
    _say(
        {
            "seconds": time.perf_counter() - began,
            "artifact_bytes": report.artifact_bytes,
            "float_tables_bytes": NUM_TABLES * num_rows * EMBEDDING_DIM * _FLOAT_BYTES,
            "largest_float_table_bytes": num_rows * EMBEDDING_DIM * _FLOAT_BYTES,
            "rss_before_bytes": before.anonymous_bytes + before.file_bytes,
            "anonymous_before_bytes": before.anonymous_bytes,
            "peak_rss_bytes": sampler.peak_rss_bytes,
            "peak_anonymous_bytes": sampler.peak_anonymous_bytes,
        }
    )


def hold(path: Path, verify_checksums: bool) -> None:
    """Load, predict, read every row, and keep everything until stdin is closed."""
    tune_malloc()
    torch.set_num_threads(1)
    torch.ones(8, 8).mm(torch.ones(8, 8))
    before = memory().to_json()
    began = time.perf_counter()
    artifact = load_artifact(path, verify_checksums=verify_checksums)
    ready_s = time.perf_counter() - began
    loaded = memory().to_json()
    num_rows = min(table.num_embeddings for feature in artifact.signature.sparse for table in feature.tables)
    request = requests(1, num_rows)[0]
    began = time.perf_counter()
    artifact.forward(request.dense, request.lengths, request.values)
    first_s = time.perf_counter() - began
    predicted = memory().to_json()
    began = time.perf_counter()
    for start in range(0, num_rows, _MAX_IDS_PER_BAG):
        _look_up(artifact, start, min(start + _MAX_IDS_PER_BAG, num_rows))
    read_s = time.perf_counter() - began
    _say(
        {
            "ready_s": ready_s,
            "first_prediction_s": first_s,
            "read_all_rows_s": read_s,
            "rows_bytes": artifact.manifest.layout.num_bytes,
            "before": before,
            "loaded": loaded,
            "predicted": predicted,
        }
    )
    while sys.stdin.readline():
        _say(memory().to_json())


def _look_up(artifact: LoadedArtifact, start: int, end: int) -> None:
    """Predict one sample whose bags hold the same rows of every table."""
    lengths = torch.full((NUM_TABLES,), end - start)
    artifact.forward(torch.zeros(1, NUM_DENSE), lengths, torch.arange(start, end).repeat(NUM_TABLES))


def main(arguments: list[str]) -> None:
    """``export PATH TYPE ROWS FORM`` or ``hold PATH CHECKS``."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    if arguments[0] == "export":
        _, path, data_type, num_rows, form = arguments
        export(Path(path), data_type, int(num_rows), form == "single-file")
    else:
        _, path, checks = arguments
        hold(Path(path), checks == "verify")


if __name__ == "__main__":
    main(sys.argv[1:])
