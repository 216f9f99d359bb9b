import torch, json, sys, time
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend as B
DT={'f16':torch.float16,'bf16':torch.bfloat16,'f32':torch.float32}
def timeit(fn):
    for _ in range(3): fn()
    torch.cuda.synchronize()
    s=torch.cuda.Event(enable_timing=True);e=torch.cuda.Event(enable_timing=True)
    s.record(); fn(); e.record(); torch.cuda.synchronize(); t=s.elapsed_time(e)
    inner=max(1,min(50,int(3/max(t,1e-3))))
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(inner): fn()
    t0=time.time()
    while time.time()-t0<0.15: g.replay(); torch.cuda.synchronize()
    ts=[]
    for _ in range(11):
        s.record(); g.replay(); e.record(); torch.cuda.synchronize(); ts.append(s.elapsed_time(e)/inner)
    ts.sort(); return ts[len(ts)//2]
for c in sys.argv[1].split(';'):
    b,h,hk,sq,sk,d,dt,ca=c.split(','); b,h,hk,sq,sk,d=map(int,(b,h,hk,sq,sk,d)); ca=ca=='1'
    q=torch.randn(b,h,sq,d,device='cuda',dtype=DT[dt]);k=torch.randn(b,hk,sk,d,device='cuda',dtype=DT[dt]);v=torch.randn_like(k)
    fl=4*b*h*sq*sk*d*(0.5 if ca else 1)
    row=[]
    for n,bk in (('flash',B.FLASH_ATTENTION),('cudnn',B.CUDNN_ATTENTION),('eff',B.EFFICIENT_ATTENTION)):
        if n=='eff' and dt!='f32': continue
        try:
            with sdpa_kernel(bk), torch.no_grad():
                t=timeit(lambda: F.scaled_dot_product_attention(q,k,v,is_causal=ca,enable_gqa=h!=hk)); row.append(f'{n} {t:.4f} ms {fl/t/1e9:.1f} TF')
        except Exception as ex: row.append(n+' ERR '+str(ex).splitlines()[0][:60])
    print('torch',c,' | '.join(row),flush=True)
