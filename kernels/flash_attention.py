"""FlashAttention, forward: softmax(scale · Q Kᵀ) V without the score matrix in memory.

For N queries and N keys of head_dim d, in elements of e bytes, a head costs

|          | FLOPs  | bytes to and from memory                                      |
|----------|--------|---------------------------------------------------------------|
| naive    | 4 N² d | 4 N d e + 4 N² e: writes S, reads S, writes P, reads P         |
| fused    | 4 N² d | 2 N d e + ⌈N / BLOCK_M⌉ · 2 N d e: K and V once a query tile   |

and half of the N² terms when causal, because tiles above the diagonal are not visited. With on-chip
memory M this is Θ(N² d² / M) for d ≤ M ≤ N d (FlashAttention, Dao et al. 2022, theorem 2).
The kernel and its loop are in `kernels.flash_attention_kernel`, the tile sizes in
`kernels.flash_attention_configs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
import triton
from torch import Tensor
from triton import Config

from kernels.flash_attention_configs import (
    CONFIGS,
    DTYPES,
    MAX_HEAD_DIM,
    choose,
    described,
)
from kernels.flash_attention_configs import block_sizes as sweep
from kernels.flash_attention_configs import shipped as cases
from kernels.flash_attention_kernel import _flash_attention_kernel
from kernels.launch import INTERPRETED, require, tuned

__all__ = ["TileLog", "cases", "flash_attention", "sweep"]

_tuned = tuned(
    _flash_attention_kernel,
    CONFIGS,
    ["HEAD_DIM", "CAUSAL", "WINDOWED", "PRECISION", "tuning_class"],
    choose,
)


@dataclass(frozen=True)
class TileLog:
    """What the kernel saw: filled by `flash_attention(…, log=log)`.

    `running_max` (scaled scores, natural units) and `running_sum`, both float32 of shape
    (batch, heads, query_tiles, key_tiles, BLOCK_M), hold each row's state after each key tile; NaN
    where a tile was not visited or a row lies beyond the last query. `sm` int32, `start_ns` and
    `end_ns` int64, all (batch, heads, query_tiles), say on which multiprocessor a query tile ran
    and when by the GPU's global timer (whose resolution is the device's: often a microsecond);
    None where there is no such clock: under the interpreter and on AMD.
    """

    config: Config
    running_max: Tensor
    running_sum: Tensor
    sm: Tensor | None
    start_ns: Tensor | None
    end_ns: Tensor | None

    @classmethod
    def empty(cls, q: Tensor, k: Tensor, config: Config) -> TileLog:
        """Room for q (batch, heads, queries, head_dim), k (…, keys, …) in tiles of `config`."""
        rows = triton.cdiv(q.shape[2], config.kwargs["BLOCK_M"])
        columns = triton.cdiv(k.shape[2], config.kwargs["BLOCK_N"])
        tiles = (*q.shape[:2], rows)

        def state() -> Tensor:
            shape = (*tiles, columns, config.kwargs["BLOCK_M"])
            return torch.full(shape, torch.nan, dtype=torch.float32, device=q.device)

        def clock(dtype: torch.dtype) -> Tensor | None:
            timed = not INTERPRETED and torch.version.hip is None
            return torch.full(tiles, -1, dtype=dtype, device=q.device) if timed else None

        return cls(
            config, state(), state(), clock(torch.int32), clock(torch.int64), clock(torch.int64)
        )


@overload
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: int | None = ...,
    scale: float | None = ..., return_lse: Literal[False] = ..., allow_tf32: bool = ...,
    config: Config | None = ..., log: TileLog | None = ...,
) -> Tensor: ...  # fmt: skip


@overload
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: int | None = ...,
    scale: float | None = ..., return_lse: Literal[True], allow_tf32: bool = ...,
    config: Config | None = ..., log: TileLog | None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    allow_tf32: bool = False,
    config: Config | None = None,
    log: TileLog | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ) v, and with `return_lse` also the log-sum-exp of each row's scores.

    q: (batch, heads, queries, head_dim); k, v: (batch, kv_heads, keys, head_dim), any strides, all
    float16, bfloat16 or float32. Query head h reads key/value head h // (heads / kv_heads).
    Returns (batch, heads, queries, head_dim) in q's dtype; lse (batch, heads, queries) float32,
    natural logarithm.

    causal: queries and keys are aligned at the bottom right, query i stands at position
    i + keys − queries and sees no later key. window: only the last `window` keys up to its own
    position (implies causal). scale: positive, 1/√head_dim if not given. A query that sees no key
    (there may be no keys at all) gives 0 and −inf. allow_tf32: float32 products with 10 bits of
    mantissa. config: one configuration instead of the fastest. log: filled with the state after
    every tile, and runs in the log's own configuration.

    Raises ValueError when shapes, dtypes, devices or options do not fit.
    """
    _check(q, k, v, window, scale)
    if log is not None:
        require(config is None or config is log.config, "leave config out: the log brings its own")
        config = log.config
        _check_log(log, q, k)
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[2]
    # The interpreter cuts float32 to bfloat16 without rounding; torch rounds.
    narrow_later = INTERPRETED and q.dtype == torch.bfloat16
    out = torch.empty_like(q, dtype=torch.float32 if narrow_later else q.dtype)
    lse = q.new_empty((batch, heads, queries), dtype=torch.float32) if return_lse else None
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    tma = described(k) and described(v)
    require(
        config is None or tma or not config.kwargs.get("TMA"),
        "a configuration with TMA needs k and v with contiguous head_dim, aligned to 16 bytes",
    )
    if tma and not INTERPRETED:
        triton.set_allocator(_room)
    tuning_class = (queries.bit_length() << 8 | keys.bit_length()) << 1 | tma
    processors = 4 if INTERPRETED else _processors(q.device)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        tiles = batch * heads * triton.cdiv(queries, meta["BLOCK_M"])
        return (min(tiles, processors) if meta.get("PERSISTENT") else tiles,)

    logged = (
        (log.running_max, log.running_sum, log.sm, log.start_ns, log.end_ns)
        if log is not None
        else (None,) * 5
    )
    arguments = (
        q, k, v, out, lse, *logged,
        *q.stride(), *k.stride(), *v.stride(), *out.stride(),
        batch, heads, heads // k.shape[1], queries, keys, min(window or keys, keys),
        scale * math.log2(math.e), tuning_class,
    )  # fmt: skip
    constants = {
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "CAUSAL": causal or window is not None,
        "WINDOWED": window is not None,
        "PRECISION": "tf32" if allow_tf32 and q.dtype == torch.float32 else "ieee",
        "LOG": log is not None,
    }
    if q.numel() == 0:
        pass
    elif config is None:
        _tuned[grid](*arguments, **constants)
    else:
        _flash_attention_kernel[grid](*arguments, **constants, **config.all_kwargs())
    out = out.to(q.dtype)
    return out if lse is None else (out, lse)


