package attention_test

import (
	"context"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// backwardOnDevice runs attention.Backward for the suite.
type backwardOnDevice struct {
	d   *vk.Device
	opt attention.Options
}

func (b backwardOnDevice) Supports(p attention.Problem) error {
	plan, err := attention.Choose(b.d.Caps(), p, kit.Backward, b.opt)
	if err != nil || !software(b.d) {
		return err
	}
	most, config := 40, plan.Backward
	switch {
	case p.DType == dtype.Float32 && config.Impl == attention.CoopMat:
		most = 16
	case p.DType == dtype.Float32 && p.Plain():
		most = 24
	case p.DType == dtype.Float16 && p.Plain() && config.Impl == attention.CoopMat2:
		most = 72
	}
	if !vktest.Thorough(b.d) && p.Plain() {
		most = 24
		if p.DType == dtype.Float32 {
			most = 8
		}
	}
	if err := widerHeads(config.Impl, p, most); err != nil {
		return err
	}
	return fewerFeatures(config.Impl, takesAlone(b.d, b.opt.BackwardConfig != nil), p)
}

// Backward uploads the whole backing slice of every tensor, dispatches, and
// downloads all of it, so that the suite sees stray writes.
func (b backwardOnDevice) Backward(g attntest.Gradients, in attntest.BackwardInputs, p attention.Problem) error {
	ctx := context.Background()
	views := map[*attntest.Tensor]vk.Tensor{nil: {}}
	defer func() {
		for _, t := range views {
			t.Close()
		}
	}()
	var err error
	upload := func(t *attntest.Tensor) *attntest.Tensor {
		if t == nil || err != nil {
			return t
		}
		data := t.Encode()
		var buffer *vk.Buffer
		if buffer, err = b.d.NewBuffer(t.Name, int64(len(data))); err != nil {
			return t
		}
		views[t] = vk.Tensor{Buffer: buffer, DType: t.DType, Shape: t.Shape, Strides: t.Strides, Offset: t.Offset}
		err = buffer.Upload(ctx, 0, data)
		return t
	}
	in.Map(upload)
	g.Map(upload)
	if err != nil {
		return err
	}
	on := attention.Tensors{
		O: views[in.O], LSE: views[in.LSE], Q: views[in.Q], K: views[in.K], V: views[in.V],
		Bias: views[in.Bias], ALiBiSlopes: views[in.ALiBiSlopes], Sinks: views[in.Sinks], KeyMask: views[in.KeyMask],
		CuSeqlensQ: views[in.CuSeqlensQ], CuSeqlensKV: views[in.CuSeqlensKV],
	}
	gradients := attention.Gradients{
		DO: views[in.DO], DLSE: views[in.DLSE],
		DQ: views[g.DQ], DK: views[g.DK], DV: views[g.DV], DBias: views[g.DBias], DSinks: views[g.DSinks],
	}
	c, err := b.d.NewCmd("suite")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := attention.Backward(c, on, gradients, p, b.opt); err != nil {
		return err
	}
	if err := c.Submit(ctx); err != nil {
		return err
	}
	for t, view := range views {
		if t == nil {
			continue
		}
		data := make([]byte, view.Buffer.Bytes())
		if err := view.Buffer.Download(ctx, 0, data); err != nil {
			return err
		}
		t.Decode(data[:len(t.Data)*t.DType.Size()])
	}
	return nil
}

// backwardSuite returns the cases for the device, as suite does.
func backwardSuite(d *vk.Device) *attntest.BackwardSuite {
	s := backwardSuites[setOf(d)]
	if testing.Short() {
		s = s.Where(func(c *attntest.Case) bool { return inShort(d, c, 4e6) })
	}
	return s
}

var backwardSuites = [...]*attntest.BackwardSuite{
	attntest.Short: attntest.NewBackwardSuite(attntest.Short, attntest.BackwardReference, attntest.PlainGradients),
	attntest.Full:  attntest.NewBackwardSuite(attntest.Full, attntest.BackwardReference, attntest.PlainGradients),
}

// TestBackward runs the suite on every path of the device.
func TestBackward(t *testing.T) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			t.Parallel() // lavapipe compiles on one core
			d := vktest.Open(t, vktest.WholeBuffers)
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			f := backwardOnDevice{d, attention.Options{Impl: impl}}
			suiteStandIns(d, backwardSuite(d), f.Supports).TestBackward(t, f)
		})
	}
}
