"""Draws every figure that the pages of one site ask for, and writes what the browser fetches.

figures/<technique>/<figure>/<machine>[.<variant>].json    one payload each
figures/<technique>/<figure>/<machine>….{light,dark}-{wide,narrow}.svg
assets/vega.js, assets/chart-theme.json                    fetched on first use
traces/<machine>/<technique>.parquet
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from docs.figures import code_pane, posters, spec, theme
from docs.figures.api import KIND_WORDS, Figure, Text, View
from docs.figures.posters import Poster
from tracegen.errors import UserError
from tracegen.trace import Trace, read_trace, trace_files

MAX_PAYLOAD_BYTES = 200_000  # after gzip


@dataclass(frozen=True)
class Drawn:
    """One figure on one machine in one variant: its payload and its posters.

    `path` is where its files go, below the site's root and without suffix.
    """

    payload: dict[str, Any]
    posters: dict[str, Poster]
    path: str


@dataclass(frozen=True)
class Choice:
    """What a figure block on a page chose, and what the reader may choose."""

    figure: str
    drawn: Drawn
    machines: dict[str, str]
    variants: dict[str, str]


class Figures:
    """All figures of the site in one language. `package` holds the figure modules."""

    def __init__(
        self, root: Path, lang: Literal["en", "zh"], traces: Path, package: str = "docs.figures"
    ) -> None:
        self.root, self.traces, self.package = root, traces, package
        self.cache = root / ".cache" / "figures"
        self.t = Text(lang)
        self.read: dict[Path, Trace] = {}
        self.drawn: dict[tuple[str, str, str | None], Drawn] = {}

    @cached_property
    def recordings(self) -> dict[str, dict[str, Path]]:
        """{technique: {machine: trace file}}, the newest recording first: pages show that one."""
        return {
            technique: {
                path.parent.name: path for path in sorted(paths, key=self.recorded_at, reverse=True)
            }
            for technique, paths in trace_files(self.traces).items()
        }

    def recorded_at(self, path: Path) -> str:
        """When a trace was recorded, as an ISO date and time in UTC."""
        return str(self.trace(path).meta["recorded_at"])

    def first_trace(self, technique: str) -> Trace:
        """The trace that pages show first. Raises UserError when there is none."""
        paths = self.recordings.get(technique)
        if not paths:
            raise UserError(f"no trace of {technique}; run `make traces` first")
        return self.trace(next(iter(paths.values())))

    def trace(self, path: Path) -> Trace:
        """The trace file, read once."""
        if path not in self.read:
            self.read[path] = read_trace(path)
        return self.read[path]

    def choose(self, figure_id: str, machine: str | None, variant: str | None) -> Choice:
        """Draw a figure on all machines and in all variants; the given ones are shown first.

        Raises UserError when there is no such figure, trace, machine or variant.
        """
        figure = self.find(figure_id)
        technique = figure_id.split(".")[0]
        paths = self.recordings.get(technique, {})
        if not paths:
            raise UserError(f"{figure_id}: no trace of {technique}; run `make traces` first")
        for slug, path in paths.items():
            for key in figure.variants(self.trace(path), self.t):
                self.draw(figure_id, figure, slug, key)
        machine = machine or next(iter(paths))
        if machine not in paths:
            raise UserError(f"{figure_id}: no machine {machine}; there are {', '.join(paths)}")
        variants = figure.variants(self.trace(paths[machine]), self.t)
        variant = variant or next(iter(variants))
        if variant not in variants:
            known = ", ".join(map(str, variants))
            raise UserError(f"{figure_id}: no variant {variant}; there are {known}")
        return Choice(
            figure_id,
            self.drawn[figure_id, machine, variant],
            {slug: self.trace(path).meta["machine"]["name"] for slug, path in paths.items()},
            {key: label for key, label in variants.items() if key is not None},
        )

    def find(self, figure_id: str) -> Figure:
        """The figure `<module>.<function>`. Raises UserError when there is none."""
        if not re.fullmatch(r"[a-z]\w*\.[a-z]\w*", figure_id):
            raise UserError(f"{figure_id!r} is no figure id; write <technique>.<figure>")
        module_name, name = figure_id.split(".")
        try:
            module = importlib.import_module(f"{self.package}.{module_name}")
        except ModuleNotFoundError as error:
            if error.name != f"{self.package}.{module_name}":
                raise
            raise UserError(
                f"no figure {figure_id}: docs/figures has no {module_name}.py"
            ) from None
        found = getattr(module, name, None)
        if not isinstance(found, Figure):
            names = [key for key, value in vars(module).items() if isinstance(value, Figure)]
            raise UserError(f"no figure {figure_id}; {module_name} has {', '.join(names)}")
        return found

    def draw(self, figure_id: str, figure: Figure, machine: str, variant: str | None) -> Drawn:
        """Draw one figure on one machine in one variant, once."""
        key = (figure_id, machine, variant)
        if key not in self.drawn:
            trace = self.trace(self.recordings[figure_id.split(".")[0]][machine])
            view = figure.draw(trace, self.t, variant)
            source = trace.meta["source"]
            path = f"figures/{figure_id.replace('.', '/')}/{machine}"
            path += f".{variant}" if variant else ""
            self.drawn[key] = self.finish(
                path,
                view,
                {
                    "figure": figure_id,
                    "machine": machine,
                    "machine_name": trace.meta["machine"]["name"],
                    "variant": variant,
                    "parquet": f"traces/{machine}/{trace.path.name}",
                    "command": trace.meta["command"],
                },
                source["text"],
                source["path"],
            )
        return self.drawn[key]

    def finish(
        self, path: str, view: View, origin: dict[str, Any], source: str = "", source_path: str = ""
    ) -> Drawn:
        """Payload and posters of a view; `origin` says what it was drawn from."""
        figure_id = origin["figure"]
        if view.kind not in KIND_WORDS:
            raise UserError(f"{figure_id}: kind {view.kind!r} is none of {', '.join(KIND_WORDS)}")
        chart = spec.to_spec(view.chart, figure_id)
        start = spec.step_start(chart)
        if (start is not None) != bool(view.steps) or not 0 <= (start or 0) <= len(view.steps):
            raise UserError(f"{figure_id}: steps and a parameter `step` within them go together")
        sizing = posters.measure(chart, self.cache)
        now = view.steps[start] if start is not None else None
        touched = [n for s in view.steps for n in (*s.lines, *([s.line] if s.line else []))]
        payload = {
            **origin,
            "kind": view.kind,
            "kind_word": self.t(*KIND_WORDS[view.kind]),
            "title": view.title,
            "notice": view.notice,
            "spec": chart,
            "sizing": {"plots": sizing.plots, "margin": sizing.margin},
            "columns": view.columns,
            "dataset": spec.main_dataset(chart, view.columns, figure_id),
            "start": start,
            "steps": [{"line": s.line, "lines": s.lines, "text": s.narration} for s in view.steps],
            "code": code_pane.render(source, touched, now.line, now.lines) if now else "",
            "code_path": source_path,
        }
        wide = theme.BESIDE_CODE if payload["code"] else theme.WIDE
        return Drawn(payload, posters.draw_all(chart, sizing, wide, self.cache), path)

    def write(self, site: Path) -> None:
        """Write all that was drawn into a built site."""
        for drawn in self.drawn.values():
            target = site / drawn.path
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{target}.json").write_text(to_json(drawn.payload), encoding="utf-8")
            for name, poster in drawn.posters.items():
                Path(f"{target}.{name}.svg").write_text(poster.svg, encoding="utf-8")
        assets = site / "assets"
        assets.mkdir(parents=True, exist_ok=True)
        (assets / "vega.js").write_text(posters.vega_bundle(self.cache), encoding="utf-8")
        settings = {
            "wide": theme.config(),
            "narrow": theme.config(narrow=True),
            "dark": theme.DARK,
        }
        (assets / "chart-theme.json").write_text(to_json(settings), encoding="utf-8")
        for machines in self.recordings.values():
            for machine, path in machines.items():
                folder = site / "traces" / machine
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / path.name)


def to_json(value: Any) -> str:
    """Strict, compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def content_key(*paths: Path) -> str:
    """Hash of the contents of files and folders, to name a cache by what it depends on."""
    digest = hashlib.sha256()
    files = [file for top in paths for file in (top.rglob("*") if top.is_dir() else [top])]
    for path in sorted(files):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
