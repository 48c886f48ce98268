"""Packing: the order inside a word, not only that packing can be undone."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels.packing import AWQ, LINEAR, pack, unpack

EIGHT = torch.arange(8)


@pytest.mark.parametrize(("order", "word"), [(LINEAR, 0x76543210), (AWQ, 0x75316420)])
def test_a_known_word(order, word):
    assert pack(EIGHT, order).item() == word
    assert unpack(torch.tensor([word], dtype=torch.int32), order).tolist() == EIGHT.tolist()


def test_the_wrong_order_is_garbage_though_nothing_fails():
    mixed = unpack(pack(EIGHT, AWQ), LINEAR)
    assert mixed.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("order", [LINEAR, AWQ])
def test_the_highest_bit_survives_the_sign_of_int32(order):
    assert pack(torch.full((8,), 15), order).item() == -1
    assert unpack(torch.tensor([-1], dtype=torch.int32), order).tolist() == [15] * 8
    for slot, value in itertools.product(range(8), (8, 15)):
        values = torch.zeros(8, dtype=torch.int64)
        values[slot] = value
        assert unpack(pack(values, order), order).tolist() == values.tolist()


@pytest.mark.parametrize("order", [LINEAR, AWQ])
def test_words_are_packed_along_the_last_dimension(order):
    values = torch.randint(0, 16, (3, 5, 24), generator=torch.Generator().manual_seed(0))
    words = pack(values, order)
    assert (words.shape, words.dtype) == ((3, 5, 3), torch.int32)
    assert torch.equal(words[1, 2, 1:2], pack(values[1, 2, 8:16], order))
    assert torch.equal(unpack(words, order), values.to(torch.uint8))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (torch.zeros(12, dtype=torch.int64), "multiple of 8"),
        (torch.tensor([16, *[0] * 7]), "from 0 to 15"),
        (torch.tensor([-1, *[0] * 7]), "from 0 to 15"),
        (torch.zeros(8), "integers"),
    ],
)
def test_what_cannot_be_packed_is_refused(values, told):
    with pytest.raises(ValueError, match=told):
        pack(values)


def test_words_of_another_width_are_refused():
    with pytest.raises(ValueError, match="int32"):
        unpack(torch.zeros(1, dtype=torch.int64))
