"""A table of clicks like Avazu's published one, whose labels follow from its columns."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

COLUMNS = (
    *(
        "id",
        "click",
        "hour",
        "C1",
        "banner_pos",
        "site_id",
        "site_domain",
        "app_id",
        "device_id",
        "device_model",
    ),
    *("device_type", "price"),
)


def write_clicks(path: Path, num_rows: int = 20_000, seed: int = 0) -> Path:
    """Write a CSV file in the order of time: hours as YYMMDDHH, texts as IDs, missing prices and sites."""
    generator = np.random.default_rng(seed)
    sites = np.array([f"{i * 2654435761 % 2**32:08x}" for i in range(200)])
    devices = np.array([f"{i * 40503 % 2**32:08x}" for i in range(3_000)])
    site = np.minimum(generator.zipf(1.3, num_rows) - 1, 199)
    device = generator.integers(0, 3_000, num_rows)
    position = generator.integers(0, 4, num_rows)
    price = generator.lognormal(3, 1, num_rows)
    bias = np.random.default_rng(7).normal(0, 1.2, 200)
    taste = np.random.default_rng(8).normal(0, 0.8, 3_000)
    log_odds = -1.2 + bias[site] + taste[device] - 0.5 * position - 0.3 * (np.log1p(price) - 3)
    clicks = generator.random(num_rows) < 1 / (1 + np.exp(-log_odds))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for i in range(num_rows):
            hour = 14_102_100 + i * 240 // num_rows // 24 * 100 + i * 240 // num_rows % 24
            writer.writerow(
                [
                    f"{i * 11400714819323198485 % 2**64}",
                    int(clicks[i]),
                    hour,
                    1005 + position[i] % 2,
                    position[i],
                    "" if i % 97 == 0 else sites[site[i]],
                    sites[(site[i] * 7) % 200],
                    f"{site[i] % 13:08x}",
                    devices[device[i]],
                    f'model {device[i] % 40}, "{device[i] % 3}"',
                    device[i] % 5,
                    "" if i % 31 == 0 else f"{price[i]:.2f}",
                ]
            )
    return path
