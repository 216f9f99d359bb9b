"""PyTorch's fused attention, forward, on the cases of attention.benchfmt: milliseconds of a
call in a replayed CUDA graph, `rotated` through copies of the inputs that do not
fit in the L2 cache together, as flashvk bench does, and `hot`, on one copy.

    python3 torch_forward.py "B,H,HKV,SQ,SKV,D,TYPE,CAUSAL;..."
"""
import sys
import time
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend as B, sdpa_kernel

DT = {'f16': torch.float16, 'bf16': torch.bfloat16, 'f32': torch.float32}


def timeit(fns):
    fns[0]()
    torch.cuda.synchronize()
    s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s.record(); fns[0](); e.record(); torch.cuda.synchronize()
    n = max(len(fns) if len(fns) < 65 else 64, min(64, int(5 / max(s.elapsed_time(e), 1e-3))), 1)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for i in range(n):
            fns[i % len(fns)]()
    start = time.time()
    while time.time() - start < 0.25:
        g.replay(); torch.cuda.synchronize()
    ts = []
    for _ in range(11):
        s.record(); g.replay(); g.replay(); e.record(); torch.cuda.synchronize()
        ts.append(s.elapsed_time(e) / n / 2)
    return sorted(ts)[5]


for c in sys.argv[1].split(';'):
    b, h, hk, sq, sk, d, dt, ca = c.split(',')
    b, h, hk, sq, sk, d = map(int, (b, h, hk, sq, sk, d))
    ca = ca == '1'
    size = (2 * b * h * sq + 2 * b * hk * sk) * d * DT[dt].itemsize
    new = lambda h, s: torch.randn(b, h, s, d, device='cuda', dtype=DT[dt])
    xs = [(new(h, sq), new(hk, sk), new(hk, sk)) for _ in range(max(1, min(64, (256 << 20) // size)))]
    flops = 4 * b * h * sq * sk * d * (0.5 if ca else 1)
    call = lambda x: lambda: F.scaled_dot_product_attention(*x, is_causal=ca, enable_gqa=h != hk)
    row = []
    for name, backend in (('flash', B.FLASH_ATTENTION), ('memory-efficient', B.EFFICIENT_ATTENTION)):
        if (name == 'flash') == (dt == 'f32'):
            continue
        with sdpa_kernel(backend), torch.no_grad():
            rotated = timeit([call(x) for x in xs])
            hot = timeit([call(xs[0])]) if len(xs) > 1 else rotated
        row.append(f'{name} rotated {rotated:.5f} ms {flops / rotated / 1e9:.1f} TFLOP/s hot {hot:.5f} ms')
    print('torch', c, ' | '.join(row), flush=True)
    del xs
