"""Paged decode attention against the gathered, dense reference: lengths, pools, splits, heads."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.bench.measure import Bench
from kernels.bench.paged_attention import rows
from kernels.launch import architecture
from kernels.paged_attention import (
    MAX_SPLITS,
    TOKENS_A_SPLIT,
    cases,
    choose_splits,
    paged_attention,
    suitable,
)

BEYOND = 2**31 - 1  # an entry that must not be read: no pool has such a block
LENGTHS = (1, 15, 16, 17, 33, 100, 0)

TOLERANCE = {  # absolute and relative; outputs are means of values of about 1
    torch.float32: (1e-5, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
}


def paged(
    device,
    lengths,
    *,
    heads=4,
    kv_heads=2,
    head_dim=16,
    block_size=16,
    dtype=torch.float32,
    seed=0,
):
    """q, a pool of shuffled blocks with NaN in every slot that holds no token, and its tables."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    counts = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    tables = torch.full((len(lengths), max(counts, default=0) + 2), BEYOND, dtype=torch.int32)
    tables[:, 1::2] = -1
    shape = (len(order), kv_heads, block_size, head_dim)
    pools = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(2)]
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        blocks = [order.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        for start, block in zip(range(0, length, block_size), blocks, strict=True):
            held = min(block_size, length - start)
            for pool in pools:
                pool[block, :, :held] = normal(kv_heads, held, head_dim)
    held = torch.tensor(lengths, dtype=torch.int32, device=device)
    return normal(len(lengths), heads, head_dim), *pools, tables.to(device), held


def check(arguments, **options):
    q = arguments[0]
    # One compilation a shape, and no tuning.
    fits = suitable(architecture(q.device), q.shape[-1], q.element_size())
    out = paged_attention(*arguments, **({"config": fits[0]} | options))
    scale = options.get("scale")
    expected = reference.paged_attention(*arguments, scale=scale)
    atol, rtol = TOLERANCE[out.dtype]
    assert out.dtype == q.dtype
    torch.testing.assert_close(out.double(), expected, atol=atol, rtol=rtol)
    return out


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("splits", [1, 4])
def test_shuffled_pool_of_nan_equals_dense(device, dtype, splits):
    check(paged(device, LENGTHS, dtype=dtype, heads=3, kv_heads=1), splits=splits)


@pytest.mark.parametrize("head_dim", [1, 80, 96, 256])
def test_head_dim(device, head_dim):
    check(paged(device, (17, 70), head_dim=head_dim, dtype=torch.float16), splits=2)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (3, 1), (6, 2), (8, 2), (16, 2), (40, 2)])
def test_query_heads_read_their_own_key_value_head(device, heads, kv_heads):
    arguments = paged(device, (21,), heads=heads, kv_heads=kv_heads)
    check(arguments, splits=2)
    for kv_head in range(kv_heads):
        arguments[2][:, kv_head] = kv_head
    out = check(arguments, splits=2)
    owner = torch.arange(heads, device=device).div(heads // kv_heads, rounding_mode="floor")
    torch.testing.assert_close(out, owner[None, :, None].expand_as(out).float())


@pytest.mark.parametrize("block_size", [1, 8, 12, 32])
def test_block_size(device, block_size):
    check(paged(device, (1, 13, 50), block_size=block_size))


def test_every_number_of_splits_gives_the_same_and_so_does_the_tuned_configuration(device):
    arguments = paged(device, (200,), heads=3, kv_heads=1)
    one = check(arguments, splits=1)
    for splits in (2, 7, MAX_SPLITS):
        torch.testing.assert_close(paged_attention(*arguments, splits=splits), one)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=3),
    group=st.integers(1, 5),
    kv_heads=st.integers(1, 2),
    head_dim=st.integers(1, 40),
    block_size=st.integers(1, 20),
    splits=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_any_shape(device, lengths, group, kv_heads, head_dim, block_size, splits, seed):
    arguments = paged(
        device,
        lengths,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=seed,
    )
    check(arguments, splits=splits)


def test_an_empty_sequence_gives_zero_beside_a_full_one(device):
    for splits in (1, 2):
        out = check(paged(device, (0, 20)), splits=splits)
        assert out[0].eq(0).all()
        assert out[1].ne(0).all()
    assert check(paged(device, ())).shape == (0, 4, 16)


def test_sequences_may_share_blocks(device):
    q, keys, values, tables, lengths = paged(device, (40, 40))
    tables[1, :2] = tables[0, :2]
    out = check((q[:1].expand(2, -1, -1), keys, values, tables, lengths))
    assert not torch.equal(out[0], out[1])  # their third blocks differ
    tables[1] = tables[0]
    out = check((q[:1].expand(2, -1, -1), keys, values, tables, lengths))
    assert torch.equal(out[0], out[1])


def test_huge_scores_do_not_overflow(device):
    q, *rest = paged(device, (33, 100))
    check((q * 1e4, *rest), splits=2)
    check((q, *rest), splits=2, scale=5.0)


def test_fp32_products_are_not_rounded_to_tf32(device):
    q, keys, values, tables, lengths = paged(device, (2,), heads=1, kv_heads=1, head_dim=2)
    block = tables[0, 0]
    q[0, 0] = torch.tensor([1 + 2**-12, 1])
    keys[block, 0, :2] = torch.tensor([[64, -64], [0, 0]], device=device)  # scores 2⁻⁶ and 0
    values[block, 0, :2] = torch.tensor([[1 + 2**-12], [0]], device=device)
    out = check((q, keys, values, tables, lengths), scale=1.0)
    assert out.min() > 0.503  # 0.5 if the score had lost its last bits


