#!/usr/bin/env python3
"""A peer of flashvk bench lm: PyTorch with language models of the same sizes.

    flashvk bench lm --decode --prefill --train --peer torch="python3 tools/peers/torch_lm.py"

Reads one request from standard input and writes a JSON object per line, one for each of eager
and torch.compile. Package internal/bench/peer of flashvk describes both. Models have random
weights in bfloat16; without a GPU, train runs on the CPU, in float32, too. decode is one token of each sequence with a static cache, replayed as a
CUDA graph. prefill is the forward pass over prompts, with the logits of the last token of each.
train is a step with fused AdamW and clipped gradients: of LoRA matrices of params.rank, or of all
weights for rank 0, in bfloat16; of GPT-2 of all weights, in float32 under autocast.
"""
import sys
import time

import torch_peer

MODELS = {  # hidden, layers, heads, kv heads, head_dim, d_ff, vocabulary, tied
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, True),
    "tinyllama-1.1b": (2048, 22, 32, 4, 64, 5632, 32000, False),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
}


def check(request):
    if request["op"] != "lm":
        return "op %s is not lm" % request["op"]
    name, rank = request["params"]["model"], request["params"].get("rank", 0)
    if name not in MODELS and (name != "gpt2" or request["pass"] != "train" or rank > 0):
        return "model %s is not one of %s, and not gpt2 with all weights trained" % (name, ", ".join(MODELS))
    if request["dtype"] not in ("bfloat16", "float32"):
        return "dtype %s is neither bfloat16 nor float32" % request["dtype"]


request = torch_peer.start(check, cpu=True) if __name__ == "__main__" else torch_peer.load()
if request is None:
    sys.exit()
torch = torch_peer.torch
nn, F = torch.nn, torch.nn.functional
dev = "cuda" if torch.cuda.is_available() else "cpu"
dtype = getattr(torch, request["dtype"]) if __name__ == "__main__" else torch.bfloat16


def normal(rows, columns, scale, trained=True):
    return nn.Parameter(torch.randn(rows, columns, device=dev, dtype=dtype) * scale, requires_grad=trained)


class Linear(nn.Module):
    def __init__(self, i, o, rank):
        super().__init__()
        self.weight, self.rank = normal(o, i, i**-0.5, rank == 0), rank
        if rank:
            self.a, self.b = normal(rank, i, i**-0.5), normal(o, rank, 0)

    def forward(self, x):
        y = F.linear(x, self.weight)
        return y + 2.0 * F.linear(F.linear(x, self.a), self.b) if self.rank else y


class Block(nn.Module):
    def __init__(self, c, rank):
        super().__init__()
        d, _, self.h, self.k, self.e, f, _, _ = c

        def linear(i, o):
            return Linear(i, o, rank)

        self.q, self.kk, self.v = linear(d, self.h * self.e), linear(d, self.k * self.e), linear(d, self.k * self.e)
        self.o, self.gate, self.up, self.down = linear(self.h * self.e, d), linear(d, f), linear(d, f), linear(f, d)
        self.n1, self.n2 = (nn.Parameter(torch.ones(d, device=dev, dtype=dtype), requires_grad=rank == 0) for _ in range(2))

    def forward(self, x, cos, sin, cache=None, mask=None):
        b, s, d = x.shape
        y = F.rms_norm(x, (d,), self.n1, 1e-5)
        heads = ((self.q, self.h), (self.kk, self.k), (self.v, self.k))
        q, k, v = (m(y).view(b, s, n, self.e).transpose(1, 2) for m, n in heads)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            cache[0][:, :, -1:].copy_(k)
            cache[1][:, :, -1:].copy_(v)
            k, v = cache
        a = F.scaled_dot_product_attention(q, k, v, mask, is_causal=cache is None and mask is None, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, -1))
        y = F.rms_norm(x, (d,), self.n2, 1e-5)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x, cos, sin):
    h = x.shape[-1] // 2
    return torch.cat((x[..., :h] * cos - x[..., h:] * sin, x[..., h:] * cos + x[..., :h] * sin), -1)


