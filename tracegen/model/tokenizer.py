"""Text to token ids and back, through the `tokenizers` library, from tokenizer.json or GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.pre_tokenizers import PreTokenizer

from tracegen.errors import UserError

_SPECIAL, _USER_DEFINED = 3, 4  # GGUF token types
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
}


class Tokenizer:
    """One tokenizer.  Build it with `tokenizer_from_gguf` or `tokenizer_from_hf`."""

    def __init__(
        self, backend: tokenizers.Tokenizer, chat_template: str | None, special: Mapping[str, str]
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._special = dict(special)  # texts of bos_token, eos_token … that templates refer to

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of `text`.

        With `special`, the text of a special token becomes that token, and the model's start token
        goes first where the model was trained so.  Without it the text is only text.
        """
        self._backend.encode_special_tokens = not special
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens included.  Undoes `encode`."""
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text

    def token_text(self, token: int) -> str:
        """One token for display.  A piece of a character is shown as its bytes, `<0xE4>`."""
        piece = self._backend.id_to_token(token)
        if piece is None:  # vocabularies are often padded to a round size
            return f"<unused {token}>"
        if "▁" in piece:  # SentencePiece's mark of a space
            return str(piece).replace("▁", " ")
        text = self.decode([token])
        if "\N{REPLACEMENT CHARACTER}" not in text:
            return text
        return "".join(f"<0x{_BYTE_OF[c]:02X}>" if c in _BYTE_OF else c for c in piece)

    def chat(self, user_text: str) -> str:
        """`user_text` as the first turn of a chat, up to where the model answers.

        Uses the model's own template; a model that has none gets the text as it is.
        """
        if self._chat_template is None:
            return user_text
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        special = self._special
        if self.encode(""):  # encode() will put the start token itself
            special = {**special, "bos_token": ""}
        try:
            template = environment.from_string(self._chat_template)
            return template.render(
                messages=[{"role": "user", "content": user_text}],
                add_generation_prompt=True,
                **special,
            )
        except TemplateError as error:
            raise UserError(
                f"the model's chat template fails ({error}); give a plain prompt instead"
            ) from None


def tokenizer_from_hf(folder: Path) -> Tokenizer:
    """From tokenizer.json, with the chat template of its neighbours.

    Raises UserError if the file is missing or malformed.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(f"{folder}: has no tokenizer.json; get the complete model folder")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
        settings_path = folder / "tokenizer_config.json"
        settings = json.loads(settings_path.read_text()) if settings_path.exists() else {}
    except Exception as error:  # tokenizers raises bare Exception
        raise UserError(f"{folder}: malformed tokenizer ({error}); get it again") from None
    backend.no_padding()
    backend.no_truncation()
    template_path = folder / "chat_template.jinja"
    template = template_path.read_text() if template_path.exists() else None
    special = {
        key: value["content"] if isinstance(value, dict) else value
        for key, value in settings.items()
        if key in ("bos_token", "eos_token", "unk_token", "pad_token") and value
    }
    return Tokenizer(backend, template or _default_template(settings), special)


def tokenizer_from_gguf(name: str, metadata: Mapping[str, Any]) -> Tokenizer:
    """From GGUF metadata: a byte-level BPE vocabulary, its merges, and how text is split first.

    Raises UserError for a vocabulary of another kind or a splitting rule not known here.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UserError(
            f"model {name}: its GGUF tokenizer is of kind {kind!r}, only byte-level BPE ('gpt2') "
            "is supported; use the model's Hugging Face folder"
        )
    split = metadata.get("tokenizer.ggml.pre", "gpt-2")
    normalizer, pre_tokenizer = _gguf_pre_tokenizer(name, split)
    try:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types: list[int] = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        pairs = [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]]
        bpe = models.BPE(
            {token: index for index, token in enumerate(tokens)},
            [(left, right) for left, right in pairs],
            ignore_merges=split == "llama-bpe",
        )
        special = {
            f"{role}_token": tokens[metadata[f"tokenizer.ggml.{role}_token_id"]]
            for role in ("bos", "eos")
            if f"tokenizer.ggml.{role}_token_id" in metadata
        }
    except Exception as error:  # tokenizers raises bare Exception
        raise UserError(
            f"model {name}: malformed GGUF vocabulary ({error}); convert the model again"
        ) from None
    backend = tokenizers.Tokenizer(bpe)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    typed = list(zip(tokens, types, strict=False))
    backend.add_special_tokens([AddedToken(t, special=True) for t, k in typed if k == _SPECIAL])
    backend.add_tokens([AddedToken(t) for t, k in typed if k == _USER_DEFINED])
    if "bos_token" in special and metadata.get(
        "tokenizer.ggml.add_bos_token", split == "llama-bpe"
    ):
        bos = special["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    return Tokenizer(backend, metadata.get("tokenizer.chat_template"), special)


def _gguf_pre_tokenizer(
    name: str, split: str
) -> tuple[normalizers.Normalizer | None, PreTokenizer]:
    """How text is cut into words before BPE: the meaning of `tokenizer.ggml.pre`."""
    if split in ("gpt-2", "default"):
        return None, pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "smollm":  # each digit on its own, then as GPT-2
        digits = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return None, pre_tokenizers.Sequence([digits, byte_level])
    if split in _SPLITS:
        words = pre_tokenizers.Split(Regex(_SPLITS[split]), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        normalizer = normalizers.NFC() if split == "qwen2" else None
        return normalizer, pre_tokenizers.Sequence([words, byte_level])
    raise UserError(
        f"model {name}: its GGUF tokenizer splits text by the rule {split!r}, which is not "
        f"supported (smollm, gpt-2, {', '.join(_SPLITS)} are); use its Hugging Face folder"
    )


def _default_template(settings: Mapping[str, Any]) -> str | None:
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _byte_of() -> dict[str, int]:
    """GPT-2's alphabet of printable stand-ins for the 256 bytes, reversed."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_of()
