"""The roofline: how long a step must take, from its counted FLOPs and bytes.

    time ≥ max(FLOPs / peak FLOP rate, bytes / bandwidth)

A step whose intensity (FLOPs / bytes) lies left of the ridge (peak / bandwidth) waits for memory;
right of it, for arithmetic. Launch cost, caches and the network are left out: modelled time is a
bound, not a forecast. Source: Williams, Waterman and Patterson, "Roofline", CACM 2009.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Device:
    """Ceilings of a device; `flops_per_s` is dense, by dtype name. `source` names the datasheet,
    or the machine that measured itself."""

    name: str
    bytes_per_s: float
    flops_per_s: dict[str, float]
    memory_bytes: float
    source: str

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte at which both ceilings meet."""
        return self.flops_per_s[dtype] / self.bytes_per_s

    def seconds(self, flops: float, moved_bytes: float, dtype: str) -> float:
        """The least time for a step of `flops` that moves `moved_bytes`."""
        return max(flops / self.flops_per_s[dtype], moved_bytes / self.bytes_per_s)

    def memory_bound(self, flops: float, moved_bytes: float, dtype: str) -> bool:
        """Whether moving the bytes takes longer than the arithmetic."""
        return flops / self.flops_per_s[dtype] < moved_bytes / self.bytes_per_s


@cache
def datasheet_devices() -> dict[str, Device]:
    """Devices of devices.toml by id, with datasheet ceilings."""
    data = tomllib.loads(Path(__file__).with_name("devices.toml").read_text())
    return {
        key: Device(
            name=entry["name"],
            bytes_per_s=entry["bandwidth_gb_s"] * 1e9,
            flops_per_s={k: v * 1e12 for k, v in entry["dense_tflops"].items()},
            memory_bytes=entry["memory_gb"] * 1e9,
            source=entry["source"],
        )
        for key, entry in data.items()
    }


def measured_device(machine: dict[str, Any]) -> Device:
    """The ceilings that a recording machine measured itself, from a trace's metadata."""
    return Device(
        name=machine["name"],
        bytes_per_s=max(machine["copy_bytes_per_s"], machine["read_bytes_per_s"]),
        flops_per_s=machine["matmul_flops_per_s"],
        memory_bytes=machine["memory_bytes"],
        source="measured by tracegen",
    )
