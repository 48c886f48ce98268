"""Matrix product of int8 with int8: y = (x wᵀ) · s_x · s_w + bias, with exact integer sums.

    y[t, n] = s_x[t] · s_w[n] · Σ_k x[t, k] w[n, k] + bias[n]      one scale a token, one a channel

Bytes, with T tokens, N outputs, K inputs and a y of e bytes a number:

    naive   sums to memory, then scale:   T K + N K + 4 T N (sums out) + 4 T N (in again) + e T N
    fused   scale in the epilogue:        T K + N K                                       + e T N

Both do 2 T N K integer operations and 2–3 T N in floating point. Against 16-bit weights and
activations the operands are half as large and tensor cores do twice the operations a second.

A sum of K products of int8 is at most 2¹⁴ K, so int32 holds it as long as K < 2¹⁷ = 131072.

Persistent variant: as many programs as multiprocessors, each walking over many tiles, so that the
next tile's loads start while the last one is scaled and stored. A candidate on sm_90 and sm_100.
Triton 3.7 has int8 for Hopper's warp-group instructions, but not for Blackwell's fifth generation:
there the older `mma` instructions run, which need not beat bf16.

Source: Xiao et al., "SmoothQuant", ICML 2023, section 3 (per-token and per-channel scales).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import Config

from kernels.launch import INTERPRETED, Case, Cases, architecture, require, tuned

MAX_IN_FEATURES = 2**17 - 1
OUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def _w8a8_matmul_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, bias_ptr, out_ptr,
    tokens, out_features, in_features, tokens_bucket,
    stride_xt, stride_xk, stride_wn, stride_wk, stride_ot, stride_on,
    stride_xs, stride_ws, stride_b,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(tokens, BLOCK_M)
    tiles_n = tl.cdiv(out_features, BLOCK_N)
    k = tl.arange(0, BLOCK_K)

    # One tile, or every num_programs-th tile; eight rows of tiles at a time share their weights.
    first, programs = tl.program_id(0), tl.num_programs(0)
    for tile in tl.range(first, tiles_m * tiles_n, programs, flatten=PERSISTENT):
        m, n = tl.swizzle2d(tile // tiles_n, tile % tiles_n, tiles_m, tiles_n, 8)
        token = tl.full([1], m, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        channel = tl.full([1], n, tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        live_m, live_n = token < tokens, channel < out_features
        x_at = x_ptr + token[:, None] * stride_xt
        w_at = w_ptr + channel[None, :] * stride_wn

        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
        for start in range(0, in_features, BLOCK_K):
            # load: x (BLOCK_M, BLOCK_K), w transposed (BLOCK_K, BLOCK_N)
            at = start + k
            live_k = at < in_features
            at = at.to(tl.int64)
            x = tl.load(
                x_at + at[None, :] * stride_xk, mask=live_m[:, None] & live_k[None, :], other=0
            )
            w = tl.load(
                w_at + at[:, None] * stride_wk, mask=live_k[:, None] & live_n[None, :], other=0
            )
            # compute: exact
            acc = tl.dot(x, w, acc, out_dtype=tl.int32)

        # compute: the epilogue, in fp32
        x_scale = tl.load(x_scale_ptr + token * stride_xs, mask=live_m, other=0)
        w_scale = tl.load(w_scale_ptr + channel * stride_ws, mask=live_n, other=0)
        y = acc.to(tl.float32) * x_scale[:, None] * w_scale[None, :]
        if HAS_BIAS:
            bias = tl.load(bias_ptr + channel * stride_b, mask=live_n, other=0)
            y += bias.to(tl.float32)[None, :]

        # store: (BLOCK_M, BLOCK_N)
        out = out_ptr + token[:, None] * stride_ot + channel[None, :] * stride_on
        tl.store(out, y.to(out_ptr.dtype.element_ty), mask=live_m[:, None] & live_n[None, :])


@triton.jit
def _quantize_tokens_kernel(
    x_ptr, q_ptr, scale_ptr,
    in_features, stride_xt, stride_xk, stride_qt,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    # load and compute: the largest magnitude of the row
    amax = tl.zeros([BLOCK], tl.float32)
    for start in range(0, in_features, BLOCK):
        at = (start + tl.arange(0, BLOCK)).to(tl.int64)
        x = tl.load(x_ptr + token * stride_xt + at * stride_xk, mask=at < in_features, other=0)
        amax = tl.maximum(amax, tl.abs(x.to(tl.float32)))
    scale = tl.div_rn(tl.max(amax, 0), 127.0)
    tl.store(scale_ptr + token, scale)

    # load again (from cache), compute, store: round half to even, clamp before the cast
    divisor = tl.where(scale > 0, scale, 1.0)
    for start in range(0, in_features, BLOCK):
        at = (start + tl.arange(0, BLOCK)).to(tl.int64)
        x = tl.load(x_ptr + token * stride_xt + at * stride_xk, mask=at < in_features, other=0)
        q = tl.div_rn(x.to(tl.float32), tl.full([BLOCK], 1.0, tl.float32) * divisor)
        q = (q + 12582912.0) - 12582912.0  # 1.5 · 2²³: no bits are left behind the point
        q = tl.minimum(tl.maximum(q, -127.0), 127.0)
        tl.store(q_ptr + token * stride_qt + at, q.to(tl.int8), mask=at < in_features)


def _tile(
    tokens: int, channels: int, depth: int, warps: int, stages: int, persistent: bool = False
) -> Config:
    blocks = {"BLOCK_M": tokens, "BLOCK_N": channels, "BLOCK_K": depth, "PERSISTENT": persistent}
    return Config(blocks, num_warps=warps, num_stages=stages)


DECODE = [_tile(16, 32, 256, 4, 4), _tile(16, 64, 256, 4, 4)]
CONFIGS_BY_ARCH = {
    "gfx942": [_tile(16, 32, 256, 4, 2), _tile(128, 128, 64, 8, 2)],
    "sm_80": [*DECODE, _tile(64, 128, 64, 4, 4), _tile(128, 128, 64, 8, 4)],
    "sm_90": [
        *DECODE,
        _tile(64, 128, 128, 4, 4),
        _tile(256, 128, 128, 8, 3),
        _tile(128, 128, 128, 8, 4, persistent=True),
    ],
    "sm_100": [
        *DECODE,
        _tile(64, 128, 64, 4, 4),
        _tile(128, 128, 64, 8, 4),
        _tile(128, 128, 64, 8, 4, persistent=True),
    ],
}
CONFIGS = list(dict.fromkeys(c for configs in CONFIGS_BY_ARCH.values() for c in configs))


def _tiles(tokens: int, arch: str) -> list[Config]:
    """Tiles as long as the tokens need, the best guess first; what is not known gets the least."""
    least = "gfx942" if arch.startswith("gfx") else "sm_80"
    known = CONFIGS_BY_ARCH.get("sm_90" if arch == "interpreter" else arch, CONFIGS_BY_ARCH[least])
    longest = 16 if tokens <= 16 else 64 if tokens <= 64 else 256
    fit = [config for config in known if config.kwargs["BLOCK_M"] <= longest]
    side = max(config.kwargs["BLOCK_M"] for config in fit)
    return [config for config in fit if config.kwargs["BLOCK_M"] >= min(side, 128)]


def _choose(arguments: dict[str, Any]) -> list[Config]:
    return _tiles(arguments["tokens"], architecture(arguments["x_ptr"].device))


_launch = tuned(
    _w8a8_matmul_kernel, CONFIGS, ["tokens_bucket", "out_features", "in_features"], _choose
)


def w8a8_matmul(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    *,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """y[t, n] = x_scale[t] · w_scale[n] · Σ_k x[t, k] w[n, k] + bias[n].

    x: (tokens, in) int8; w: (out, in) int8, in < 2¹⁷; x_scale: (tokens,) and w_scale: (out,)
    float32; bias: (out,) of any float dtype. Any strides; wide loads need `in` divisible by 16.
    Returns (tokens, out) in `out_dtype`: float16, bfloat16 or float32. The sums are exact, the
    scaling is fp32. `config` forces a tile of CONFIGS. Raises ValueError on bad input.
    """
    _check(x, x_scale, w, w_scale, out_dtype, bias)
    (tokens, in_features), out_features = x.shape, w.shape[0]
    out = torch.empty(tokens, out_features, dtype=out_dtype, device=x.device)
    if out.numel() == 0:
        return out

    def grid(meta: dict[str, Any]) -> tuple[int]:
        tiles = triton.cdiv(tokens, meta["BLOCK_M"]) * triton.cdiv(out_features, meta["BLOCK_N"])
        return (min(tiles, _processors(x.device)) if meta["PERSISTENT"] else tiles,)

    given = w_scale if bias is None else bias  # a pointer that is not read stands for no bias
    (_launch if config is None else _w8a8_matmul_kernel)[grid](
        x, x_scale, w, w_scale, given, out,
        tokens, out_features, in_features, triton.next_power_of_2(tokens),
        *x.stride(), *w.stride(), *out.stride(),
        x_scale.stride(0), w_scale.stride(0), given.stride(0),
        HAS_BIAS=bias is not None, **({} if config is None else config.all_kwargs()),
    )  # fmt: skip
    return out


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each token as int8 with its own scale, amax / 127, so that x ≈ q · scale.

    x: (tokens, in) float16, bfloat16 or float32, finite, any strides. Returns q (tokens, in) int8
    in −127 … 127 and scale (tokens,) float32: fp16 would lose scales below 6e-8. x / scale is
    rounded half to even; a row of zeros gives zeros and scale 0. Reads x from memory once (and
    again from cache), writes a quarter or half of it. Raises ValueError on bad input.
    """
    op = "quantize_tokens"
    require(x.ndim == 2, f"{op}: x has {x.ndim} dimensions; flatten it to (tokens, in)")
    require(x.dtype in OUT_DTYPES, f"{op}: x is {x.dtype}; give float16, bfloat16 or float32")
    (tokens, in_features) = x.shape
    q = torch.empty(tokens, in_features, dtype=torch.int8, device=x.device)
    scale = torch.empty(tokens, dtype=torch.float32, device=x.device)
    if tokens:
        block = min(4096, max(32, triton.next_power_of_2(in_features)))
        _quantize_tokens_kernel[(tokens,)](
            x, q, scale, in_features, *x.stride(), q.stride(0), BLOCK=block
        )
    return q, scale


