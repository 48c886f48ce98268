"""A readable Llama-family decoder with its loaders, tokenizer, cache contract and sampler."""

from tracegen.model.cache import Cache, GrowingCache
from tracegen.model.config import Config
from tracegen.model.decoder import Model
from tracegen.model.load import load_model
from tracegen.model.sampler import Sampler
from tracegen.model.tokenizer import Tokenizer

__all__ = ["Cache", "Config", "GrowingCache", "Model", "Sampler", "Tokenizer", "load_model"]
