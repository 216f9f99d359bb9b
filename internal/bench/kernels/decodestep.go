package kernels

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A decodePart is the part of a generation that a decodeOp runs.
type decodePart string

// The parts: decode reads the cache, append writes to it, and a step does both, in one kernel if Step takes it.
const (
	readPart   decodePart = "decode"
	appendPart decodePart = "append"
	stepPart   decodePart = "step"
)

// each yields the lengths before each step.
func (o *decodeOp) each() iter.Seq[[]int32] {
	return func(yield func([]int32) bool) {
		lens := slices.Clone(o.tables.lens)
		for range max(o.steps, 1) {
			if !yield(lens) {
				return
			}
			for b := range lens {
				lens[b] += int32(o.p.NewKeys)
			}
		}
	}
}

// describePart names the part of a call, "" for Decode.
func (o *decodeOp) describePart() string {
	switch {
	case o.part == appendPart:
		return fmt.Sprintf("; append of %d keys", o.p.NewKeys)
	case o.part == stepPart && o.steps > 1:
		return fmt.Sprintf("; %d steps of append and decode, of %d keys each", o.steps, o.p.NewKeys)
	case o.part == prefillPart:
		return "; append and forward of a prompt"
	case o.part == stepPart:
		return fmt.Sprintf("; append of %d keys, and decode", o.p.NewKeys)
	}
	return ""
}

// append returns the problem of Append. K and Q of a file are already rotated.
func (o *decodeOp) append() attention.AppendProblem {
	p := attention.AppendProblem{DecodeProblem: o.p}
	if !o.file {
		p.RoPE.Dims = p.HeadDim
	}
	return p
}

// appendBytes returns the least traffic of one call of Append.
func (o *decodeOp) appendBytes() float64 {
	p := o.append()
	bytes := formatBytes(p.DType, p.NewKShape(), p.NewVShape()) + formatBytes(p.CacheDType(), p.NewKShape(), p.NewVShape()) + 4*float64(p.Batch)
	if p.Cache == attention.CacheQ8_0 {
		bytes += formatBytes(p.ScaleDType(), p.NewKShape(), p.NewVShape()) / attention.QuantBlock
	}
	if p.RoPE.Dims > 0 {
		bytes += 2*formatBytes(p.DType, p.QShape()) + 4*float64(p.Batch*p.NewKeys*p.RoPE.Dims)
	}
	return bytes
}

// formatBytes returns the bytes of tensors of a format.
func formatBytes(t dtype.DType, shapes ...[]int) (sum float64) {
	for _, shape := range shapes {
		n := float64(t.Size())
		for _, s := range shape {
			n *= float64(s)
		}
		sum += n
	}
	return sum
}

// partTensors returns the tensors of the part, given those of Decode. In measurements K and Q are
// rotated by angles of 0. So a call does not change Q, and can be repeated.
func (o *decodeOp) partTensors(list []bench.OpTensor) []bench.OpTensor {
	if o.part == readPart {
		return list
	}
	p := o.append()
	if o.part == appendPart {
		list = slices.DeleteFunc(list, func(t bench.OpTensor) bool {
			return !slices.Contains([]string{"q", "k_cache", "v_cache", "k_scale", "v_scale", "seq_lens", "block_table"}, t.Name)
		})
	}
	for i, x := range []bench.OpTensor{{Name: "k_new", DType: p.DType, Shape: p.NewKShape()}, {Name: "v_new", DType: p.DType, Shape: p.NewVShape()}} {
		if p.Cache == attention.CacheQ8_0 {
			x.Values = func() []float32 { return newRows(p.DType, p.Batch*p.NumKVHeads*p.NewKeys*x.Shape[3], uint64(100+i)) }
		}
		list = append(list, x)
	}
	if p.RoPE.Dims > 0 {
		shape := []int{p.SeqKV, p.RoPE.Dims / 2}
		list = append(list,
			bench.OpTensor{Name: "cos", Shape: shape, Draw: func(float32) float32 { return 1 }},
			bench.OpTensor{Name: "sin", Shape: shape, Draw: func(float32) float32 { return 0 }})
	}
	return list
}

