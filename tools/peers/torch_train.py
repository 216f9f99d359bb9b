#!/usr/bin/env python3
"""A peer of flashvk bench for the kernels of a training step: PyTorch.

    flashvk bench norm --suite training --peer torch="python3 tools/peers/torch_train.py"

Reads one request from standard input and writes a JSON object per line, one for
each implementation: eager, compile (torch.compile), fused (of an optimizer), or one that
an operation has a method for.
Package internal/bench/peer of flashvk describes both; torch_peer.py has how it measures.
"""
import itertools
import math

import torch_peer
from torch_peer import read_tensors


class Norm:
    """LayerNorm and RMSNorm of rows, with a residual or without."""

    inputs, upstream = ("x", "w", "residual"), ("dy", "dsum")
    gradients = {"dx": "x", "dw": "w"}
    implementations = ("eager", "compile")

    def __init__(self, params):
        self.params = params

    def forward(self, x, w, residual=None):
        f = torch.nn.functional
        s = x if residual is None else x + residual
        norm = f.rms_norm(s, (s.shape[-1],), w.to(s.dtype), self.params["eps"]) if self.params["kind"] == "RMSNorm" else f.layer_norm(
            s, (s.shape[-1],), w.to(s.dtype), None, self.params["eps"])
        return {"y": norm} if residual is None else {"y": norm, "sum": s}


class GLU:
    """Gated linear units of g and u, or of the halves of gu."""

    upstream = ("dy",)
    implementations = ("eager", "compile")

    def __init__(self, params):
        self.inputs = ("gu",) if params["beside"] else ("g", "u")
        self.gradients = {"d" + name: name for name in self.inputs}
        self.activation = params["activation"]

    def forward(self, **x):
        f = torch.nn.functional
        g, u = x["gu"].chunk(2, dim=-1) if "gu" in x else (x["g"], x["u"])
        a = f.silu(g) if self.activation == "silu" else f.gelu(g, approximate="tanh" if self.activation == "gelu-tanh" else "none")
        return {"y": a * u}


class Gemm:
    """A matrix product, without what follows it."""

    inputs, upstream = ("a", "b"), ()
    gradients = {}
    implementations = ("eager",)

    def __init__(self, params):
        if params["alpha"] != 1 or params["beta"] != 0 or params["activation"] != "identity" or params["residual"]:
            raise RuntimeError("only products without an epilogue")
        if params["out"] != params["dtype"]:
            raise RuntimeError("only results in the format of the operands")
        self.trans = params["trans"]

    def op(self, a, b):
        return a.mT if self.trans[0] == "t" else a, b.mT if self.trans[1] == "t" else b

    def forward(self, a, b):
        a, b = self.op(a, b)
        return {"c": a @ b}


class GemmGroup(Gemm):
    """Products of different sizes, one after the other in memory: a loop of products, or
    (grouped) torch._grouped_mm, where they differ in their rows only."""

    implementations = ("eager", "grouped")

    def __init__(self, params):
        super().__init__(params)
        self.sizes = [tuple(map(int, word.split("x"))) for word in params["group"].split(",")]
        ends = itertools.accumulate(m for m, _, _ in self.sizes)
        self.ends = torch.tensor(list(ends), dtype=torch.int32, device="cuda")

    def forward(self, a, b):
        c = a.new_empty(sum(m * n for m, n, _ in self.sizes))
        at = [0, 0, 0]
        for m, n, k in self.sizes:
            shapes = ((k, m) if self.trans[0] == "t" else (m, k), (n, k) if self.trans[1] == "t" else (k, n), (m, n))
            x, y, z = (t[i:i + r * s].view(r, s) for t, i, (r, s) in zip((a, b, c), at, shapes))
            if z.numel():
                torch.matmul(*self.op(x, y), out=z)
            at = [i + r * s for i, (r, s) in zip(at, shapes)]
        return {"c": c}

    def grouped(self, a, b):
        _, n, k = self.sizes[0]
        if self.trans[0] == "t" or any(size[1:] != (n, k) for size in self.sizes):
            raise RuntimeError("only products of the same n and k, and a that is not transposed")
        b = b.view(-1, n, k).mT if self.trans[1] == "t" else b.view(-1, k, n)
        return {"c": torch._grouped_mm(a.view(-1, k), b, offs=self.ends).flatten()}


def gemm(params):
    return (GemmGroup if "group" in params else Gemm)(params)


class MLP:
    """A two-layer perceptron with SiLU."""

    inputs, upstream = ("x", "w1", "w2"), ("dy",)
    gradients = {"dx": "x", "dw1": "w1", "dw2": "w2"}
    implementations = ("eager", "compile")

    def __init__(self, params):
        pass

    def forward(self, x, w1, w2):
        return {"y": torch.nn.functional.silu(x @ w1) @ w2}


class Grouped:
    """Two-layer perceptrons with SiLU that share their input: as products of a batch, or
    (loop) one after the other."""

    inputs, upstream = ("x", "w1", "w2"), ("dy",)
    gradients = {"dx": "x", "dw1": "w1", "dw2": "w2"}
    implementations = ("eager", "loop", "compile")

    def __init__(self, params):
        self.heads = params["heads"]

    def forward(self, x, w1, w2):
        hidden = torch.nn.functional.silu(torch.bmm(x.unsqueeze(0).expand(self.heads, -1, -1), w1))
        return {"y": torch.bmm(hidden, w2).transpose(0, 1)}

    def loop(self, x, w1, w2):
        silu = torch.nn.functional.silu
        return {"y": torch.stack([silu(x @ w1[k]) @ w2[k] for k in range(self.heads)], 1)}


