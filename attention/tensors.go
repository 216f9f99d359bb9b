package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Tensors are the inputs and outputs of Forward; Backward reads them. The tensors of features that
// are off are zero Tensors. The others have any strides and a contiguous last axis.
//
//	tensor                   feature      shape                                          format
//	Q                                     (batch, num_heads, seq_q, head_dim)            DType
//	K                                     (batch, num_kv_heads, seq_kv, head_dim)        DType
//	V                                     (batch, num_kv_heads, seq_kv, value_dim)       DType
//	O                                     (batch, num_heads, seq_q, value_dim)           DType, written
//	LSE                                   (batch, num_heads, seq_q)                      float32, written; Forward may leave it out
//	Bias                     Bias.On      (batch or 1, num_heads or 1, seq_q or 1, seq_kv)  Bias.DType
//	ALiBiSlopes              ALiBi        (num_heads) or (batch, num_heads)              float32
//	Sinks                    Sinks        (num_heads)                                    float32
//	KeyMask                  KeyMask      (batch, seq_kv)                                bool, 1 is visible
//	CuSeqlensQ, CuSeqlensKV  Varlen.On    (batch+1)                                      int32
//
// CuSeqlensQ and CuSeqlensKV are on the device, so no call checks their values. If they break the
// rules of Problem.CheckCuSeqlens, which checks them on the host, results are undefined.
type Tensors struct {
	Q, K, V, O, LSE vk.Tensor

	Bias        vk.Tensor
	ALiBiSlopes vk.Tensor
	Sinks       vk.Tensor
	KeyMask     vk.Tensor
	CuSeqlensQ  vk.Tensor
	CuSeqlensKV vk.Tensor
}

// all returns the tensors in the order of Problem.parts.
func (t *Tensors) all() []*vk.Tensor {
	return []*vk.Tensor{&t.Q, &t.K, &t.V, &t.O, &t.LSE, &t.Bias, &t.ALiBiSlopes, &t.Sinks, &t.KeyMask, &t.CuSeqlensQ, &t.CuSeqlensKV}
}

// A part is a tensor of a problem, in the order of the fields of Tensors.
type part struct {
	name  string
	on    bool
	dtype dtype.DType
	shape []int
	axes  [2]string // for errors: without and with Varlen
}

// parts returns what p demands of each tensor.
func (p *Problem) parts() [11]part {
	list := [11]part{
		{"q", true, p.DType, p.QShape(), [2]string{"(batch, num_heads, seq_q, head_dim)", "(total_q, num_heads, head_dim)"}},
		{"k", true, p.DType, p.KShape(), [2]string{"(batch, num_kv_heads, seq_kv, head_dim)", "(total_kv, num_kv_heads, head_dim)"}},
		{"v", true, p.DType, p.VShape(), [2]string{"(batch, num_kv_heads, seq_kv, value_dim)", "(total_kv, num_kv_heads, value_dim)"}},
		{"o", true, p.DType, p.OShape(), [2]string{"(batch, num_heads, seq_q, value_dim)", "(total_q, num_heads, value_dim)"}},
		{"lse", true, dtype.Float32, p.LSEShape(), [2]string{"(batch, num_heads, seq_q)", "(num_heads, total_q)"}},
	}
	features := p.featureParts()
	copy(list[5:], features[:])
	return list
}

// featureParts returns the parts of features.
func (p *Problem) featureParts() [6]part {
	feature := func(name string, on bool, format dtype.DType, shape func(Problem) []int) part {
		if !on { // most are off, and their shapes would cost every call a little
			return part{name: name}
		}
		return part{name: name, on: true, dtype: format, shape: shape(*p)}
	}
	return [...]part{
		feature("bias", p.Bias.On, p.Bias.DType, Problem.BiasShape),
		feature("alibi_slopes", p.ALiBi != ALiBiOff, dtype.Float32, Problem.SlopesShape),
		feature("sinks", p.Sinks, dtype.Float32, Problem.SinksShape),
		feature("key_mask", p.KeyMask, dtype.Bool, Problem.KeyMaskShape),
		feature("cu_seqlens_q", p.Varlen.On, dtype.Int32, Problem.CuSeqlensShape),
		feature("cu_seqlens_kv", p.Varlen.On, dtype.Int32, Problem.CuSeqlensShape),
	}
}

