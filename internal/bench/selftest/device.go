package selftest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// onDevice runs attention.Forward and attention.Backward for the suites.
type onDevice struct {
	ctx  context.Context
	d    *vk.Device
	impl attention.Impl
	hang time.Duration
	gate *gate
	item *item // whose calls they are

	modules []vk.ModuleInfo // that they ran
}

// softwareHeadDim is the largest head_dim of float32 on software matrices, whose
// kernels take up to a minute to compile beyond it.
const softwareHeadDim = 64

// Supports implements attntest.Supporter.
func (f *onDevice) Supports(p attention.Problem) error {
	if err := compilesSoon(f.d.Caps(), f.impl, p); err != nil {
		return err
	}
	return attention.Supports(f.d.Caps(), p, kit.Forward, attention.Options{Impl: f.impl})
}

// compilesSoon returns an error for kernels that a software driver compiles for too long.
func compilesSoon(caps *vk.Caps, impl attention.Impl, p attention.Problem) error {
	matrices := impl == attention.CoopMat2 || impl == attention.CoopMat
	if caps.Type == vk.CPU && matrices && p.DType == dtype.Float32 && p.HeadDim > softwareHeadDim {
		return fmt.Errorf("float32 on software matrices beyond head_dim %d takes a minute to compile", softwareHeadDim)
	}
	return nil
}

// softwareBackwardDim is the largest head_dim of the backward pass on software matrices,
// softwareF32x2Dim that of float32: kernels take tens of seconds to compile beyond it,
// with head_dim 192 minutes.
const (
	softwareBackwardDim = 72
	softwareF32x2Dim    = 24
)

// backwardCompilesSoon is compilesSoon for the backward pass.
func backwardCompilesSoon(caps *vk.Caps, impl attention.Impl, p attention.Problem) error {
	if caps.Type != vk.CPU || impl != attention.CoopMat2 && impl != attention.CoopMat {
		return nil
	}
	most := softwareBackwardDim
	if p.DType == dtype.Float32 {
		most = softwareF32x2Dim
	}
	if max(p.HeadDim, p.ValueHeadDim()) > most {
		return fmt.Errorf("the backward pass of %v on software matrices beyond head_dim %d takes long to compile", p.DType, most)
	}
	return nil
}

// memory holds tensors of the suite on the device.
type memory struct {
	*onDevice
	views map[*attntest.Tensor]vk.Tensor
	err   error // the first one
}

// upload copies all of a tensor, garbage around it included.
func (m *memory) upload(t *attntest.Tensor) *attntest.Tensor {
	if t == nil || m.err != nil {
		return t
	}
	data := t.Encode()
	var b *vk.Buffer
	if b, m.err = m.d.NewBuffer(t.Name, int64(len(data))); m.err == nil {
		m.views[t] = vk.Tensor{Buffer: b, DType: t.DType, Shape: t.Shape, Strides: t.Strides, Offset: t.Offset}
		m.err = m.gate.do(m.item, func() error { return b.Upload(m.ctx, 0, data) })
	}
	return t
}

// run runs what record records and copies all of every tensor back, so that the
// suite sees stray writes.
func (m *memory) run(record func(c *vk.Cmd) error) error {
	defer func() {
		for _, v := range m.views {
			v.Close()
		}
	}()
	if m.err != nil {
		return m.err
	}
	c, err := m.d.NewCmd("selftest")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := record(c); err != nil {
		return err
	}
	for _, x := range c.Modules() {
		if !slices.ContainsFunc(m.modules, func(y vk.ModuleInfo) bool { return x.Name == y.Name }) {
			m.modules = append(m.modules, x)
		}
	}
	results := make(map[*attntest.Tensor][]byte, len(m.views))
	err = m.gate.do(m.item, func() error { return m.submit(c, results) })
	if err != nil {
		return err
	}
	for t, data := range results {
		t.Decode(data[:len(t.Data)*t.DType.Size()])
	}
	return nil
}

// submit runs c and copies the tensors back.
func (m *memory) submit(c *vk.Cmd, results map[*attntest.Tensor][]byte) error {
	limited, cancel := context.WithTimeout(m.ctx, m.hang)
	defer cancel()
	if err := c.Submit(limited); err != nil {
		return err
	}
	for t, v := range m.views {
		results[t] = make([]byte, v.Buffer.Bytes())
		if err := v.Buffer.Download(m.ctx, 0, results[t]); err != nil {
			return err
		}
	}
	return nil
}

// tensors returns those of the forward pass.
func (m *memory) tensors(o, lse *attntest.Tensor, in attntest.Inputs) attention.Tensors {
	return attention.Tensors{
		O: m.views[o], LSE: m.views[lse], Q: m.views[in.Q], K: m.views[in.K], V: m.views[in.V],
		Bias: m.views[in.Bias], ALiBiSlopes: m.views[in.ALiBiSlopes], Sinks: m.views[in.Sinks], KeyMask: m.views[in.KeyMask],
		CuSeqlensQ: m.views[in.CuSeqlensQ], CuSeqlensKV: m.views[in.CuSeqlensKV],
	}
}

// Forward implements attntest.Forwarder.
func (f *onDevice) Forward(o, lse *attntest.Tensor, in attntest.Inputs, p attention.Problem) error {
	m := memory{onDevice: f, views: make(map[*attntest.Tensor]vk.Tensor)}
	in.Map(m.upload)
	m.upload(o)
	m.upload(lse)
	opt := attention.Options{Impl: f.impl}
	return m.run(func(c *vk.Cmd) error {
		return attention.Forward(c, m.tensors(o, lse, in), p, opt)
	})
}

// Backward implements attntest.Backwarder.
func (f *onDevice) Backward(g attntest.Gradients, in attntest.BackwardInputs, p attention.Problem) error {
	m := memory{onDevice: f, views: make(map[*attntest.Tensor]vk.Tensor)}
	in.Map(m.upload)
	g.Map(m.upload)
	opt := attention.Options{Impl: f.impl}
	return m.run(func(c *vk.Cmd) error {
		v := m.views
		return attention.Backward(c, m.tensors(in.O, in.LSE, in.Inputs), attention.Gradients{
			DO: v[in.DO], DLSE: v[in.DLSE], DQ: v[g.DQ], DK: v[g.DK], DV: v[g.DV], DBias: v[g.DBias], DSinks: v[g.DSinks],
		}, p, opt)
	})
}