class GMM:
    """Log-probability of y under a Gaussian mixture, p = (logit, mu, log sigma); the loss
    is minus its mean."""

    inputs, upstream = ("p", "y"), ()
    gradients = {"dp": "p"}
    implementations = ("eager", "compile")

    def __init__(self, params):
        pass

    def forward(self, p, y):
        log_w, mu, log_sigma = torch.log_softmax(p[..., 0], -1), p[..., 1], p[..., 2]
        z = (y[:, None] - mu) * torch.exp(-log_sigma)
        log_n = -0.5 * z**2 - log_sigma - 0.5 * math.log(2 * math.pi)
        return {"loss": -torch.logsumexp(log_w + log_n, -1).mean().reshape(1)}


class Mixture:
    """GMM of what Grouped returns."""

    inputs, upstream = ("x", "w1", "w2", "y"), ()
    gradients = {"dx": "x", "dw1": "w1", "dw2": "w2"}
    implementations = ("eager", "compile")

    def __init__(self, params):
        self.heads, self.density = Grouped(params), GMM(params)

    def forward(self, x, w1, w2, y):
        return self.density.forward(self.heads.forward(x, w1, w2)["y"].float(), y)


class Optim:
    """A step of AdamW of tensors that are updated in place."""

    implementations = ("fused",)

    def __init__(self, params):
        self.params = params

    def call(self, request, tensors):
        return OptimCall(self.params, tensors)


class OptimCall:
    """Steps of torch.optim.AdamW(fused=True)."""

    def __init__(self, params, tensors):
        if params["grad_dtype"] != "float32":
            raise RuntimeError("PyTorch's gradients have the format of the parameters, float32")
        self.inputs = [tensors]
        self.max_norm = float(params["max_norm"])
        pieces = {name: tensors[name].clone().chunk(params["tensors"]) for name in ("param", "grad", "m", "v")}
        self.parameters = [torch.nn.Parameter(x) for x in pieces["param"]]
        for x, grad in zip(self.parameters, pieces["grad"]):
            x.grad = grad
        self.copies = None
        if params["copy"] != "none":
            self.copies = [x.detach().to(getattr(torch, params["copy"])) for x in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=params["lr"], betas=(params["beta1"], params["beta2"]), eps=params["eps"],
            weight_decay=params["weight_decay"], fused=True, capturable=True)
        for x, m, v in zip(self.parameters, pieces["m"], pieces["v"]):
            step = torch.tensor(9.0, device="cuda")  # steps before, as flashvk's benchmark has
            self.optimizer.state[x] = {"step": step, "exp_avg": m, "exp_avg_sq": v}

    def run(self, i):
        if self.max_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm, foreach=True)
        self.optimizer.step()
        if self.copies:
            torch._foreach_copy_(self.copies, [x.detach() for x in self.parameters])

    def result(self):
        self.run(0)
        torch.cuda.synchronize()
        return {"param": torch.cat([x.detach().flatten() for x in self.parameters])}


OPS = {"gemm": gemm, "mlp": MLP, "grouped": Grouped, "norm": Norm, "glu": GLU, "gmm": GMM, "mixture": Mixture, "optim": Optim}


class Call:
    """One call of an operation, on each of several sets of buffers."""

    def __init__(self, op, forward, request, tensors, sets):
        self.op, self.forward, self.backward = op, forward, request["pass"] == "backward"
        self.inputs, self.outputs = [], [None] * sets
        for _ in range(sets):
            self.inputs.append({name: tensors[name].clone().requires_grad_(self.backward) for name in op.inputs if name in tensors})
        if self.backward:
            self.saved = [list(forward(**x).values()) for x in self.inputs]
            self.upstream = [[tensors[name].clone() for name in op.upstream if name in tensors] for _ in range(sets)]

    def run(self, i):
        """Runs call i and keeps its outputs, so that each set has memory of its own."""
        i %= len(self.inputs)
        if self.backward:
            wanted = [self.inputs[i][name] for name in self.op.gradients.values()]
            self.outputs[i] = torch.autograd.grad(self.saved[i], wanted, self.upstream[i] or None, retain_graph=True)
        else:
            with torch.no_grad():
                self.outputs[i] = self.forward(**self.inputs[i])

    def result(self):
        """Returns the outputs of set 0 by the names that flashvk gives them."""
        self.run(0)
        torch.cuda.synchronize()
        if self.backward:
            return dict(zip(self.op.gradients, (x.detach() for x in self.outputs[0])))
        return self.outputs[0]


def answer(request, tensors, op, name):
    """Measures one implementation and says the result."""

    def make():
        if hasattr(op, "call"):
            return op.call(request, tensors)
        forward = torch.compile(op.forward, dynamic=False) if name == "compile" else getattr(op, name, op.forward)
        return Call(op, forward, request, tensors, max(request["sets"], 1))

    torch_peer.answer(request, name, make)


def check(request):
    """Returns why the request cannot be answered, or None."""
    if request["op"] not in OPS:
        return "op %s is not one of %s" % (request["op"], ", ".join(OPS))
    return None


def main():
    request = torch_peer.start(check)
    if request is None:
        return
    global torch
    import torch

    with torch_peer.stream():
        tensors = read_tensors(request["input"])
        op = OPS[request["op"]](request["params"])
        for name in op.implementations:
            answer(request, tensors, op, name)


if __name__ == "__main__":
    main()
