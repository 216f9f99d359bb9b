#!/usr/bin/env python3
"""A peer of flashvk bench decode: PyTorch's scaled_dot_product_attention of the last
queries with whole caches of one length.

    flashvk bench decode --peer torch="python3 tools/peers/torch_decode.py"

Reads one request from standard input and writes a JSON object per line, one for
each back end: flash (FlashAttention-2), cudnn, efficient. Package
internal/bench/peer of flashvk describes both; torch_peer.py has how it measures: calls
are recorded into a CUDA graph that rotates through copies of the tensors.

    --backends flash,cudnn   only these
"""
import argparse

import torch_peer
from torch_peer import read_tensors

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


class Call:
    """One call, on each of several sets of buffers."""

    def __init__(self, params, tensors, sets):
        self.options = {"enable_gqa": params["heads"] != params["kv_heads"]}
        if params["scale"]:
            self.options["scale"] = params["scale"]
        if params["causal"] and params["queries"] > 1:
            from torch.nn.attention.bias import causal_lower_right

            self.options["attn_mask"] = causal_lower_right(params["queries"], params["keys"])
        self.inputs, self.outputs = [], [None] * sets
        for _ in range(sets):
            q, k, v = (tensors[name].clone() for name in ("q", "k_cache", "v_cache"))
            if params["layout"] == "nhd":
                k, v = k.transpose(1, 2), v.transpose(1, 2)
            self.inputs.append((q, k, v))

    def run(self, i):
        """Runs call i and keeps its output, so that each set has memory of its own."""
        i %= len(self.inputs)
        with torch.no_grad():
            self.outputs[i] = torch.nn.functional.scaled_dot_product_attention(*self.inputs[i], **self.options)

    def result(self):
        """Returns the output of set 0 by the name that flashvk gives it."""
        self.run(0)
        torch.cuda.synchronize()
        return {"o": self.outputs[0].contiguous()}


def answer(request, tensors, name):
    """Measures one back end and says the result."""
    sets = max(request["sets"], 1)

    def make():
        return Call(request["params"], tensors, sets)

    def kernel():
        return torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, BACKENDS[name]))

    torch_peer.answer(request, name, make, kernel)


def check(request):
    """Returns why the request cannot be answered, or None."""
    if request["op"] != "decode":
        return "op %s is not decode" % request["op"]
    params = request["params"]
    if not isinstance(params["keys"], int):
        return "scaled_dot_product_attention has no sequences of different lengths"
    if params["part"] != "decode":
        return "torch_decode.py has no part %s" % params["part"]
    if params["page_size"]:
        return "scaled_dot_product_attention has no pages"
    for name, off in ("window", "off"), ("softcap", 0), ("alibi", "off"), ("sinks", False):
        if params[name] != off:
            return "torch_decode.py has no %s" % name
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            answer(request, tensors, name)


if __name__ == "__main__":
    main()
