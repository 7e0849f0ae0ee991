"""What to change, from the numbers of a profile."""

from __future__ import annotations

from recsys.artifact.load import LoadedArtifact
from recsys.base.table_names import short_names
from recsys.inputs.signature import IdPolicy
from recsys.kernels import operators as own
from serve.profiler.result import BETWEEN, CALL, Hint, Profile, linear_layers, lookups
from serve.profiler.work import REGION

# Advice that may save less than this share of the time is not worth its words.
_LEAST = 0.03
_LARGE_SHARE = 0.2
# Row types, and what replaces each.
_WIDE_BITS = 16
_POLICY_OPERATORS = ("aten::remainder", "aten::fmod", "aten::where", "aten::masked_fill", "aten::clamp")


def hints(profile: Profile, artifact: LoadedArtifact) -> tuple[Hint, ...]:
    """Return what to change, the most rewarding first.

    Args:
        profile: The profile, without hints.
        artifact: The artifact that was profiled.
    """
    found = [
        *_program(profile),
        *_products(profile),
        *_pages(profile),
        *_row_types(profile, artifact),
        *_batches(profile),
        *_policies(profile, artifact),
        *_others(profile),
    ]
    return tuple(sorted(found, key=lambda hint: -(hint.saved or 0.0)))


def _program(profile: Profile) -> list[Hint]:
    if profile.about["program"] is None:
        if profile.about["dense_dtype"] != "float32":
            return [
                Hint(
                    text="--dense-dtype bfloat16 makes no program; export with --linear-dtype bfloat16 instead for "
                    "the native kernels"
                )
            ]
        missing = own.why_missing()
        if missing:
            return [Hint(text=f"the operators of torch and FBGEMM ran: {missing}")]
        if profile.settings["scripted"]:
            return [Hint(text="the operators of torch and FBGEMM ran: leave --scripted out")]
        return [
            Hint(
                text="the operators of torch and FBGEMM ran: the artifact has no program; export the model once more, "
                "the report says whether it has one"
            )
        ]
    share = profile.share_of((REGION,))
    if share < _LEAST:
        return []
    return [
        Hint(
            text=f"what no step computes takes {share:.0%}: the report of the export names it",
            saved=share,
        )
    ]


def _products(profile: Profile) -> list[Hint]:
    """Advise narrower factors where linear layers take much of the time."""
    layers = linear_layers(profile.operators)
    if layers is None or layers.dtype != "float32" or layers.share < _LARGE_SHARE:
        return []
    flops = profile.limits.flops
    speedups = {dtype: flops[dtype] / flops["float32"] for dtype in ("int8", "bfloat16")}
    saved = {dtype: layers.share * (1 - 1 / speedup) for dtype, speedup in speedups.items()}
    useful = sorted((dtype for dtype in saved if saved[dtype] >= _LEAST), key=lambda dtype: -saved[dtype])
    if not useful:
        return []
    choices = " or ".join(f"{dtype} (up to {speedups[dtype]:.1f} times as fast here)" for dtype in useful)
    return [
        Hint(
            text=f"linear layers in float32 take {layers.share:.0%}: recsys-export --linear-dtype {choices}; the "
            "report of the export says what it does to the predictions",
            saved=saved[useful[0]],
        )
    ]


def _pages(profile: Profile) -> list[Hint]:
    """Advise huge pages where rows can be read faster from them."""
    here, huge = profile.limits.gather, profile.limits.gather_huge_pages
    looked_up = lookups(profile.operators)
    if here is None or huge is None or looked_up is None or profile.settings["copy_rows"]:
        return []
    saved = looked_up.share * (1 - here.rows_per_s / huge.rows_per_s)
    if saved < _LEAST:
        return []
    return [
        Hint(
            text=f"rows lie on small pages: {here.rows_per_s / 1e6:.0f} M rows/s can be read, "
            f"{huge.rows_per_s / 1e6:.0f} M from memory on huge pages: recsys-serve --copy-rows",
            saved=saved,
        )
    ]


def _row_types(profile: Profile, artifact: LoadedArtifact) -> list[Hint]:
    """Advise INT8 rows where wide ones take much of the time."""
    looked_up = lookups(profile.operators)
    wide = [info for info in artifact.manifest.tables if _bits(info.table.data_type.value) >= _WIDE_BITS]
    if looked_up is None or looked_up.share < _LARGE_SHARE or not wide:
        return []
    short = short_names(info.table.name for info in artifact.manifest.tables)
    names = ", ".join(short[info.table.name] for info in wide[:3]) + (" …" if len(wide) > 3 else "")
    return [
        Hint(
            text=f"lookups take {looked_up.share:.0%}, and {len(wide)} of {len(artifact.manifest.tables)} tables have "
            f"rows of 16 or 32 bits a number ({names}): recsys-export --dtype int8 or --table-dtype"
        )
    ]


def _bits(data_type: str) -> int:
    return int("".join(c for c in data_type if c.isdigit()) or 0)


def _batches(profile: Profile) -> list[Hint]:
    """Advise larger batches where a row of a small one costs much more."""
    per_row = {size.batch_size: size.us / size.batch_size for size in profile.sizes}
    cheapest = min(per_row, key=lambda size: (per_row[size], size))
    costly: dict[int, float] = {}
    for size, share in profile.mix.items():
        of_time = share * per_row[size] * size / profile.us
        saved = of_time * (1 - per_row[cheapest] / per_row[size])
        if size < cheapest and saved >= _LEAST and per_row[size] > 1.5 * per_row[cheapest]:
            costly[size] = saved
    if not costly:
        return []
    costs = ", ".join(f"{per_row[size]:.1f} µs in batches of {size}" for size in sorted(costly))
    return [
        Hint(
            text=f"a row costs {costs}, {per_row[cheapest]:.1f} in those of {cheapest}: let more requests share a "
            "batch (recsys-serve --max-delay-us, fewer --executors)",
            saved=sum(costly.values()),
        )
    ]


def _policies(profile: Profile, artifact: LoadedArtifact) -> list[Hint]:
    policies = {table.id_policy for feature in artifact.signature.sparse for table in feature.tables}
    share = profile.share_of(_POLICY_OPERATORS)
    if share < _LEAST or not policies & {IdPolicy.HASH, IdPolicy.ZERO}:
        return []
    return [
        Hint(
            text=f"IDs out of range are hashed or read zeros, which takes {share:.0%}: where clients send none, "
            "--id-policy reject",
            saved=share,
        )
    ]


def _others(profile: Profile) -> list[Hint]:
    """Name what else takes much time."""
    rows = [
        row
        for row in profile.operators
        if row.name.startswith("aten::") and row.dtype == "" and row.name not in _POLICY_OPERATORS
    ]
    share = sum(row.share for row in rows)
    found = []
    if share >= _LARGE_SHARE:
        names = ", ".join(f"{row.title} {row.share:.0%}" for row in rows[:3])
        found.append(Hint(text=f"operators that only move or map numbers take {share:.0%}: {names}"))
    outside = profile.share_of((BETWEEN, CALL))
    if outside >= _LARGE_SHARE:
        found.append(
            Hint(
                text=f"{outside:.0%} of the time is no operator's: larger batches share it; the native engine spares "
                "the call from Python"
            )
        )
    return found
