"""The sampler: ties, cuts, mass, seeds, and the distribution it draws from."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tracegen.errors import UserError
from tracegen.model import Sampler

P = torch.tensor([0.05, 0.4, 0.3, 0.2, 0.05], dtype=torch.float64)


def kept(sampler: Sampler, p: torch.Tensor = P) -> list[float]:
    return [round(x, 6) for x in sampler.probabilities(p.log()[None])[0].tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_greedy_takes_the_first_of_equals(dtype):
    logits = torch.tensor([[1, 1, 0], [0, 2, 2], [5, 5, 5]], dtype=dtype)
    assert Sampler()(logits).tolist() == [0, 1, 0]
    wide = torch.zeros(1, 50_000, dtype=dtype)
    wide[0, [777, 778, 40_000]] = 1
    assert Sampler()(wide).tolist() == [777]


def test_greedy_distribution_is_all_on_one_token():
    assert Sampler().probabilities(torch.tensor([[1.0, 1.0, 0.0]])).tolist() == [[1, 0, 0]]


def test_temperature_scales_logits():
    logits = torch.tensor([[0.0, 1.0, 3.0]])
    assert_close(
        Sampler(temperature=0.5).probabilities(logits), (logits.double() * 2).softmax(dim=-1)
    )
    assert Sampler(temperature=1e-300).probabilities(logits)[0].tolist() == [0, 0, 1]


def test_top_k_keeps_exactly_k_even_among_equals():
    assert kept(Sampler(1.0, top_k=2)) == [0, 0.571429, 0.428571, 0, 0]
    assert kept(Sampler(1.0, top_k=4), P) == [0.052632, 0.421053, 0.315789, 0.210526, 0]
    assert kept(Sampler(1.0, top_k=99)) == P.tolist()


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    assert kept(Sampler(1.0, top_p=0.69)) == [0, 0.571429, 0.428571, 0, 0]
    assert kept(Sampler(1.0, top_p=0.71)) == [0, 0.444444, 0.333333, 0.222222, 0]
    assert kept(Sampler(1.0, top_p=1e-9)) == [0, 1, 0, 0, 0]
    assert kept(Sampler(1.0, top_p=1.0)) == P.tolist()


def test_top_p_counts_the_mass_that_top_k_left():
    assert kept(Sampler(1.0, top_k=2, top_p=0.5)) == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "sampler", [Sampler(1.0, seed=7), Sampler(0.7, seed=7), Sampler(1.3, 4, 0.9, seed=7)]
)
def test_draws_follow_the_distribution(sampler):
    """Pearson's chi-square over 20,000 draws; 16.3 is its 0.1 % point at 3 degrees of freedom."""
    draws = 20_000
    logits = P[:4].log().expand(draws, 4)
    p = sampler.probabilities(logits[:1])[0]
    counts = torch.bincount(sampler(logits), minlength=4)
    assert counts[p == 0].sum() == 0
    expected = p[p > 0] * draws
    assert float(((counts[p > 0] - expected) ** 2 / expected).sum()) < 16.3


def test_a_seed_repeats_and_another_differs():
    logits = torch.zeros(1, 1000)

    def draws(seed: int) -> list[int]:
        sampler = Sampler(1.0, seed=seed)
        return [int(sampler(logits)) for _ in range(20)]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((5000, 6), -torch.inf)
    logits[:, 2] = 0.0
    assert set(Sampler(1.0)(logits).tolist()) == {2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 1.5}, r"top_p is 1\.5"),
    ],
)
def test_senseless_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Sampler(**arguments)
