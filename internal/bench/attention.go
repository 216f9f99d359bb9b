package bench

import (
	"fmt"
	"math"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An AttentionOp is a problem of package attention. Its inputs are normal, with the slopes of the
// ALiBi paper, a key mask that hides one key in eight, and the sequences of Varlen.
type AttentionOp struct {
	p         attention.Problem
	tuning    *kit.Tuning
	config    *attention.Config         // of the forward pass; nil: that of the tables
	backward  *attention.BackwardConfig // the same of the backward pass
	cuQ, cuKV []int32                   // where packed sequences begin
	file      bool                      // all gradients are wanted
	dlse      bool                      // the loss depends on LSE, too
}

// NewAttention returns the Op of a problem.
func NewAttention(p attention.Problem) (*AttentionOp, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	o := &AttentionOp{p: p}
	if p.Varlen.On {
		if want := Varlen(p.Batch, p.SeqQ, p.SeqKV); p.Varlen != want {
			return nil, fmt.Errorf("bench: varlen=%v is not what is measured, %v", p.Varlen, want)
		}
		o.cuQ, o.cuKV = cuSeqlens(p)
	}
	return o, nil
}

// NewAttentionOfFile returns the Op of a file's tensors. CuQ and cuKV say where packed sequences
// begin. A backward pass has all gradients, also those of bias and sinks. With dlse the file has
// the gradient by LSE.
func NewAttentionOfFile(p attention.Problem, cuQ, cuKV []int32, dlse bool) *AttentionOp {
	return &AttentionOp{p: p, cuQ: cuQ, cuKV: cuKV, file: true, dlse: dlse}
}

// Use returns the Op with the rows of tuning, which may be nil.
func (o *AttentionOp) Use(tuning *kit.Tuning) Op {
	with := *o
	with.tuning = tuning
	return &with
}

// Problem returns the problem.
func (o *AttentionOp) Problem() attention.Problem { return o.p }

// Name implements Op.
func (o *AttentionOp) Name() string { return "attention" }

// Describe implements Op.
func (o *AttentionOp) Describe() string { return Describe(o.p) }

// String returns the keys of benchmarks, which leave out features that are off.
func (o *AttentionOp) String() string { return o.p.String() }

// Keys implements Op.
func (o *AttentionOp) Keys() []Key {
	p, align := o.p, ""
	if p.Causal || p.Window.On || p.ALiBi != attention.ALiBiOff {
		align = p.CausalAlign.String()
	}
	return []Key{
		{"dtype", p.DType.String()}, {"batch", p.Batch}, {"heads", p.NumHeads}, {"kv_heads", p.NumKVHeads},
		{"seq_q", p.SeqQ}, {"seq_kv", p.SeqKV}, {"head_dim", p.HeadDim},
		{"causal", p.Causal}, {"causal_align", align}, {"scale", p.EffectiveScale()},
		{"value_dim", p.ValueHeadDim()}, {"window", p.Window.String()}, {"softcap", p.Softcap}, {"alibi", p.ALiBi.String()},
		{"bias", p.Bias.String()}, {"key_mask", p.KeyMask}, {"sinks", p.Sinks}, {"varlen", p.Varlen.String()}, {"dropout", p.Dropout.P},
	}
}

// Describe returns p in words.
func Describe(p attention.Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: batch %d, heads %d, kv-heads %d, seqlen %d", p.DType, p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ)
	if p.SeqKV != p.SeqQ {
		fmt.Fprintf(&b, ", seqlen-kv %d", p.SeqKV)
	}
	fmt.Fprintf(&b, ", headdim %d", p.HeadDim)
	if p.Causal {
		fmt.Fprintf(&b, ", causal (%v)", p.CausalAlign)
	}
	if p.Scale != 0 {
		fmt.Fprintf(&b, ", scale %g", p.Scale)
	}
	for _, f := range p.FeatureKeys() {
		fmt.Fprintf(&b, ", %s", f)
	}
	return b.String()
}

// Cost implements Op, by the conventions of attention.Problem.FLOPs and Bytes.
func (o *AttentionOp) Cost(p Pass) (operations, bytes float64) {
	n := flops(o.p)
	if p == Forward {
		return n, o.p.Bytes()
	}
	d, dv := float64(o.p.HeadDim), float64(o.p.ValueHeadDim())
	return n / (d + dv) * (3*d + 2*dv), o.p.BackwardBytes() // as attention.Problem.BackwardFLOPs
}

// Tensors implements Op. Inputs are drawn in this order.
func (o *AttentionOp) Tensors() []OpTensor {
	p := o.p
	list := []OpTensor{
		{Name: "q", DType: p.DType, Shape: p.QShape()},
		{Name: "k", DType: p.DType, Shape: p.KShape()},
		{Name: "v", DType: p.DType, Shape: p.VShape()},
		{Name: "o", DType: p.DType, Shape: p.OShape(), Role: call.Output},
		{Name: "lse", DType: dtype.Float32, Shape: p.LSEShape(), Role: call.Output},
		{Name: "do", DType: p.DType, Shape: p.OShape(), Role: call.Upstream},
		{Name: "dq", DType: p.DType, Shape: p.QShape(), Role: call.Gradient},
		{Name: "dk", DType: p.DType, Shape: p.KShape(), Role: call.Gradient},
		{Name: "dv", DType: p.DType, Shape: p.VShape(), Role: call.Gradient},
	}
	if p.Bias.On {
		list = append(list, OpTensor{Name: "bias", DType: p.Bias.DType, Shape: p.BiasShape()})
	}
	if p.ALiBi != attention.ALiBiOff {
		list = append(list, OpTensor{Name: "alibi_slopes", Shape: p.SlopesShape(), Values: func() []float32 { return ALiBiSlopes(p) }})
	}
	if p.KeyMask {
		list = append(list, OpTensor{Name: "key_mask", DType: dtype.Bool, Shape: p.KeyMaskShape(), Draw: visible})
	}
	if p.Sinks {
		list = append(list, OpTensor{Name: "sinks", Shape: p.SinksShape()})
	}
	if p.Varlen.On {
		list = append(list,
			OpTensor{Name: "cu_seqlens_q", DType: dtype.Int32, Shape: p.CuSeqlensShape(), Ints: o.cuQ, Most: p.Varlen.TotalQ},
			OpTensor{Name: "cu_seqlens_kv", DType: dtype.Int32, Shape: p.CuSeqlensShape(), Ints: o.cuKV, Most: p.Varlen.TotalKV})
	}
	if o.dlse {
		list = append(list, OpTensor{Name: "dlse", Shape: p.LSEShape(), Role: call.Upstream})
	}
	if o.file && p.Bias.On {
		list = append(list, OpTensor{Name: "dbias", DType: p.Bias.DType, Shape: p.BiasShape(), Role: call.Gradient})
	}
	if o.file && p.Sinks {
		list = append(list, OpTensor{Name: "dsinks", Shape: p.SinksShape(), Role: call.Gradient})
	}
	return list
}

// ALiBiSlopes returns the slopes of the ALiBi paper, in the shape that p has.
func ALiBiSlopes(p attention.Problem) []float32 {
	x := make([]float32, elements(p.SlopesShape()))
	for i := range x {
		x[i] = float32(math.Exp2(-8 * float64(i%p.NumHeads+1) / float64(p.NumHeads)))
	}
	return x
}

// visible returns 0 for one normal number in eight, and 1 for the others.
func visible(x float32) float32 {
	const eighth = -1.1503493803760079 // of a standard normal distribution are below this
	if x < eighth {
		return 0
	}
	return 1
}

// options returns the options of a call.
func (o *AttentionOp) options(impl string, p Pass) (attention.Options, error) {
	i, err := attention.ParseImpl(impl)
	opt := attention.Options{Impl: i, Tuning: o.tuning, Config: o.config}
	if p != Forward {
		opt.Config, opt.BackwardConfig = nil, o.backward
	}
	switch {
	case err != nil || i == attention.Auto:
	case opt.Config != nil && i != opt.Config.Impl:
		return opt, fmt.Errorf("attention: the configuration %q is not of path %v", opt.Config, i)
	case opt.BackwardConfig != nil && i != opt.BackwardConfig.Impl:
		return opt, fmt.Errorf("attention: the configuration %q is not of path %v", opt.BackwardConfig, i)
	}
	return opt, err
}

// UseConfig returns the Op with a configuration of a pass instead of that of the tables: an
// attention.Config or an attention.BackwardConfig.
func (o *AttentionOp) UseConfig(c any) *AttentionOp {
	with := *o
	switch c := c.(type) {
	case attention.Config:
		with.config = &c
	case attention.BackwardConfig:
		with.backward = &c
	}
	return &with
}

// Takes returns an error if a run of pass p leaves unused what UseConfig said. A run of the backward
// pass makes its inputs by the forward pass, which goes by the tables.
func (o *AttentionOp) Takes(p Pass) error {
	switch {
	case p == Forward && o.backward != nil:
		return fmt.Errorf("attention: the configuration %q is of the backward pass", o.backward)
	case p == Backward && o.config != nil && o.backward == nil:
		return fmt.Errorf("attention: the configuration %q is of the forward pass", o.config)
	}
	return nil
}

// Choose implements Op.
func (o *AttentionOp) Choose(caps *vk.Caps, impl string, p Pass) (kit.Plan, error) {
	opt, err := o.options(impl, p)
	if err != nil {
		return nil, err
	}
	return attention.Choose(caps, o.p, p.Kit(), opt)
}

// Record implements Op.
func (o *AttentionOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p Pass) error {
	opt, err := o.options(impl, p)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	x := attention.Tensors{
		O: t["o"], LSE: t["lse"], Q: t["q"], K: t["k"], V: t["v"],
		Bias: t["bias"], ALiBiSlopes: t["alibi_slopes"], Sinks: t["sinks"], KeyMask: t["key_mask"],
		CuSeqlensQ: t["cu_seqlens_q"], CuSeqlensKV: t["cu_seqlens_kv"],
	}
	o.fillUnused(c, t, p)
	if p == Forward {
		return attention.Forward(c, x, o.p, opt)
	}
	return attention.Backward(c, x, attention.Gradients{
		DO: t["do"], DLSE: t["dlse"], DQ: t["dq"], DK: t["dk"], DV: t["dv"], DBias: t["dbias"], DSinks: t["dsinks"],
	}, o.p, opt)
}

// fillUnused fills rows and keys in no sequence as a file should have them: kernels write
// sequences only.
func (o *AttentionOp) fillUnused(c *vk.Cmd, t map[string]vk.Tensor, p Pass) {
	last := func(cu []int32) int { return int(cu[len(cu)-1]) }
	if !o.p.Varlen.On || last(o.cuQ) == o.p.Varlen.TotalQ && last(o.cuKV) == o.p.Varlen.TotalKV {
		return
	}
	for _, x := range o.Tensors() {
		value := uint32(0)
		if x.Name == "lse" {
			value = math.Float32bits(float32(math.Inf(-1)))
		}
		if x.Written(p) {
			c.Fill(t[x.Name].Buffer, 0, t[x.Name].Buffer.Bytes(), value)
		}
	}
}

// Reference implements Op. For large problems it is that of sampled rows and keys.
func (o *AttentionOp) Reference(t map[string][]float32, p Pass) (Reference, error) {
	in := ref.Inputs[float32]{Q: t["q"], K: t["k"], V: t["v"], Bias: t["bias"], ALiBiSlopes: t["alibi_slopes"], Sinks: t["sinks"]}
	in.CuSeqlensQ, in.CuSeqlensKV = o.cuQ, o.cuKV
	for _, x := range t["key_mask"] {
		in.KeyMask = append(in.KeyMask, x != 0)
	}
	if p == Forward {
		return newOracle(in, o.p)
	}
	return newGradientOracle(in, ref.Upstream[float32]{DO: t["do"], DLSE: t["dlse"]}, t["o"], t["lse"], o.p)
}

// MaxCalls limits a batch of the unfused path: each call in a command buffer has its own memory
// for S, in a backward pass twice that.
func (o *AttentionOp) MaxCalls(impl string, pass Pass) int {
	if impl != attention.Unfused.String() {
		return 0
	}
	const limit = 2 << 30
	p := o.p
	bytes := 4 * float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) * float64(p.SeqKV)
	bytes *= [...]float64{Forward: 1, Backward: 2, Both: 3}[pass]
	return int(max(limit/bytes, 1))
}

// Ask fills in what peers are asked.
func (o *AttentionOp) Ask(request *peer.Request) {
	p := o.p
	request.DType, request.Batch, request.Heads, request.KVHeads = p.DType.String(), p.Batch, p.NumHeads, p.NumKVHeads
	request.SeqQ, request.SeqKV, request.HeadDim, request.ValueDim = p.SeqQ, p.SeqKV, p.HeadDim, p.ValueHeadDim()
	request.Causal, request.CausalAlign, request.Scale, request.Features = p.Causal, p.CausalAlign.String(), p.EffectiveScale(), p.FeatureKeys()
}
