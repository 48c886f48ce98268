"""Numbers that the page "Inside the kernels" says."""

from __future__ import annotations

from typing import Any

from docs.figures.api import Text
from docs.figures.kernels import swept, verdict
from docs.figures.kernels_instructions import core_names, limits, with_tensor_cores
from docs.figures.kernels_launches import launch_rows, totals
from docs.figures.units import bytes_text, significant
from docs.figures.values import value
from tracegen.trace import Trace

A100, H100, B200, MI300X = "sm_80", "sm_90", "sm_100", "gfx942"


def shipped(trace: Trace, where: str = "true", **parameters: Any) -> list[dict[str, Any]]:
    """The shipped binaries in order, those that `where` says."""
    return trace.query(
        f"""SELECT DISTINCT step, op, variant, arch, threads, registers, spilled_bytes,
                   shared_bytes, blocks, occupancy
            FROM trace WHERE event = 'Compiled' AND shipped AND {where} ORDER BY step""",
        **parameters,
    )


def attention(trace: Trace, arch: str) -> dict[str, Any]:
    """The shipped attention kernel for bfloat16 heads of 128."""
    return shipped(
        trace,
        "op = 'flash_attention' AND head_dim = 128 AND variant LIKE 'bf16%' AND arch = $arch",
        arch=arch,
    )[0]


def worst(trace: Trace) -> dict[str, Any]:
    """The swept tile that spills most, on any architecture."""
    rows = [row | {"arch": arch} for arch in limits(trace) for row in swept(trace, arch)]
    return max(rows, key=lambda row: row["spilled_bytes"])


def largest(trace: Trace, arch: str, warps: int) -> str:
    """The largest swept tile that fits with so many warps."""
    has = limits(trace)[arch]
    fits = [
        row
        for row in swept(trace, arch)
        if row["num_warps"] == warps and verdict(row, has) == "fits"
    ]
    return f"{fits[-1]['block_m']} × {fits[-1]['block_n']}"


def cores(trace: Trace, op: str, arch: str) -> dict[str, Any]:
    """The first shipped kernel of an op that uses tensor cores there."""
    return next(row for row in with_tensor_cores(trace, op) if row["arch"] == arch)


def form_bytes(trace: Trace, scenario: str, index: int) -> str:
    return bytes_text(totals(launch_rows(trace, scenario))[index])


def times(trace: Trace, scenario: str) -> str:
    eager, fused = totals(launch_rows(trace, scenario))
    return significant(eager / fused, 2)


@value("counted")
def norm_launches(trace: Trace, t: Text) -> str:
    return str(len(launch_rows(trace, "rms_norm")) - 1)


@value("counted")
def norm_eager(trace: Trace, t: Text) -> str:
    return form_bytes(trace, "rms_norm", 0)


@value("counted")
def norm_fused(trace: Trace, t: Text) -> str:
    return form_bytes(trace, "rms_norm", 1)


@value("counted")
def weights_fused(trace: Trace, t: Text) -> str:
    return form_bytes(trace, "w4a16", 1)


@value("counted")
def weights_times(trace: Trace, t: Text) -> str:
    return times(trace, "w4a16")


@value("counted")
def weights_plain(trace: Trace, t: Text) -> str:
    """What the same layer would read with 16-bit weights."""
    eager = launch_rows(trace, "w4a16")[-2]  # the product reads them unpacked
    return bytes_text(eager["moved"])


@value("counted")
def registers_h100(trace: Trace, t: Text) -> str:
    return f"{limits(trace)[H100]['registers']:,}"


@value("counted")
def registers_mi300x(trace: Trace, t: Text) -> str:
    return f"{limits(trace)[MI300X]['registers']:,}"


@value("counted")
def registers_thread(trace: Trace, t: Text) -> str:
    return str(limits(trace)[H100]["registers_per_thread"])


@value("counted")
def registers_thread_amd(trace: Trace, t: Text) -> str:
    return str(limits(trace)[MI300X]["registers_per_thread"])


def block_room(trace: Trace, arch: str) -> str:
    return f"{limits(trace)[arch]['block_shared_bytes'] // 1024} KiB"


@value("counted")
def shared_a100(trace: Trace, t: Text) -> str:
    return block_room(trace, A100)


@value("counted")
def shared_h100(trace: Trace, t: Text) -> str:
    return block_room(trace, H100)


@value("counted")
def shared_mi300x(trace: Trace, t: Text) -> str:
    return block_room(trace, MI300X)


@value("counted")
def attention_registers(trace: Trace, t: Text) -> str:
    return str(attention(trace, H100)["registers"])


@value("counted")
def attention_threads(trace: Trace, t: Text) -> str:
    return str(attention(trace, H100)["threads"])


