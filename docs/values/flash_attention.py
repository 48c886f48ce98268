"""Numbers that the page "FlashAttention" says about its stepper."""

from __future__ import annotations

from typing import Any

from docs.figures.api import Text
from docs.figures.flash_attention import tile_rows, totals
from docs.figures.units import bytes_text
from docs.figures.values import value
from tracegen.trace import Trace


def attended(trace: Trace) -> list[dict[str, Any]]:
    """The tiles that were computed, in order."""
    return [row for row in tile_rows(trace) if row["event"] == "TileAttended"]


@value("counted")
def tokens(trace: Trace, t: Text) -> str:
    return str(len(tile_rows(trace)[0]["tokens"]))


@value("counted")
def block(trace: Trace, t: Text) -> str:
    return str(tile_rows(trace)[0]["block"])


@value("counted")
def computed(trace: Trace, t: Text) -> str:
    return str(len(attended(trace)))


@value("counted")
def skipped(trace: Trace, t: Text) -> str:
    return str(sum(len(row["skipped"] or ()) for row in tile_rows(trace)))


@value("counted")
def moved(trace: Trace, t: Text) -> str:
    return bytes_text(totals(tile_rows(trace))[0])


@value("counted")
def naive_moved(trace: Trace, t: Text) -> str:
    return bytes_text(totals(tile_rows(trace))[1])


@value("counted")
def last_maximum_before(trace: Trace, t: Text) -> str:
    return f"{attended(trace)[-2]['maxima'][-1]:.2f}"


@value("counted")
def last_maximum(trace: Trace, t: Text) -> str:
    return f"{attended(trace)[-1]['maxima'][-1]:.2f}"


@value("counted")
def last_kept(trace: Trace, t: Text) -> str:
    return f"{attended(trace)[-1]['rescales'][-1]:.2f}"


@value("counted")
def last_total_before(trace: Trace, t: Text) -> str:
    return f"{attended(trace)[-2]['totals'][-1]:.2f}"


@value("counted")
def last_total(trace: Trace, t: Text) -> str:
    return f"{attended(trace)[-1]['totals'][-1]:.2f}"
