"""One case compiled for one architecture, in a process that does not interpret, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.binary import Binary, read_binary
from kernels.launch import Case, require
from kernels.occupancy import LIMITS, Occupancy, occupancy


@dataclass(frozen=True)
class Compiled:
    """One case on one architecture. Without `binary` the compiler refused, and `error` says why."""

    op: str
    variant: str
    arch: str
    shipped: bool
    shape: dict[str, int]
    config: dict[str, Any]  # the constexpr values that are tuned
    num_warps: int
    num_stages: int
    threads: int = 0
    shared_bytes: int = 0  # a block's, dynamic and static
    tensor_memory_columns: int = 0
    binary: Binary | None = None
    error: str = ""

    @property
    def occupancy(self) -> Occupancy:
        """Blocks a multiprocessor holds. Raises ValueError for what did not compile."""
        require(self.binary is not None, f"{self.name} did not compile: {self.error}")
        return occupancy(
            self.arch,
            threads=self.threads,
            registers=self.binary.registers,  # type: ignore[union-attr]
            shared_bytes=self.shared_bytes,
            tensor_memory_columns=self.tensor_memory_columns,
        )

    @property
    def name(self) -> str:
        """As people say it: "rms_norm 4096 bf16 on sm_90"."""
        return f"{self.op} {self.variant} on {self.arch}"

    @property
    def fault(self) -> str:
        """Why this must not be shipped, in one line; empty when it may be."""
        if self.binary is None:
            return f"{self.name} does not compile: {self.error}"
        limits = LIMITS[self.arch]
        faults = []
        if self.binary.spilled_bytes:
            faults.append(
                f"spills {self.binary.spilled_bytes} bytes a thread ({self.binary.registers} "
                "registers): use smaller blocks or more warps"
            )
        if self.shared_bytes > limits.shared_bytes_per_block:
            faults.append(
                f"needs {self.shared_bytes} bytes of shared memory, {limits.device} gives a block "
                f"{limits.shared_bytes_per_block}: use smaller blocks or fewer stages"
            )
        return f"{self.name} {'; '.join(faults)}" if faults else ""


def compile_case(case: Case, arch: str) -> Compiled:
    """Compile one case for one architecture, in a process that does not interpret."""
    names = case.kernel.arg_names
    require(
        list(case.signature) == names, f"{case.op} {case.variant}: the signature must name {names}"
    )
    tuned = case.config.all_kwargs()
    constants = case.constants | {name: v for name, v in tuned.items() if name in names}
    options = {name: value for name, value in tuned.items() if name not in names}
    about: dict[str, Any] = {
        "op": case.op,
        "variant": case.variant,
        "arch": arch,
        "shipped": case.shipped,
        "shape": case.shape,
        "config": {name: value for name, value in tuned.items() if name in names},
        "num_warps": case.config.num_warps,
        "num_stages": case.config.num_stages,
    }
    attributes: dict[Any, Any] = {
        (names.index(name),): [["tt.divisibility", 16]] for name in case.aligned
    }
    source = ASTSource(case.kernel, case.signature, constants, attributes)
    target = GPUTarget("hip", arch, 64) if arch.startswith("gfx") else cuda_target(arch)
    try:
        built = triton.compile(source, target=target, options=options)
    except Exception as error:  # whatever stage refused, the table goes on and says so
        return Compiled(**about, error=first_line(error))
    made, binary = built.metadata, read_binary(built.asm)
    return Compiled(
        **about,
        threads=made.num_warps * target.warp_size,  # with the warps that specialization adds
        shared_bytes=made.shared + binary.static_shared_bytes,
        tensor_memory_columns=getattr(made, "tmem_size", 0) or 0,
        binary=binary,
    )


def cuda_target(arch: str) -> GPUTarget:
    """The target of "sm_90"."""
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def first_line(error: Exception) -> str:
    """An error in one line: what ptxas said, if it was ptxas, else the end of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return next((line for line in lines if "fatal" in line), lines[-1])
