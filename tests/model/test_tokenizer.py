"""The default model's tokenizer, rebuilt from GGUF metadata, and the tokenizer class itself."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tracegen.errors import UserError
from tracegen.model import Tokenizer
from tracegen.model.tokenizer import _BYTE_OF, tokenizer_from_gguf

TEXTS = [
    "Hello, world!",
    "  leading and   inner spaces \n\n\ttabs\r\n",
    "In 1984 and 20260, 3.14159 is pi",
    "naïve café — “quotes” …",
    "你好，世界 🌍 👩‍👩‍👧",
    "don't DON'T we'll I'd",
    "for i in range(10):\n    print(i)\n",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(default_model, text):
    tokenizer = default_model.tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text


def bpe_by_hand(tokenizer: Tokenizer, text: str) -> list[int]:
    """Byte-level BPE from first principles: cut, then merge the best-ranked pair until none."""
    spec = json.loads(tokenizer._backend.to_str())["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(spec["merges"])}
    stand_in = {byte: char for char, byte in _BYTE_OF.items()}
    cut = r"\d|'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+(?!\S)|\s+"
    ids = []
    for piece in re.findall(r"\d|\D+", text):
        for word in re.findall(cut, piece):
            parts = [stand_in[byte] for byte in word.encode()]
            while pairs := [p for p in itertools.pairwise(parts) if p in ranks]:
                best = min(pairs, key=ranks.__getitem__)
                at = next(i for i in range(len(parts)) if tuple(parts[i : i + 2]) == best)
                parts[at : at + 2] = ["".join(best)]
            ids += [spec["vocab"][part] for part in parts]
    return ids


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! It's 1984, isn't it?",
        "  two leading, and three   inner spaces",
        "20260 = 2 * 10130;\n\n\tx = [1, 2, 3]  ",
        "unbelievable internationalisation of antidisestablishmentarianism",
    ],
)
def test_agrees_with_bpe_by_hand(default_model, text):
    assert default_model.tokenizer.encode(text) == bpe_by_hand(default_model.tokenizer, text)


def test_digits_stand_alone_and_no_space_is_put_in_front(default_model):
    tokenizer = default_model.tokenizer
    assert [tokenizer.token_text(i) for i in tokenizer.encode("12345")] == list("12345")
    assert tokenizer.encode("the") != tokenizer.encode(" the")
    assert [tokenizer.token_text(i) for i in tokenizer.encode("the sea")] == ["the", " sea"]


def test_special_tokens(default_model):
    tokenizer = default_model.tokenizer
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]
    as_text = tokenizer.encode("<|im_end|>", special=False)
    assert 2 not in as_text
    assert tokenizer.decode(as_text) == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>") == [2]  # the switch does not stick
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_pieces_of_a_character_show_their_bytes(default_model):
    tokenizer = default_model.tokenizer
    ids = tokenizer.encode("🜚")
    shown = "".join(tokenizer.token_text(i) for i in ids)
    assert len(ids) > 1
    assert bytes.fromhex(re.sub(r"<0x(..)>", r"\1", shown)) == "🜚".encode()
    assert tokenizer.token_text(10**6) == "<unused 1000000>"


def test_chat_is_chatml_and_ends_where_the_model_answers(default_model):
    text = default_model.tokenizer.chat("Hi {{ 7 * 7 }} there")
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith(
        "<|im_start|>user\nHi {{ 7 * 7 }} there<|im_end|>\n<|im_start|>assistant\n"
    )


def byte_level_metadata(**changes) -> dict:
    """A GGUF vocabulary of the 256 bytes, a merge, a start token and a control token."""
    tokens = [*_BYTE_OF, "he", "<bos>", "<stop>"]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": 257,
    }
    values.update({f"tokenizer.{key}": value for key, value in changes.items()})
    return values


@pytest.mark.parametrize(
    ("rule", "text", "words"),
    [
        ("gpt-2", "we'll go 2024!!\n\nb", "we|'ll| go| 2024|!!|\n|\n|b"),
        ("smollm", "go 2024 a", "go| |2|0|2|4| a"),
        ("llama-bpe", "We'LL go 20245 (a)\n\nb", "We|'LL| go| |202|45| (|a|)\n\n|b"),
        ("qwen2", "We'LL go 2024 (a)", "We|'LL| go| |2|0|2|4| (|a|)"),
    ],
)
def test_splitting_rules(rule, text, words):
    tokenizer = tokenizer_from_gguf("t", byte_level_metadata(**{"ggml.pre": rule}))
    cut = tokenizer._backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words.split("|")
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_start_token_goes_first_where_the_model_was_trained_so():
    tokenizer = tokenizer_from_gguf("t", byte_level_metadata(**{"ggml.add_bos_token": True}))
    assert tokenizer.encode("he") == [257, 256]
    assert tokenizer.encode("he", special=False) == [256]
    plain = tokenizer_from_gguf("t", byte_level_metadata())
    assert plain.encode("he") == [256]


def test_chat_leaves_the_start_token_to_encode():
    template = "{{ bos_token }}{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    for add_bos, expected in ((True, "[hi]"), (False, "<bos>[hi]")):
        metadata = byte_level_metadata(**{"chat_template": template, "ggml.add_bos_token": add_bos})
        tokenizer = tokenizer_from_gguf("t", metadata)
        assert tokenizer.chat("hi") == expected
        assert tokenizer.encode(tokenizer.chat("hi")).count(257) == 1


def test_a_model_without_a_template_takes_the_text_itself():
    assert tokenizer_from_gguf("t", byte_level_metadata()).chat("hi") == "hi"


def test_a_template_cannot_reach_the_system():
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    tokenizer = tokenizer_from_gguf("t", byte_level_metadata(chat_template=evil))
    with pytest.raises(UserError, match="chat template fails"):
        tokenizer.chat("hi")


def test_sentencepiece_spaces_are_shown():
    vocabulary = {"▁the": 0, "<unk>": 1}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    assert Tokenizer(backend, None, {}).token_text(0) == " the"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml.model": "llama"}, "only byte-level BPE"),
        ({"ggml.pre": "tekken"}, "rule 'tekken'"),
        ({"ggml.merges": ["h"]}, "malformed GGUF vocabulary"),
        ({"ggml.merges": ["h zz"]}, "malformed GGUF vocabulary"),
        ({"ggml.bos_token_id": 999}, "malformed GGUF vocabulary"),
    ],
)
def test_unusable_vocabularies_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        tokenizer_from_gguf("t", byte_level_metadata(**changes))
