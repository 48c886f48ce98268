"""Reads a llama-architecture GGUF file: metadata, tensors of any quantization, tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from tracegen.errors import UserError
from tracegen.model.config import config_from_gguf
from tracegen.model.digest import file_sha256
from tracegen.model.tokenizer import Tokenizer, tokenizer_from_gguf

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_WEIGHTS_PER_ROW = 8192


class GGUFFile:
    """One GGUF file.  Raises UserError if it is truncated, corrupt or of another architecture."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        try:
            reader = _Reader(path)
            self._metadata: Mapping[str, Any] = {
                key: field.contents() for key, field in reader.fields.items()
            }
        except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path}: not a complete GGUF file ({str(error).splitlines()[0]}); "
                "fetch or convert it again"
            ) from None
        self._tensors = {hf_name(tensor.name): tensor for tensor in reader.tensors}
        factors = self._tensors.pop(_ROPE_FACTORS, None)
        self.tensor_names = frozenset(self._tensors)
        self.config = config_from_gguf(
            name or path.stem,
            self._metadata,
            tied_embeddings="lm_head.weight" not in self._tensors,
            rope_factors=tuple(_dequantized(factors).tolist()) if factors is not None else None,
        )

    def tensor(self, name: str) -> Tensor:
        """Float32 tensor by its Hugging Face name."""
        tensor = self._tensors[name]
        try:
            values = _dequantized(tensor)
        except NotImplementedError:
            raise UserError(
                f"{self.path}: the gguf package cannot decode {tensor.name}, stored as "
                f"{tensor.tensor_type.name}; convert the model to another type"
            ) from None
        weight = torch.from_numpy(values)
        if name.endswith("q_proj.weight"):
            return split_halves(weight, self.config.num_heads)
        if name.endswith("k_proj.weight"):
            return split_halves(weight, self.config.num_kv_heads)
        return weight

    def tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(self.config.name, self._metadata)

    def sha256(self) -> str:
        return file_sha256(self.path)


class _Reader(GGUFReader):
    """Slices a plain array: slicing a memmap costs three times as much, for every token's text."""

    @property  # type: ignore[override]
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, memmap: np.ndarray) -> None:
        self._data = np.asarray(memmap)


def hf_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; the name itself if it has none."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name):
        layer, part, kind = match.groups()
        if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    part, _, kind = name.rpartition(".")
    return f"{_TOP_NAMES[part]}.{kind}" if part in _TOP_NAMES else name


def split_halves(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's row order: interleaved rotary pairs (0,1), (2,3) … become (0, d/2) ….

    weight: (heads * head_dim, inputs), a new tensor of the same shape is returned.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[-1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _dequantized(tensor: ReaderTensor) -> np.ndarray:
    """Float32 values of one tensor, in its shape.

    `gguf` decodes 16 rows at a time; rows are whole blocks, so several short ones may be joined
    into one, which saves most of the calls.
    """
    shape = tuple(reversed(tensor.shape.tolist()))
    rows, length = int(np.prod(shape[:-1])), shape[-1]
    joined = max(1, min(rows, _WEIGHTS_PER_ROW // length))
    while rows % joined:
        joined -= 1
    values = dequantize(tensor.data.reshape(rows // joined, -1), tensor.tensor_type)
    return np.require(values, np.float32, "W").reshape(shape)  # a memory map is copied
