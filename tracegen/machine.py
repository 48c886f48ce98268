"""This machine: its name, its versions and its measured ceilings.

A roofline needs two ceilings, and both are measured here rather than looked up: how fast memory
moves (a large copy, and a matrix-vector product that only reads) and how fast matrices multiply
(for each dtype the device has). Medians after warm-up; see Williams, Waterman and Patterson,
"Roofline", CACM 2009.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tracegen.errors import UserError

WARMUPS = 2
REPEATS = 7
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BUFFER_BYTES = {"cpu": 2**29, "mps": 2**29, "cuda": 2**31}  # far beyond any cache
MATRIX_SIZE = {"cpu": 2048, "mps": 4096, "cuda": 8192}
PACKAGES = ("torch", "triton", "pyarrow", "numpy")


@dataclass(frozen=True)
class Machine:
    """A machine that records. Rates are per second; `matmul_flops` is by dtype name."""

    slug: str
    name: str
    device: str
    cores: int
    memory_bytes: int
    copy_bytes_per_s: float = 0.0
    read_bytes_per_s: float = 0.0
    matmul_flops_per_s: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a trace's metadata."""
        return asdict(self)


def pick_device(wanted: str | None = None) -> torch.device:
    """The device asked for, else CUDA or ROCm, else MPS, else CPU. Raises UserError if absent."""
    if wanted is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {wanted!r} cannot be used here; try --device cpu") from error
    return device


def synchronize(device: torch.device) -> None:
    """Wait until `device` has finished its queue; a CPU has none."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def identify(device: torch.device) -> Machine:
    """Name the machine without measuring it. The slug is its folder under traces/."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory
        slug = slugify(name)
    else:
        pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        name, memory = f"{cpu_name()}, {cores} cores", pages * page_size
        slug = slugify(f"{cpu_name()} {cores}c")
        if device.type == "mps":
            name, slug = f"{name}, GPU", f"{slug}-mps"
    return Machine(slug, name, device.type, cores, memory)


def cpu_name() -> str:
    """The processor's model name as its maker writes it, without marks and clock rates."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    raw = found.group(1) if found else platform.processor() or platform.machine()
    raw = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b|@.*", " ", raw)
    return re.sub(r"\s+", " ", raw).strip()


def slugify(name: str) -> str:
    """A folder name: lower case, words joined by hyphens, filler words dropped."""
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return "-".join(w for w in words if w not in {"processor", "core", "cores", "with"})


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median time of `work()` on `device`, after warm-up."""
    times = []
    for _ in range(WARMUPS + REPEATS):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARMUPS:])


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read plus bytes written per second by a large device-to-device copy."""
    source = torch.ones(BUFFER_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device)


def read_bandwidth(device: torch.device) -> float:
    """Bytes read per second by a matrix-vector product, the shape of a decode step."""
    matrix = torch.ones(BUFFER_BYTES[device.type] // (4 * 4096), 4096, device=device)
    vector = torch.ones(4096, device=device)
    return matrix.nbytes / median_seconds(lambda: matrix @ vector, device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP per second of a large square matrix product, 2·n³ each."""
    n = MATRIX_SIZE[device.type]
    a = torch.ones(n, n, device=device, dtype=dtype)
    return 2 * n**3 / median_seconds(lambda: a @ a, device)


def measure(device: torch.device) -> Machine:
    """Identify the machine and measure its ceilings (a few seconds)."""
    known = identify(device)
    rates = {name: matmul_rate(device, dtype) for name, dtype in DTYPES.items()}
    return Machine(
        known.slug,
        known.name,
        known.device,
        known.cores,
        known.memory_bytes,
        copy_bandwidth(device),
        read_bandwidth(device),
        rates,
    )


def versions() -> dict[str, str]:
    """Versions that can change a recording: Python and the packages that compute."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
