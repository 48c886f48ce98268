"""FlashAttention against every backend of torch's scaled_dot_product_attention.

FLOPs: 4 · queries · keys · head_dim a head, half of it when causal. Bytes: q, k, v and the output
once, what a perfect cache would leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.bench.measure import Bench, Call, Row
from kernels.flash_attention import flash_attention

AIM = "≥ 0.8× of the best SDPA backend (bf16, D=128, causal, N=8k, H200)"
TOKENS = 16384  # batch × length of a prefill
NAIVE_KEYS = 1024  # above this the score matrices of naive attention fill memory


def naive(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention as in a textbook, scores and all; as many key/value heads as heads."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.float().softmax(-1).to(v.dtype) @ v


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """torch's own, forced to one backend. Raises RuntimeError where it cannot run."""
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )


def rows(bench: Bench) -> Iterator[Row]:
    """Prefill (causal, N = 1k to 16k, D = 64 and 128) and a decode step (one query)."""
    compiled = naive if bench.dry else torch.compile(naive)
    for head_dim, heads, lengths in (
        (128, 16, (1024, 2048, 4096, 8192, 16384)),
        (64, 32, (1024, 8192)),
    ):
        for n in bench.pick(full=lengths, dry=(48,)):
            batch = 1 if bench.dry else TOKENS // n
            some = 2 if bench.dry else heads
            aim = AIM if (head_dim, n) == (128, 8192) else ""
            yield row(bench, compiled, (batch, some, some, n, n, head_dim), aim)
    for keys in bench.pick(full=(8192,), dry=(48,)):
        batch = 2 if bench.dry else 32
        yield row(bench, compiled, (batch, 8, 2, 1, keys, 128), "")


def row(bench: Bench, compiled: Callable[..., Tensor], shape: tuple[int, ...], aim: str) -> Row:
    """One line for shape (batch, heads, kv_heads, queries, keys, head_dim), bf16."""
    batch, heads, kv_heads, queries, keys, head_dim = shape
    causal = queries == keys  # for one query at the end, causal hides nothing
    make = partial(torch.randn, dtype=torch.bfloat16, device=bench.device)
    q = make(batch, heads, queries, head_dim)
    k, v = (make(batch, kv_heads, keys, head_dim) for _ in range(2))
    small = keys <= NAIVE_KEYS and heads == kv_heads
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    backends |= {"cudnn": SDPBackend.CUDNN_ATTENTION} | ({"math": SDPBackend.MATH} if small else {})
    peers: dict[str, Call] = {
        f"sdpa {name}": partial(sdpa, backend, q, k, v, causal)
        for name, backend in backends.items()
    }
    if small:
        peers["torch.compile"] = partial(compiled, q, k, v, causal)
    return bench.row(
        "flash_attention",
        f"{batch}×{heads}/{kv_heads} heads, {queries}×{keys}, D={head_dim}, bf16"
        + (", causal" if causal else ""),
        ours=lambda: flash_attention(q, k, v, causal=causal),
        peers=peers,
        nbytes=2 * (2 * q.numel() + k.numel() + v.numel()),
        flops=4 * batch * heads * queries * keys * head_dim // (2 if causal else 1),
        aim=aim,
    )
