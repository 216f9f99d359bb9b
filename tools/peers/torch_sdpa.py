#!/usr/bin/env python3
"""A peer of flashvk bench: PyTorch's scaled_dot_product_attention.

    flashvk bench attention --peer torch="python3 tools/peers/torch_sdpa.py"

Reads one request from standard input and writes a JSON object per line, one for
each back end: flash (FlashAttention-2), cudnn, efficient, math. Package
bench/peer of flashvk describes both.

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
import ctypes
import json
import math
import os
import struct
import sys

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
FORMATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def say(**answer):
    print(json.dumps(answer), flush=True)


def one_line(error):
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def read_tensors(path):
    """Returns the tensors of a safetensors file by name."""
    tensors = {}
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        for name, x in header.items():
            if name == "__metadata__" or x["dtype"] not in FORMATS:
                continue
            begin, end = x["data_offsets"]
            f.seek(8 + length + begin)
            data = bytearray(f.read(end - begin))
            flat = torch.frombuffer(data, dtype=getattr(torch, FORMATS[x["dtype"]]))
            tensors[name] = flat.reshape(x["shape"]).cuda()
    return tensors


def write_tensors(path, tensors):
    """Writes a safetensors file."""
    names = {"torch." + value: key for key, value in FORMATS.items()}
    header, data, at = {}, [], 0
    for name, x in tensors.items():
        host = x.contiguous().cpu()
        raw = ctypes.string_at(host.data_ptr(), host.numel() * host.element_size())
        header[name] = {"dtype": names[str(x.dtype)], "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for raw in data:
            f.write(raw)


def attention(request, q, k, v):
    """Computes O of one call."""
    options = {"scale": request["scale"], "enable_gqa": request["heads"] != request["kv_heads"]}
    if request["causal"]:
        square = request["seq_q"] == request["seq_kv"]
        if square or request["causal_align"] == "top-left":
            options["is_causal"] = True
        else:
            from torch.nn.attention.bias import causal_lower_right

            options["attn_mask"] = causal_lower_right(request["seq_q"], request["seq_kv"])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


class Call:
    """One call, on each of several sets of buffers."""

    def __init__(self, request, tensors, sets):
        self.request = request
        self.backward = request["pass"] == "backward"
        self.inputs, self.outputs = [], [None] * sets
        for _ in range(sets):
            qkv = [tensors[name].clone().requires_grad_(self.backward) for name in ("q", "k", "v")]
            self.inputs.append(qkv)
        if self.backward:
            self.o = [attention(request, *qkv) for qkv in self.inputs]
            self.do = [tensors["do"].clone() for _ in range(sets)]

    def run(self, i):
        """Runs call i and keeps its outputs, so that each set has memory of its own."""
        i %= len(self.inputs)
        if self.backward:
            self.outputs[i] = torch.autograd.grad(self.o[i], self.inputs[i], self.do[i], retain_graph=True)
        else:
            with torch.no_grad():
                self.outputs[i] = (attention(self.request, *self.inputs[i]),)

    def result(self):
        """Returns the outputs of set 0 by the names that flashvk gives them."""
        self.run(0)
        torch.cuda.synchronize()
        names = ("dq", "dk", "dv") if self.backward else ("o",)
        return {name: x.detach() for name, x in zip(names, self.outputs[0])}


class Batch:
    """Several calls that the device runs without waiting for the host."""

    def __init__(self, call, n):
        self.call, self.n, self.graph, self.note = call, n, None, ""
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self.queue()
            graph.replay()
            torch.cuda.synchronize()
            self.graph = graph
        except Exception as error:
            torch.cuda.synchronize()
            self.note = "not in a graph: " + one_line(error)
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def queue(self):
        for i in range(self.n):
            self.call.run(i)

    def time_ns(self):
        """Runs the batch and returns its device time per call."""
        self.start.record()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.queue()
        self.end.record()
        torch.cuda.synchronize()
        return self.start.elapsed_time(self.end) * 1e6 / self.n


def measure(request, call):
    """Returns samples in ns per call, the calls of a sample, and a note."""
    for i in range(3):
        call.run(i)
    torch.cuda.synchronize()
    first = Batch(call, 1).time_ns()
    busy, last, calls = 0.0, 0.0, 0
    size = 0
    while True:
        # A first call at a low clock makes the batch too small: size it again.
        want = max(1, min(request["max_iters"], int(request["sample_ns"] / max(last or first, 100.0))))
        if size == 0 or 4 * want > 5 * size or 4 * size > 5 * want:
            size, batch = want, Batch(call, want)
        ns = batch.time_ns()
        busy += ns * size
        calls += size
        settled = abs(ns - last) <= 0.02 * ns
        last = ns
        enough = busy >= request["warmup_ns"] and calls >= request["warmup"]
        if enough and (settled or busy >= 5 * request["warmup_ns"]):
            break
    return [batch.time_ns() for _ in range(request["samples"])], batch.n, batch.note


def answer(request, tensors, name, hot):
    """Measures one back end and says the result."""
    label = name + "-hot" if hot else name
    sets = 1 if hot else max(request["sets"], 1)
    try:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, BACKENDS[name])):
            call = Call(request, tensors, sets)
            output = ""
            if request["output_dir"] and not hot:
                output = os.path.join(request["output_dir"], label + ".safetensors")
                write_tensors(output, call.result())
            samples, iters, note = measure(request, call)
        say(name=label, samples_ns=samples, iters=iters, sets=min(sets, iters), output=output, note=note)
    except Exception as error:
        say(name=label, error=one_line(error))
    call = None
    torch.cuda.empty_cache()


def check(request):
    """Returns why the request cannot be answered, or None."""
    if request["version"] != 1:
        return "protocol version %d is not 1" % request["version"]
    if request["op"] != "attention":
        return "op %s is not attention" % request["op"]
    if request["features"]:
        return "torch_sdpa.py has no " + ", ".join(request["features"])
    if not math.isfinite(request["scale"]):
        return "scale %r is not finite" % request["scale"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="comma list of " + ", ".join(BACKENDS))
    parser.add_argument("--hot", action="store_true", help="also time each with its buffers in the L2 cache")
    options = parser.parse_args()
    names = options.backends.split(",")
    for name in names:
        if name not in BACKENDS:
            parser.error("--backends %s is not one of %s" % (name, ", ".join(BACKENDS)))
    request = json.loads(sys.stdin.readline())
    problem = check(request)
    if problem:
        return say(error=problem)
    global torch
    try:
        import torch
        import torch.nn.attention
    except ImportError as error:
        return say(error=one_line(error))
    if not torch.cuda.is_available():
        return say(error="PyTorch sees no CUDA device")
    torch.manual_seed(0)
    say(about="PyTorch %s, CUDA %s, %s" % (torch.__version__, torch.version.cuda, torch.cuda.get_device_name()))
    # A graph records a stream that is not the default one, and autograd runs the
    # backward pass on the stream of the forward pass.
    with torch.cuda.stream(torch.cuda.Stream()):
        tensors = read_tensors(request["input"])
        for name in names:
            for hot in (False, True) if options.hot else (False,):
                answer(request, tensors, name, hot)


if __name__ == "__main__":
    main()
