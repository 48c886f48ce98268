"""Draws every figure that the pages of one site ask for, and writes what the browser fetches.

- figures/<technique>/<figure>/<machine>[.<variant>].json: one payload each
- the same with .{light,dark}-{wide,narrow}.svg: posters of what pages show first
- assets/vega.js, assets/chart-theme.json: fetched on first use
- traces/<machine>/<technique>.parquet: to download
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
from typing import Literal

from docs.figures import posters, theme
from docs.figures.api import Figure, Text
from docs.figures.payload import Origin, Payload, make_payload, to_json
from docs.figures.posters import Poster, write_atomic
from tracegen.errors import UserError
from tracegen.trace import Trace, read_trace, trace_files


@dataclass(frozen=True)
class Choice:
    """What a figure block on a page shows first, and what the reader may choose instead.

    `path` is where its files go, below the site's root and without suffix; `machines` and
    `variants` are labels by id.
    """

    payload: Payload
    posters: dict[str, Poster]
    path: str
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
        self.payloads: dict[str, Payload] = {}  # by path
        self.posters: dict[str, dict[str, Poster]] = {}  # of what pages show first, by path

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
        return self.show(
            path_of(figure_id, machine, variant),
            machines={
                slug: self.trace(path).meta["machine"]["name"] for slug, path in paths.items()
            },
            variants={key: label for key, label in variants.items() if key is not None},
        )

    def show(self, path: str, machines: dict[str, str], variants: dict[str, str]) -> Choice:
        """A drawn payload as what a page shows first, with its posters."""
        payload = self.payloads[path]
        if path not in self.posters:
            wide = theme.BESIDE_CODE if payload["code"] else theme.WIDE
            sizing = posters.Sizing(**payload["sizing"])
            self.posters[path] = posters.draw_all(payload["spec"], sizing, wide, self.cache)
        return Choice(payload, self.posters[path], path, machines, variants)

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

    def draw(self, figure_id: str, figure: Figure, machine: str, variant: str | None) -> None:
        """Draw one figure on one machine in one variant, or take it from the cache."""
        path = path_of(figure_id, machine, variant)
        if path in self.payloads:
            return
        trace = self.trace(self.recordings[figure_id.split(".")[0]][machine])
        parts = (self.code_key, content_key(trace.path), path, self.t.lang)
        cached = self.cache / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.json"
        if not cached.exists():
            origin = Origin(
                figure=figure_id,
                machine=machine,
                machine_name=trace.meta["machine"]["name"],
                variant=variant,
                parquet=f"traces/{machine}/{trace.path.name}",
                command=trace.meta["command"],
                source=trace.meta["source"]["text"],
                source_path=trace.meta["source"]["path"],
            )
            view = figure.draw(trace, self.t, variant)
            write_atomic(cached, to_json(make_payload(view, origin, self.t, self.cache)))
        self.payloads[path] = json.loads(cached.read_text(encoding="utf-8"))

    @cached_property
    def code_key(self) -> str:
        """Changes when any code that figures are drawn with changes."""
        code = [Path(__file__).parent, self.root / "tracegen"]
        return content_key(*code, Path(importlib.import_module(self.package).__file__ or "").parent)

    def write(self, site: Path) -> None:
        """Write all that was drawn into a built site."""
        for path, payload in self.payloads.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / f"{path}.json").write_text(to_json(payload), encoding="utf-8")
            for name, poster in self.posters.get(path, {}).items():
                (site / f"{path}.{name}.svg").write_text(poster.svg, encoding="utf-8")
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
            for machine, trace_file in machines.items():
                folder = site / "traces" / machine
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(trace_file, folder / trace_file.name)


def path_of(figure_id: str, machine: str, variant: str | None) -> str:
    """Where a payload goes, below the site's root and without suffix."""
    return f"figures/{figure_id.replace('.', '/')}/{machine}" + (f".{variant}" if variant else "")


def content_key(*paths: Path) -> str:
    """Hash of the contents of files and folders, to name a cache by what it depends on."""
    digest = hashlib.sha256()
    files = [file for top in paths for file in (top.rglob("*") if top.is_dir() else [top])]
    for path in sorted(files):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
