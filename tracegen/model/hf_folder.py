"""Reads a Hugging Face folder: config.json, safetensors (one file or shards), tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tracegen.errors import UserError
from tracegen.model.config import config_from_hf
from tracegen.model.digest import files_sha256
from tracegen.model.tokenizer import Tokenizer, tokenizer_from_hf

_INDEX = "model.safetensors.index.json"


class HFFolder:
    """One model folder.  Raises UserError if a file is missing, damaged or pickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        values = read_json(path / "config.json")
        generation = path / "generation_config.json"
        if generation.exists():  # chat models list their end-of-turn tokens here
            values = {**values, **_stop_tokens(read_json(generation))}
        self.config = config_from_hf(path.resolve().name, values)
        self._shards = [_open(shard) for shard in self._shard_paths()]
        self._shard_of = {
            name: shard
            for shard in self._shards
            for name in shard.keys()  # noqa: SIM118  a safetensors handle is no mapping
            if not name.endswith("rotary_emb.inv_freq")  # old checkpoints store this constant
        }
        self.tensor_names = frozenset(self._shard_of)

    def tensor(self, name: str) -> Tensor:
        """Tensor by name, in its stored dtype."""
        tensor: Tensor = self._shard_of[name].get_tensor(name)
        return tensor

    def tokenizer(self) -> Tokenizer:
        return tokenizer_from_hf(self.path)

    def sha256(self) -> str:
        return files_sha256(self._shard_paths())

    def _shard_paths(self) -> list[Path]:
        index = self.path / _INDEX
        if index.exists():
            weight_map = read_json(index).get("weight_map", {})
            return [self.path / name for name in sorted(set(weight_map.values()))]
        single = self.path / "model.safetensors"
        if single.exists():
            return [single]
        pickled = [p for p in sorted(self.path.iterdir()) if p.suffix in (".bin", ".pt", ".pth")]
        if pickled:
            raise UserError(
                f"{pickled[0]}: pickled weights can run code when loaded and are refused; "
                "get the model with safetensors weights"
            )
        raise UserError(f"{self.path}: has no model.safetensors; get the complete model folder")


def read_json(path: Path) -> dict[str, Any]:
    """Contents of a JSON object file.  Raises UserError if it is missing or malformed."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path.parent}: has no {path.name}; give a complete Hugging Face model folder"
        ) from None
    except ValueError as error:
        raise UserError(f"{path}: is not valid JSON ({error}); get the file again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds no JSON object; get the file again")
    return values


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise UserError(f"{path}: shard is missing; get the complete model folder") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: is damaged or truncated ({error}); get it again") from None


def _stop_tokens(generation: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in generation.items() if k == "eos_token_id" and v is not None}
