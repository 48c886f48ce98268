"""A first RMSNorm kernel as tutorials write it, faults included; a page shows it, tests break it."""

import kernels  # noqa: F401, I001  (chooses the path, before Triton is imported)
import triton
import triton.language as tl


# --8<-- [start:rms_norm]
@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + column)
    w = tl.load(w_ptr + column)
    mean = tl.sum(x * x) / width
    tl.store(y_ptr + row * width + column, x * w / tl.sqrt(mean + eps))


# --8<-- [end:rms_norm]
