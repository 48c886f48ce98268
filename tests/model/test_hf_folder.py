"""Hugging Face folders: written by `transformers`, loaded here, compared; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tracegen.errors import UserError
from tracegen.model import load_model
from tracegen.model.digest import file_sha256

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write(folder: Path, shard_size: str = "1GB", family=(LlamaConfig, LlamaForCausalLM), **options):
    """A random model in `folder`, its tokenizer a vocabulary of bytes.  Returns the peer."""
    torch.manual_seed(0)
    peer = family[1](family[0](**{**SIZES, **options})).eval()
    for parameter in peer.parameters():  # norms start at one, which would hide a swapped norm
        torch.nn.init.normal_(parameter, std=0.3)
    peer.save_pretrained(folder, max_shard_size=shard_size)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return peer


def assert_agree(folder: Path, peer, length: int = 200) -> None:
    tokens = torch.randint(0, SIZES["vocab_size"], (2, length))
    model = load_model(folder, device="cpu")
    assert model.dtype == torch.float32
    with torch.inference_mode():
        assert_close(model.forward(tokens), peer(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_agrees_with_transformers(tmp_path, tied, shard_size):
    peer = write(tmp_path, shard_size, tie_word_embeddings=tied)
    shards = len(list(tmp_path.glob("*.safetensors")))
    assert shards == 1 if shard_size == "1GB" else shards > 1
    assert_agree(tmp_path, peer)


@pytest.mark.parametrize(
    "rope", [LLAMA3, {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}]
)
def test_context_extension_agrees_with_transformers(tmp_path, rope):
    peer = write(tmp_path, rope_parameters=rope)
    assert_agree(tmp_path, peer)


def test_older_configs_keep_rope_theta_and_rope_scaling_apart(tmp_path):
    peer = write(tmp_path, rope_parameters=LLAMA3)
    values = json.loads((tmp_path / "config.json").read_text())
    scaling = {k: v for k, v in values.pop("rope_parameters").items() if k != "rope_theta"}
    values |= {"rope_theta": LLAMA3["rope_theta"], "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert_agree(tmp_path, peer)


def test_head_dim_of_its_own(tmp_path):
    assert_agree(tmp_path, write(tmp_path, head_dim=12))


def test_mistral_without_a_window(tmp_path):
    family = (MistralConfig, MistralForCausalLM)
    assert_agree(tmp_path, write(tmp_path, family=family, sliding_window=None, head_dim=8))


def test_name_checksum_tokenizer_and_stop_tokens(tmp_path):
    folder = tmp_path / "my-model"
    write(folder, eos_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    model = load_model(folder, device="cpu", dtype=torch.bfloat16)
    assert model.name == "my-model"
    assert model.dtype == torch.bfloat16
    assert model.sha256 == file_sha256(folder / "model.safetensors")
    assert model.config.eos_ids == (5, 7)
    assert model.tokenizer.decode(model.tokenizer.encode("añb")) == "añb"
    assert model.tokenizer.chat("hi") == "hi"


def test_checksum_of_shards_covers_each(tmp_path):
    write(tmp_path, "20KB")
    before = load_model(tmp_path, device="cpu").sha256
    shard = max(tmp_path.glob("*.safetensors"))
    tensors = load_file(shard)
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, shard)
    assert load_model(tmp_path, device="cpu").sha256 != before


def test_chat_template_beside_the_tokenizer(tmp_path):
    write(tmp_path)
    settings = {"bos_token": {"content": "!"}, "chat_template": "{{ bos_token }}A"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_model(tmp_path, device="cpu").tokenizer.chat("hi") == "!A"
    (tmp_path / "chat_template.jinja").write_text("[{{ messages[0].content }}]")
    assert load_model(tmp_path, device="cpu").tokenizer.chat("hi") == "[hi]"


def refused(path: Path, message: str, **options) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_model(path, **{"device": "cpu", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("sliding_window", 128),
        ("hidden_act", "gelu"),
        ("quantization_config", {"bits": 4}),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_options_not_computed_here_are_refused(tmp_path, option, value):
    write(tmp_path)
    change_config(tmp_path, **{option: value})
    refused(tmp_path, f"config.json sets {option}=")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2' is not supported; .*llama, mistral"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rotary scaling of type 'yarn'"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"head_dim": 7}, "is odd"),
        ({"rms_norm_eps": None}, "malformed config.json"),
        ({"num_attention_heads": 0}, "num_heads is 0"),
        ({"hidden_size": 64}, "has shape .* where its configuration implies"),
        ({"num_hidden_layers": 3}, r"tensor model\.layers\.2\.\S+ is missing"),
        ({"num_hidden_layers": 1}, r"tensor model\.layers\.1\.\S+ is not part of"),
        ({"tie_word_embeddings": False}, r"tensor lm_head\.weight is missing"),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path, changes, message):
    write(tmp_path, tie_word_embeddings=True)
    change_config(tmp_path, **changes)
    refused(tmp_path, message)


def change_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_config_lacking_a_key(tmp_path):
    write(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["intermediate_size"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    refused(tmp_path, "config.json lacks 'intermediate_size'")


def test_missing_and_damaged_files_are_named(tmp_path):
    refused(tmp_path / "nowhere", "no such model")
    refused(tmp_path, "has no config.json")
    write(tmp_path, "20KB")
    shard = max(tmp_path.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    refused(tmp_path, f"{shard.name}: is damaged or truncated")
    shard.unlink()
    refused(tmp_path, f"{shard.name}: shard is missing")
    shard.write_bytes(whole)
    (tmp_path / "tokenizer.json").write_text("{}")
    refused(tmp_path, "malformed tokenizer")
    (tmp_path / "tokenizer.json").unlink()
    refused(tmp_path, "has no tokenizer.json")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "config.json: is not valid JSON")
    (tmp_path / "config.json").write_text("[]")
    refused(tmp_path, "config.json: holds no JSON object")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickled_weights_are_refused(tmp_path, name):
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    refused(tmp_path, f"{name}: pickled weights")
    refused(tmp_path / name, f"{name}: pickled weights")
    (tmp_path / name).unlink()
    refused(tmp_path, "has no model.safetensors")


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there(tmp_path, device):
    write(tmp_path)
    refused(tmp_path, f"device '{device}' cannot be used here", device=device)
