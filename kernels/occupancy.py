"""How many thread blocks fit one multiprocessor at once, and what stops the next one.

    registers   blocks · warps · ⌈registers · warp size⌉  ≤  65,536
    shared      blocks · ⌈shared bytes + reserved⌉        ≤  shared memory of a multiprocessor
    threads     blocks · threads                          ≤  2,048

⌈ ⌉ rounds up to what the hardware hands out at once. Occupancy is a limit, not a speed: a kernel
with one block a multiprocessor can be the fastest there is.

Sources: CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; the register
arithmetic is that of NVIDIA's cuda_occupancy.h (a warp takes multiples of 256 registers from one of
four partitions). AMD Instinct MI300 ISA (CDNA3) and LLVM's AMDGPU back end (GCNSubtarget).
"""

from __future__ import annotations

from dataclasses import dataclass

KB = 1024


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor (a compute unit on AMD) has. Registers are 32-bit ones."""

    device: str
    warp_size: int
    registers: int
    register_unit: int  # a warp takes multiples of it
    registers_per_thread: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_unit: int
    reserved_shared_bytes: int  # the system's, in each block
    warps: int
    blocks: int
    partitions: int = 4  # a warp's registers lie in one
    tensor_memory_columns: int = 0


LIMITS = {
    "sm_80": Limits("A100", 32, 65536, 256, 255, 164 * KB, 163 * KB, 128, KB, 64, 32),
    "sm_90": Limits("H100", 32, 65536, 256, 255, 228 * KB, 227 * KB, 128, KB, 64, 32),
    "sm_100": Limits(
        "B200", 32, 65536, 256, 255, 228 * KB, 227 * KB, 128, KB, 64, 32, tensor_memory_columns=512
    ),
    "gfx942": Limits("MI300X", 64, 131072, 512, 512, 64 * KB, 64 * KB, 512, 0, 32, 16),
}
ARCHITECTURES = tuple(LIMITS)


@dataclass(frozen=True)
class Occupancy:
    """Blocks a multiprocessor holds at once, and which of its resources run out first."""

    blocks: int
    limited_by: tuple[str, ...]
    occupancy: float  # resident warps over the most that a multiprocessor holds


def occupancy(
    arch: str, *, threads: int, registers: int, shared_bytes: int, tensor_memory_columns: int = 0
) -> Occupancy:
    """The limit for blocks of `threads`, each with `registers`, that share `shared_bytes`.

    Zero blocks: it does not fit at all. Raises KeyError for an unknown architecture.
    """
    has = LIMITS[arch]
    warps = -(-threads // has.warp_size)
    block_shared = rounded(shared_bytes + has.reserved_shared_bytes, has.shared_unit)
    warp_registers = rounded(max(registers, 1) * has.warp_size, has.register_unit)
    warps_in_registers = has.partitions * (has.registers // has.partitions // warp_registers)
    room = {
        "registers": warps_in_registers // warps,
        "shared memory": has.shared_bytes // max(block_shared, 1),
        "threads": has.warps // warps,
        # on AMD a block takes one of 16 barriers, unless it is a single warp
        "blocks": has.warps if has.warp_size == 64 and warps == 1 else has.blocks,
    }
    if tensor_memory_columns:
        room["tensor memory"] = has.tensor_memory_columns // tensor_memory_columns
    if shared_bytes > has.shared_bytes_per_block:
        room["shared memory"] = 0
    if registers > has.registers_per_thread:
        room["registers"] = 0
    blocks = min(room.values())
    limited_by = tuple(name for name, fits in room.items() if fits == blocks)
    return Occupancy(blocks, limited_by, blocks * warps / has.warps)


def rounded(amount: int, unit: int) -> int:
    """`amount` rounded up to a multiple of `unit`."""
    return -(-amount // unit) * unit