// appendTensors returns the tensors of Append, given those of a call and of Decode.
func (o *decodeOp) appendTensors(t map[string]vk.Tensor, decode *attention.DecodeTensors) attention.AppendTensors {
	x := attention.AppendTensors{
		NewK: t["k_new"], NewV: t["v_new"], K: decode.K, V: decode.V, KScale: decode.KScale, VScale: decode.VScale,
		SeqLens: decode.SeqLens, BlockTable: decode.BlockTable, CacheBatchIdx: decode.CacheBatchIdx, State: decode.State,
	}
	if !o.file {
		x.Q, x.Cos, x.Sin = t["q"], t["cos"], t["sin"]
	}
	return x
}

// recordPart records what is not Decode alone.
func (o *decodeOp) recordPart(c *vk.Cmd, t map[string]vk.Tensor, decode attention.DecodeTensors, opt attention.Options) error {
	p, in, n := o.append(), o.appendTensors(t, &decode), max(o.steps, 1)
	if o.part == appendPart {
		return attention.Append(c, in, p)
	}
	for i := range n {
		if i > 0 {
			if err := attention.Advance(c, decode.SeqLens, p.NewKeys); err != nil {
				return err
			}
		}
		if err := attention.Step(c, attention.StepTensors{DecodeTensors: decode, NewK: in.NewK, NewV: in.NewV, Cos: in.Cos, Sin: in.Sin}, p, opt); err != nil {
			return err
		}
	}
	if n == 1 {
		return nil
	}
	return attention.Advance(c, decode.SeqLens, -(n-1)*p.NewKeys) // for the next call
}

// A newKey is a row of k_new and v_new, and the row of the caches that it goes to.
type newKey struct{ from, to int }

// newKeys lists those of all steps.
func (o *decodeOp) newKeys(in *ref.DecodeInputs[float32]) (list []newKey) {
	for lens := range o.each() {
		for b, n := range lens {
			for kv := range o.p.NumKVHeads {
				for i := range o.p.NewKeys {
					list = append(list, newKey{(b*o.p.NumKVHeads+kv)*o.p.NewKeys + i, in.At(&o.p, b, kv, int(n)+i)})
				}
			}
		}
	}
	return list
}

// appended returns the caches after all steps.
func (o *decodeOp) appended(in *ref.DecodeInputs[float32], t map[string][]float32) (k, v storedCache) {
	k, v = o.stored(t, "k"), o.stored(t, "v")
	if o.part == readPart {
		return k, v
	}
	for c, rows := range map[*storedCache][]float32{&k: t["k_new"], &v: t["v_new"]} {
		c.elements, c.scales = slices.Clone(c.elements), slices.Clone(c.scales)
		for _, x := range o.newKeys(in) {
			o.put(c, x.to, rows[x.from*c.dim:][:c.dim])
		}
	}
	return k, v
}

// caches returns the caches after Append, which stores the new rows bit for bit.
func (o *decodeOp) caches(in *ref.DecodeInputs[float32], k, v storedCache) bench.Reference {
	rows := func(name string, x []float32, each int) bench.Expected {
		e := bench.Expected{Name: name}
		for _, row := range o.newKeys(in) {
			for i := range each {
				e.At, e.Want = append(e.At, row.to*each+i), append(e.Want, float64(x[row.to*each+i]))
			}
		}
		return e
	}
	list := bench.Expectations{rows("k_cache", k.elements, k.dim), rows("v_cache", v.elements, v.dim)}
	if o.p.Cache == attention.CacheQ8_0 {
		list = append(list, rows("k_scale", k.scales, k.dim/attention.QuantBlock), rows("v_scale", v.scales, v.dim/attention.QuantBlock))
	}
	return list
}

const appendModule = "attention_append"

// appends reports whether a kernel is that of Append.
func (o *decodeOp) appends(kernel string) bool { return strings.HasPrefix(kernel, appendModule) }

// stepPlan is the Plan of Append and of the calls after it.
type stepPlan struct {
	attention.Plan
	before call.AppendPlan
}

// Kernels implements kit.Plan.
func (p stepPlan) Kernels() []string { return append(p.before.Kernels(), p.Plan.Kernels()...) }

// Choose implements bench.Op.
func (o *decodeOp) Choose(caps *vk.Caps, impl string, _ bench.Pass) (kit.Plan, error) {
	if o.part == appendPart {
		return call.PlanAppend(o.p), nil
	}
	return o.plan(caps, impl)
}
