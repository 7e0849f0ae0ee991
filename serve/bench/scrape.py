"""What a server counts of itself, read from its metrics before and after a run."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

_STAGES = ("queue", "collate", "execute", "respond")


def scrape(address: str) -> dict[str, float]:
    """Each sample of a server's metrics endpoint by its name and labels.

    Raises:
        OSError: nothing answers at ``address``, or it is not such an endpoint; the text says which.
    """
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}
    except urllib.error.HTTPError as error:
        raise OSError(f"answered with HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(getattr(error.reason, "strerror", None) or str(error.reason)) from None
    except (http.client.HTTPException, ValueError):
        raise OSError("what answered is no metrics endpoint") from None


def server_figures(before: dict[str, float], after: dict[str, float]) -> dict[str, float | None]:
    """Means between two scrapes: rows and requests of a batch, and what each stage took, in milliseconds.

    All models and versions of the server count. None where there was nothing between the scrapes.
    """
    figures = {
        "mean_batch_rows": _mean(before, after, "recsys_batch_rows"),
        "mean_batch_requests": _mean(before, after, "recsys_batch_requests"),
    }
    for stage in _STAGES:
        mean_s = _mean(before, after, "recsys_stage_seconds", f'stage="{stage}"')
        figures[f"mean_{stage}_ms"] = None if mean_s is None else 1e3 * mean_s
    return figures


def _mean(before: dict[str, float], after: dict[str, float], name: str, label: str = "") -> float | None:
    total, count = (
        _sum(after, f"{name}_{part}", label) - _sum(before, f"{name}_{part}", label)
        for part in ("sum", "count")
    )
    return total / count if count > 0 else None


def _sum(samples: dict[str, float], name: str, label: str) -> float:
    """Over the samples of that name, whatever other labels they have."""
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name and label in key)