def _room(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory in which a kernel writes its tensor descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _check(q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    require(
        q.dim() == k.dim() == v.dim() == 4,
        f"give q, k and v as (batch, heads, length, head_dim); these are {shapes}",
    )
    require(k.shape == v.shape, f"k and v must have the same shape; these are {shapes}")
    require(
        q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3],
        f"q and k must have the same batch and head_dim; these are {shapes}",
    )
    require(
        k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0,
        f"the heads of q must be a multiple of those of k and v; these are {shapes}",
    )
    require(
        1 <= q.shape[3] <= MAX_HEAD_DIM, f"head_dim must be 1 to {MAX_HEAD_DIM}; these are {shapes}"
    )
    require(
        q.dtype == k.dtype == v.dtype and q.dtype in DTYPES,
        f"q, k and v must be all float16, all bfloat16 or all float32, not {q.dtype}, {k.dtype}, "
        f"{v.dtype}: convert them first",
    )
    require(q.device == k.device == v.device, "q, k and v must be on one device: move them first")
    require(window is None or window >= 1, f"window must be at least 1 key, not {window}")
    require(scale is None or scale > 0, f"scale must be positive, not {scale}: negate q instead")
    require(
        not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)),
        "flash_attention has no backward pass: call it under torch.no_grad()",
    )


def _check_log(log: TileLog, q: Tensor, k: Tensor) -> None:
    like = TileLog.empty(q[:, :, :, :0], k, log.config).running_max
    require(
        log.running_max.shape == log.running_sum.shape == like.shape
        and log.running_max.device == q.device,
        "the log does not fit: make it with TileLog.empty(q, k, config) from these q and k",
    )
