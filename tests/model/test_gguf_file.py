"""GGUF files: written with the `gguf` package, loaded here, compared with their HF twin."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

from tests.model.test_hf_folder import LLAMA3
from tests.model.test_tokenizer import byte_level_metadata
from tracegen.errors import UserError
from tracegen.model import load_model
from tracegen.model.digest import file_sha256
from tracegen.model.gguf_file import hf_name, split_halves

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows: a head's row i at 2i, then its pair."""
    out = np.empty_like(weight)
    half = HEAD_DIM // 2
    for head in range(heads):
        for i in range(half):
            for part in (0, 1):
                target, source = head * HEAD_DIM + 2 * i + part, head * HEAD_DIM + part * half + i
                out[target] = weight[source]
    return out


def write(
    path: Path,
    kind: Type = Type.F32,
    tied: bool = False,
    skip: str = "",
    change: dict | None = None,
    architecture: str = "llama",
    rope: dict | None = None,
):
    """A random model at `path`, its matrices stored as `kind`.  Returns the peer, same values."""
    torch.manual_seed(0)
    options = {"rope_parameters": rope} if rope else {}
    peer = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied, **options)).eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(peer.config.rms_norm_eps)
    writer.add_vocab_size(SIZES["vocab_size"])
    for key, value in {**byte_level_metadata(), **(change or {})}.items():
        kinds = {bool: writer.add_bool, str: writer.add_string, list: writer.add_array}
        kinds.get(type(value), writer.add_uint32)(key, value)
    for name, parameter in peer.named_parameters():
        stored = parameter.detach().numpy()
        if stored.ndim == 2 and kind != Type.F32:
            packed = gguf.quants.quantize(stored, kind)
            stored = gguf.quants.dequantize(packed, kind)
            parameter.data.copy_(torch.from_numpy(stored))
        as_kind = kind if stored.ndim == 2 else Type.F32
        if name == skip:
            continue
        if "q_proj" in name or "k_proj" in name:
            stored = interleave(stored, HEADS if "q_proj" in name else KV_HEADS)
        part = name.removesuffix(".weight")
        layer = ""
        if part.startswith("model.layers."):
            number, part = part.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        data = gguf.quants.quantize(stored, as_kind)
        writer.add_tensor(f"{layer}{GGUF_NAMES[part]}.weight", data, raw_dtype=as_kind)
    if rope:
        factors = peer.model.rotary_emb.inv_freq.numpy()
        plain = 1 / rope["rope_theta"] ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        writer.add_tensor("rope_freqs.weight", (plain / factors).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return peer


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_1])
def test_agrees_with_its_twin_in_transformers(tmp_path, kind, tied):
    path = tmp_path / "tiny.gguf"
    peer = write(path, kind, tied)
    model = load_model(path, device="cpu")
    assert model.config.tied_embeddings == tied
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 200))
    with torch.inference_mode():
        assert_close(model.forward(tokens), peer(tokens).logits, atol=1e-4, rtol=1e-4)


def test_weights_are_exactly_those_of_the_twin(tmp_path):
    path = tmp_path / "tiny.gguf"
    peer = write(path, Type.Q8_0)
    layer = load_model(path, device="cpu").weights.layers[1]
    theirs = peer.model.layers[1]
    attention, mlp = theirs.self_attn, theirs.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert torch.equal(layer.qkv, torch.cat([p.weight for p in projections]).t())
    assert torch.equal(layer.gate_up, torch.stack([mlp.gate_proj.weight, mlp.up_proj.weight]).mT)
    assert torch.equal(layer.down, mlp.down_proj.weight.t())
    assert torch.equal(layer.mlp_norm, theirs.post_attention_layernorm.weight)


def test_llama3_factors_stored_as_a_tensor(tmp_path):
    path = tmp_path / "tiny.gguf"
    peer = write(path, rope=LLAMA3)
    model = load_model(path, device="cpu")
    assert model.config.rope_factors is not None
    tokens = torch.randint(0, SIZES["vocab_size"], (1, 200))
    with torch.inference_mode():
        assert_close(model.forward(tokens), peer(tokens).logits, atol=1e-4, rtol=1e-4)


def test_split_halves_undoes_the_interleaving():
    rows = np.arange(HEADS * HEAD_DIM, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    stored = torch.from_numpy(interleave(rows, HEADS))
    assert stored[:4, 0].tolist() == [0, 4, 1, 5]
    assert torch.equal(split_halves(stored, HEADS), torch.from_numpy(rows))


def test_names():
    assert hf_name("blk.12.ffn_gate.weight") == "model.layers.12.mlp.gate_proj.weight"
    assert hf_name("blk.0.attn_q.bias") == "model.layers.0.self_attn.q_proj.bias"
    assert hf_name("output.weight") == "lm_head.weight"
    assert hf_name("blk.0.attn_q_norm.weight") == "blk.0.attn_q_norm.weight"


def test_name_checksum_and_tokenizer(tmp_path):
    path = tmp_path / "my.Q8_0.gguf"
    write(path)
    model = load_model(str(path), device="cpu")
    assert model.name == "my.Q8_0"
    assert model.sha256 == file_sha256(path)
    assert model.tokenizer.decode(model.tokenizer.encode("he añb")) == "he añb"


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_model(path, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 100, 3000, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
def test_a_truncated_file_is_refused(tmp_path, kept, kind):
    path = tmp_path / "tiny.gguf"
    write(path, kind)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if kept == int(kept) else int(kept * len(whole))])
    refused(path, "tiny.gguf: not a complete GGUF file")


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_bytes(b"Dear diary, " * 1000)
    refused(path, "not a complete GGUF file .GGUF magic invalid")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2' is not supported; .*llama"),
        ({"skip": "model.layers.1.mlp.up_proj.weight"}, r"layers\.1\.mlp\.up_proj\S+ is missing"),
        ({"change": {"llama.rope.scaling.type": "yarn"}}, "rotary scaling of type 'yarn'"),
        ({"change": {"llama.expert_count": 8}}, "mixture-of-experts"),
        ({"change": {"llama.attention.sliding_window": 8}}, "sliding-window"),
        ({"change": {"llama.rope.dimension_count": 4}}, "partial rotary"),
        ({"change": {"llama.attention.value_length": 4}}, "unequal key and value"),
        ({"change": {"tokenizer.ggml.pre": "tekken"}}, "rule 'tekken'"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused(tmp_path, options, message):
    path = tmp_path / "tiny.gguf"
    write(path, **options)
    refused(path, message)


def test_metadata_lacking_a_key(tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    monkeypatch.setattr(gguf.GGUFWriter, "add_head_count", lambda *_: None)
    write(path)
    refused(path, r"GGUF metadata lacks llama\.attention\.head_count")


def test_a_type_that_gguf_cannot_decode(tmp_path):
    path = tmp_path / "tiny.gguf"
    write(path)
    content = path.read_bytes()
    name = b"blk.0.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # after the number of axes and two sizes
    assert content[at : at + 4] == bytes(4)
    i32 = int(Type.I32).to_bytes(4, "little")
    path.write_bytes(content[:at] + i32 + content[at + 4 :])
    refused(path, r"cannot decode blk\.0\.ffn_up\.weight, stored as I32")
