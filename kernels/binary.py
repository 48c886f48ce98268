"""What a compiled kernel holds, read from the binary: registers, spills and instructions.

NVIDIA: `cuobjdump -res-usage -sass` of the cubin. AMD: the assembly text that Triton keeps beside
the hsaco. Counts are of instructions in the binary, once each, however often a loop runs them.

A *spill* is a register that had no room and went to memory. On NVIDIA these are the bytes of STL
and LDL, a thread; their sum is what `ptxas -v` calls spill stores and spill loads. A stack frame
without either is no spill. On AMD they are the bytes of scratch_store and scratch_load, a lane.
There a register may first move to the accumulation file (v_accvgpr_*): that stays on chip, is
counted in `registers`, and is no spill.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.runtime.cache import get_cache_manager

SASS_LINE = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)((?:\.\w+)*)", re.MULTILINE
)
AMD_LINE = re.compile(r"^\t([a-z]\w+)([^\n;]*)", re.MULTILINE)
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
RESERVED_SHARED_BYTES = 1024  # sm_90 and later count the system's own share in SHARED

# Kinds of instructions that all four architectures have, by the names they begin with.
SASS_KINDS = {
    "tensor_core": r"(HG|IG|QG|UTCH|UTCI|UTCQ|UTCO|H|I|Q|D|B)MMA",
    "async_copy": r"LDGSTS|UTMALDG|UTMASTG|UTMAREDG|UBLKCP",
    "global_load": r"LDG|LD",
    "global_store": r"STG|ST",
    "shared_load": r"LDS|LDSM",
    "shared_store": r"STS|STSM",
}
AMD_KINDS = {
    "tensor_core": r"v_s?mfmac?_\w+",
    "async_copy": r"global_load_lds_\w+",
    "global_load": r"(global|buffer|flat)_load_\w+",
    "global_store": r"(global|buffer|flat)_store_\w+",
    "shared_load": r"ds_read\w*",
    "shared_store": r"ds_write\w*",
}
KINDS = tuple(SASS_KINDS)


@dataclass(frozen=True)
class Binary:
    """Contents of one binary.

    `registers` are 32-bit ones a thread (a lane). `instructions` counts them by KINDS,
    `tensor_cores` counts tensor-core instructions by name.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    instructions: dict[str, int]
    tensor_cores: dict[str, int]

    @property
    def spilled_bytes(self) -> int:
        """Bytes a thread that instructions write to memory for want of registers, and read back."""
        return self.spill_store_bytes + self.spill_load_bytes


def read_binary(asm: dict[str, Any]) -> Binary:
    """Contents of what Triton compiled: "cubin" or "amdgcn" of `asm`.

    Disassembling takes longer than a compile found in Triton's cache, so that cache keeps this too.
    """
    code: bytes = asm["cubin"] if "cubin" in asm else asm["amdgcn"].encode()
    key = hashlib.sha256(Path(__file__).read_bytes() + code).hexdigest()
    kept = get_cache_manager(key)
    if path := kept.get_file("contents.json"):
        return Binary(**json.loads(Path(path).read_text()))
    found = read_cubin(code) if "cubin" in asm else read_amdgcn(asm["amdgcn"])
    kept.put(json.dumps(asdict(found)), "contents.json", binary=False)
    return found


def read_cubin(cubin: bytes) -> Binary:
    """Contents of an NVIDIA binary. Raises RuntimeError when cuobjdump cannot read it."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        said = subprocess.run(command, capture_output=True, text=True)  # stderr holds warnings
    found = RESOURCES.search(said.stdout)
    if said.returncode or found is None:
        raise RuntimeError(f"cuobjdump cannot read this binary: {said.stderr.strip()}")
    registers, stack, shared = map(int, found.groups())
    lines = [(name, suffixes) for name, suffixes in SASS_LINE.findall(said.stdout)]
    return Binary(
        registers=registers,
        stack_bytes=stack,
        spill_store_bytes=sum(sass_bytes(suffixes) for name, suffixes in lines if name == "STL"),
        spill_load_bytes=sum(sass_bytes(suffixes) for name, suffixes in lines if name == "LDL"),
        static_shared_bytes=max(0, shared - RESERVED_SHARED_BYTES),
        **counted((name for name, _ in lines), SASS_KINDS),
    )


def read_amdgcn(text: str) -> Binary:
    """Contents of an AMD binary, from its assembly."""
    lines = [
        # a load that ends in "lds" goes to shared memory and past the registers
        ("global_load_lds_dword" if re.search(r"\blds\s*$", rest) else name)
        for name, rest in AMD_LINE.findall(text)
    ]
    return Binary(
        registers=amd_entry(text, "vgpr_count"),
        stack_bytes=amd_entry(text, "private_segment_fixed_size"),
        spill_store_bytes=sum(amd_bytes(n) for n in lines if n.startswith("scratch_store_")),
        spill_load_bytes=sum(amd_bytes(n) for n in lines if n.startswith("scratch_load_")),
        static_shared_bytes=amd_entry(text, "group_segment_fixed_size"),
        **counted(lines, AMD_KINDS),
    )


def amd_entry(text: str, name: str) -> int:
    """One number of the metadata at the end of an AMD assembly."""
    found = re.search(rf"\.{name}:\s*(\d+)", text)
    if found is None:
        raise RuntimeError(f"this AMD assembly has no .{name}")
    return int(found.group(1))


def sass_bytes(suffixes: str) -> int:
    """Bytes that an STL or LDL moves: ".64" and the like; a register of 4 when nothing is said."""
    widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
    return next((widths[s] for s in suffixes.split(".") if s in widths), 4)


def amd_bytes(name: str) -> int:
    """Bytes that a scratch instruction moves: "scratch_load_dwordx4" → 16."""
    found = re.search(r"_(dword|short|byte|ubyte|sbyte|ushort|sshort)(?:x(\d))?", name)
    if found is None:
        raise RuntimeError(f"unknown width of {name}")
    size = {"dword": 4}.get(found.group(1), 2 if found.group(1).endswith("short") else 1)
    return size * int(found.group(2) or 1)


def counted(names: Iterable[str], kinds: dict[str, str]) -> dict[str, dict[str, int]]:
    """How many instructions of each kind, and the tensor-core ones by name."""
    of_kind = dict.fromkeys(kinds, 0)
    tensor_cores: dict[str, int] = {}
    for name, count in Counter(names).items():
        for kind, pattern in kinds.items():
            if re.fullmatch(pattern, name):
                of_kind[kind] += count
                if kind == "tensor_core":
                    tensor_cores[name] = tensor_cores.get(name, 0) + count
                break  # a load straight to shared memory is no second kind
    return {"instructions": of_kind, "tensor_cores": tensor_cores}