@value("counted")
def attention_product(trace: Trace, t: Text) -> str:
    row = attention(trace, H100)
    return f"{row['registers'] * row['threads']:,}"


@value("counted")
def attention_blocks(trace: Trace, t: Text) -> str:
    return str(attention(trace, H100)["blocks"])


@value("counted")
def attention_occupancy(trace: Trace, t: Text) -> str:
    return f"{attention(trace, H100)['occupancy']:.1%}"


@value("counted")
def attention_shared(trace: Trace, t: Text) -> str:
    return f"{attention(trace, H100)['shared_bytes'] / 1024:.0f} KiB"


@value("counted")
def norm_registers(trace: Trace, t: Text) -> str:
    return str(shipped(trace, "op = 'rms_norm' AND arch = $arch", arch=H100)[0]["registers"])


@value("counted")
def norm_blocks(trace: Trace, t: Text) -> str:
    return str(shipped(trace, "op = 'rms_norm' AND arch = $arch", arch=H100)[0]["blocks"])


@value("counted")
def binaries(trace: Trace, t: Text) -> str:
    return str(len(shipped(trace)))


@value("counted")
def spilling_binaries(trace: Trace, t: Text) -> str:
    return str(len(shipped(trace, "spilled_bytes > 0")))


@value("counted")
def one_block(trace: Trace, t: Text) -> str:
    """Shipped H100 binaries of which a multiprocessor holds just one block."""
    return str(len(shipped(trace, "blocks = 1 AND arch = $arch", arch=H100)))


@value("counted")
def h100_binaries(trace: Trace, t: Text) -> str:
    return str(len(shipped(trace, "arch = $arch", arch=H100)))


@value("counted")
def tiles_swept(trace: Trace, t: Text) -> str:
    return str(len(swept(trace, A100)))


@value("counted")
def spilling_a100(trace: Trace, t: Text) -> str:
    return str(sum(row["spilled_bytes"] > 0 for row in swept(trace, A100)))


@value("counted")
def spilling_h100(trace: Trace, t: Text) -> str:
    return str(sum(row["spilled_bytes"] > 0 for row in swept(trace, H100)))


@value("counted")
def largest_four_h100(trace: Trace, t: Text) -> str:
    return largest(trace, H100, 4)


@value("counted")
def largest_eight_h100(trace: Trace, t: Text) -> str:
    return largest(trace, H100, 8)


@value("counted")
def worst_tile(trace: Trace, t: Text) -> str:
    return f"{worst(trace)['block_m']} × {worst(trace)['block_n']}"


@value("counted")
def worst_warps(trace: Trace, t: Text) -> str:
    return str(worst(trace)["num_warps"])


@value("counted")
def worst_device(trace: Trace, t: Text) -> str:
    return str(limits(trace)[worst(trace)["arch"]]["device"])


@value("counted")
def worst_spill(trace: Trace, t: Text) -> str:
    return bytes_text(worst(trace)["spilled_bytes"])


@value("counted")
def worst_registers(trace: Trace, t: Text) -> str:
    return str(worst(trace)["registers"])


@value("counted")
def most_registers(trace: Trace, t: Text) -> str:
    """The most that any NVIDIA binary, shipped or swept, was given."""
    rows = trace.query(
        "SELECT max(registers) AS most FROM trace WHERE event = 'Compiled' AND arch LIKE 'sm_%'"
    )
    return str(rows[0]["most"])


@value("counted")
def most_registers_amd(trace: Trace, t: Text) -> str:
    rows = trace.query(
        "SELECT max(registers) AS most FROM trace WHERE event = 'Compiled' AND arch = 'gfx942'"
    )
    return str(rows[0]["most"])


def attention_cores(trace: Trace, arch: str) -> str:
    row = cores(trace, "flash_attention", arch)
    return f"{row['tensor_core']} {core_names(row)}"


@value("counted")
def cores_a100(trace: Trace, t: Text) -> str:
    return attention_cores(trace, A100)


@value("counted")
def cores_h100(trace: Trace, t: Text) -> str:
    return attention_cores(trace, H100)


@value("counted")
def cores_b200(trace: Trace, t: Text) -> str:
    return attention_cores(trace, B200)


@value("counted")
def cores_mi300x(trace: Trace, t: Text) -> str:
    return attention_cores(trace, MI300X)


@value("counted")
def paged_cores_h100(trace: Trace, t: Text) -> str:
    return core_names(cores(trace, "paged_attention", H100))


@value("counted")
def int8_cores_b200(trace: Trace, t: Text) -> str:
    return core_names(cores(trace, "w8a8_matmul", B200))


@value("counted")
def triton_version(trace: Trace, t: Text) -> str:
    return str(trace.meta["versions"]["triton"])
