"""A tiny random model with a tokenizer of single letters, for techniques."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.tiny import TINY, tiny_model
from tracegen.model import Model


class LetterTokenizer:
    """One token a character, for any vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, special: bool = True) -> list[int]:
        return [ord(c) % self.vocab_size for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(self.token_text, ids))

    def token_text(self, token: int) -> str:
        return chr(ord("a") + token)

    def chat(self, user_text: str) -> str:
        return f"{user_text}\n"


@pytest.fixture(scope="session")
def tiny() -> Model:
    """A random model, float64, with room for every scenario's longest prompt."""
    model = tiny_model(replace(TINY, max_positions=4096))
    model.tokenizer = LetterTokenizer(TINY.vocab_size)
    return model
