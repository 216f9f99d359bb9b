package attntest
import ("testing";"github.com/flashvk/flashvk/attention/ref";"github.com/flashvk/flashvk/attention/problem";"github.com/flashvk/flashvk/dtype";"time";"math/rand/v2")
func TestTmpFull(t *testing.T){ NewSuite(Full, Reference, TwicePlain).Where(func(c *Case)bool{return c.Name[:5]=="large"}).TestForward(t, Contiguous(ref.Model{BlockM:64,BlockN:64,RoundP:true,RescaleAbove:8}.Forward))}
func TestTmpVerify(t *testing.T){
 p:=problem.Problem{Batch:1,NumHeads:16,NumKVHeads:16,SeqQ:16384,SeqKV:16384,HeadDim:128,DType:dtype.BFloat16}
 n:=16*16384*128
 f:=func()[]float32{x:=make([]float32,n);r:=rand.New(rand.NewPCG(1,1));for i:=range x{x[i]=p.DType.Round(float32(r.NormFloat64()))};return x}
 q,k,v:=f(),f(),f()
 t0:=time.Now()
 r,err:=ref.Verify(q,nil,q,k,v,p,ref.SampleRows(p,64))
 t.Log(time.Since(t0),err,r.Err(),r.Bound)
}
