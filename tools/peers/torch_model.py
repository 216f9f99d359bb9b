#!/usr/bin/env python3
"""Compares the loss and all gradients of flashvk run model with PyTorch's in float64.

    flashvk run model --in in.safetensors --out out.safetensors --heads 8 --context 64 --backward
    python3 tools/peers/torch_model.py --in in.safetensors --out out.safetensors --heads 8 --context 64

    python3 tools/peers/torch_model.py --flashvk bin/flashvk --dtype float32,bfloat16

The second form draws a model and a batch, and runs flashvk on them itself, with each format and
each --checkpoint. Printed is, for each parameter, how far the gradient is from PyTorch's, as a
part of its norm; the exit status is 1 if that is more than --limit of one of them.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import torch_peer
from torch_peer import read_tensors, write_tensors
from torch_step import build, read_model

# What a gradient may be off by: roundings of activations, which add up over layers.
LIMITS = {"float32": 1e-5, "float16": 0.02, "bfloat16": 0.1}


def draw(path, s):
    """Writes weights whose norms are not 1, and a batch."""
    torch = torch_peer.torch
    inner = s.heads * s.headdim
    shapes = {"embed.weight": (s.d_model, 3), "norm.weight": (s.d_model,)}
    for i in range(s.layers):
        for name, shape in {
            "norm1": (s.d_model,), "qkv": (3 * inner, s.d_model), "out": (s.d_model, inner),
            "norm2": (s.d_model,), "up": (s.d_ff, s.d_model), "down": (s.d_model, s.d_ff),
        }.items():
            shapes["blocks.%d.%s.weight" % (i, name)] = shape
    shapes["heads.up"] = (s.components, s.d_model, s.d_ff)
    shapes["heads.down"] = (s.components, s.d_ff, 3)
    tensors = {}
    for name, shape in shapes.items():
        x = torch.randn(shape)
        if len(shape) == 1:
            x = 1 + 0.2 * x
        else:
            x = x / shape[1] ** 0.5
        tensors[name] = x
    tensors["x"] = torch.randn(s.batch, s.context + s.targets, 3)
    tensors["y"] = torch.randn(s.batch, s.targets)
    write_tensors(path, tensors)


def expected(path, device, heads, context):
    """Returns the loss and the gradients in float64."""
    torch = torch_peer.torch
    tensors, layers = read_model(path, device)
    params = {"layers": layers, "heads": heads, "context": context, "eps": 1e-5}
    model = build(tensors, params, torch.float64)
    loss = model(tensors["x"].double(), tensors["y"].double())
    loss.backward()
    return loss.item(), {model.names[key]: p.grad for key, p in model.named_parameters()}


def compare(want, path, limit, what):
    """Prints how far the gradients of a file are off, and returns whether all are right."""
    loss, grads = want
    got = read_tensors(path, grads["norm.weight"].device)
    rows = [(abs(got["loss"].item() - loss) / max(abs(loss), 1e-3), "loss")]
    for name, g in grads.items():
        if "grad." + name not in got:
            sys.exit("%s: there is no grad.%s: flashvk run model --backward writes it" % (path, name))
        off = (got["grad." + name].double() - g).norm() / g.norm()
        rows.append((off.item(), name))
    rows.sort(reverse=True)
    print("%s: loss %.9g in float64; %d gradients, the furthest off:" % (what, loss, len(grads)))
    for off, name in rows[:5]:
        print("  %-28s %.2e of its norm%s" % (name, off, "" if off <= limit else ", more than %g" % limit))
    return all(off <= limit for off, _ in rows)  # NaN is not


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in", dest="input")
    parser.add_argument("--out")
    parser.add_argument("--flashvk", help="program to run")
    parser.add_argument("--dtype", default="float32", help="formats of activations; with --in the one that the file was made with")
    parser.add_argument("--limit", type=float, help="default that of the format")
    for name, value in {"layers": 3, "d-model": 256, "heads": 4, "headdim": 64, "d-ff": 341, "components": 5, "batch": 4, "context": 64, "targets": 200}.items():
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    if a.flashvk and (a.input or a.out) or not a.flashvk and not (a.input and a.out):
        parser.error("there must be either --in and --out, or --flashvk")
    for dtype in a.dtype.split(","):
        if dtype not in LIMITS:
            parser.error("--dtype %s is not one of %s" % (dtype, ", ".join(LIMITS)))
    torch, device = torch_peer.load()
    torch.manual_seed(1)
    right = True
    with tempfile.TemporaryDirectory() as folder:
        path = a.input or os.path.join(folder, "in.safetensors")
        if a.flashvk:
            draw(path, a)
        want = expected(path, device, a.heads, a.context)
        for dtype in a.dtype.split(","):
            limit = LIMITS[dtype] if a.limit is None else a.limit
            if not a.flashvk:
                right = compare(want, a.out, limit, dtype) and right
                continue
            for checkpoint in ("off", "selective", "blocks"):
                out = os.path.join(folder, "out.safetensors")
                subprocess.run([a.flashvk, "run", "model", "--in", path, "--out", out, "--heads", str(a.heads), "--context", str(a.context),
                                "--dtype", dtype, "--checkpoint", checkpoint, "--backward"], check=True)
                right = compare(want, out, limit, "%s, checkpoint %s" % (dtype, checkpoint)) and right
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
