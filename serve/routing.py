"""Which version of a model answers a request, and which one computes it in the shadow: policy alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What an operator asks for.

    Attributes:
        serve: ``latest``, or a version that stays until this is changed.
        canary: a version that answers a share of the requests; empty for none.
        canary_percent: that share, above 0 to 100.
        shadow: a version that computes a share of the requests beside the one that answers; empty for none.
        shadow_percent: that share, above 0 to 100.

    Raises:
        ValueError: a setting is out of its range; the text names it.
    """

    serve: str = "latest"
    canary: str = ""
    canary_percent: float = 0.0
    shadow: str = ""
    shadow_percent: float = 0.0

    def __post_init__(self) -> None:
        if not self.serve:
            raise ValueError("serve: got an empty text, expected latest or a version")
        for name in ("canary", "shadow"):
            version, percent = getattr(self, name), getattr(self, f"{name}_percent")
            if version and not 0 < percent <= 100:
                raise ValueError(f"{name}_percent: got {percent}, expected above 0, up to 100")
            if not version and percent:
                raise ValueError(f"{name}: got no version for {percent} percent of the requests")
            if version and version in (self.serve, "latest"):
                raise ValueError(f"{name}: got {version!r}, expected another version than the one that serves")
