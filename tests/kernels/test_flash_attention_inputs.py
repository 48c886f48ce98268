"""FlashAttention: memory layouts, the log of tiles, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from kernels import reference
from kernels.flash_attention import TileLog, flash_attention
from kernels.flash_attention_configs import described, tiles
from kernels.launch import INTERPRETED
from tests.kernels.attention import (
    DESCRIBED,
    EVERY_KIND,
    SMALL,
    TALL,
    agrees,
    inputs,
    usable,
)

# Memory layout ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", [SMALL, DESCRIBED], ids=["pointers", "TMA"])
def test_batch_length_heads_layout(device, config, dtype):
    if usable(config):
        q = torch.randn(2, 33, 4, 16, device=device).to(dtype).transpose(1, 2)
        kv = torch.randn(2, 40, 2, 2, 16, device=device).to(dtype)
        k, v = kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)
        out = agrees(q, k, v, causal=True, config=config)
        assert out.stride() == q.stride()  # so that a reshape back costs no copy


def test_any_stride(device):
    q = torch.randn(1, 2, 16, 21, device=device).mT  # head_dim is not contiguous
    k = torch.randn(1, 1, 1, 16, device=device).expand(1, 2, 24, 16)  # one row, repeated
    v = torch.randn(1, 2, 48, 32, device=device)[:, :, ::2, 1::2]
    assert not described(v)
    agrees(q, k, v, causal=True, config=SMALL)


def test_expanded_key_value_heads(device):
    q, k, v = inputs(device, 6, 1, 33, 33)
    agrees(q, k.expand(-1, 6, -1, -1), v.expand(-1, 6, -1, -1), causal=True)


FAR = 2**30  # elements; twice that is past 32 bits


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("what", ["batch", "heads", "rows"])
def test_offsets_past_32_bits(device, what, tma, monkeypatch):
    """Three batch rows, heads or tokens 2³⁰ elements apart: memory that is mostly never touched."""
    config = tiles(16, 16, 4, 1, TMA=tma)
    if not usable(config):
        pytest.skip("no tensor descriptors on this device")
    if INTERPRETED:  # it copies whole storages back, from the CPU to the CPU
        monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_: None)
    shape = {"batch": (3, 1, 2, 16), "heads": (1, 3, 2, 16), "rows": (1, 1, 3, 16)}[what]
    strides = {
        "batch": (FAR, 32, 16, 1),
        "heads": (3 * FAR, FAR, 16, 1),
        "rows": (3 * FAR, 3 * FAR, FAR, 1),
    }[what]
    memory = torch.empty(2 * FAR + 32, dtype=torch.float16, device=device)
    far = memory.as_strided(shape, strides)
    near = torch.randn(shape, device=device).half()
    far.copy_(near)
    out = flash_attention(far, far, far, causal=True, config=config)
    expected, _ = reference.attention(near, near, near, causal=True)
    torch.testing.assert_close(out.double(), expected, atol=2e-3, rtol=2e-3)


# The log of tiles ------------------------------------------------------------------------------


def online_softmax(q, k, config, **mask):
    """Running maximum and sum by tiles, in plain torch and float64; NaN where not visited."""
    m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
    queries, keys = q.shape[2], k.shape[2]
    seen = reference.visible(queries, keys, **mask, device=q.device)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).double()
    scores = (q.double() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -torch.inf)
    shape = (*q.shape[:2], math.ceil(queries / m), math.ceil(keys / n), m)
    maxima, sums = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(2))
    for i in range(shape[2]):
        rows = slice(i * m, min(queries, (i + 1) * m))
        there = rows.stop - rows.start
        top = torch.full((*shape[:2], there), -torch.inf, dtype=torch.float64, device=q.device)
        total = torch.zeros_like(top)
        for j in range(shape[3]):
            columns = slice(j * n, (j + 1) * n)
            if not seen[rows, columns].any():
                continue
            tile = scores[:, :, rows, columns]
            new = torch.maximum(top, tile.amax(-1))
            base = new.nan_to_num(neginf=0.0)
            total = total * (top - base).exp() + (tile - base[..., None]).exp().sum(-1)
            top = new
            maxima[:, :, i, j, :there], sums[:, :, i, j, :there] = top, total
    return maxima, sums


@pytest.mark.parametrize("mask", [(False, None), (True, 20)], ids=["full", "window"])
@pytest.mark.parametrize("config", EVERY_KIND.values(), ids=EVERY_KIND)
def test_the_log_is_the_online_softmax(device, config, mask):
    if not usable(config):
        pytest.skip("no tensor descriptors on this device")
    causal, window = mask
    q, k, v = inputs(device, 3, 1, 50, 70)
    log = TileLog.empty(q, k, config)
    agrees(q, k, v, causal=causal, window=window, log=log)
    maxima, sums = online_softmax(q, k, config, causal=causal, window=window)
    close = {"atol": 1e-5, "rtol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(log.running_max.double().cpu(), maxima, **close)
    torch.testing.assert_close(log.running_sum.double().cpu(), sums, **close)
    assert maxima.isnan().any()
    if INTERPRETED or torch.version.hip:
        assert (log.sm, log.start_ns, log.end_ns) == (None, None, None)
    else:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        assert log.sm.min() >= 0
        assert log.sm.max() < processors
        assert log.start_ns.min() > 0
        assert (log.end_ns >= log.start_ns).all()


def test_a_log_in_bfloat16(device):
    q, k, v = inputs(device, 1, 1, 40, 40, 16, torch.bfloat16)
    log = TileLog.empty(q, k, SMALL)
    agrees(q, k, v, causal=True, log=log)
    maxima, _ = online_softmax(q, k, SMALL, causal=True, window=None)
    torch.testing.assert_close(
        log.running_max.double().cpu(), maxima, atol=1e-5, rtol=1e-5, equal_nan=True
    )


# Bad input -------------------------------------------------------------------------------------

GOOD = torch.zeros(1, 2, 4, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": GOOD[0]}, "batch, heads, length, head_dim"),
        ({"v": GOOD[:, :, :3]}, "k and v must have the same shape"),
        ({"q": GOOD.expand(3, -1, -1, -1)}, "same batch"),
        ({"q": GOOD[..., :8]}, "same batch and head_dim"),
        ({"q": GOOD.expand(1, 2, 4, 16)[:, :1]}, "multiple"),
        ({name: torch.zeros(1, 1, 2, 257) for name in "qkv"}, "1 to 256"),
        ({name: GOOD.double() for name in "qkv"}, "convert them first"),
        ({"k": GOOD.half()}, "convert them first"),
        ({"v": GOOD.to("meta")}, "on one device"),
        ({"window": 0}, "at least 1 key, not 0"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"scale": -1.0}, "negate q"),
        ({"q": GOOD.clone().requires_grad_()}, "no backward"),
        ({"config": DESCRIBED, "k": GOOD.mT.contiguous().mT}, "contiguous head_dim"),
        ({"log": TileLog.empty(GOOD, GOOD, SMALL), "config": TALL}, "leave config out"),
        ({"log": TileLog.empty(GOOD[:, :1], GOOD, SMALL)}, "does not fit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as refusal:
        flash_attention(**({"q": GOOD, "k": GOOD, "v": GOOD} | change))
    assert "\n" not in str(refusal.value)
