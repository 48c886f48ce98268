"""The founding listing's `generate`, as it was, faults included; pages show it, tests break it."""


# --8<-- [start:generate]
def generate(model, prompt_ids, max_new_tokens):
    # Prefill: the whole prompt in one forward pass (compute-bound)
    logits = model.forward(prompt_ids)
    next_token = sample(logits[-1])
    kv_cache = model.kv_cache  # kept from prefill

    # Decode: token by token (memory-bound, the KV cache is read each time)
    output = [next_token]
    for _ in range(max_new_tokens - 1):
        logits = model.forward([next_token], kv_cache=kv_cache)
        next_token = sample(logits[-1])
        output.append(next_token)
    return output


# --8<-- [end:generate]


def sample(logits):
    """Greedy, over a list of floats."""
    return max(range(len(logits)), key=logits.__getitem__)
