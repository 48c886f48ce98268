"""Shape and constants of a Llama-family decoder, read from GGUF metadata or from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracegen.errors import UserError

HF_MODEL_TYPES = ("llama", "mistral")
GGUF_ARCHITECTURES = ("llama",)


@dataclass(frozen=True, slots=True)
class Config:
    """What the decoder must know beside its weights.

    `rope_factors` divides the rotary inverse frequencies one by one, `head_dim / 2` numbers;
    linear and "llama3" context extension are both of this form. None where there is no extension.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    tied_embeddings: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    rope_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for size in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_positions",
        ):
            if getattr(self, size) < 1:
                raise UserError(
                    f"model {self.name}: {size} is {getattr(self, size)}; the model file is "
                    "inconsistent, get it again"
                )
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"model {self.name}: {self.num_heads} query heads cannot share "
                f"{self.num_kv_heads} key/value heads evenly; the model file is inconsistent"
            )
        if self.head_dim % 2:
            raise UserError(
                f"model {self.name}: head dimension {self.head_dim} is odd, rotary position "
                "embedding needs an even one; the model file is inconsistent"
            )


def config_from_hf(name: str, values: Mapping[str, Any]) -> Config:
    """Config from the contents of a Hugging Face `config.json`.

    Raises UserError where the file asks for something that this decoder does not compute.
    """
    model_type = values.get("model_type")
    if model_type not in HF_MODEL_TYPES:
        raise UserError(
            f"model {name}: architecture {model_type!r} is not supported; "
            f"use a model of type {', '.join(HF_MODEL_TYPES)}"
        )
    _refuse_hf_options(name, values)
    try:
        hidden_size = int(values["hidden_size"])
        num_heads = int(values["num_attention_heads"])
        head_dim = int(values.get("head_dim") or hidden_size // num_heads)
        # transformers 5 writes one `rope_parameters`; earlier ones `rope_theta` and `rope_scaling`.
        rope = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
        rope_theta = float(rope.get("rope_theta", values.get("rope_theta", 10_000.0)))
        max_positions = int(values["max_position_embeddings"])
        return Config(
            name=name,
            vocab_size=int(values["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(values["intermediate_size"]),
            num_layers=int(values["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(values.get("num_key_value_heads") or num_heads),
            head_dim=head_dim,
            max_positions=max_positions,
            rope_theta=rope_theta,
            rms_norm_eps=float(values["rms_norm_eps"]),
            tied_embeddings=bool(values.get("tie_word_embeddings", False)),
            eos_ids=_ids(values.get("eos_token_id")),
            bos_id=next(iter(_ids(values.get("bos_token_id"))), None),
            rope_factors=_rope_factors(name, rope, rope_theta, head_dim, max_positions),
        )
    except KeyError as missing:
        raise UserError(
            f"model {name}: config.json lacks {missing}; get the complete file"
        ) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"model {name}: malformed config.json ({error}); get it again") from None


def config_from_gguf(
    name: str,
    values: Mapping[str, Any],
    *,
    tied_embeddings: bool,
    rope_factors: tuple[float, ...] | None = None,
) -> Config:
    """Config from GGUF metadata (key to value).  Raises UserError as `config_from_hf` does.

    llama.cpp's converter stores "llama3" scaling as a tensor of ready `rope_factors`.
    """
    architecture = values.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise UserError(
            f"model {name}: architecture {architecture!r} is not supported; "
            f"use a GGUF of architecture {', '.join(GGUF_ARCHITECTURES)}"
        )
    arch = {
        key.removeprefix("llama."): value
        for key, value in values.items()
        if key.startswith("llama.")
    }
    if arch.get("expert_count"):
        raise UserError(f"model {name}: mixture-of-experts is not supported; use a dense model")
    if arch.get("attention.sliding_window"):
        raise UserError(f"model {name}: sliding-window attention is not supported; use another")
    try:
        hidden_size = int(arch["embedding_length"])
        num_heads = int(arch["attention.head_count"])
        head_dim = int(arch.get("attention.key_length", hidden_size // num_heads))
        other_sizes = ("attention.value_length", "rope.dimension_count")
        if any(arch.get(key, head_dim) != head_dim for key in other_sizes):
            raise UserError(
                f"model {name}: partial rotary embedding or unequal key and value sizes are "
                "not supported; use another model"
            )
        rope_theta = float(arch.get("rope.freq_base", 10_000.0))
        max_positions = int(arch["context_length"])
        rope = {
            "rope_type": arch.get("rope.scaling.type", "default"),
            "factor": arch.get("rope.scaling.factor", 1.0),
        }
        return Config(
            name=name,
            vocab_size=int(arch.get("vocab_size", len(values.get("tokenizer.ggml.tokens", ())))),
            hidden_size=hidden_size,
            intermediate_size=int(arch["feed_forward_length"]),
            num_layers=int(arch["block_count"]),
            num_heads=num_heads,
            num_kv_heads=int(arch.get("attention.head_count_kv", num_heads)),
            head_dim=head_dim,
            max_positions=max_positions,
            rope_theta=rope_theta,
            rms_norm_eps=float(arch["attention.layer_norm_rms_epsilon"]),
            tied_embeddings=tied_embeddings,
            eos_ids=_ids(values.get("tokenizer.ggml.eos_token_id")),
            bos_id=values.get("tokenizer.ggml.bos_token_id"),
            rope_factors=rope_factors
            or _rope_factors(name, rope, rope_theta, head_dim, max_positions),
        )
    except KeyError as missing:
        raise UserError(
            f"model {name}: GGUF metadata lacks llama.{missing.args[0]}; convert the model again"
        ) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"model {name}: malformed GGUF metadata ({error}); convert the model again"
        ) from None


def _refuse_hf_options(name: str, values: Mapping[str, Any]) -> None:
    unsupported = {
        "attention_bias": values.get("attention_bias"),
        "mlp_bias": values.get("mlp_bias"),
        "sliding_window": values.get("sliding_window"),
        "quantization_config": values.get("quantization_config"),
        "hidden_act": values.get("hidden_act", "silu") != "silu",
        "partial_rotary_factor": values.get("partial_rotary_factor", 1.0) != 1.0,
    }
    for option, used in unsupported.items():
        if used:
            raise UserError(
                f"model {name}: config.json sets {option}={values[option]!r}, "
                "which this decoder does not support; use a model without it"
            )


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(i) for i in (value if isinstance(value, (list, tuple)) else [value]))


def _rope_factors(
    name: str, rope: Mapping[str, Any], theta: float, head_dim: int, max_positions: int
) -> tuple[float, ...] | None:
    """Divisors of the rotary inverse frequencies.

    "llama3" (Llama 3.1): wavelengths longer than `original / low_freq_factor` are stretched by
    `factor`, those shorter than `original / high_freq_factor` are left alone, and those between
    are interpolated.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in (None, "default", "none"):
        return None
    if kind == "linear":
        return (float(rope["factor"]),) * (head_dim // 2)
    if kind != "llama3":
        raise UserError(
            f"model {name}: rotary scaling of type {kind!r} is not supported; "
            "use a model with none, linear or llama3 scaling"
        )
    factor = float(rope["factor"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    original = float(rope.get("original_max_position_embeddings", max_positions))
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        keep = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / ((1.0 - keep) / factor + keep))
    return tuple(factors)