def test_strided_queries_pools_tables_and_lengths(device):
    q, keys, values, tables, lengths = paged(device, (20, 5, 33), heads=4, kv_heads=2)
    wide = torch.randn(3, 4, 40, device=device)
    wide[..., 3:35:2] = q
    token_major = keys.transpose(1, 2).contiguous().transpose(1, 2)
    both = torch.stack((values, values), dim=-1)
    table = torch.stack((tables, tables), dim=-1)[..., 1]
    pairs = lengths.repeat_interleave(2)[::2]
    out = check((wide[..., 3:35:2], token_major, both[..., 0], table, pairs), splits=2)
    torch.testing.assert_close(out, paged_attention(q, keys, values, tables, lengths, splits=2))


def test_a_pool_of_more_than_two_to_the_31_elements(device):
    far = 2**23  # blocks of 16 × 16 numbers before it: 2³¹
    pool = torch.empty((far + 1, 1, 16, 16), dtype=torch.float16, device=device)  # never touched
    pool[far, 0, :3] = torch.randn(3, 16, device=device)
    q = torch.randn(1, 2, 16, device=device).half()
    table = torch.tensor([[far]], dtype=torch.int32, device=device)
    check((q, pool, pool, table, torch.tensor([3], dtype=torch.int32, device=device)))


def test_a_forced_configuration_is_the_one_that_runs(device, monkeypatch):
    module = importlib.import_module("kernels.paged_attention")
    seen = []
    kernel = module.paged_attention_kernel

    class Spy:
        def __getitem__(self, grid):
            def launch(*args, **options):
                seen.append((grid, options["BLOCK_TOKENS"], options["num_stages"]))
                return kernel[grid](*args, **options)

            return launch

    monkeypatch.setattr(module, "paged_attention_kernel", Spy())
    config = suitable("sm_80", 16, 4)[-1]
    check(paged(device, (40,)), splits=3, config=config)
    assert seen == [((1, 2, 3), config.kwargs["BLOCK_TOKENS"], config.num_stages)]


def test_splits_fill_the_chip_and_stay_long_enough():
    h200 = 132
    assert choose_splits(8, 32768, h200) == 33  # one sequence, 8 key/value heads
    assert choose_splits(8, 4 * TOKENS_A_SPLIT, h200) == 4  # no split below TOKENS_A_SPLIT
    assert choose_splits(512, 4096, h200) == 1  # the batch fills the chip
    assert choose_splits(1, 10**6, h200) == MAX_SPLITS
    assert choose_splits(1, 1, h200) == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942", "interpreter"])
def test_every_head_dim_and_dtype_has_a_configuration(arch):
    for head_dim in (1, 64, 80, 128, 256):
        for itemsize in (2, 4):
            assert suitable(arch, head_dim, itemsize)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_cases_name_every_parameter(arch):
    shipped = list(cases(arch))
    assert 4 <= len(shipped) <= 6
    assert len({case.variant for case in shipped}) == len(shipped)
    for case in shipped:
        assert list(case.signature) == case.kernel.arg_names
        given = case.constants.keys() | case.config.kwargs.keys()
        assert given == {name for name, kind in case.signature.items() if kind == "constexpr"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(2, 4)}, "give \\(batch, heads, head_dim\\)"),
        ({0: torch.zeros(2, 5, 16)}, "5 query heads cannot share 2 key/value heads"),
        ({0: torch.zeros(2, 4, 8)}, "give \\(batch, heads, head_dim\\)"),
        ({0: torch.zeros(2, 4, 16).half()}, "give one of float16"),
        ({3: torch.zeros(2, 3, dtype=torch.int64)}, "int32 for the others"),
        ({4: torch.zeros(3, dtype=torch.int32)}, "give \\(batch, heads, head_dim\\)"),
        (
            {
                0: torch.zeros(2, 4, 257),
                1: torch.zeros(3, 2, 16, 257),
                2: torch.zeros(3, 2, 16, 257),
            },
            "head_dim is 257: give 1 to 256",
        ),
        ({1: torch.zeros(3, 2, 0, 16), 2: torch.zeros(3, 2, 0, 16)}, "block_size of at least 1"),
        ({0: torch.zeros(2, 4, 16, device="meta")}, "move them to one"),
    ],
)
def test_arguments_that_do_not_belong_together(device, change, message):
    arguments = list(paged(device, (5, 20)))
    for place, tensor in change.items():
        arguments[place] = tensor.to(device) if tensor.device.type != "meta" else tensor
    with pytest.raises(ValueError, match=message):
        paged_attention(*arguments)


@pytest.mark.parametrize("splits", [0, MAX_SPLITS + 1])
def test_splits_out_of_range(device, splits):
    with pytest.raises(ValueError, match=f"splits is {splits}: give 1 to {MAX_SPLITS}"):
        paged_attention(*paged(device, (5,)), splits=splits)


def test_bench_agrees_with_its_peers(device):
    (row,) = rows(Bench(device, dry=True))
    assert row.ours_ms is None
    assert set(row.peers_ms) == {"SDPA, gathered before", "gather and SDPA"}
    assert not row.unavailable
    keys_and_values = 2 * (2 * 48 * 2 * 16)
    queries_and_results = 2 * (2 * 4 * 16)
    assert row.nbytes == 2 * (keys_and_values + queries_and_results)  # bf16
    assert row.flops == 2 * (2 * 4 * 48 * 16) * 2
