package bench

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// lengthOf returns the length of sequence b of a Varlen whose longest is most:
// all of it, three quarters, a half, a quarter, and so on.
func lengthOf(b, most int) int { return (most*(4-b%4) + 3) / 4 }

// Varlen returns the Varlen that is measured for a batch whose longest sequences
// have seqQ rows and seqKV keys: three quarters, a half and a quarter of that
// follow, and again.
func Varlen(batch, seqQ, seqKV int) problem.Varlen {
	v := problem.Varlen{On: true}
	for b := range batch {
		v.TotalQ += lengthOf(b, seqQ)
		v.TotalKV += lengthOf(b, seqKV)
	}
	return v
}

// cuSeqlens returns where the sequences of Varlen begin.
func cuSeqlens(p attention.Problem) (q, kv []int32) {
	q, kv = []int32{0}, []int32{0}
	for b := range p.Batch {
		q = append(q, q[b]+int32(lengthOf(b, p.SeqQ)))
		kv = append(kv, kv[b]+int32(lengthOf(b, p.SeqKV)))
	}
	return q, kv
}

// flops returns the operations of p as it is measured.
func flops(p attention.Problem) float64 {
	if p.Varlen.On {
		return p.FLOPsOf(cuSeqlens(p))
	}
	return p.FLOPs()
}

// featureInputs returns the tensors of the features of p: normal bias and
// sinks, the slopes of the ALiBi paper, a key mask that hides one key in eight.
func featureInputs(p attention.Problem) (in ref.Inputs[float32]) {
	if p.Bias.On {
		in.Bias = Normal(p.Bias.DType, elements(p.BiasShape()), seedBias)
	}
	if p.ALiBi != attention.ALiBiOff {
		in.ALiBiSlopes = make([]float32, elements(p.SlopesShape()))
		for i := range in.ALiBiSlopes {
			in.ALiBiSlopes[i] = float32(math.Exp2(-8 * float64(i%p.NumHeads+1) / float64(p.NumHeads)))
		}
	}
	if p.KeyMask {
		rng := rand.New(rand.NewPCG(seedKeyMask, 0))
		in.KeyMask = make([]bool, elements(p.KeyMaskShape()))
		for i := range in.KeyMask {
			in.KeyMask[i] = rng.IntN(8) > 0
		}
	}
	if p.Sinks {
		in.Sinks = Normal(dtype.Float32, p.NumHeads, seedSinks)
	}
	if p.Varlen.On {
		in.CuSeqlensQ, in.CuSeqlensKV = cuSeqlens(p)
	}
	return in
}

func elements(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// uploadFeatures returns the tensors of featureInputs on the device. All sets of
// buffers share them.
func uploadFeatures(ctx context.Context, d *vk.Device, p attention.Problem, in ref.Inputs[float32]) (out attention.Inputs, err error) {
	mask := make([]byte, len(in.KeyMask))
	for i, visible := range in.KeyMask {
		if visible {
			mask[i] = 1
		}
	}
	lengths := func(cu []int32) []byte {
		var raw []byte
		for _, n := range cu {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(n))
		}
		return raw
	}
	for _, x := range []struct {
		target *vk.Tensor
		name   string
		format dtype.DType
		shape  []int
		data   []float32
		raw    []byte
	}{
		{&out.Bias, "bias", p.Bias.DType, p.BiasShape(), in.Bias, nil},
		{&out.ALiBiSlopes, "alibi_slopes", dtype.Float32, p.SlopesShape(), in.ALiBiSlopes, nil},
		{&out.Sinks, "sinks", dtype.Float32, p.SinksShape(), in.Sinks, nil},
		{&out.KeyMask, "key_mask", dtype.Bool, p.KeyMaskShape(), nil, mask},
		{&out.CuSeqlensQ, "cu_seqlens_q", dtype.Int32, p.CuSeqlensShape(), nil, lengths(in.CuSeqlensQ)},
		{&out.CuSeqlensKV, "cu_seqlens_kv", dtype.Int32, p.CuSeqlensShape(), nil, lengths(in.CuSeqlensKV)},
	} {
		if len(x.data) == 0 && len(x.raw) == 0 {
			continue
		}
		if *x.target, err = d.NewTensor(x.name, x.format, x.shape...); err != nil {
			return out, err
		}
		if x.data != nil {
			err = x.target.Upload(ctx, x.data)
		} else {
			err = x.target.UploadRaw(ctx, x.raw)
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// closeFeatures closes what uploadFeatures returned.
func closeFeatures(in attention.Inputs) {
	for _, t := range []vk.Tensor{in.Bias, in.ALiBiSlopes, in.Sinks, in.KeyMask, in.CuSeqlensQ, in.CuSeqlensKV} {
		t.Close()
	}
}
