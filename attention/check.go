package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/argument"
)

// checkForward returns an error that names the first tensor that does not fit
// the problem.
func checkForward(o, lse, q, k, v vk.Tensor, in *Inputs, p Problem) error {
	inputs := append(make([]argument.Argument, 0, 9),
		argument.New("q", q, true, p.DType, p.QShape()),
		argument.New("k", k, true, p.DType, p.KShape()),
		argument.New("v", v, true, p.DType, p.VShape()))
	inputs = in.appendTo(inputs, p)
	outputs := [...]argument.Argument{
		argument.New("o", o, true, p.DType, p.OShape()),
		argument.New("lse", lse, !lse.IsZero(), dtype.Float32, p.LSEShape()),
	}
	return argument.Check("attention", inputs, outputs[:])
}

// checkBackward is checkForward for Backward, which needs a workspace of so many bytes.
func checkBackward(dq, dk, dv, do, o, lse, q, k, v vk.Tensor, opt *Options, p Problem, workspace int64) error {
	g := &opt.Gradients
	inputs := append(make([]argument.Argument, 0, 13),
		argument.New("q", q, true, p.DType, p.QShape()),
		argument.New("k", k, true, p.DType, p.KShape()),
		argument.New("v", v, true, p.DType, p.VShape()),
		argument.New("o", o, true, p.DType, p.OShape()),
		argument.New("lse", lse, true, dtype.Float32, p.LSEShape()),
		argument.New("do", do, true, p.DType, p.OShape()),
		argument.New("dlse", g.DLSE, !g.DLSE.IsZero(), dtype.Float32, p.LSEShape()))
	inputs = opt.Inputs.appendTo(inputs, p)
	outputs := []argument.Argument{
		argument.New("dq", dq, true, p.DType, p.QShape()),
		argument.New("dk", dk, true, p.DType, p.KShape()),
		argument.New("dv", dv, true, p.DType, p.VShape()),
		argument.New("dbias", g.DBias, p.Bias.On && !g.DBias.IsZero(), p.Bias.DType, p.BiasShape()),
		argument.New("dsinks", g.DSinks, p.Sinks && !g.DSinks.IsZero(), dtype.Float32, p.SinksShape()),
	}
	if w := opt.Workspace; w != nil {
		if w.Bytes() < workspace {
			return fmt.Errorf("attention: workspace has %d bytes, want %d", w.Bytes(), workspace)
		}
		all := int(w.Bytes() / 4)
		outputs = append(outputs, argument.New("workspace", vk.View(w, dtype.Float32, all), true, dtype.Float32, []int{all}))
	}
	return argument.Check("attention", inputs, outputs)
}
