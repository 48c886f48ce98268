"""One dot, one row: what their binaries must hold is known."""

import triton
import triton.language as tl

from kernels.launch import Case


@triton.jit
def _tile_dot_kernel(x_ptr, y_ptr, z_ptr, k, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows, inner = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK_K):
        x = tl.load(x_ptr + rows[:, None] * k + start + inner[None, :])
        y = tl.load(y_ptr + rows[None, :] * k + start + inner[:, None])
        total = tl.dot(x, y, total)
    tl.store(z_ptr + rows[:, None] * BLOCK + rows[None, :], total)


@triton.jit
def _add_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) + tl.load(y_ptr + at))


@triton.jit
def _softmax_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    weights = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + at, weights / tl.sum(weights, 0) + x)


def dot_case(variant, *, block, block_k, stages=3, dtype="bf16", **options):
    signature = {
        "x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "z_ptr": "*fp32", "k": "i32",
        "BLOCK": "constexpr", "BLOCK_K": "constexpr",
    }  # fmt: skip
    config = triton.Config({"BLOCK": block, "BLOCK_K": block_k}, num_stages=stages, **options)
    aligned = ("x_ptr", "y_ptr", "z_ptr", "k")
    return Case("tiles", variant, _tile_dot_kernel, signature, {}, config, aligned)


def row_case(kernel, variant, block, **options):
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "BLOCK": "constexpr"}
    config = triton.Config({"BLOCK": block}, **options)
    return Case("tiles", variant, kernel, signature, {}, config, ("x_ptr", "y_ptr"))


def cases(arch):
    yield dot_case("dot", block=64, block_k=32)
    yield row_case(_add_kernel, "add", 1024)


def sweep(arch):
    """Not shipped, so they may spill, be too large, or not compile at all."""
    squeezed = {} if arch == "gfx942" else {"maxnreg": 40}
    block = 65536 if arch == "gfx942" else 16384
    one = row_case(_softmax_kernel, "long row", block, **squeezed)
    yield Case(**{**vars(one), "shipped": False, "shape": {"BLOCK_M": block}})
