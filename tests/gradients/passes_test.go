package gradients

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/attention"
	attentionref "github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// passes lists the backward passes, on every path.
func passes(caps *vk.Caps) (list []pass) {
	for _, impl := range attention.Impls() {
		list = append(list, attentionPasses(caps, attention.Options{Impl: impl})...)
	}
	for _, k := range call.All() {
		for i, c := range k.Gradients {
			x := callPass(caps, fmt.Sprintf("%s/%d", k.Name, i), k.Backward, c)
			impl := call.Field(c, "impl")
			x.long = impl.IsValid() && impl.String() == engine.CoopMat.String()
			list = append(list, x)
		}
	}
	return list
}

// attentionPasses are the passes of dO and dLSE for causal rows, and for features.
func attentionPasses(caps *vk.Caps, o attention.Options) (list []pass) {
	plain := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 9, SeqKV: 11, HeadDim: 8, Causal: true}
	features := plain
	features.Causal, features.Sinks, features.Softcap = false, true, 2
	features.Bias = attention.Bias{On: true, Heads: true, Rows: true}
	for i, p := range []attention.Problem{plain, features} {
		x := pass{
			name: fmt.Sprintf("attention/%v/%d", o.Impl, i), function: "attention.Backward",
			inputs:  map[string][]int{"q": p.QShape(), "k": p.KShape(), "v": p.VShape(), "do": p.OShape(), "dlse": p.LSEShape()},
			outputs: map[string][]int{"o": p.OShape(), "lse": p.LSEShape()}, by: []string{"q", "k", "v"},
			unsupported: attention.Supports(caps, p, kit.Backward, o), long: i > 0 && o.Impl != attention.Scalar && o.Impl != attention.Unfused,
		}
		if p.Sinks {
			x.inputs["sinks"], x.inputs["bias"] = p.SinksShape(), p.BiasShape()
			x.by = append(x.by, "sinks", "bias")
		}
		x.loss = func(x values) float64 {
			out, lse := make([]float64, len(x["do"])), make([]float64, len(x["dlse"]))
			in := attentionref.Inputs[float64]{Q: x["q"], K: x["k"], V: x["v"], Sinks: x["sinks"], Bias: x["bias"]}
			if err := attentionref.Forward(out, lse, in, p); err != nil {
				panic(err)
			}
			return dot(out, x["do"]) + dot(lse, x["dlse"])
		}
		x.record = func(c *vk.Cmd, on tensors) error {
			t := attention.Tensors{Q: on("q"), K: on("k"), V: on("v"), O: on("o"), LSE: on("lse"), Sinks: on("sinks"), Bias: on("bias")}
			if err := attention.Forward(c, t, p, o); err != nil {
				return err
			}
			g := attention.Gradients{DO: on("do"), DLSE: on("dlse"), DQ: on("dq"), DK: on("dk"), DV: on("dv"), DSinks: on("dsinks"), DBias: on("dbias")}
			return attention.Backward(c, t, g, p, o)
		}
		list = append(list, x)
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
