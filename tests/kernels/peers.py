"""What the compilers themselves say of a binary, beside what we read from it.

TRITON_INTERPRET=0 python -m tests.kernels.peers        JSON, one object a toy case
"""

import json
import re
import subprocess
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.binary import read_amdgcn, read_cubin
from kernels.occupancy import ARCHITECTURES, occupancy
from tests.kernels.toys import tiles


def build(case, arch):
    names = case.kernel.arg_names
    values = case.config.all_kwargs()
    source = ASTSource(
        case.kernel,
        case.signature,
        {name: value for name, value in values.items() if name in names},
        {(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned},
    )
    options = {name: value for name, value in values.items() if name not in names}
    amd = arch.startswith("gfx")
    target = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", int(arch[3:]), 32)
    return triton.compile(source, target=target, options=options)


def ptxas_says(ptx, arch):
    """Spill stores, spill loads and stack of the same PTX, in ptxas's own words."""
    knobs = triton.knobs.nvidia
    ptxas = (knobs.ptxas_blackwell if arch == "sm_100" else knobs.ptxas).path
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        gpu = arch if arch == "sm_80" else f"{arch}a"
        command = [ptxas, "-v", "-lineinfo", f"--gpu-name={gpu}", file.name, "-o", "/dev/null"]
        if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7):
            command.insert(1, "--regAllocOptLevel=2")  # as Triton calls it
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stack, stores, loads = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said
    ).groups()
    return [int(re.search(r"Used (\d+) registers", said)[1]), int(stack), int(stores), int(loads)]


def compare(case, arch):
    built = build(case, arch)
    if arch != "gfx942":
        ours = read_cubin(built.asm["cubin"])
        said = ptxas_says(built.asm["ptx"], arch)
        mine = [ours.registers, ours.stack_bytes, ours.spill_store_bytes, ours.spill_load_bytes]
        return {"ours": mine, "theirs": said}
    text = built.asm["amdgcn"]
    ours = read_amdgcn(text)
    threads = built.metadata.num_warps * 64
    blocks = occupancy(arch, threads=threads, registers=ours.registers, shared_bytes=0).blocks
    waves = min(8, blocks * built.metadata.num_warps // 4)  # LLVM counts a SIMD's, at most 8
    said = [int(re.search(rf"; {key}: (\d+)", text)[1]) for key in ("ScratchSize", "Occupancy")]
    return {"ours": [ours.stack_bytes, waves], "theirs": said}


if __name__ == "__main__":
    print(
        json.dumps(
            [
                {"case": case.variant, "arch": arch} | compare(case, arch)
                for arch in ARCHITECTURES
                for case in (*tiles.cases(arch), *tiles.sweep(arch))
            ]
        )
    )
