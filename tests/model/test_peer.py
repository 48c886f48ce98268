"""The default model against `transformers` on the same weights."""

from __future__ import annotations

import pytest
import torch

from tests.model.peer import hf_state
from tracegen.model import GrowingCache

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in 1984, there lived",
    "In the beginning God created the heaven and the earth. And the earth was without form, and",
    "<|im_start|>user\nExplain gravity in one sentence.<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_agree(default_model, default_twin, prompt):
    tokens = torch.tensor([default_model.tokenizer.encode(prompt)])
    ours = default_model.forward(tokens)
    with torch.inference_mode():
        theirs = default_twin(tokens).logits
    assert float((ours - theirs).abs().max()) <= 1e-3
    assert torch.equal(ours.argmax(dim=-1), theirs.argmax(dim=-1))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_64_greedy_tokens_agree(default_model, default_twin, prompt):
    tokens = torch.tensor([default_model.tokenizer.encode(prompt)])
    theirs = default_twin.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=64,
        min_new_tokens=64,
        do_sample=False,
        pad_token_id=2,
    )[0, tokens.shape[1] :].tolist()
    cache, ours = GrowingCache(), list[int]()
    stop = list(default_model.config.eos_ids)
    for _ in range(64):
        logits = default_model.forward(tokens, cache, last_only=True)[0, 0].clone()
        logits[stop] = -torch.inf  # as min_new_tokens does
        ours.append(int(logits.argmax()))
        tokens = torch.tensor([ours[-1:]])
    assert ours == theirs


def test_every_weight_of_the_file_is_used(default_model):
    assert (
        sum(w.numel() for w in hf_state(default_model).values()) == 134_515_008 + 49152 * 576
    )  # the head too
    assert default_model.weights.head.data_ptr() == default_model.weights.embedding.data_ptr()
