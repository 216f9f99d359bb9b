#!/usr/bin/env python3
"""A peer of flashvk bench lm: PyTorch with language models of the same sizes.

    flashvk bench lm --decode --prefill --peer "python3 tools/peers/torch_lm.py"
    torch_lm.py decode:MODEL:BATCH:KEYS... prefill:MODEL:BATCH:TOKENS...

Models have random weights in bfloat16. decode is one token of each sequence with a static
cache, replayed as a CUDA graph; the rate is weight and cache bytes by time. prefill is the
forward pass over prompts, with the logits of the last token of each. A line for each of eager
and torch.compile: milliseconds (the median of thirty), tokens/s, peak memory.
"""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

dev = "cuda"
MODELS = {  # hidden, layers, heads, kv heads, head_dim, d_ff, vocabulary, tied
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, True),
    "tinyllama-1.1b": (2048, 22, 32, 4, 64, 5632, 32000, False),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
}


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, _, self.h, self.k, self.e, f, _, _ = c

        def linear(i, o):
            return nn.Parameter(torch.randn(o, i, device=dev, dtype=torch.bfloat16) * i**-0.5)

        self.q, self.kk, self.v = linear(d, self.h * self.e), linear(d, self.k * self.e), linear(d, self.k * self.e)
        self.o, self.gate, self.up, self.down = linear(self.h * self.e, d), linear(d, f), linear(d, f), linear(f, d)
        self.n1, self.n2 = (nn.Parameter(torch.ones(d, device=dev, dtype=torch.bfloat16)) for _ in range(2))

    def forward(self, x, cos, sin, cache=None):
        b, s, d = x.shape
        y = F.rms_norm(x, (d,), self.n1, 1e-5)
        heads = ((self.q, self.h), (self.kk, self.k), (self.v, self.k))
        q, k, v = (F.linear(y, m).view(b, s, n, self.e).transpose(1, 2) for m, n in heads)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            cache[0][:, :, -1:].copy_(k)
            cache[1][:, :, -1:].copy_(v)
            k, v = cache
        a = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + F.linear(a.transpose(1, 2).reshape(b, s, -1), self.o)
        y = F.rms_norm(x, (d,), self.n2, 1e-5)
        return x + F.linear(F.silu(F.linear(y, self.gate)) * F.linear(y, self.up), self.down)


def rotate(x, cos, sin):
    h = x.shape[-1] // 2
    return torch.cat((x[..., :h] * cos - x[..., h:] * sin, x[..., h:] * cos + x[..., :h] * sin), -1)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, n, _, _, self.e, _, v, tied = c
        self.embed = nn.Parameter(torch.randn(v, d, device=dev, dtype=torch.bfloat16) * 0.02)
        self.head = self.embed if tied else nn.Parameter(torch.randn(v, d, device=dev, dtype=torch.bfloat16) * 0.02)
        self.blocks = nn.ModuleList(Block(c) for _ in range(n))
        self.norm = nn.Parameter(torch.ones(d, device=dev, dtype=torch.bfloat16))

    def forward(self, ids, pos, caches=None):
        a = pos[:, None].float() * 10000.0 ** (-torch.arange(0, self.e, 2, device=dev) / self.e)
        cos, sin = a.cos().bfloat16(), a.sin().bfloat16()
        x = F.embedding(ids, self.embed)
        for i, b in enumerate(self.blocks):
            x = b(x, cos, sin, None if caches is None else caches[i])
        return F.linear(F.rms_norm(x[:, -1], (x.shape[-1],), self.norm, 1e-5), self.head)


def timed(step, n=30):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    t = []
    for _ in range(n):
        a = time.perf_counter()
        step()
        torch.cuda.synchronize()
        t.append(time.perf_counter() - a)
    return sorted(t)[n // 2]


def say(case, impl, t, tokens, rate=""):
    print(f"{case:36} {impl:10} {t*1e3:10.4g} {tokens/t:12.0f} {rate:>10}  {torch.cuda.max_memory_allocated()/1e9:.2f} GB", flush=True)


def graph(f):
    """Returns a replay of f, recorded once."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        f()
    return g.replay


def measure(case):
    kind, name, batch, keys = case.split(":")
    c, batch, keys = MODELS[name], int(batch), int(keys)
    m = Llama(c)
    size = sum(p.numel() for p in m.parameters()) * 2 - (0 if c[7] else m.embed.numel() * 2)
    for impl in ("eager", "compile"):
        f = torch.compile(m, dynamic=False) if impl == "compile" else m
        if kind == "decode":
            caches = [tuple(torch.randn(batch, c[3], keys, c[4], device=dev, dtype=torch.bfloat16) for _ in range(2)) for _ in range(c[1])]
            ids, pos = torch.zeros(batch, 1, dtype=torch.long, device=dev), torch.tensor([keys - 1], device=dev)
            t = timed(graph(lambda: f(ids, pos, caches)))
            more = sum(x.numel() * 2 for y in caches for x in y)
            say(case, impl, t, batch, f"{(size + more)/t/1e12:.2f}T")
        else:
            ids, pos = torch.randint(0, c[6], (batch, keys), device=dev), torch.arange(keys, device=dev)
            say(case, impl, timed(lambda: f(ids, pos)), batch * keys)


with torch.no_grad():
    for case in sys.argv[1:]:
        torch.manual_seed(0)
        torch.cuda.empty_cache()
        measure(case)
