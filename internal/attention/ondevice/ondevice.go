// Package ondevice runs attention.Forward and attention.Backward for the suites of
// package attntest.
package ondevice

import (
	"context"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// A Kernel is an attntest.Forwarder and an attntest.Backwarder.
type Kernel struct {
	Context context.Context // nil: the background
	Device  guard.Device
	Options attention.Options
	// Record records a call, with what comes before and after it; nil: only the call.
	Record func(c *vk.Cmd, call func(c *vk.Cmd) error) error
}

// Forward implements attntest.Forwarder.
func (k *Kernel) Forward(o, lse *guard.View, in attntest.Inputs, p attention.Problem) error {
	views := append(list(in), o, lse)
	return k.call(views, func(c *vk.Cmd, on guard.Views) error {
		return attention.Forward(c, tensors(on, o, lse, in), p, k.Options)
	})
}

// Backward implements attntest.Backwarder.
func (k *Kernel) Backward(g attntest.Gradients, in attntest.BackwardInputs, p attention.Problem) error {
	views := append(list(in.Inputs), in.DO, in.DLSE, in.O, in.LSE, g.DQ, g.DK, g.DV, g.DBias, g.DSinks)
	return k.call(views, func(c *vk.Cmd, on guard.Views) error {
		return attention.Backward(c, tensors(on, in.O, in.LSE, in.Inputs), attention.Gradients{
			DO: on[in.DO], DLSE: on[in.DLSE],
			DQ: on[g.DQ], DK: on[g.DK], DV: on[g.DV], DBias: on[g.DBias], DSinks: on[g.DSinks],
		}, p, k.Options)
	})
}

// call runs a call on views.
func (k *Kernel) call(views []*guard.View, call func(c *vk.Cmd, on guard.Views) error) error {
	ctx := k.Context
	if ctx == nil {
		ctx = context.Background()
	}
	return k.Device.Call(ctx, "attention", views, func(c *vk.Cmd, on guard.Views) error {
		if k.Record == nil {
			return call(c, on)
		}
		return k.Record(c, func(c *vk.Cmd) error { return call(c, on) })
	})
}

// list returns the inputs, nil for what the problem does not have.
func list(in attntest.Inputs) []*guard.View {
	return []*guard.View{in.Q, in.K, in.V, in.Bias, in.ALiBiSlopes, in.Sinks, in.KeyMask, in.CuSeqlensQ, in.CuSeqlensKV}
}

// tensors returns those of the forward pass.
func tensors(on guard.Views, o, lse *guard.View, in attntest.Inputs) attention.Tensors {
	return attention.Tensors{
		O: on[o], LSE: on[lse], Q: on[in.Q], K: on[in.K], V: on[in.V],
		Bias: on[in.Bias], ALiBiSlopes: on[in.ALiBiSlopes], Sinks: on[in.Sinks], KeyMask: on[in.KeyMask],
		CuSeqlensQ: on[in.CuSeqlensQ], CuSeqlensKV: on[in.CuSeqlensKV],
	}
}
