#!/usr/bin/env python3
"""A peer of flashvk bench: PyTorch's scaled_dot_product_attention.

    flashvk bench attention --peer torch="python3 tools/peers/torch_sdpa.py"

Reads one request from standard input and writes a JSON object per line, one for
each back end: flash (FlashAttention-2), cudnn, efficient, math. Package
internal/bench/peer of flashvk describes both.

    --backends flash,cudnn   only these
    --hot                    also times each on one set of buffers, which then
                             stay in the L2 cache if they fit: NAME-hot

Calls are recorded into a CUDA graph and replayed, so that the host's time does
not count; a sample is the mean of a graph's calls between two events. The calls
of a graph rotate through copies of the inputs, as flashvk's do. What a graph
cannot record is queued call by call instead, and the answer says so.

A causal mask of a rectangle is aligned to the bottom right by
torch.nn.attention.bias.causal_lower_right, which not every back end takes.
"""
import argparse
import math

import torch_peer
from torch_peer import read_tensors

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}


# The features that the kernel of flashvk has, off.
PLAIN = {
    "window": "off", "softcap": 0, "alibi": "off", "bias": "off", "key_mask": False, "sinks": False, "varlen": "off", "dropout": 0, "quant": "none",
}


def attention(params, q, k, v):
    """Computes O of one call."""
    options = {"scale": params["scale"], "enable_gqa": params["heads"] != params["kv_heads"]}
    if params["causal"]:
        square = params["seq_q"] == params["seq_kv"]
        if square or params["causal_align"] == "top-left":
            options["is_causal"] = True
        else:
            from torch.nn.attention.bias import causal_lower_right

            options["attn_mask"] = causal_lower_right(params["seq_q"], params["seq_kv"])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


class Call:
    """One call, on each of several sets of buffers."""

    def __init__(self, request, tensors, sets):
        self.params = request["params"]
        self.backward = request["pass"] == "backward"
        self.inputs, self.outputs = [], [None] * sets
        for _ in range(sets):
            qkv = [tensors[name].clone().requires_grad_(self.backward) for name in ("q", "k", "v")]
            self.inputs.append(qkv)
        if self.backward:
            self.o = [attention(self.params, *qkv) for qkv in self.inputs]
            self.do = [tensors["do"].clone() for _ in range(sets)]

    def run(self, i):
        """Runs call i and keeps its outputs, so that each set has memory of its own."""
        i %= len(self.inputs)
        if self.backward:
            self.outputs[i] = torch.autograd.grad(self.o[i], self.inputs[i], self.do[i], retain_graph=True)
        else:
            with torch.no_grad():
                self.outputs[i] = (attention(self.params, *self.inputs[i]),)

    def result(self):
        """Returns the outputs of set 0 by the names that flashvk gives them."""
        self.run(0)
        torch.cuda.synchronize()
        names = ("dq", "dk", "dv") if self.backward else ("o",)
        return {name: x.detach() for name, x in zip(names, self.outputs[0])}


def answer(request, tensors, name, hot):
    """Measures one back end and says the result."""
    sets = 1 if hot else max(request["sets"], 1)

    def make():
        return Call(request, tensors, sets)

    def kernel():
        return torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, BACKENDS[name]))

    torch_peer.answer(request, name + "-hot" if hot else name, make, kernel, write=not hot)


def check(request):
    """Returns why the request cannot be answered, or None."""
    if request["op"] != "attention":
        return "op %s is not attention" % request["op"]
    params = request["params"]
    more = ["%s=%s" % (key, params[key]) for key, off in PLAIN.items() if params[key] != off]
    if params["value_dim"] != params["head_dim"]:
        more.append("value_dim=%d" % params["value_dim"])
    if more:
        return "torch_sdpa.py has no " + ", ".join(more)
    if not math.isfinite(params["scale"]):
        return "scale %r is not finite" % params["scale"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hot", action="store_true", help="also time each with its buffers in the L2 cache")
    options = torch_peer.back_ends(parser, BACKENDS)
    request = torch_peer.start(check)
    if request is None:
        return
    global torch
    import torch
    import torch.nn.attention

    with torch_peer.stream():
        tensors = read_tensors(request["input"])
        for name in options.backends:
            for hot in (False, True) if options.hot else (False,):
                answer(request, tensors, name, hot)


if __name__ == "__main__":
    main()
