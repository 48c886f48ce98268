"""Loads a model from a GGUF file or a Hugging Face folder into the decoder's layout."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tracegen.errors import UserError
from tracegen.model.attention import attention_named
from tracegen.model.config import Config
from tracegen.model.decoder import Layer, Model, Weights
from tracegen.model.default import default_model_path
from tracegen.model.gguf_file import GGUFFile
from tracegen.model.hf_folder import HFFolder
from tracegen.model.tokenizer import Tokenizer


class ModelFiles(Protocol):
    """A model at rest.  Tensors go by their Hugging Face names, rotary halves split."""

    config: Config
    tensor_names: frozenset[str]

    def tensor(self, name: str) -> Tensor: ...
    def tokenizer(self) -> Tokenizer: ...
    def sha256(self) -> str: ...


def load_model(
    path: str | Path | None = None,
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    attention: str = "sdpa",
) -> Model:
    """The model at `path`: a GGUF file, or a folder with config.json, safetensors, tokenizer.json.

    Without a path it is the default model, SmolLM2-135M-Instruct, fetched once and cached.
    `device` defaults to cuda (ROCm too), else mps, else cpu; `dtype` to bfloat16 on cuda, else
    float32.  `attention` is "sdpa", torch's own, or "triton", kernels/flash_attention.py (without a
    GPU interpreted, and very slow).  Raises UserError for anything that is not a loadable
    Llama-family model.
    """
    prepare = attention_named(attention)
    where = _device(device)
    if dtype is None:
        dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    files = open_model(Path(path).expanduser() if path is not None else default_model_path())
    weights = _read_weights(files, where, dtype)
    return Model(files.config, weights, files.tokenizer(), files.sha256, prepare)


def open_model(path: Path) -> ModelFiles:
    if path.is_dir():
        return HFFolder(path)
    if not path.exists():
        raise UserError(f"{path}: no such model; give a GGUF file or a Hugging Face folder")
    if path.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise UserError(
            f"{path}: pickled weights can run code when loaded and are refused; "
            "give a GGUF file or a folder with safetensors"
        )
    return GGUFFile(path)


def _device(name: str | None) -> torch.device:
    if name is None:
        if torch.cuda.is_available():
            name = "cuda"
        else:
            name = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]}); try --device cpu"
        ) from None
    return device


def _read_weights(files: ModelFiles, device: torch.device, dtype: torch.dtype) -> Weights:
    """Read, check and fuse all tensors, two layers at a time: numpy decodes on one core each."""
    cfg = files.config
    q_rows, kv_rows = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    hidden, inner = cfg.hidden_size, cfg.intermediate_size
    used: set[str] = set()

    def read(name: str, *shape: int) -> Tensor:
        used.add(name)
        if name not in files.tensor_names:
            raise UserError(f"model {cfg.name}: tensor {name} is missing; get the complete model")
        tensor = files.tensor(name)
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"model {cfg.name}: tensor {name} has shape {tuple(tensor.shape)} where its "
                f"configuration implies {shape}; get a consistent model"
            )
        return tensor.to(device=device, dtype=dtype)

    def matrix(*parts: Tensor) -> Tensor:
        """(outputs, inputs) parts side by side as (inputs, outputs)."""
        return in_memory_order((torch.cat(parts) if len(parts) > 1 else parts[0]).t())

    def in_memory_order(matrix: Tensor) -> Tensor:
        """The same (…, inputs, outputs), laid out for a product with a single token.

        GPUs keep each output's weights together in memory.  CPUs read long rows faster, so there
        the longer side is contiguous: 15 to 30 % less time for wide matrices, 10 to 15 % for
        narrow ones (measured on Sapphire Rapids).
        """
        wide = matrix.shape[-1] >= matrix.shape[-2]
        return matrix.contiguous() if wide and device.type == "cpu" else matrix

    def read_layer(index: int) -> Layer:
        at = f"model.layers.{index}"
        return Layer(
            attention_norm=read(f"{at}.input_layernorm.weight", hidden),
            qkv=matrix(
                read(f"{at}.self_attn.q_proj.weight", q_rows, hidden),
                read(f"{at}.self_attn.k_proj.weight", kv_rows, hidden),
                read(f"{at}.self_attn.v_proj.weight", kv_rows, hidden),
            ),
            attention_out=matrix(read(f"{at}.self_attn.o_proj.weight", hidden, q_rows)),
            mlp_norm=read(f"{at}.post_attention_layernorm.weight", hidden),
            gate_up=in_memory_order(
                torch.stack(
                    (
                        read(f"{at}.mlp.gate_proj.weight", inner, hidden),
                        read(f"{at}.mlp.up_proj.weight", inner, hidden),
                    )
                ).mT
            ),
            down=matrix(read(f"{at}.mlp.down_proj.weight", hidden, inner)),
        )

    with ThreadPoolExecutor(2) as pool:
        embedding_job = pool.submit(read, "model.embed_tokens.weight", cfg.vocab_size, hidden)
        layers = list(pool.map(read_layer, range(cfg.num_layers)))
    embedding = embedding_job.result()
    if cfg.tied_embeddings:
        head = matrix(embedding)
        embedding = head.t()
    else:
        head = matrix(read("lm_head.weight", cfg.vocab_size, hidden))
    weights = Weights(embedding, layers, read("model.norm.weight", hidden), head)
    unknown = sorted(files.tensor_names - used - {"lm_head.weight"})
    if unknown:
        raise UserError(
            f"model {cfg.name}: tensor {unknown[0]} is not part of a plain Llama decoder; "
            "this variant is not supported, use another model"
        )
    return weights
