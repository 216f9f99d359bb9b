package main

import (
	"context"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench/safetensors"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// runTensors are the tensors of a call on the device.
type runTensors struct {
	q, k, v, o, lse vk.Tensor
	do, dq, dk, dv  vk.Tensor
}

// A runTensor is one of them, or of Options, with what the file calls it.
type runTensor struct {
	name   string
	target *vk.Tensor
	dtype  dtype.DType
	shape  []int
	output bool
	fill   uint32 // what rows in no sequence hold, where outputs have such
}

// list returns all that a call may have.
func (t *runTensors) list(p attention.Problem, opt *attention.Options, backward bool) []runTensor {
	const minusInf = 0xff800000
	in, g := &opt.Inputs, &opt.Gradients
	all := []runTensor{
		{"q", &t.q, p.DType, p.QShape(), false, 0},
		{"k", &t.k, p.DType, p.KShape(), false, 0},
		{"v", &t.v, p.DType, p.VShape(), false, 0},
		{"bias", &in.Bias, p.Bias.DType, p.BiasShape(), false, 0},
		{"alibi_slopes", &in.ALiBiSlopes, dtype.Float32, p.SlopesShape(), false, 0},
		{"key_mask", &in.KeyMask, dtype.Bool, p.KeyMaskShape(), false, 0},
		{"sinks", &in.Sinks, dtype.Float32, p.SinksShape(), false, 0},
		{"cu_seqlens_q", &in.CuSeqlensQ, dtype.Int32, p.CuSeqlensShape(), false, 0},
		{"cu_seqlens_kv", &in.CuSeqlensKV, dtype.Int32, p.CuSeqlensShape(), false, 0},
		{"o", &t.o, p.DType, p.OShape(), true, 0},
		{"lse", &t.lse, dtype.Float32, p.LSEShape(), true, minusInf},
	}
	if !backward {
		return all
	}
	all = append(all,
		runTensor{"do", &t.do, p.DType, p.OShape(), false, 0},
		runTensor{"dlse", &g.DLSE, dtype.Float32, p.LSEShape(), false, 0},
		runTensor{"dq", &t.dq, p.DType, p.QShape(), true, 0},
		runTensor{"dk", &t.dk, p.DType, p.KShape(), true, 0},
		runTensor{"dv", &t.dv, p.DType, p.VShape(), true, 0})
	if p.Bias.On {
		all = append(all, runTensor{"dbias", &g.DBias, p.Bias.DType, p.BiasShape(), true, 0})
	}
	if p.Sinks {
		all = append(all, runTensor{"dsinks", &g.DSinks, dtype.Float32, p.SinksShape(), true, 0})
	}
	return all
}

// compute reads the inputs, runs the kernels and writes the outputs.
func (r *runAttention) compute(ctx context.Context, d *vk.Device, in *safetensors.File, p attention.Problem, cu cuSeqlens, opt attention.Options) error {
	var t runTensors
	list := t.list(p, &opt, r.backward)
	defer func() {
		for _, x := range list {
			x.target.Close()
		}
	}()
	for _, x := range list {
		if _, ok := in.Tensor(x.name); !ok && !x.output {
			continue
		}
		var err error
		if *x.target, err = d.NewTensor(x.name, x.dtype, x.shape...); err != nil {
			return err
		}
		if x.output {
			continue
		}
		if err := upload(ctx, x.target.Buffer, in, x.name); err != nil {
			return err
		}
	}
	if err := r.submit(ctx, d, &t, list, p, cu, opt); err != nil {
		return err
	}
	return r.write(ctx, list)
}

// submit runs the kernels.
func (r *runAttention) submit(ctx context.Context, d *vk.Device, t *runTensors, list []runTensor, p attention.Problem, cu cuSeqlens, opt attention.Options) error {
	c, err := d.NewCmd("run attention")
	if err != nil {
		return err
	}
	defer c.Close()
	if p.Varlen.On && cu.unused(p.Varlen) {
		for _, x := range list {
			if x.output { // the kernels write what is in sequences
				c.Fill(x.target.Buffer, 0, x.target.Buffer.Bytes(), x.fill)
			}
		}
		c.BarrierFromTransfer()
	}
	if err := attention.Forward(c, t.o, t.lse, t.q, t.k, t.v, p, opt); err != nil {
		return err
	}
	if r.backward {
		c.Barrier()
		if err := attention.Backward(c, t.dq, t.dk, t.dv, t.do, t.o, t.lse, t.q, t.k, t.v, p, opt); err != nil {
			return err
		}
	}
	return c.Submit(ctx)
}

// write writes the outputs to a file.
func (r *runAttention) write(ctx context.Context, list []runTensor) error {
	var outputs []safetensors.Tensor
	for _, x := range list {
		if x.output {
			outputs = append(outputs, safetensors.Tensor{Name: x.name, DType: formatOf(x.dtype), Shape: x.shape})
		}
	}
	out, err := safetensors.Create(r.out, outputs, nil)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, x := range list {
		if !x.output {
			continue
		}
		if err := download(ctx, out, x.name, *x.target); err != nil {
			return err
		}
	}
	return out.Commit()
}
