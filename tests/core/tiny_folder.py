"""A tiny random model as a Hugging Face folder, for the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.model.peer import hf_state
from tests.model.tiny import TINY, tiny_model


def write_tiny_folder(folder: Path, max_positions: int = 4096) -> Path:
    """Write config.json, tokenizer.json and model.safetensors; returns `folder`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(alphabet)}
    config = replace(TINY, vocab_size=len(vocabulary), max_positions=max_positions)
    model = tiny_model(config, dtype=torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: w.contiguous().clone() for name, w in hf_state(model).items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_act": "silu",
                "vocab_size": config.vocab_size,
                "hidden_size": config.hidden_size,
                "intermediate_size": config.intermediate_size,
                "num_hidden_layers": config.num_layers,
                "num_attention_heads": config.num_heads,
                "num_key_value_heads": config.num_kv_heads,
                "head_dim": config.head_dim,
                "max_position_embeddings": max_positions,
                "rope_theta": config.rope_theta,
                "rms_norm_eps": config.rms_norm_eps,
                "tie_word_embeddings": config.tied_embeddings,
                "eos_token_id": 2,
            }
        )
    )
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
