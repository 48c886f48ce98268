"""Both attentions of the decoder: the same keys seen, the same heads read, the same tokens."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from kernels.launch import INTERPRETED
from tests.model.tiny import tiny_model
from tracegen.errors import UserError
from tracegen.model.attention import ATTENTIONS, attention_named, flash, sdpa, visibility
from tracegen.techniques.kv_cache import new_cache

CPU = torch.device("cpu")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")  # where the kernel runs


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("new", [1, 3])
def test_query_heads_share_consecutive_groups(name, new):
    """V of key/value head h is h, so each query head returns its own: 0 0 1 1, not 0 1 0 1.

    One query takes another path than several.  Lengths differ from every head count.
    """
    held = 5
    q, k = (torch.randn(1, *shape, 6, device=DEVICE) for shape in ((4, new), (2, held)))
    v = torch.arange(2.0, device=DEVICE).view(1, 2, 1, 1).expand(1, 2, held, 6)
    out = attention_named(name)([held - new], new, held, DEVICE)(q, k, v)
    expected = torch.tensor([0.0, 0, 1, 1]).repeat_interleave(6).expand(new, -1)
    assert_close(out.cpu(), expected)


@pytest.mark.parametrize("starts", [[0, 0], [4, 4], [2, 5], [0, 3]])
@pytest.mark.parametrize("new", [1, 3])
def test_the_kernel_sees_what_torch_sees(starts, new):
    held = max(starts) + new + 2  # slots beyond the longest row
    torch.manual_seed(0)
    q = torch.randn(2, 6, new, 16, device=DEVICE)
    k, v = torch.randn(2, 2, 2, held, 16, device=DEVICE)
    ours, theirs = (prepare(starts, new, held, DEVICE)(q, k, v) for prepare in (flash, sdpa))
    assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_tokens_in_float32_are_the_same_with_either():
    model, answers = tiny_model(dtype=torch.float32, device=DEVICE), []
    for prepare in (sdpa, flash):
        model._attention = prepare
        cache, tokens = new_cache(model, 24, batch=2), []
        logits = model.forward(
            torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]), cache, lengths=[5, 2], last_only=True
        )
        for _ in range(12):
            tokens.append(logits[:, -1].argmax(-1))
            logits = model.forward(tokens[-1][:, None], cache, last_only=True)
        answers.append(torch.stack(tokens))
    assert torch.equal(*answers)
    assert len(answers[0].unique()) > 1


def test_visibility_needs_no_mask_in_the_common_cases():
    assert visibility([7, 7], 1, 8, CPU) == (None, False)
    assert visibility([0], 5, 5, CPU) == (None, True)
    mask, causal = visibility([3], 2, 5, CPU)
    assert not causal
    assert mask is not None
    assert mask[0, 0].tolist() == [[True] * 4 + [False], [True] * 5]
    padded, _ = visibility([0], 1, 4, CPU)  # a cache may hand out more slots than it has filled
    assert padded is not None
    assert padded[0, 0].tolist() == [[True, False, False, False]]


def test_an_unknown_attention_is_named_with_those_there_are():
    with pytest.raises(UserError, match="no attention 'paged'; there are: sdpa, triton"):
        attention_named("paged")
