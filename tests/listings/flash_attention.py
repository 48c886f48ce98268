"""The founding listing's `flash_attention`, as it was, faults included; pages show it, tests break it."""

import torch


# --8<-- [start:flash_attention]
def flash_attention(Q, K, V, block_size=64):
    """Flash Attention: tiles and an online softmax, IO complexity O(N^2/sqrt(M))"""
    N = Q.shape[0]
    O = torch.zeros_like(Q)
    for i in range(0, N, block_size):  # over blocks of Q
        Qi = Q[i : i + block_size]
        Oi, m, l = torch.zeros_like(Qi), torch.full((block_size,), -1e9), torch.zeros(block_size)
        for j in range(0, N, block_size):  # over blocks of K and V (in SRAM)
            S = Qi @ K[j : j + block_size].T / (Q.shape[-1] ** 0.5)
            m_new = torch.max(m, S.max(dim=-1).values)
            P = torch.exp(S - m_new.unsqueeze(-1))
            l = l * torch.exp(m - m_new) + P.sum(dim=-1)
            Oi = Oi * torch.exp(m - m_new).unsqueeze(-1) + P @ V[j : j + block_size]
            m = m_new
        O[i : i + block_size] = Oi / l.unsqueeze(-1)
    return O


# --8<-- [end:flash_attention]