def _processors(device: torch.device) -> int:
    """Multiprocessors; two under the interpreter, so that persistent programs do walk."""
    return 2 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


def _check(
    x: Tensor,
    x_scale: Tensor,
    w: Tensor,
    w_scale: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None,
) -> None:
    op = "w8a8_matmul"
    require(
        x.dtype == w.dtype == torch.int8,
        f"{op}: x is {x.dtype}, w is {w.dtype}; quantize both to int8",
    )
    require(
        x.ndim == w.ndim == 2 and x.shape[1] == w.shape[1],
        f"{op}: x {tuple(x.shape)} and w {tuple(w.shape)} must be (tokens, in) and (out, in)",
    )
    require(
        x.shape[1] <= MAX_IN_FEATURES,
        f"{op}: {x.shape[1]} features may overflow int32; split them below {MAX_IN_FEATURES + 1}",
    )
    for name, scale, length in (("x_scale", x_scale, x.shape[0]), ("w_scale", w_scale, w.shape[0])):
        require(
            scale.dtype == torch.float32 and scale.shape == (length,),
            f"{op}: {name} is {scale.dtype} {tuple(scale.shape)}; give float32 ({length},)",
        )
    require(out_dtype in OUT_DTYPES, f"{op}: out_dtype {out_dtype}; use float16, bfloat16, float32")
    require(
        bias is None or (bias.is_floating_point() and bias.shape == (w.shape[0],)),
        f"{op}: bias must be a float tensor of shape ({w.shape[0]},)",
    )
    given = [x, x_scale, w, w_scale] + ([] if bias is None else [bias])
    require(len({t.device for t in given}) == 1, f"{op}: move all inputs to one device")


