package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// checkForward returns an error that names the first tensor that does not fit
// the problem.
func checkForward(t *Tensors, p Problem) error {
	inputs := append(make([]argument.Argument, 0, 9),
		argument.New("q", t.Q, true, p.DType, p.QShape()).Axes(p.axes(qAxes)),
		argument.New("k", t.K, true, p.DType, p.KShape()).Axes(p.axes(kAxes)),
		argument.New("v", t.V, true, p.DType, p.VShape()).Axes(p.axes(vAxes)))
	inputs = t.appendFeatures(inputs, p)
	outputs := [...]argument.Argument{
		argument.New("o", t.O, true, p.DType, p.OShape()).Axes(p.axes(oAxes)),
		argument.New("lse", t.LSE, !t.LSE.IsZero(), dtype.Float32, p.LSEShape()).Axes(p.axes(lseAxes)),
	}
	return argument.Check("attention", inputs, outputs[:])
}

// checkBackward is checkForward for Backward, which needs a workspace of this many bytes.
func checkBackward(t *Tensors, g *Gradients, w *vk.Buffer, p Problem, workspace int64) error {
	inputs := append(make([]argument.Argument, 0, 13),
		argument.New("q", t.Q, true, p.DType, p.QShape()).Axes(p.axes(qAxes)),
		argument.New("k", t.K, true, p.DType, p.KShape()).Axes(p.axes(kAxes)),
		argument.New("v", t.V, true, p.DType, p.VShape()).Axes(p.axes(vAxes)),
		argument.New("o", t.O, true, p.DType, p.OShape()).Axes(p.axes(oAxes)),
		argument.New("lse", t.LSE, true, dtype.Float32, p.LSEShape()).Axes(p.axes(lseAxes)),
		argument.New("do", g.DO, true, p.DType, p.OShape()).Axes(p.axes(oAxes)),
		argument.New("dlse", g.DLSE, !g.DLSE.IsZero(), dtype.Float32, p.LSEShape()).Axes(p.axes(lseAxes)))
	inputs = t.appendFeatures(inputs, p)
	outputs := []argument.Argument{
		argument.New("dq", g.DQ, true, p.DType, p.QShape()).Axes(p.axes(qAxes)),
		argument.New("dk", g.DK, true, p.DType, p.KShape()).Axes(p.axes(kAxes)),
		argument.New("dv", g.DV, true, p.DType, p.VShape()).Axes(p.axes(vAxes)),
		argument.New("dbias", g.DBias, p.Bias.On && !g.DBias.IsZero(), p.Bias.DType, p.BiasShape()),
		argument.New("dsinks", g.DSinks, p.Sinks && !g.DSinks.IsZero(), dtype.Float32, p.SinksShape()),
	}
	if w != nil {
		if w.Bytes() < workspace {
			return fmt.Errorf("attention: workspace has %d bytes, want %d", w.Bytes(), workspace)
		}
		all := int(w.Bytes() / 4)
		outputs = append(outputs, argument.New("workspace", vk.View(w, dtype.Float32, all), true, dtype.Float32, []int{all}))
	}
	return argument.Check("attention", inputs, outputs)
}

// The axes of tensors, for errors: without and with Varlen.
var (
	qAxes   = [2]string{"(batch, num_heads, seq_q, head_dim)", "(total_q, num_heads, head_dim)"}
	kAxes   = [2]string{"(batch, num_kv_heads, seq_kv, head_dim)", "(total_kv, num_kv_heads, head_dim)"}
	vAxes   = [2]string{"(batch, num_kv_heads, seq_kv, value_dim)", "(total_kv, num_kv_heads, value_dim)"}
	oAxes   = [2]string{"(batch, num_heads, seq_q, value_dim)", "(total_q, num_heads, value_dim)"}
	lseAxes = [2]string{"(batch, num_heads, seq_q)", "(num_heads, total_q)"}
)

// axes returns the axes that tensors of the problem have.
func (p Problem) axes(names [2]string) string {
	if p.Varlen.On {
		return names[1]
	}
	return names[0]
}
