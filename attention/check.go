package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// checkForward returns an error that names the first tensor that does not fit
// the problem.
func checkForward(o, lse, q, k, v vk.Tensor, in *Inputs, p Problem) error {
	inputs := append(make([]argument, 0, 9),
		argument{"q", q, true, p.DType, p.QShape()},
		argument{"k", k, true, p.DType, p.KShape()},
		argument{"v", v, true, p.DType, p.VShape()})
	inputs = in.appendTo(inputs, p)
	outputs := [...]argument{
		{"o", o, true, p.DType, p.OShape()},
		{"lse", lse, !lse.IsZero(), dtype.Float32, p.LSEShape()},
	}
	return checkArguments(inputs, outputs[:])
}

// checkBackward is checkForward for Backward.
func checkBackward(dq, dk, dv, do, o, lse, q, k, v vk.Tensor, opt *Options, p Problem) error {
	g := &opt.Gradients
	inputs := append(make([]argument, 0, 13),
		argument{"q", q, true, p.DType, p.QShape()},
		argument{"k", k, true, p.DType, p.KShape()},
		argument{"v", v, true, p.DType, p.VShape()},
		argument{"o", o, true, p.DType, p.OShape()},
		argument{"lse", lse, true, dtype.Float32, p.LSEShape()},
		argument{"do", do, true, p.DType, p.OShape()},
		argument{"dlse", g.DLSE, !g.DLSE.IsZero(), dtype.Float32, p.LSEShape()})
	inputs = opt.Inputs.appendTo(inputs, p)
	outputs := []argument{
		{"dq", dq, true, p.DType, p.QShape()},
		{"dk", dk, true, p.DType, p.KShape()},
		{"dv", dv, true, p.DType, p.VShape()},
		{"dbias", g.DBias, p.Bias.On && !g.DBias.IsZero(), p.Bias.DType, p.BiasShape()},
		{"dsinks", g.DSinks, p.Sinks && !g.DSinks.IsZero(), dtype.Float32, p.SinksShape()},
	}
	if w := opt.Workspace; w != nil {
		if want := rowsBytes(p); w.Bytes() < want {
			return fmt.Errorf("attention: workspace has %d bytes, want %d", w.Bytes(), want)
		}
		all := int(w.Bytes() / 4)
		outputs = append(outputs, argument{"workspace", vk.View(w, dtype.Float32, all), true, dtype.Float32, []int{all}})
	}
	return checkArguments(inputs, outputs)
}

// checkArguments checks each argument, then that outputs share memory with nothing.
func checkArguments(inputs, outputs []argument) error {
	for i := range inputs {
		if err := inputs[i].check(); err != nil {
			return err
		}
	}
	for i := range outputs {
		if err := outputs[i].check(); err != nil {
			return err
		}
	}
	for i := range outputs {
		out := &outputs[i]
		if !out.present {
			continue
		}
		if out.selfOverlaps() {
			return fmt.Errorf("attention: %s has strides %v for shape %v: elements of an output may not share memory", out.name, out.Strides, out.Shape)
		}
		for j := range inputs {
			if inputs[j].present && out.overlaps(&inputs[j]) {
				return fmt.Errorf("attention: %s overlaps %s: outputs need memory of their own", out.name, inputs[j].name)
			}
		}
		for j := range i {
			if outputs[j].present && out.overlaps(&outputs[j]) {
				return fmt.Errorf("attention: %s overlaps %s: outputs need memory of their own", out.name, outputs[j].name)
			}
		}
	}
	return nil
}

// An argument is a tensor with what it must be.
type argument struct {
	name string
	vk.Tensor
	present   bool // the problem has it
	wantType  dtype.DType
	wantShape []int
}

// check returns an error unless t is a valid tensor of its format and shape
// with a contiguous last axis, or is absent as it should be.
func (t *argument) check() error {
	if !t.present {
		if !t.IsZero() {
			return fmt.Errorf("attention: %s is given, but the problem has none", t.name)
		}
		return nil
	}
	if t.Buffer == nil {
		return fmt.Errorf("attention: %s has no buffer", t.name)
	}
	if t.DType != t.wantType {
		return fmt.Errorf("attention: %s is %v, want %v", t.name, t.DType, t.wantType)
	}
	same := len(t.Shape) == len(t.wantShape) && len(t.Strides) == len(t.wantShape)
	for i := 0; same && i < len(t.wantShape); i++ {
		same = t.Shape[i] == t.wantShape[i]
	}
	if !same {
		return fmt.Errorf("attention: %s has shape %v and strides %v, want shape %v", t.name, t.Shape, t.Strides, t.wantShape)
	}
	if last := len(t.wantShape) - 1; t.Strides[last] != 1 && t.Shape[last] != 1 {
		return fmt.Errorf("attention: %s has strides %v: the last axis is not contiguous", t.name, t.Strides)
	}
	if err := t.Validate(); err != nil {
		return fmt.Errorf("attention: %s: %w", t.name, err)
	}
	return nil
}

// overlaps reports whether the address ranges of two tensors meet.
func (t *argument) overlaps(u *argument) bool {
	if t.Buffer != u.Buffer {
		return false
	}
	tSize, uSize := t.DType.Size(), u.DType.Size()
	return t.Offset*tSize < (u.Offset+u.Span())*uSize && u.Offset*uSize < (t.Offset+t.Span())*tSize
}

// selfOverlaps reports whether two elements of t may share memory: axes taken
// from the smallest stride up must each step over all the smaller ones.
func (t *argument) selfOverlaps() bool {
	var done [4]bool
	span := 1
	for range t.Shape {
		next := -1
		for i, n := range t.Shape {
			if !done[i] && n > 1 && (next < 0 || t.Strides[i] < t.Strides[next]) {
				next = i
			}
		}
		if next < 0 {
			return false
		}
		if t.Strides[next] < span {
			return true
		}
		span += (t.Shape[next] - 1) * t.Strides[next]
		done[next] = true
	}
	return false
}
