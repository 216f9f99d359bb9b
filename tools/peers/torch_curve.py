#!/usr/bin/env python3
"""Trains the model of flashvk train with PyTorch, on the same tasks from the same weights.

    flashvk train --shape small --steps 1 --lr 1e-30 --weight-decay 0 --weights start.safetensors
    python3 tools/peers/torch_curve.py --make 64000 --data tasks.safetensors --start start.safetensors --csv torch.csv
    flashvk train --shape small --steps 2000 --data tasks.safetensors --start start.safetensors \\
        --csv flashvk.csv --curve curve --beside torch=torch.csv

--make draws so many tasks of Gaussian processes first, as package pipelines/tnp/gp does, and
writes them. The log has the columns of that of flashvk train, the rate being that of all steps.
"""
import argparse
import csv
import math
import time

import torch_peer
from torch_peer import read_tensors, write_tensors
from torch_step import Step, read_model


def make(n, context, targets, seed, device):
    """Returns tokens and targets of n tasks, as gp.waves and gp.Tokens make them."""
    torch = torch_peer.torch
    random = torch.Generator(device=device).manual_seed(seed)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(*shape, generator=random, device=device)

    def normal(*shape):
        return torch.randn(*shape, generator=random, device=device)

    points, waves = context + targets, 256
    x_all, y_all = torch.empty(n, points, 3), torch.empty(n, targets)
    for i in range(0, n, 1000):
        m = min(1000, n - i)
        scale = uniform(math.log(0.2), math.log(1.0), m, 1).exp()
        noise = uniform(math.log(0.05), math.log(0.2), m, 1).exp()
        omega = normal(m, waves) / scale
        chi = normal(m, waves, 5).square().sum(-1)
        matern = uniform(0, 1, m, 1) < 0.5
        omega = torch.where(matern, omega * (5 / chi).sqrt(), omega)
        a, phase = normal(m, waves) * math.sqrt(2 / waves), uniform(0, 2 * math.pi, m, waves)
        x = uniform(-2, 2, m, points)
        y = noise * normal(m, points)
        for j in range(waves):
            y += a[:, j : j + 1] * torch.cos(omega[:, j : j + 1] * x + phase[:, j : j + 1])
        tokens = torch.stack([x, y, torch.ones_like(x)], -1)
        tokens[:, context:, 1], tokens[:, context:, 2] = 0, -1
        x_all[i : i + m], y_all[i : i + m] = tokens.cpu(), y[:, context:].cpu()
    return {"x": x_all, "y": y_all}


def rate(a, step):
    """The learning rate of a step, counted from 0: that of flashvk train."""
    if step < a.warmup:
        return a.lr * (step + 1) / a.warmup
    return a.lr * (1 + math.cos(math.pi * (step - a.warmup) / max(a.steps - a.warmup, 1))) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "start", "csv"):
        parser.add_argument("--" + name, required=True)
    for name, value in {"make": 0, "steps": 2000, "batch": 32, "context": 64, "targets": 500, "heads": 8, "seed": 1}.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--warmup", type=int, help="steps (default a twentieth of them)")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--mode", default="compile", choices=("compile", "eager"))
    a = parser.parse_args()
    for name in ("steps", "batch", "context", "targets", "heads"):
        if getattr(a, name) < 1:
            parser.error("--%s %d is not positive" % (name, getattr(a, name)))
    if a.make < 0:
        parser.error("--make %d is negative" % a.make)
    if a.warmup is None:
        a.warmup = a.steps // 20
    torch, device = torch_peer.load()
    if a.make:
        write_tensors(a.data, make(a.make, a.context, a.targets, a.seed, device))
    data, (weights, layers) = read_tensors(a.data, device), read_model(a.start, device)
    x, y = data["x"].float(), data["y"].float()
    weights["x"], weights["y"] = x[: a.batch].clone(), y[: a.batch].clone()
    lr = torch.tensor(a.lr, device=device)
    step = Step({"dtype": a.dtype, "params": {
        "layers": layers, "heads": a.heads, "context": a.context, "lr": lr, "weight_decay": 0.01, "eps": 1e-5,
    }}, weights, a.mode)
    step.gradients()  # compiles
    losses = torch.zeros(a.steps, device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for i in range(a.steps):
        tasks = torch.arange(i * a.batch, (i + 1) * a.batch, device=device) % x.shape[0]
        step.x.copy_(x[tasks])
        step.y.copy_(y[tasks])
        lr.fill_(rate(a, i))
        losses[i] = step.run().detach()
    wait()
    seconds = time.perf_counter() - begin
    with open(a.csv, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["step", "loss", "lr", "tokens_per_s", "seconds"])
        tokens = a.batch * (a.context + a.targets) * a.steps / seconds
        for i, loss in enumerate(losses.tolist()):
            out.writerow([i + 1, "%.7g" % loss, "%.7g" % rate(a, i), "%.0f" % tokens, "%.3f" % (seconds * (i + 1) / a.steps)])
    print("PyTorch %s, %s, %s: %d steps in %.1f s, loss of the last 100 %.4f" % (torch.__version__, a.mode, a.dtype, a.steps, seconds, losses[-100:].mean()))


if __name__ == "__main__":
    main()
