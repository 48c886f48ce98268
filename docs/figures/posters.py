"""Posters: charts as SVG files, drawn at build time and kept in a cache by content.

A poster is what a page shows before anyone touches it, in print, and without JavaScript.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert

from docs.figures import theme
from docs.figures.spec import with_width

CACHE_VERSION = f"1 {version('vl-convert-python')}"


@dataclass(frozen=True)
class Sizing:
    """How a chart grows: `total width = plots · plot width + margin`."""

    plots: int
    margin: int

    def plot_width(self, total: float) -> float:
        return (total - self.margin) // self.plots if self.plots else 0


@dataclass(frozen=True)
class Poster:
    """An SVG picture and its size in CSS pixels."""

    svg: str
    width: int
    height: int


def draw(spec_json: str, config: dict[str, Any], cache: Path, *, dark: bool = False) -> Poster:
    """Render a sized spec, or take it from `cache`."""
    config_json = json.dumps(config, sort_keys=True)
    if dark:
        spec_json, config_json = theme.in_dark(spec_json), theme.in_dark(config_json)
    key = hashlib.sha256("\0".join([CACHE_VERSION, config_json, spec_json]).encode()).hexdigest()
    path = cache / f"{key[:32]}.svg"
    if path.exists():
        svg = path.read_text(encoding="utf-8")
    else:
        svg = vl_convert.vegalite_to_svg(
            spec_json, config=json.loads(config_json), allowed_base_urls=[]
        )
        write_atomic(path, svg)
    width, height = re.findall(r'\b(?:width|height)="([\d.]+)"', svg[:400])[:2]
    return Poster(svg, round(float(width)), round(float(height)))


def measure(spec: dict[str, Any], cache: Path) -> Sizing:
    """Find how the chart grows, from two drawings of different width."""
    narrow, wide = 600, 700  # wide enough that a legend does not decide
    totals = [draw(with_width(spec, w), theme.config(), cache).width for w in (narrow, wide)]
    plots = round((totals[1] - totals[0]) / (wide - narrow))
    return Sizing(plots, totals[1] - plots * wide)


def draw_all(spec: dict[str, Any], sizing: Sizing, wide: int, cache: Path) -> dict[str, Poster]:
    """The four posters of a chart: wide and narrow, light and dark."""
    posters = {}
    for size, total in (("wide", wide), ("narrow", theme.NARROW)):
        spec_json = with_width(spec, sizing.plot_width(total))
        for scheme in ("light", "dark"):
            config = theme.config(narrow=size == "narrow")
            posters[f"{scheme}-{size}"] = draw(spec_json, config, cache, dark=scheme == "dark")
    return posters


def vega_bundle(cache: Path) -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that sets `window.vegaEmbed`."""
    key = hashlib.sha256(CACHE_VERSION.encode()).hexdigest()
    path = cache / f"vega-{key[:16]}.js"
    if not path.exists():
        write_atomic(path, vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    return path.read_text(encoding="utf-8")


def write_atomic(path: Path, text: str) -> None:
    """Write so that a second build running at the same time never reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
