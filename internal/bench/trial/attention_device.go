package trial

import (
	"context"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
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

// tensors returns those of the forward pass.
func (m *attentionMemory) tensors(o, lse *attntest.Tensor, in attntest.Inputs) attention.Tensors {
	return attention.Tensors{
		O: m.views[o], LSE: m.views[lse], Q: m.views[in.Q], K: m.views[in.K], V: m.views[in.V],
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
	opt := attention.Options{Impl: f.opt.Impl, Config: f.opt.Config}
	return m.run("attention", func(c *vk.Cmd) error {
		return attention.Forward(c, m.tensors(o, lse, in), p, opt)
	})
}

// Backward implements attntest.Backwarder.
func (f *attentionOnDevice) Backward(g attntest.Gradients, in attntest.BackwardInputs, p attention.Problem) error {
	m := f.memory()
	in.Map(m.upload)
	g.Map(m.upload)
	return m.run("attention backward", func(c *vk.Cmd) error {
		v := m.views
		return attention.Backward(c, m.tensors(in.O, in.LSE, in.Inputs), attention.Gradients{
			DO: v[in.DO], DLSE: v[in.DLSE], DQ: v[g.DQ], DK: v[g.DK], DV: v[g.DV], DBias: v[g.DBias], DSinks: v[g.DSinks],
		}, p, f.opt)
	})
}
