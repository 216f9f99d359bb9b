"""What the peers of flashvk bench that are PyTorch share: the protocol of package
internal/bench/peer of flashvk, files of tensors, and the measurement.

A peer calls start, which reads the request, and then answers with say.
"""
import contextlib
import ctypes
import json
import os
import struct
import sys

FORMATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "I32": "int32"}


def start(check, cpu=False):
    """Reads the request and imports torch. Says what is wrong, check(request) among it,
    and returns None, or returns the request. Cpu says that the peer can do without a GPU."""
    request = json.loads(sys.stdin.readline())
    if request["version"] != 2:
        return say(error="protocol version %d is not 2" % request["version"])
    problem = check(request)
    if problem:
        return say(error=problem)
    global torch
    try:
        import torch
    except ImportError as error:
        return say(error=one_line(error))
    torch.manual_seed(0)
    if torch.cuda.is_available():
        say(about="PyTorch %s, CUDA %s, %s" % (torch.__version__, torch.version.cuda, torch.cuda.get_device_name()))
    elif cpu:
        say(about="PyTorch %s, CPU, %d threads" % (torch.__version__, torch.get_num_threads()))
    else:
        return say(error="PyTorch sees no CUDA device")
    return request


def load():
    """Imports torch for a program that is no peer, which may have no GPU, and returns it and the
    device. Ends the program with a line where there is none."""
    global torch
    try:
        import torch
    except ImportError as error:
        sys.exit("%s: %s" % (sys.argv[0], one_line(error)))
    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def stream():
    """The stream that everything runs on: a graph records one that is not the default
    one, and autograd runs the backward pass on the stream of the forward pass."""
    return torch.cuda.stream(torch.cuda.Stream())


def say(**answer):
    print(json.dumps(answer), flush=True)


def one_line(error):
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def read_tensors(path, device="cuda"):
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
            tensors[name] = flat.reshape(x["shape"]).to(device)
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


def answer(request, name, make, around=contextlib.nullcontext, write=True):
    """Measures make(), a call on each of its sets of inputs, within around(), and says the result."""
    try:
        with around():
            call = make()
            output = ""
            if request["output_dir"] and write:
                output = os.path.join(request["output_dir"], name + ".safetensors")
                write_tensors(output, call.result())
            samples, iters, note = measure(request, call)
        say(name=name, samples_ns=samples, iters=iters, sets=min(len(call.inputs), iters), output=output, note=note)
    except Exception as error:
        say(name=name, error=one_line(error))
    call = None
    torch.cuda.empty_cache()


def back_ends(parser, names):
    """Parses the arguments with --backends among them, a list of some of the names."""
    parser.add_argument("--backends", default=",".join(names), help="comma list of " + ", ".join(names))
    options = parser.parse_args()
    options.backends = options.backends.split(",")
    for name in options.backends:
        if name not in names:
            parser.error("--backends %s is not one of %s" % (name, ", ".join(names)))
    return options


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
