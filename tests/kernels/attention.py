"""What the tests of FlashAttention share: configurations, inputs, the check."""

from __future__ import annotations

import torch

from kernels import reference
from kernels.flash_attention import flash_attention
from kernels.flash_attention_configs import choose, tiles
from kernels.launch import INTERPRETED

TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2)}
SMALL = tiles(16, 32, 4, 1)
TALL = tiles(32, 16, 4, 1)
WALKING = tiles(16, 32, 4, 1, PERSISTENT=True)
DESCRIBED = tiles(32, 16, 4, 1, TMA=True)
EVERY_KIND = {"wide": SMALL, "tall": TALL, "persistent": WALKING, "TMA": DESCRIBED}


def inputs(device, heads=2, kv_heads=2, queries=16, keys=16, head_dim=16, dtype=torch.float32):
    """Seeded q, k and v of one batch row."""
    torch.manual_seed(0)
    q = torch.randn(1, heads, queries, head_dim, device=device).to(dtype)
    k, v = (torch.randn(1, kv_heads, keys, head_dim, device=device).to(dtype) for _ in range(2))
    return q, k, v


def agrees(q, k, v, config=None, log=None, **options):
    """Hold output and log-sum-exp against the reference; return the output.

    Without a configuration it is the best guess, since a GPU would else compile every candidate.
    """
    if config is None and log is None:
        named = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "queries": q.shape[2]}
        named["WINDOWED"] = options.get("window") is not None
        config = choose(named)[0]
    out, lse = flash_attention(q, k, v, return_lse=True, config=config, log=log, **options)
    expected, expected_lse = reference.attention(q, k, v, **options)
    assert out.dtype == q.dtype
    assert out.shape == q.shape
    assert lse.dtype == torch.float32
    atol, rtol = TOLERANCE[q.dtype]
    torch.testing.assert_close(out.double(), expected, atol=atol, rtol=rtol)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    return out


def usable(config):
    """TMA is read under the interpreter and on Hopper and later."""
    if not config.kwargs["TMA"] or INTERPRETED:
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability()[0] >= 9
