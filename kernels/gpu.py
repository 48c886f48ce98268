"""All that a GPU is needed for, in one go: `make gpu [OUT=folder]`.

Native kernel tests, benches beside their peers, and the full recording, each with a time limit, in
8 minutes on one GPU. A phase that fails does not stop the next. A short table comes last.

Nothing is fetched. It runs with whatever Python has torch and triton, pytest, hypothesis, rich and
jinja2; gguf and the default model may travel in `.carry/`, which `make carry` fills on a machine
with a network (the model in two parts, for where a copy is limited in size).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
CARRY = ROOT / ".carry"


@dataclass(frozen=True)
class Phase:
    """A command with a limit in seconds, and the file under OUT that keeps what it printed."""

    name: str
    command: Sequence[str]
    limit_s: int


def phases(out: Path) -> list[Phase]:
    """What runs, in order; the limits add up to less than 8 minutes."""
    python = sys.executable
    workers = ["-n", "6", "--dist", "loadgroup"] if find_spec("xdist") else []
    tests = ["tests/kernels", "tests/model/test_attention.py"]
    ahead = [f"--ignore=tests/kernels/{name}.py" for name in ("test_compile", "test_binary")]
    return [
        Phase("tests", [python, "-m", "pytest", "-q", *workers, *ahead, *tests], 170),
        Phase("bench", [python, "-m", "kernels.bench", "--json", str(out / "bench.json")], 120),
        Phase(
            "record",
            [python, "-m", "tracegen", "record", "--preset", "full", "--out", str(out / "traces")],
            180,
        ),
    ]


def environment() -> dict[str, str]:
    """The caller's, with what `.carry/` holds: packages on the path, the model in its cache."""
    found = dict(os.environ, PYTHONUNBUFFERED="1", COLUMNS="160")
    path = [str(ROOT), str(CARRY / "python"), found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    return found


def join_model(folder: Path) -> None:
    """Put the parts of the default model together in its cache, where both are there."""
    from tracegen.model.default import FILE_NAME, cache_folder

    parts = [folder / f"{FILE_NAME}.{number}" for number in (0, 1)]
    whole = cache_folder() / FILE_NAME
    if whole.exists() or not all(part.exists() for part in parts):
        return
    whole.parent.mkdir(parents=True, exist_ok=True)
    joined = whole.with_suffix(".tmp")
    with joined.open("wb") as target:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)
    joined.replace(whole)


def run(phase: Phase, out: Path) -> tuple[str, float]:
    """Run one phase, its output to the screen and to a file. Returns outcome and seconds."""
    began = time.perf_counter()
    log = out / f"{phase.name}.log"
    print(f"== {phase.name}: {' '.join(phase.command)}", flush=True)
    with log.open("w") as target:
        try:
            code = subprocess.run(
                phase.command,
                cwd=ROOT,
                env=environment(),
                stdout=target,
                stderr=subprocess.STDOUT,
                timeout=phase.limit_s,
            ).returncode
            outcome = "ok" if code == 0 else f"FAILED (exit {code})"
        except subprocess.TimeoutExpired:
            outcome = f"STOPPED after {phase.limit_s} s"
    print(tail(log), flush=True)
    return outcome, time.perf_counter() - began


def tail(log: Path, lines: int = 40) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def main(argv: list[str] | None = None) -> int:
    """Run every phase. Returns 1 when one did not go well, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "gpu", help="for all results")
    args = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("error: no GPU found; without one use `make test` and `make traces`", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    out = args.out.resolve()
    for folder in (CARRY, Path(os.environ.get("IOL_PARTS", CARRY))):
        join_model(folder)
    results = [(phase.name, *run(phase, out)) for phase in phases(out)]
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}; results in {out}")
    for name, outcome, seconds in results:
        print(f"{name:8} {seconds:5.0f} s  {outcome}")
    return 0 if all(outcome == "ok" for _, outcome, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