class Llama(nn.Module):
    def __init__(self, c, rank=0):
        super().__init__()
        d, n, _, _, self.e, _, v, tied = c
        self.embed = normal(v, d, 0.02, rank == 0)
        self.head = self.embed if tied else normal(v, d, 0.02, rank == 0)
        self.blocks = nn.ModuleList(Block(c, rank) for _ in range(n))
        self.norm = nn.Parameter(torch.ones(d, device=dev, dtype=dtype), requires_grad=rank == 0)

    def forward(self, ids, pos, caches=None, target=None, mask=None):
        a = pos[..., None, :, None].float() * 10000.0 ** (-torch.arange(0, self.e, 2, device=dev) / self.e)
        cos, sin = a.cos().to(self.embed.dtype), a.sin().to(self.embed.dtype)
        x = F.embedding(ids, self.embed)
        for i, b in enumerate(self.blocks):
            x = b(x, cos, sin, None if caches is None else caches[i], mask)
        if target is None:
            x = x[:, -1]
        x = F.linear(F.rms_norm(x, (x.shape[-1],), self.norm, 1e-5), self.head)
        return x if target is None else F.cross_entropy(x.view(-1, x.shape[-1]).float(), target)


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        d = 768

        def block():
            parts = {"n1": nn.LayerNorm(d), "qkv": nn.Linear(d, 3 * d), "o": nn.Linear(d, d)}
            return nn.ModuleDict(parts | {"n2": nn.LayerNorm(d), "up": nn.Linear(d, 4 * d), "down": nn.Linear(4 * d, d)})

        self.wte, self.wpe = nn.Embedding(50304, d), nn.Embedding(1024, d)
        self.h, self.norm = nn.ModuleList(block() for _ in range(12)), nn.LayerNorm(d)
        self.to(dev)

    def forward(self, ids, pos, target):
        b, s = ids.shape
        with torch.autocast(dev, torch.bfloat16, enabled=dtype == torch.bfloat16):
            x = self.wte(ids) + self.wpe(pos)
            for m in self.h:
                q, k, v = (t.view(b, s, 12, 64).transpose(1, 2) for t in m["qkv"](m["n1"](x)).split(768, -1))
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + m["o"](a.transpose(1, 2).reshape(b, s, 768))
                x = x + m["down"](F.gelu(m["up"](m["n2"](x)), approximate="tanh"))
            return F.cross_entropy(F.linear(self.norm(x), self.wte.weight).view(-1, 50304), target)


def timed(step):
    """Returns the wall clock of each step, in ns."""
    wait = torch.cuda.synchronize if dev == "cuda" else lambda: None
    for _ in range(request["warmup"]):
        step()
    wait()
    samples = []
    for _ in range(request["samples"]):
        start = time.perf_counter_ns()
        step()
        wait()
        samples.append(float(time.perf_counter_ns() - start))
    return samples


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


def train_step(impl, batch, keys):
    """Returns a step of a training."""
    name, micro = request["params"]["model"], request["params"]["accumulate"]
    m = GPT2() if name == "gpt2" else Llama(MODELS[name], request["params"]["rank"])
    f = torch.compile(m, dynamic=False) if impl == "compile" else m
    params = [p for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-5, fused=True)
    vocabulary = 50257 if name == "gpt2" else MODELS[name][6]
    ids, pos = torch.randint(0, vocabulary, (batch, keys + 1), device=dev), torch.arange(keys, device=dev)

    def run():
        for _ in range(micro):
            (f(ids[:, :-1], pos, target=ids[:, 1:].reshape(-1)) / micro).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def step(impl, batch, keys):
    """Returns a run of the request's pass."""
    if request["pass"] == "train":
        return train_step(impl, batch, keys)
    c = MODELS[request["params"]["model"]]
    m = Llama(c)
    f = torch.compile(m, dynamic=False) if impl == "compile" else m
    if request["pass"] == "prefill":
        ids, pos = torch.randint(0, c[6], (batch, keys), device=dev), torch.arange(keys, device=dev)
        return lambda: f(ids, pos)
    caches = [tuple(torch.randn(batch, c[3], keys, c[4], device=dev, dtype=dtype) for _ in range(2)) for _ in range(c[1])]
    ids, pos = torch.zeros(batch, 1, dtype=torch.long, device=dev), torch.tensor([keys - 1], device=dev)
    return graph(lambda: f(ids, pos, caches))


def main():
    with torch.set_grad_enabled(request["pass"] == "train"):
        for impl in ("eager", "compile"):
            torch.manual_seed(0)
            note = ""
            try:
                if dev == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                samples = timed(step(impl, request["params"]["batch"], request["params"]["keys"]))
                if dev == "cuda":
                    note = "%.2f GB" % (torch.cuda.max_memory_allocated() / 1e9)
                torch_peer.say(name=impl, samples_ns=samples, iters=1, sets=1, note=note)
            except Exception as error:
                torch_peer.say(name=impl, error=torch_peer.one_line(error))


if __name__ == "__main__":
    main()