def cases(arch: str) -> Cases:
    """Every tile of the architecture, bf16 out, with a bias; and the quantization of tokens."""
    pointers = {"x": "*i8", "x_scale": "*fp32", "w": "*i8", "w_scale": "*fp32"}
    pointers |= {"bias": "*bf16", "out": "*bf16"}
    sizes = ["tokens", "out_features", "in_features", "tokens_bucket"]
    rows = ["stride_xt", "stride_wn", "stride_ot"]
    unit = [f"stride_{name}" for name in ("xk", "wk", "on", "xs", "ws", "b")]
    kinds = {f"{name}_ptr": kind for name, kind in pointers.items()}
    kinds |= dict.fromkeys(sizes + rows, "i32")
    constants = dict.fromkeys(unit, 1) | {"HAS_BIAS": True}
    for config in CONFIGS_BY_ARCH[arch]:
        signature = {name: kinds.get(name, "constexpr") for name in _w8a8_matmul_kernel.arg_names}
        variant = "x".join(str(config.kwargs[f"BLOCK_{side}"]) for side in "MNK")
        variant += " persistent" * config.kwargs["PERSISTENT"]
        aligned = (*(f"{name}_ptr" for name in pointers), *sizes[1:3], *rows)
        yield Case(
            "w8a8_matmul", variant, _w8a8_matmul_kernel, signature, constants, config, aligned
        )
    kinds = {"x_ptr": "*bf16", "q_ptr": "*i8", "scale_ptr": "*fp32"}
    kinds |= dict.fromkeys(("in_features", "stride_xt", "stride_qt"), "i32")
    signature = {name: kinds.get(name, "constexpr") for name in _quantize_tokens_kernel.arg_names}
    constants = {"stride_xk": 1, "BLOCK": 4096}
    yield Case(
        "w8a8_matmul", "quantize tokens", _quantize_tokens_kernel, signature, constants,
        Config({}), tuple(kinds),
    )  # fmt: skip
