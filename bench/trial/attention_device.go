package trial

import (
	"context"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/attntest"
	"github.com/flashvk/flashvk/vk"
)

// attentionOnDevice runs attention.Forward and attention.Backward for the suites.
type attentionOnDevice struct {
	ctx context.Context
	r   *Runner
	opt attention.Options
}

// attentionMemory holds tensors of a suite on the device.
type attentionMemory struct {
	*attentionOnDevice
	views map[*attntest.Tensor]vk.Tensor
	err   error // the first one
}

func (f *attentionOnDevice) memory() *attentionMemory {
	return &attentionMemory{attentionOnDevice: f, views: make(map[*attntest.Tensor]vk.Tensor)}
}

// upload copies all of a tensor, garbage around it included.
func (m *attentionMemory) upload(t *attntest.Tensor) *attntest.Tensor {
	if t == nil || m.err != nil {
		return t
	}
	data := t.Encode()
	var b *vk.Buffer
	if b, m.err = m.r.Device().NewBuffer(t.Name, int64(len(data))); m.err == nil {
		m.views[t] = vk.Tensor{Buffer: b, DType: t.DType, Shape: t.Shape, Strides: t.Strides, Offset: t.Offset}
		m.err = b.Upload(m.ctx, 0, data)
	}
	return t
}

// run runs what record records and copies all of every tensor back, so that the suite
// sees stray writes.
func (m *attentionMemory) run(name string, record func(c *vk.Cmd) error) error {
	defer func() {
		for _, v := range m.views {
			v.Close()
		}
	}()
	if m.err != nil {
		return m.err
	}
	if err := m.r.Submit(m.ctx, name, record); err != nil {
		return err
	}
	for t, v := range m.views {
		data := make([]byte, v.Buffer.Bytes())
		if err := v.Buffer.Download(m.ctx, 0, data); err != nil {
			return err
		}
		t.Decode(data[:len(t.Data)*t.DType.Size()])
	}
	return nil
}

// inputs returns those of features.
func (m *attentionMemory) inputs(in attntest.Inputs) attention.Inputs {
	return attention.Inputs{
		Bias: m.views[in.Bias], ALiBiSlopes: m.views[in.ALiBiSlopes], Sinks: m.views[in.Sinks], KeyMask: m.views[in.KeyMask],
		CuSeqlensQ: m.views[in.CuSeqlensQ], CuSeqlensKV: m.views[in.CuSeqlensKV],
	}
}

// Forward implements attntest.Forwarder. A backward problem whose O and LSE it computes
// runs what the table says for the path.
func (f *attentionOnDevice) Forward(o, lse *attntest.Tensor, in attntest.Inputs, p attention.Problem) error {
	m := f.memory()
	in.Map(m.upload)
	m.upload(o)
	m.upload(lse)
	opt := attention.Options{Impl: f.opt.Impl, Config: f.opt.Config, Inputs: m.inputs(in)}
	return m.run("attention", func(c *vk.Cmd) error {
		return attention.Forward(c, m.views[o], m.views[lse], m.views[in.Q], m.views[in.K], m.views[in.V], p, opt)
	})
}

// Backward implements attntest.Backwarder.
func (f *attentionOnDevice) Backward(g attntest.Gradients, in attntest.BackwardInputs, p attention.Problem) error {
	m := f.memory()
	in.Map(m.upload)
	g.Map(m.upload)
	opt := f.opt
	opt.Inputs = m.inputs(in.Inputs)
	opt.Gradients = attention.Gradients{DBias: m.views[g.DBias], DSinks: m.views[g.DSinks], DLSE: m.views[in.DLSE]}
	return m.run("attention backward", func(c *vk.Cmd) error {
		v := m.views
		return attention.Backward(c, v[g.DQ], v[g.DK], v[g.DV], v[in.DO], v[in.O], v[in.LSE], v[in.Q], v[in.K], v[in.V], p, opt)
	})
}
