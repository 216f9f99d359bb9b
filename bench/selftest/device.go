package selftest

import (
	"context"
	"fmt"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/attntest"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// onDevice runs attention.Forward for the suite.
type onDevice struct {
	ctx  context.Context
	d    *vk.Device
	impl attention.Impl
	hang time.Duration
}

// softwareHeadDim is the largest head_dim of float32 on software matrices, whose
// kernels take up to a minute to compile beyond it.
const softwareHeadDim = 64

// Supports implements attntest.Supporter.
func (f *onDevice) Supports(p attention.Problem) error {
	caps := f.d.Caps()
	matrices := f.impl == attention.CoopMat2 || f.impl == attention.CoopMat
	if caps.Type == vk.CPU && matrices && p.DType == dtype.Float32 && p.HeadDim > softwareHeadDim {
		return fmt.Errorf("float32 on software matrices beyond head_dim %d takes a minute to compile", softwareHeadDim)
	}
	return attention.Supports(caps, f.impl, p)
}

// Forward uploads all of every tensor, garbage around it included, runs, and
// downloads all, so that the suite sees stray writes.
func (f *onDevice) Forward(o, lse *attntest.Tensor, in attntest.Inputs, p attention.Problem) error {
	var host []*attntest.Tensor
	var views []vk.Tensor
	defer func() {
		for _, v := range views {
			v.Close()
		}
	}()
	var failed error
	upload := func(t *attntest.Tensor) vk.Tensor {
		if t == nil || failed != nil {
			return vk.Tensor{}
		}
		data := t.Encode()
		b, err := f.d.NewBuffer(t.Name, int64(len(data)))
		if err != nil {
			failed = err
			return vk.Tensor{}
		}
		v := vk.Tensor{Buffer: b, DType: t.DType, Shape: t.Shape, Strides: t.Strides, Offset: t.Offset}
		host, views = append(host, t), append(views, v)
		failed = b.Upload(f.ctx, 0, data)
		return v
	}
	deviceO, deviceLSE, q, k, v := upload(o), upload(lse), upload(in.Q), upload(in.K), upload(in.V)
	opt := attention.Options{Impl: f.impl, Inputs: attention.Inputs{
		Bias: upload(in.Bias), ALiBiSlopes: upload(in.ALiBiSlopes), Sinks: upload(in.Sinks), KeyMask: upload(in.KeyMask),
		CuSeqlensQ: upload(in.CuSeqlensQ), CuSeqlensKV: upload(in.CuSeqlensKV),
	}}
	if failed != nil {
		return failed
	}
	c, err := f.d.NewCmd("selftest")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := attention.Forward(c, deviceO, deviceLSE, q, k, v, p, opt); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(f.ctx, f.hang)
	defer cancel()
	if err := c.Submit(limited); err != nil {
		return err
	}
	for i, t := range host {
		data := make([]byte, views[i].Buffer.Bytes())
		if err := views[i].Buffer.Download(f.ctx, 0, data); err != nil {
			return err
		}
		t.Decode(data[:len(t.Data)*t.DType.Size()])
	}
	return nil
}
