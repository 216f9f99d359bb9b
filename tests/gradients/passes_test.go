package gradients

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// passes lists the backward passes, on every path.
func passes(caps *vk.Caps) (list []pass) {
	for _, k := range call.All() {
		for i, c := range k.Gradients {
			x := callPass(caps, fmt.Sprintf("%s/%d", k.Name, i), k.Backward, c)
			a, ok := c.(*call.Attention)
			impl := call.Field(c, "impl")
			x.long = impl.IsValid() && strings.HasPrefix(fmt.Sprint(impl.Interface()), engine.CoopMat.String()) && !(ok && a.Plain())
			list = append(list, x)
		}
	}
	return list
}

// callPass is the pass of a call: the loss is the sum of the outputs' products with their gradients.
func callPass(caps *vk.Caps, name, function string, c call.Call) pass {
	x := pass{name: name, function: function, inputs: map[string][]int{}, outputs: map[string][]int{}}
	_, x.unsupported = c.Choose(caps, kit.Backward)
	for _, t := range c.Tensors() {
		switch {
		case t.Off:
		case t.Role == call.Input, t.Role == call.Upstream:
			x.inputs[t.Name] = t.Shape
		case t.Role == call.Output:
			x.outputs[t.Name] = t.Shape
		}
	}
	for _, t := range c.Tensors() {
		if input := strings.TrimPrefix(t.Name, "d"); t.Role == call.Gradient && x.inputs[input] != nil {
			x.by = append(x.by, input)
		}
	}
	x.loss = func(in values) (loss float64) {
		out := c.Want(call.Values(in), kit.Forward)
		for name := range x.outputs {
			if w, _ := out.Of(name); in["d"+name] != nil {
				loss += dot(w.Want, in["d"+name])
			}
		}
		return loss
	}
	x.record = func(cmd *vk.Cmd, on tensors) error {
		all := map[string]vk.Tensor{}
		for _, t := range c.Tensors() {
			if !t.Off {
				all[t.Name] = on(t.Name)
			}
		}
		if err := c.Record(cmd, all, nil, kit.Forward); err != nil {
			return err
		}
		return c.Record(cmd, all, nil, kit.Backward)
	}
	return x
}
