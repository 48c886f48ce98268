"""A recording session: which techniques need recording, and what their files say about themselves.

A trace is up to date when its fingerprint is: the technique's source and everything of tracegen and
kernels it imports, model, dtype, seed, preset, repeats, versions and thread count.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tracegen import machine
from tracegen.errors import UserError
from tracegen.events import Scenario
from tracegen.machine import Machine
from tracegen.model import Model, load_model
from tracegen.model.default import default_model_path
from tracegen.model.load import open_model
from tracegen.record import record_table
from tracegen.trace import SCHEMA_VERSION, read_metadata, write_trace

ROOT = Path(__file__).parent.parent
TECHNIQUES = Path(__file__).parent / "techniques"
KERNEL = ROOT / "kernels" / "flash_attention.py"  # what `--attention triton` runs
REPEATS = {"quick": 3, "full": 5}


def technique_names() -> list[str]:
    """Names of all techniques: the modules of tracegen/techniques."""
    return sorted(path.stem for path in TECHNIQUES.glob("[a-z]*.py"))


class Unavailable(UserError):
    """A technique needs a package that this platform does not have."""


def load_technique(name: str) -> ModuleType:
    """The module of a technique. Raises UserError for an unknown name, Unavailable where a package
    is missing (Triton has no release for every platform)."""
    if name not in technique_names():
        raise UserError(f"no technique {name!r}; there are: {', '.join(technique_names())}")
    try:
        return importlib.import_module(f"tracegen.techniques.{name}")
    except ModuleNotFoundError as error:
        raise Unavailable(f"{name} needs {error.name}, which is not installed here") from None


def available_techniques() -> tuple[list[str], list[str]]:
    """Names of the techniques that can run here, and why the others cannot."""
    names, reasons = [], []
    for name in technique_names():
        try:
            load_technique(name)
            names.append(name)
        except Unavailable as error:
            reasons.append(str(error))
    return names, reasons


def scenarios_of(technique: ModuleType, preset: str, seed: int | None) -> list[Scenario]:
    """The technique's scenarios in `preset`; quick ones belong to both. `seed` replaces theirs."""
    chosen = [s for s in technique.SCENARIOS if preset == "full" or s.preset == "quick"]
    return chosen if seed is None else [replace(s, seed=seed) for s in chosen]


def sources_of(path: Path) -> dict[str, Path]:
    """The tracegen modules that a source file imports, directly or not, itself included.

    A source that imports any kernel depends on all of kernels/: ops are found by listing it.
    """
    found: dict[str, Path] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(ROOT).as_posix()
        if name in found:
            continue
        found[name] = file
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            module = node.module or ""
            if module.startswith("tracegen"):
                waiting += module_files(module, [alias.name for alias in node.names])
            elif module.split(".")[0] == "kernels":
                waiting += (ROOT / "kernels").glob("*.py")
    return found


def module_files(module: str, names: Iterable[str]) -> list[Path]:
    """Files behind `from module import names` (names may be submodules)."""
    folder = ROOT.joinpath(*module.split("."))
    candidates = [folder.with_suffix(".py"), folder / "__init__.py"]
    candidates += [folder / f"{name}.py" for name in names]
    return [path for path in candidates if path.is_file()]


def source_hash(path: Path) -> str:
    """One hash over the technique's source and the sources of ours that it imports."""
    digest = hashlib.sha256()
    for name, file in sorted(sources_of(path).items()):
        digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def git_commit() -> str:
    """The commit of this checkout, "-dirty" when our sources differ from it; "" without git."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "tracegen", "kernels"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}-dirty" if changed else commit


@dataclass
class Session:
    """What one `record` command was asked for. Model and ceilings load on first need."""

    preset: str
    device: torch.device
    model_path: str | None
    out: Path
    seed: int | None
    attention: str = "sdpa"

    @cached_property
    def model(self) -> Model:
        """The model, loaded once."""
        return load_model(self.model_path, device=str(self.device), attention=self.attention)

    @cached_property
    def model_identity(self) -> dict[str, Any]:
        """Name and checksum of the model, without loading its weights."""
        files = open_model(Path(self.model_path) if self.model_path else default_model_path())
        return {"name": files.config.name, "sha256": files.sha256()}

    @cached_property
    def measured_machine(self) -> Machine:
        """This machine with its measured ceilings."""
        return machine.measure(self.device)

    @cached_property
    def folder(self) -> Path:
        """The folder of this machine's traces."""
        return self.out / machine.identify(self.device).slug

    def path(self, name: str) -> Path:
        """The trace file of a technique on this machine."""
        return self.folder / f"{name}.parquet"

    def identity(self, name: str) -> dict[str, Any]:
        """Everything that decides what a recording of `name` would hold."""
        return {
            "schema": SCHEMA_VERSION,
            "technique": name,
            "preset": self.preset,
            "seed": self.seed,
            "model": self.model_identity,
            "device": self.device.type,
            "attention": self.attention,
            "sources": source_hash(TECHNIQUES / f"{name}.py"),
            "kernels": source_hash(KERNEL) if self.attention == "triton" else None,
            "versions": machine.versions(),
            "threads": torch.get_num_threads(),
        }

    def fingerprint(self, name: str) -> str:
        """Hash of `identity`."""
        return hashlib.sha256(repr(sorted(self.identity(name).items())).encode()).hexdigest()

    def up_to_date(self, name: str) -> bool:
        """Whether a recording of `name` with this very identity lies there already."""
        try:
            found = read_metadata(self.path(name))["fingerprint"]
        except UserError:
            return False
        full = replace(self, preset="full")  # holds all of quick
        return found in (self.fingerprint(name), full.fingerprint(name))

    def record(self, name: str, on_pass: Callable[[], None]) -> int:
        """Record one technique and write its file. Returns the number of rows."""
        technique = load_technique(name)
        scenarios = scenarios_of(technique, self.preset, self.seed)
        inputs = {}
        if "model" in inspect.signature(technique.run).parameters:
            inputs["model"] = self.model
        with torch.inference_mode():
            table = record_table(
                technique,
                scenarios,
                inputs,
                repeats=REPEATS[self.preset],
                synchronize=lambda: machine.synchronize(self.device),
                on_pass=on_pass,
            )
        write_trace(self.path(name), table, self.metadata(name, technique, scenarios))
        return table.num_rows

    def metadata(
        self, name: str, technique: ModuleType, scenarios: list[Scenario]
    ) -> dict[str, Any]:
        """What a trace says about itself."""
        source = TECHNIQUES / f"{name}.py"
        text = source.read_text()
        config = self.model.config
        return self.identity(name) | {
            "model": self.model_identity
            | {"dtype": str(self.model.dtype).removeprefix("torch.")}
            | asdict(config),
            "machine": self.measured_machine.as_dict(),
            "command": f"make traces ONLY={name} PRESET={self.preset}",
            "git": git_commit(),
            "repeats": REPEATS[self.preset],
            "source": {
                "path": source.relative_to(ROOT).as_posix(),
                "text": text,
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
            },
            "scenarios": {s.name: asdict(s) for s in scenarios},
            "fingerprint": self.fingerprint(name),
            "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def passes(self, name: str) -> int:
        """How many passes over scenarios recording `name` takes, warm-ups included."""
        scenarios = scenarios_of(load_technique(name), self.preset, self.seed)
        return len(scenarios) * (1 + REPEATS[self.preset])
