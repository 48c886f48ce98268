"""Matrix product with 4-bit weights: y = x Wᵀ, where W is unpacked only in registers.

    W[n, k] = (nibble[n, k] − zero[n, g]) · scale[n, g],    g = k // group_size

Bytes, with T tokens, N × K weights, 16-bit x, scales and y, 8-bit zeros:

    naive   unpack W to memory, then multiply:   N K (½ + 2 + 2) + 3 N K / group + 2 T (K + N)
    fused   unpack in registers:                 N K · ½         + 3 N K / group + 2 T (K + N)

Both do 2 T N K FLOPs in the product and 2 N K in the unpacking. Decode (few tokens) is bound by
the weights' bytes, so at group 128 it can be at most 2 / (½ + 3/128) = 3.8 × faster than 16-bit
weights; prefill is bound by arithmetic and can only be slower.

Two kernels. One token: each weight is used once, so plain multiply-adds; the limit is how many
instructions it takes to unpack. More tokens: `tl.dot`, with W as its *left* operand, which Hopper
can take from registers, and the tokens as the short side. Where the rows of W are too few to fill
the chip, K is split over programs: partial sums in fp32, added in a fixed order by a second kernel,
never by atomics, so that one configuration always gives the same bits.

Nibbles are unpacked as 16 + nibble; the 16 leaves together with the zero point.

Source of the format: Frantar et al., "GPTQ", ICLR 2023; Lin et al., "AWQ", MLSys 2024.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import Config

from kernels.launch import INTERPRETED, Case, Cases, architecture, require, tuned
from kernels.packing import check_groups, sixteen_plus_nibbles

OP = "w4a16_matmul"
DTYPES = (torch.float16, torch.bfloat16)


@triton.jit
def _share(tiles, SPLITS: tl.constexpr):
    """This program's part [first, last) of the tiles along K."""
    each = tl.cdiv(tiles, SPLITS)
    first = tl.program_id(2) * each
    return first, tl.minimum(first + each, tiles)