// bytes returns the size of a part, 0 of one that p does not have.
func (x *part) bytes() float64 {
	if !x.on {
		return 0
	}
	n := float64(x.dtype.Size())
	for _, s := range x.shape {
		n *= float64(s)
	}
	return n
}

// argument returns a tensor as p demands it.
func (p *Problem) argument(x *part, t *vk.Tensor) argument.Argument {
	axes := x.axes[0]
	if p.Varlen.On {
		axes = x.axes[1]
	}
	return argument.New(x.name, *t, x.on, x.dtype, x.shape).Axes(axes)
}

// Gradients are the inputs and outputs that only Backward has: gradients of the loss with respect
// to the tensors of the same name. Strides are as in Tensors.
//
//	tensor  shape and format
//	DO      of O, read
//	DLSE    of LSE, read: where the loss depends on LSE; zeros if it is left out
//	DQ      of Q, written
//	DK      of K, written
//	DV      of V, written
//	DBias   of Bias, written: summed over the axes that it shares; may be left out
//	DSinks  of Sinks, written; may be left out
type Gradients struct {
	DO, DLSE vk.Tensor

	DQ, DK, DV, DBias, DSinks vk.Tensor
}

// checkForward returns an error that names the first tensor that does not fit the problem.
func checkForward(t *Tensors, p *Problem) error {
	parts, all := p.parts(), t.all()
	inputs, outputs := make([]argument.Argument, 0, len(parts)), make([]argument.Argument, 0, 2)
	parts[4].on = !t.LSE.IsZero()
	for i := range parts {
		switch x := &parts[i]; {
		case i == 3 || i == 4:
			outputs = append(outputs, p.argument(x, all[i]))
		case x.on || !all[i].IsZero():
			inputs = append(inputs, p.argument(x, all[i]))
		}
	}
	return argument.Check("attention", inputs, outputs)
}

// checkBackward is checkForward for Backward, which needs a workspace of this many bytes.
func checkBackward(t *Tensors, g *Gradients, w *vk.Buffer, p *Problem, workspace int64) error {
	parts, all := p.parts(), t.all()
	inputs, outputs := make([]argument.Argument, 0, len(parts)+2), make([]argument.Argument, 0, 6)
	for i := range parts {
		inputs = append(inputs, p.argument(&parts[i], all[i]))
	}
	for _, x := range []struct {
		t  vk.Tensor
		of int // the part that has the same shape
		on bool
	}{{g.DO, 3, true}, {g.DLSE, 4, !g.DLSE.IsZero()}, {g.DQ, 0, true}, {g.DK, 1, true}, {g.DV, 2, true}, {g.DBias, 5, !g.DBias.IsZero()}, {g.DSinks, 7, !g.DSinks.IsZero()}} {
		y := parts[x.of]
		y.name, y.on = "d"+y.name, y.on && x.on
		if x.of == 3 || x.of == 4 {
			inputs = append(inputs, p.argument(&y, &x.t))
		} else {
			outputs = append(outputs, p.argument(&y, &x.t))
		}
	}
	outputs, err := withWorkspace(outputs, "attention", w, workspace)
	if err != nil {
		return err
	}
	return argument.Check("attention", inputs, outputs)
}

// withWorkspace adds the caller's workspace, if there is one, to the outputs of a kernel.
func withWorkspace(outputs []argument.Argument, kernel string, w *vk.Buffer, bytes int64) ([]argument.Argument, error) {
	if w == nil {
		return outputs, nil
	}
	if w.Bytes() < bytes {
		return nil, fmt.Errorf("%s: workspace has %d bytes, want %d", kernel, w.Bytes(), bytes)
	}
	all := int(w.Bytes() / 4)
	return append(outputs, argument.New("workspace", vk.View(w, dtype.Float32, all), true, dtype.Float32, []int{all})), nil
}
