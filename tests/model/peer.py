"""The same weights in `transformers`, the peer that the engine is held against."""

from __future__ import annotations

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tracegen.model import Model


def hf_config(model: Model) -> LlamaConfig:
    cfg = model.config
    return LlamaConfig(
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        intermediate_size=cfg.intermediate_size,
        num_hidden_layers=cfg.num_layers,
        num_attention_heads=cfg.num_heads,
        num_key_value_heads=cfg.num_kv_heads,
        head_dim=cfg.head_dim,
        max_position_embeddings=cfg.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": cfg.rope_theta},
        rms_norm_eps=cfg.rms_norm_eps,
        tie_word_embeddings=cfg.tied_embeddings,
        bos_token_id=cfg.bos_id,
        eos_token_id=list(cfg.eos_ids),
    )


def hf_state(model: Model) -> dict[str, Tensor]:
    """Our weights under Hugging Face names, the fused ones split again."""
    cfg, weights = model.config, model.weights
    rows = [cfg.num_heads * cfg.head_dim] + [cfg.num_kv_heads * cfg.head_dim] * 2
    state = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
    }
    state["lm_head.weight"] = weights.head.t()
    for index, layer in enumerate(weights.layers):
        q, k, v = layer.qkv.t().split(rows)
        gate, up = layer.gate_up.mT
        named = {
            "input_layernorm": layer.attention_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.attention_out.t(),
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down.t(),
        }
        state |= {f"model.layers.{index}.{name}.weight": w for name, w in named.items()}
    return state


def transformers_twin(model: Model) -> LlamaForCausalLM:
    twin = LlamaForCausalLM(hf_config(model)).to(model.device, model.dtype)
    twin.load_state_dict(hf_state(model))
    return twin.eval()