@triton.jit
def _groups(
    scales_ptr, zeros_ptr, row, group, out_features, words,
    stride_sn, stride_sg, stride_zn, stride_zg, GROUP: tl.constexpr,
):  # fmt: skip
    """scale and 16 + zero, fp32, of these rows and groups."""
    live = (row < out_features) & (group * (GROUP // 8) < words)
    group = group.to(tl.int64)
    scale = tl.load(scales_ptr + row * stride_sn + group * stride_sg, mask=live, other=0)
    zero = tl.load(zeros_ptr + row * stride_zn + group * stride_zg, mask=live, other=0)
    return scale.to(tl.float32), 16 + zero.to(tl.float32)


@triton.jit
def _one_token_kernel(
    x_ptr, packed_ptr, scales_ptr, zeros_ptr, out_ptr,
    tokens, out_features, words, tokens_bucket,
    stride_xt, stride_xk, stride_pn, stride_pw, stride_sn, stride_sg, stride_zn, stride_zg,
    stride_os, stride_ot, stride_on,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = BLOCK_K // GROUP
    WORDS: tl.constexpr = BLOCK_K // 8
    row = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.arange(0, GROUPS)[None, :]
    word = tl.arange(0, WORDS)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_N, GROUPS], tl.float32)

    # The compiler fetches words and x early, but nothing narrower than four bytes: so the scales
    # and zeros (BLOCK_N, GROUPS) of the next tile are loaded before this one is computed.
    first, last = _share(tl.cdiv(words, WORDS), SPLITS)
    scale, zero = _groups(
        scales_ptr, zeros_ptr, row[:, None], first * GROUPS + group, out_features, words,
        stride_sn, stride_sg, stride_zn, stride_zg, GROUP,
    )  # fmt: skip
    for tile in tl.range(first, last, num_stages=STAGES):
        # load: words (BLOCK_N, WORDS), x (BLOCK_K,), and what comes next
        w = tile * WORDS + word
        packed = tl.load(
            packed_ptr + row[:, None] * stride_pn + w[None, :].to(tl.int64) * stride_pw,
            mask=(row < out_features)[:, None] & (w < words)[None, :],
            other=0,
        )
        at = tile * BLOCK_K + k
        x = tl.load(x_ptr + at.to(tl.int64) * stride_xk, mask=at < words * 8, other=0)
        x = tl.reshape(x.to(tl.float32), [GROUPS, GROUP])
        next_scale, next_zero = _groups(
            scales_ptr, zeros_ptr, row[:, None], (tile + 1) * GROUPS + group, out_features, words,
            stride_sn, stride_sg, stride_zn, stride_zg, GROUP,
        )  # fmt: skip

        # compute: Σ x (nibble − zero) = Σ x (16 + nibble) − (16 + zero) Σ x, group by group
        weights = tl.reshape(sixteen_plus_nibbles(packed), [BLOCK_N, GROUPS, GROUP])
        dots = tl.sum(weights * x[None, :, :], 2) - zero * tl.sum(x, 1)[None, :]
        acc += dots * scale
        scale, zero = next_scale, next_zero

    # store: (BLOCK_N,)
    out = out_ptr + tl.program_id(2).to(tl.int64) * stride_os + row * stride_on
    tl.store(out, tl.sum(acc, 1).to(out_ptr.dtype.element_ty), mask=row < out_features)


@triton.jit
def _tokens_kernel(
    x_ptr, packed_ptr, scales_ptr, zeros_ptr, out_ptr,
    tokens, out_features, words, tokens_bucket,
    stride_xt, stride_xk, stride_pn, stride_pw, stride_sn, stride_sg, stride_zn, stride_zg,
    stride_os, stride_ot, stride_on,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    WORDS: tl.constexpr = GROUP // 8
    token = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    word = tl.arange(0, WORDS)
    k = tl.arange(0, GROUP)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)

    # A tile is one group deep: one scale and one zero a row, loaded a tile ahead.
    first, last = _share(tl.cdiv(words, WORDS), SPLITS)
    one = tl.arange(0, 1)
    scale, zero = _groups(
        scales_ptr, zeros_ptr, row, first + one, out_features, words,
        stride_sn, stride_sg, stride_zn, stride_zg, GROUP,
    )  # fmt: skip
    for group in range(first, last):
        # load: words (BLOCK_N, WORDS), x transposed (GROUP, BLOCK_M), and what comes next
        w = group * WORDS + word
        packed = tl.load(
            packed_ptr + row[:, None] * stride_pn + w[None, :].to(tl.int64) * stride_pw,
            mask=(row < out_features)[:, None] & (w < words)[None, :],
            other=0,
        )
        next_scale, next_zero = _groups(
            scales_ptr, zeros_ptr, row, group + 1 + one, out_features, words,
            stride_sn, stride_sg, stride_zn, stride_zg, GROUP,
        )  # fmt: skip
        at = group * GROUP + k
        x = tl.load(
            x_ptr + at[:, None].to(tl.int64) * stride_xk + token[None, :] * stride_xt,
            mask=(at < words * 8)[:, None] & (token < tokens)[None, :],
            other=0,
        )
        if WIDEN:  # the interpreter multiplies the raw bits of bf16
            x = x.to(tl.float32)

        # compute: exact differences, times scale, rounded to x's dtype
        weights = ((sixteen_plus_nibbles(packed) - zero[:, None]) * scale[:, None]).to(x.dtype)
        acc = tl.dot(weights, x, acc, input_precision="ieee")
        scale, zero = next_scale, next_zero

    # store: (BLOCK_N, BLOCK_M), transposed
    out = out_ptr + tl.program_id(2).to(tl.int64) * stride_os
    out += row[:, None] * stride_on + token[None, :] * stride_ot
    live = (row < out_features)[:, None] & (token < tokens)[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def _add_partials_kernel(partial_ptr, out_ptr, numel, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    # load and compute: always in the order of the splits
    for _ in tl.static_range(SPLITS):
        acc += tl.load(partial_ptr + at, mask=at < numel, other=0)
        partial_ptr += numel
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=at < numel)


ONE_TOKEN_CONFIGS = [
    Config({"BLOCK_N": rows, "BLOCK_K": depth, "STAGES": 4}, num_warps=warps)
    for rows, depth, warps in [(16, 512, 4), (16, 512, 2), (8, 1024, 4)]
]
TILES = [(16, 64, 4, 4), (64, 128, 8, 3), (128, 128, 8, 3), (16, 64, 4, 2), (64, 64, 4, 2)]
TOKENS_CONFIGS = [
    Config({"BLOCK_M": tokens, "BLOCK_N": rows}, num_warps=warps, num_stages=stages)
    for tokens, rows, warps, stages in TILES
]


def _tiles(tokens: int, arch: str) -> list[Config]:
    """The tiles for a number of tokens, the best guess first.

    gfx942 has two stages for its 64 KB. Before Hopper, warps that share rows of W each unpack them
    again, so tiles stay short.
    """
    new = arch.startswith(("sm_9", "sm_10", "interpreter"))
    stages = (2,) if arch.startswith("gfx") else (3, 4)
    sides = (16,) if tokens <= 16 else (128, 64) if new and tokens > 64 else (64,)
    fit = [c for c in TOKENS_CONFIGS if c.kwargs["BLOCK_M"] in sides and c.num_stages in stages]
    return sorted(fit, key=lambda config: -config.kwargs["BLOCK_M"])


KEY = ["tokens_bucket", "out_features", "words", "GROUP", "SPLITS"]
_one_token = tuned(_one_token_kernel, ONE_TOKEN_CONFIGS, KEY, lambda _: ONE_TOKEN_CONFIGS)
_tokens = tuned(
    _tokens_kernel,
    TOKENS_CONFIGS,
    KEY,
    lambda given: _tiles(given["tokens"], architecture(given["x_ptr"].device)),
)


def _splits(tokens: int, out_features: int, groups: int, device: torch.device) -> int:
    """Over how many programs K is split: just enough of them for every multiprocessor."""
    if INTERPRETED:
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    # One token: 16 rows a program, one each suffices. Else 64 × 64, two each to hide their latency.
    rows, wanted = (16, processors) if tokens == 1 else (64, 2 * processors)
    tiles = triton.cdiv(out_features, rows) * triton.cdiv(tokens, 64)
    return max(1, min(triton.next_power_of_2(wanted // tiles), groups // 4, 16))


def w4a16_matmul(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    *,
    group_size: int,
    splits: int | None = None,
    config: Config | None = None,
) -> Tensor:
    """y = x Wᵀ with W[n, k] = (nibble[n, k] − zeros[n, g]) · scales[n, g], g = k // group_size.

    x: (tokens, in) float16 or bfloat16. packed: (out, in / 8) int32 in the linear order of
    `kernels.packing`. scales: (out, groups) float16, bfloat16 or float32; zeros: (out, groups) of
    an integer dtype; groups = ⌈in / group_size⌉, so the last group may be short; group_size 32, 64
    or 128. Any strides. Returns (tokens, out) in x's dtype. Sums are fp32; with more than one token
    the unpacked weights are first rounded to x's dtype, as an unpacked checkpoint would be.

    Fastest: packed contiguous, scales and zeros contiguous along *out* (as GPTQ stores them). The
    inner dimension is shared by `splits` programs (default: by shape and device). `config` forces a
    tile, of ONE_TOKEN_CONFIGS or else TOKENS_CONFIGS. Raises ValueError on bad input.
    """
    require(x.ndim == 2, f"{OP}: x has {x.ndim} dimensions; flatten it to (tokens, in)")
    require(x.dtype in DTYPES, f"{OP}: x is {x.dtype}; cast it to float16 or bfloat16")
    devices = {tensor.device for tensor in (x, packed, scales, zeros)}
    require(len(devices) == 1, f"{OP}: move all inputs to one device")
    groups = check_groups(OP, packed, scales, zeros, x.shape[1], group_size)
    (tokens, _), (out_features, words) = x.shape, packed.shape
    out = x.new_empty(tokens, out_features)
    if out.numel() == 0 or words == 0:
        return out.zero_()
    splits = splits or _splits(tokens, out_features, groups, x.device)
    partial = out[None] if splits == 1 else out.new_empty(splits, *out.shape, dtype=torch.float32)
    kernel, launch = (_one_token_kernel, _one_token) if tokens == 1 else (_tokens_kernel, _tokens)

    def grid(meta: dict[str, Any]) -> tuple[int, int, int]:
        tiles = triton.cdiv(tokens, meta.get("BLOCK_M", 1))
        return tiles, triton.cdiv(out_features, meta["BLOCK_N"]), splits

    (launch if config is None else kernel)[grid](
        x, packed, scales, zeros, partial,
        tokens, out_features, words, triton.next_power_of_2(tokens),
        *x.stride(), *packed.stride(), *scales.stride(), *zeros.stride(), *partial.stride(),
        GROUP=group_size, SPLITS=splits, WIDEN=INTERPRETED,
        **({} if config is None else config.all_kwargs()),
    )  # fmt: skip
    if splits > 1:
        blocks = (triton.cdiv(out.numel(), 1024),)
        _add_partials_kernel[blocks](partial, out, out.numel(), SPLITS=splits, BLOCK=1024)
    return out


def cases(arch: str) -> Cases:
    """bf16 and groups of 128: one token, 16 and 512 tokens, and the sum of the partials."""
    kinds = {"x_ptr": "*bf16", "packed_ptr": "*i32", "scales_ptr": "*bf16", "zeros_ptr": "*u8"}
    kinds |= {"partial_ptr": "*fp32", "out_ptr": "*bf16", "tokens": "i32", "tokens_bucket": "i32"}
    strides = [f"stride_{name}" for name in ("xt", "pn", "sg", "zg", "os", "ot")]
    kinds |= dict.fromkeys(["out_features", "words", "numel", *strides], "i32")
    unit = [f"stride_{name}" for name in ("xk", "pw", "sn", "zn", "on")]
    constants = dict.fromkeys(unit, 1) | {"GROUP": 128, "SPLITS": 4, "WIDEN": False, "BLOCK": 1024}

    def case(variant: str, kernel: Any, config: Config, tokens: int) -> Case:
        signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
        known = {name: value for name, value in constants.items() if name in signature}
        aligned = tuple(name for name in signature if name in kinds and "tokens" not in name)
        shape = {"tokens": tokens, "out": 4096, "in": 4096}
        return Case(OP, variant, kernel, signature, known, config, aligned, shape=shape)

    for config in ONE_TOKEN_CONFIGS:
        variant = "one token {BLOCK_N}x{BLOCK_K}".format(**config.kwargs)
        yield case(f"{variant} {config.num_warps} warps", _one_token_kernel, config, 1)
    for tokens, config in [(t, config) for t in (16, 512) for config in _tiles(t, arch)]:
        variant = "tokens {BLOCK_N}x{BLOCK_M}".format(**config.kwargs)
        yield case(variant, _tokens_kernel, config, tokens)
    yield case("add partials", _add_partials_kernel, Config({}), 16)
