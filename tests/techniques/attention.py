"""What the tests of attention in torch share."""

import torch

from kernels.reference import attention
from tracegen.attention_inputs import random_qkv
from tracegen.techniques.flash_attention import flash_attention

F64 = torch.float64


def inputs(queries, keys, heads=1, kv_heads=1, head_dim=4, seed=0):
    """Random q, k, v in float64."""
    q, _, _ = random_qkv((2, heads, queries, head_dim), keys, seed=seed, dtype=F64)
    _, k, v = random_qkv((2, kv_heads, queries, head_dim), keys, seed=seed + 1, dtype=F64)
    return q, k, v


def assert_equals_reference(q, k, v, **options):
    masks = {key: options[key] for key in ("causal", "window") if key in options}
    out, lse = flash_attention(q, k, v, **options)
    expected_out, expected_lse = attention(q, k, v, **masks)
    torch.testing.assert_close(out, expected_out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-12)
