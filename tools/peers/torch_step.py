#!/usr/bin/env python3
"""A peer of flashvk bench train: a whole training step in PyTorch.

    flashvk bench train --shape small --peer torch="python3 tools/peers/torch_step.py"

Reads one request from standard input and writes a JSON object per line, one for each
implementation: eager, graph (the step as a CUDA graph) and compile (torch.compile).
Package internal/bench/peer of flashvk describes both. Weights and data are those of the
request's file, as flashvk run model reads it; the file for each implementation has

    loss, grad.NAME   of the first step
    last              the loss of the last step
    memory            MB of device memory at most
"""
import math
import os
import time
from contextlib import nullcontext

import torch_peer
from torch_peer import one_line, read_tensors, say, write_tensors


def check(request):
    if request["op"] != "train":
        return "op %s is not train" % request["op"]


def read_model(path, device):
    """Returns the tensors of a file of weights, or of flashvk train --save without its moments, and
    the number of layers."""
    tensors = {name: x for name, x in read_tensors(path, device).items() if not name.startswith("adamw.")}
    return tensors, len([name for name in tensors if name.endswith(".qkv.weight")])


def build(tensors, params, dtype=None):
    """The model of flashvk's package pipelines/tnp with the weights of tensors, in a format,
    float32 if none is given, where those are."""
    torch = torch_peer.torch
    functional = torch.nn.functional

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.names = {}
            for name, value in tensors.items():
                if name not in ("x", "y"):
                    key = name.replace(".", "_")
                    self.names[key] = name
                    self.register_parameter(key, torch.nn.Parameter(value.to(dtype or torch.float32, copy=True)))

        def norm(self, x, weight):
            return functional.layer_norm(x, (x.shape[-1],), weight, None, params["eps"])

        def block(self, x, i):
            def weight(name):
                return getattr(self, "blocks_%d_%s_weight" % (i, name))

            b, n, _ = x.shape
            heads, m = params["heads"], params["context"]
            qkv = functional.linear(self.norm(x, weight("norm1")), weight("qkv"))
            q, k, v = qkv.view(b, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
            o = functional.scaled_dot_product_attention(q, k[:, :, :m], v[:, :, :m])
            x = x + functional.linear(o.transpose(1, 2).reshape(b, n, -1), weight("out"))
            up = functional.linear(self.norm(x, weight("norm2")), weight("up"))
            return x + functional.linear(functional.silu(up), weight("down"))

        def forward(self, x, y):
            x = functional.linear(x, self.embed_weight)
            for i in range(params["layers"]):
                x = self.block(x, i)
            t = self.norm(x[:, params["context"] :], self.norm_weight)
            t = t.reshape(1, -1, t.shape[-1]).expand(self.heads_up.shape[0], -1, -1)
            hidden = functional.silu(torch.bmm(t, self.heads_up.to(t.dtype)))
            p = torch.bmm(hidden, self.heads_down.to(hidden.dtype)).permute(1, 0, 2)
            p = p.to(torch.promote_types(p.dtype, torch.float32))
            log_w = functional.log_softmax(p[..., 0], -1)
            mu, log_sigma = p[..., 1], p[..., 2]
            z = (y.reshape(-1, 1) - mu) * torch.exp(-log_sigma)
            log_n = -0.5 * z * z - log_sigma - 0.5 * math.log(2 * math.pi)
            return -torch.logsumexp(log_w + log_n, -1).mean()

    return Model()


class Step:
    """A training step of one implementation."""

    def __init__(self, request, tensors, name):
        torch = torch_peer.torch
        self.params = request["params"]
        self.model = build(tensors, self.params)
        self.call = torch.compile(self.model) if name == "compile" else self.model
        self.x, self.y = tensors["x"].float(), tensors["y"].float()
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": self.params["weight_decay"]}, {"params": rest, "weight_decay": 0.0}],
            lr=self.params["lr"], fused=True, capturable=self.x.is_cuda)
        self.dtype = getattr(torch, request["dtype"])
        # AdamW does not see a factor of all gradients, but for its eps.
        self.scale = 2.0 ** math.ceil(math.log2(self.y.numel())) if self.dtype == torch.float16 else 1.0

    def gradients(self):
        """Returns the loss, and leaves the gradients in the parameters."""
        torch = torch_peer.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.optimizer.zero_grad(set_to_none=True)
        narrow = self.dtype != torch.float32
        with torch.autocast(self.x.device.type, self.dtype) if narrow else nullcontext():
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]) if narrow else nullcontext():
                loss = self.call(self.x, self.y)
        (loss * self.scale).backward()
        return loss

    def run(self):
        loss = self.gradients()
        self.optimizer.step()
        return loss


def answer(request, tensors, name):
    torch = torch_peer.torch
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step = Step(request, tensors, name)
    out = {"loss": step.gradients().detach().reshape(1).float()}
    for key, parameter in step.model.named_parameters():
        out["grad." + step.model.names[key]] = (parameter.grad / step.scale).cpu()
    torch.cuda.synchronize()
    run = step.run
    if name == "graph":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step.run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step.run()

        def run():
            graph.replay()
            return captured

    begin, calls = time.perf_counter(), 0
    while calls < request["warmup"] or time.perf_counter() - begin < request["warmup_ns"] / 1e9:
        loss = run()
        torch.cuda.synchronize()
        calls += 1
    samples = []
    for _ in range(request["samples"]):
        start = time.perf_counter_ns()
        loss = run()
        torch.cuda.synchronize()
        samples.append(float(time.perf_counter_ns() - start))
    out["last"] = loss.detach().reshape(1).float()
    peak = torch.cuda.max_memory_allocated() - before
    out["memory"] = torch.tensor([peak / 1e6], device="cuda")
    path = os.path.join(request["output_dir"], name + ".safetensors")
    write_tensors(path, out)
    say(name=name, samples_ns=samples, iters=1, sets=1, output=path)


def main():
    request = torch_peer.start(check)
    if request is None:
        return
    torch = torch_peer.torch
    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = read_tensors(request["input"])
    for name in ("eager", "graph", "compile"):
        try:
            answer(request, tensors, name)
        except Exception as error:
            torch.cuda.synchronize()
            say(name=name, error=one_line(error))


if __name__ == "__main__":
    main()
