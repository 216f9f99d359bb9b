package kernels

import (
	"errors"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// prefillPart is the beginning of a generation: a whole prompt goes into an empty cache and attends to
// itself.
const prefillPart decodePart = "prefill"

// A prefillOp is Append of all keys, then Forward of as many queries with the keys in the cache.
type prefillOp struct {
	*decodeOp // Append alone, to sequences without keys
	forward   *bench.AttentionOp
}

// newPrefillOp returns the op whose sequences have these numbers of keys afterwards.
func newPrefillOp(p attention.DecodeProblem, keys keyCounts, heads bool) (bench.Op, error) {
	lens := keys.lens(p.Batch)
	switch {
	case p.Cache != attention.CacheSame:
		return nil, fmt.Errorf("--part prefill reads a cache of --dtype, not of %v", p.Cache)
	case p.PageSize > 0:
		return nil, errors.New("--part prefill reads a cache without pages: leave --page-size out")
	case slices.Max(lens) != slices.Min(lens):
		return nil, errors.New("--part prefill is of prompts of one length")
	}
	p.SeqQ, p.SeqKV, p.NewKeys = lens[0], lens[0], lens[0]
	if err := (attention.AppendProblem{DecodeProblem: p}).Validate(); err != nil {
		return nil, err
	}
	forward, err := bench.NewAttention(p.Problem)
	if err != nil {
		return nil, err
	}
	o := &decodeOp{p: p, keys: keys.text, heads: heads, part: prefillPart, steps: 1, state: &decodeState{}}
	o.tables.lens = make([]int32, p.Batch)
	return &prefillOp{o, forward}, nil
}

// Cost implements bench.Op.
func (o *prefillOp) Cost(pass bench.Pass) (flops, bytes float64) {
	flops, bytes = o.forward.Cost(pass)
	return flops, bytes + o.appendBytes()
}

// Amounts says what else reports count: the cache, which is written and read.
func (o *prefillOp) Amounts() []bench.Amount {
	p := &o.p
	return []bench.Amount{
		{Name: "tokens", Key: "token", Unit: "token", N: float64(p.Batch * p.SeqQ)},
		{Name: "K and V", Key: "kv_byte", Unit: "B", N: 2 * formatBytes(p.DType, p.KShape(), p.VShape())},
	}
}

// Tensors implements bench.Op with the tensors of the forward pass. K and V are in the cache.
func (o *prefillOp) Tensors() []bench.OpTensor {
	var list []bench.OpTensor
	for _, t := range o.forward.Tensors() {
		if t.Role <= call.Output && t.Name != "k" && t.Name != "v" {
			list = append(list, t)
		}
	}
	k, v := o.cacheShapes()
	list = append(list, bench.OpTensor{Name: "k_cache", DType: o.p.DType, Shape: k, Role: call.Output}, bench.OpTensor{Name: "v_cache", DType: o.p.DType, Shape: v, Role: call.Output},
		bench.OpTensor{Name: "seq_lens", DType: dtype.Int32, Shape: o.p.SeqLensShape(), Ints: o.tables.lens, Most: o.p.SeqKV})
	return o.partTensors(list)
}

func (o *prefillOp) options(impl string) (attention.Options, error) {
	opt, err := o.decodeOp.options(impl)
	opt.DecodeConfig = nil
	return opt, err
}

// Choose implements bench.Op.
func (o *prefillOp) Choose(caps *vk.Caps, impl string, _ bench.Pass) (kit.Plan, error) {
	opt, err := o.options(impl)
	if err != nil {
		return nil, err
	}
	plan, err := attention.Choose(caps, o.p.Problem, kit.Forward, opt)
	return stepPlan{plan, call.PlanAppend(o.p)}, err
}

// Record implements bench.Op.
func (o *prefillOp) Record(c *vk.Cmd, t map[string]vk.Tensor, _ *vk.Buffer, impl string, _ bench.Pass) error {
	opt, err := o.options(impl)
	if err != nil {
		return err
	}
	decode, err := o.tensors(c, t)
	if err != nil {
		return err
	}
	if err := attention.Append(c, o.appendTensors(t, &decode), o.append()); err != nil {
		return err
	}
	return attention.Forward(c, attention.Tensors{
		Q: t["q"], K: decode.K, V: decode.V, O: t["o"], LSE: t["lse"], ALiBiSlopes: t["alibi_slopes"], Sinks: t["sinks"],
	}, o.p.Problem, opt)
}

// Reference implements bench.Op.
func (o *prefillOp) Reference(t map[string][]float32, pass bench.Pass) (bench.Reference, error) {
	t["k"], t["v"] = t["k_new"], t["v_new"]
	defer func() { delete(t, "k"); delete(t, "v") }()
	return o.forward.Reference(t, pass)
}

// Use implements bench.Tuner.
func (o *prefillOp) Use(tuning *kit.Tuning) bench.Op {
	with := *o.decodeOp
	with.tuning = tuning
	return &prefillOp{&with, o.forward}
}

// Note says what the dispatches of a call do.
func (o *prefillOp) Note(caps *vk.Caps, impl string, p bench.Pass, list []bench.DispatchProfile) error {
	if err := o.forward.Note(caps, impl, p, list); err != nil {
		return err
	}
	for i := range list {
		if o.appends(list[i].Kernel) {
			list[i].Note.FLOPs, list[i].Note.Bytes = 0, o.appendBytes()
		}
	}
	return nil
}
