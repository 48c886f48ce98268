"""The founding listing's `KVCache`, as it was, faults included; pages show it, tests break it."""

import torch


# --8<-- [start:kv_cache]
class KVCache:
    def __init__(self, n_layers, n_kv_heads, head_dim, max_seq):
        self.cache_k = torch.zeros(n_layers, max_seq, n_kv_heads, head_dim)
        self.cache_v = torch.zeros(n_layers, max_seq, n_kv_heads, head_dim)
        self.pos = 0

    def update(self, layer, new_k, new_v):
        # write the new token's K and V at the current position
        self.cache_k[layer, self.pos] = new_k
        self.cache_v[layer, self.pos] = new_v

    def get(self, layer):
        # read all that is cached up to the current position
        return self.cache_k[layer, : self.pos], self.cache_v[layer, : self.pos]


# --8<-- [end:kv_cache]
