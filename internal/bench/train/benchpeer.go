package train

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

// ask asks a peer for the same steps, with the same weights and data.
func (b *benchmark) ask(ctx context.Context, p peer.Peer) (timings []Timing, about string) {
	failed := func(err error) []Timing {
		return append(timings, Timing{Impl: p.Name, Failed: err.Error()})
	}
	dir, err := os.MkdirTemp("", "flashvk-train-")
	if err != nil {
		return failed(err), ""
	}
	defer os.RemoveAll(dir)
	input := filepath.Join(dir, "input.safetensors")
	if err := b.write(input); err != nil {
		return failed(err), ""
	}
	c, s := b.c.Config, b.c.Shape
	reply, err := p.Run(ctx, peer.Request{
		Op: "train", Pass: "step", DType: b.c.DType.String(), Samples: b.c.Samples, WarmupNS: 3e8, Warmup: 3, SampleNS: 1, MaxIters: 1, Sets: 1,
		Params: map[string]any{
			"layers": c.Layers, "heads": c.Heads, "context": s.Context, "lr": benchLR, "weight_decay": optim.Default().WeightDecay, "eps": tnp.NormEps,
		},
		Input: input, OutputDir: dir,
	}, b.c.PeerLimit)
	for _, a := range reply.Answers {
		t := Timing{Impl: p.Name + ":" + a.Name, NS: a.SamplesNS, Failed: a.Error, Note: a.Note}
		if a.Error == "" {
			if err := b.compare(a.Output, &t); err != nil {
				t.NS, t.Failed = nil, err.Error()
			}
		}
		timings = append(timings, t)
	}
	if err != nil {
		return failed(err), reply.About
	}
	return timings, reply.About
}

// write writes weights and data as flashvk run model reads them.
func (b *benchmark) write(path string) error {
	s := b.c.Shape
	tensors := []safetensors.Tensor{
		{Name: "x", DType: safetensors.F32, Shape: []int{s.Batch, s.Context + s.Targets, b.c.InputDim}},
		{Name: "y", DType: safetensors.F32, Shape: []int{s.Batch, s.Targets}},
	}
	values := map[string][]float32{"x": b.x, "y": b.y}
	for _, p := range b.c.Params() {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
		values[p.Name] = b.w[p.Name]
	}
	return WriteTensors(path, tensors, values)
}

// WriteTensors writes a file of float32 tensors with values by name.
func WriteTensors(path string, tensors []safetensors.Tensor, values map[string][]float32) error {
	out, err := safetensors.Create(path, tensors, nil)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, t := range tensors {
		if err := out.WriteFloat32s(t.Name, values[t.Name]); err != nil {
			return err
		}
	}
	return out.Commit()
}

// compare reads a peer's losses, memory and gradients, as flashvk run model writes them:
//
//	loss    (1)   of the first step
//	last    (1)   of the last step
//	memory  (1)   MB of device memory at most
//	grad.NAME     of the first step
func (b *benchmark) compare(path string, t *Timing) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	read := func(name string, n int) ([]float32, error) {
		x, ok := f.Tensor(name)
		if !ok {
			return nil, fmt.Errorf("tensor %q is missing in its output", name)
		}
		v, err := f.Float32s(x)
		if err == nil && len(v) != n {
			err = fmt.Errorf("tensor %q of its output has %d elements, want %d", name, len(v), n)
		}
		return v, err
	}
	for name, to := range map[string]func(float64){
		"loss": func(v float64) { t.First = v }, "last": func(v float64) { t.Last = v }, "memory": func(v float64) { t.Bytes = int64(1e6 * v) },
	} {
		v, err := read(name, 1)
		if err != nil {
			return err
		}
		to(float64(v[0]))
	}
	off, square := 0.0, 0.0
	for _, p := range b.c.Params() {
		g, err := read("grad."+p.Name, p.Size())
		if err != nil {
			return err
		}
		for i, v := range b.grads[p.Name] {
			off += (float64(v) - float64(g[i])) * (float64(v) - float64(g[i]))
			square += float64(v) * float64(v)
		}
	}
	t.judge(b.c.DType, b.loss, math.Sqrt(off/square))
	return nil
}

// peerBounds are how far loss and gradients of a peer may be from ours. On an H200 PyTorch's are
// off by 1e-4 and 3e-3 in bfloat16, whose roundings differ; both multiply float32 as such.
func peerBounds(t dtype.DType) (loss, slope float64) {
	if t == dtype.Float32 {
		return 1e-4, 1e-3
	}
	return 0.02, 0.05
}

// judge compares a peer's first loss with ours; slope is how far its gradients are.
func (t *Timing) judge(format dtype.DType, loss, slope float64) {
	off := math.Abs(t.First - loss)
	most, steepest := peerBounds(format)
	switch {
	case !(off <= most*max(1, math.Abs(loss))):
		t.Wrong = fmt.Sprintf("its first loss is %g, ours %g", t.First, loss)
	case !(slope <= steepest):
		t.Wrong = fmt.Sprintf("its gradients are %.2g of their norm from ours, more than %g", slope, steepest)
	}
	t.LossOff, t.Slope, t.First, t.Last = finite(off), finite(slope), finite(t.First), finite(t.Last)
}
