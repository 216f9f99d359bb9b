package kernels

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A decoding is a call of a part of a generation.
type decoding struct {
	call.Step
	Keys  keyCounts
	Part  decodePart
	Order string // of axes
	file  bool   // the tensors come from a file: caches are outputs, and keys and queries rotated
}

// prepare sets what follows from the flags: lengths, the capacity, and as many pages as the keys need.
// A step appends a key for each query.
func (d *decoding) prepare() error {
	d.KeysFirst = d.Order == layoutNHD
	if d.file {
		return nil
	}
	sizes, first := d.Problem, d.DecodeProblem // before the sizes are used
	sizes.SeqQ, sizes.SeqKV, first.SeqKV, first.PageSize = 1, 1, 1, 0
	if err := sizes.Validate(); err != nil {
		return err
	}
	if err := first.Validate(); err != nil && d.Part != prefillPart {
		return err
	}
	if d.Batch > maxPacked {
		return fmt.Errorf("--batch %d is more than %d sequences", d.Batch, maxPacked)
	}
	d.Lens, d.RoPE.Dims = d.Keys.lens(d.Batch), d.HeadDim
	switch {
	case d.Part == readPart:
		d.RoPE.Dims = 0
	case d.Part != prefillPart:
		d.NewKeys = d.SeqQ
	case d.Cache != attention.CacheSame:
		return fmt.Errorf("--part prefill reads a cache of --dtype, not of %v", d.Cache)
	case d.PageSize > 0:
		return fmt.Errorf("--part prefill reads a cache without pages: leave --page-size out")
	case d.Keys.first != d.Keys.last && d.Batch > 1:
		return fmt.Errorf("--part prefill is of prompts of one length")
	default:
		d.SeqQ, d.NewKeys = d.Lens[0], d.Lens[0]
		clear(d.Lens)
	}
	if d.Cache == attention.CacheE4M3 {
		d.Scales = call.AllScales
	}
	added := d.NewKeys
	d.SeqKV, d.Pages, d.NewKeys = math.MaxInt, 0, added*d.Steps
	d.Decode.Tidy()
	d.NewKeys = added
	return nil
}

// of returns the call of the part.
func (d *decoding) of() call.Call {
	switch d.Part {
	case readPart:
		return &d.Decode
	case stepPart:
		return &d.Step
	case prefillPart:
		p := &prefill{Append: d.Append(), forward: call.Attention{Problem: d.Problem, Impl: d.Impl, Data: d.Data}}
		p.forward.Sample = sampleRows(&d.Problem)
		return p
	}
	return d.Append()
}

func (d *decoding) Validate() error { return d.of().Validate() }

func (d *decoding) Tensors() []call.Tensor { return d.of().Tensors() }

func (d *decoding) Host() call.Host { return d.of().Host() }

func (d *decoding) Sampled(x map[string][]float32) call.Outputs { return d.of().(sampler).Sampled(x) }

// A prefill is the beginning of a generation: Append of all keys to empty sequences, then Forward of as
// many queries with the keys in the cache.
type prefill struct {
	*call.Append
	forward call.Attention
}

func (p *prefill) Validate() error { return cmp.Or(p.Append.Validate(), p.forward.Validate()) }

// Tensors implements call.Call. K and V of the forward pass are in the cache.
func (p *prefill) Tensors() (list []call.Tensor) {
	for _, t := range p.forward.Tensors() {
		if t.Role <= call.Output && t.Name != "k" && t.Name != "v" {
			list = append(list, t)
		}
	}
	for _, t := range p.Append.Tensors() {
		if t.Role == call.Update && !t.State {
			t.Role = call.Output
		}
		if t.Name != "q" {
			list = append(list, t)
		}
	}
	return list
}

// A prefillPlan is the plan of the forward pass after Append.
type prefillPlan struct {
	attention.Plan
	before kit.Plan
}

func (p prefillPlan) Kernels() []string { return append(p.before.Kernels(), p.Plan.Kernels()...) }

func (p *prefill) Host() call.Host { return call.Host{Choose: p.choose, Bind: p.bind} }

func (p *prefill) choose(caps *vk.Caps, pass kit.Pass) (kit.Plan, error) {
	before, err := p.Append.Host().Choose(caps, pass)
	if err != nil {
		return nil, err
	}
	plan, err := p.forward.Host().Choose(caps, pass)
	if err != nil {
		return nil, err
	}
	return prefillPlan{plan.(attention.Plan), before}, nil
}

func (p *prefill) bind(t map[string]vk.Tensor, workspace *vk.Buffer, pass kit.Pass) call.Recording {
	before := p.Append.Host().Bind(t, nil, pass)
	t = maps.Clone(t)
	for _, name := range []string{"k", "v"} {
		if p.KeysFirst {
			t[name] = t[name].Permute(0, 2, 1, 3)
		}
	}
	return steps.List{before, p.forward.Host().Bind(t, workspace, pass)}.Record
}

func (p *prefill) Sampled(x map[string][]float32) call.Outputs {
	in := call.Values{}
	for name, values := range x {
		in[name] = call.Wide(values)
	}
	in["k"], in["v"] = in["new_k"], in["new_v"]
	return p.forward.Want(in, kit.Forward)
}

// decodeTensors completes what is measured. Rows rotate by angles of 0, so that calls can be repeated,
// and what Append writes in 8 bits is exact.
func decodeTensors(d *decoding, list []call.Tensor) {
	tables, exact := call.Values{}, d.Cache == attention.CacheQ8_0 && d.Part != readPart
	d.Tables(tables)
	for i := range list {
		t := &list[i]
		for _, n := range tables[t.Name] {
			t.Ints = append(t.Ints, int32(n))
		}
		switch t.Name {
		case "q":
			t.Role = call.Input
		case "k_cache", "v_cache", "k_scale", "v_scale":
			if d.Part == stepPart && !d.file {
				t.Role = call.Input
			}
			switch {
			case t.DType == dtype.Int8:
				t.Draw = integer
			case t.Name[1:] == "_scale" && d.Cache == attention.CacheE4M3 && d.Part != readPart:
				t.Draw = func(x float64) float64 { return math.Exp2(math.Round(x) - 6) }
			case t.Name[1:] == "_scale":
				t.Draw = func(x float64) float64 { return 0.01 + 0.02*math.Abs(x) }
			}
		case "k_new", "v_new":
			if exact {
				t.Values = func() []float32 { return exactRows(t, uint64(100+i)) }
			}
		case "cos":
			t.Draw = func(float64) float64 { return 1 }
		case "sin":
			t.Draw = func(float64) float64 { return 0 }
		case "alibi_slopes":
			t.Values = func() []float32 { return alibiSlopes(d.Problem) }
		case "block_table", "tree_mask":
			t.Free = true
		}
	}
}

// integer turns a normal number into an integer of q8_0.
func integer(x float64) float64 { return max(-127, min(math.RoundToEven(x*40), 127)) }

// exactRows returns rows that Append stores exactly in q8_0: integers divided by 64. The first element
// of each block is its largest.
func exactRows(t *call.Tensor, seed uint64) []float32 {
	x := bench.Normal(t.DType, call.Product(t.Shape), seed)
	for i := range x {
		if x[i] = float32(integer(float64(x[i])) / 64); i%attention.QuantBlock == 0 {
			x[i] = 127.0 / 64
		}
	}
	return x
}

// each calls f with the lengths before each step.
func (d *decoding) each(f func(lens []int32)) {
	lens := make([]int32, len(d.Lens))
	for i := range d.Steps {
		for b, n := range d.Lens {
			lens[b] = int32(n + i*d.NewKeys)
		}
		f(lens)
	}
}

// appendBytes returns the least traffic of a call of Append.
func (d *decoding) appendBytes() float64 {
	bytes := func(t dtype.DType, shapes ...[]int) (sum float64) {
		for _, shape := range shapes {
			sum += float64(t.Size()) * float64(call.Product(shape))
		}
		return sum
	}
	p := attention.AppendProblem{DecodeProblem: d.DecodeProblem, RoPE: d.RoPE}
	sum := bytes(p.DType, p.NewKShape(), p.NewVShape()) + bytes(p.CacheDType(), p.NewKShape(), p.NewVShape()) + 4*float64(p.Batch)
	if p.Cache == attention.CacheQ8_0 {
		sum += bytes(p.ScaleDType(), p.NewKShape(), p.NewVShape()) / attention.QuantBlock
	}
	if p.RoPE.Dims > 0 {
		sum += 2*bytes(p.DType, p.QShape()) + 4*float64(p.Batch*p.NewKeys*p.RoPE.Dims)
	}
	return sum
}

// FLOPs returns the operations of a call.
func (d *decoding) FLOPs() (sum float64) {
	switch d.Part {
	case appendPart:
	case prefillPart:
		return d.Problem.FLOPs()
	default:
		d.each(func(lens []int32) { sum += d.FLOPsOf(lens) })
	}
	return sum
}

// Bytes returns the least traffic of a call.
func (d *decoding) Bytes() (sum float64) {
	switch d.Part {
	case appendPart:
		return d.appendBytes()
	case prefillPart:
		return d.appendBytes() + d.Problem.Bytes()
	case stepPart:
		sum = float64(d.Steps) * d.appendBytes()
	}
	d.each(func(lens []int32) { sum += d.BytesOf(lens) })
	return sum
}

// Amounts says what else reports count: tokens, one for each query, and what is read of the cache.
func (d *decoding) Amounts() []bench.Amount {
	read := 0.0
	d.each(func(lens []int32) { read += d.CacheBytesOf(lens) })
	switch d.Part {
	case appendPart:
		read = d.appendBytes()
	case prefillPart: // the cache is written and read
		read = 2 * float64(d.DType.Size()*(call.Product(d.KShape())+call.Product(d.VShape())))
	}
	return []bench.Amount{
		{Name: "tokens", Key: "token", Unit: "token", N: float64(d.Batch * d.SeqQ * d.Steps)},
		{Name: "K and V", Key: "kv_byte", Unit: "B", N: read},
	}
}

// derived returns the values of keys that are not fields.
func (d *decoding) derived() map[string]any {
	keys := any(d.Keys.String())
	switch {
	case d.file:
		keys = "of the file"
	case d.Part == prefillPart:
		keys = d.SeqKV
	case len(d.Lens) > 0 && slices.Max(d.Lens) == slices.Min(d.Lens):
		keys = d.Lens[0]
	}
	return map[string]any{"keys": keys, "value_dim": d.ValueHeadDim()}
}

// Note says what the dispatches of a call do.
func (d *decoding) Note(plan kit.Plan, list []bench.DispatchProfile) {
	if p, ok := plan.(prefillPlan); ok {
		newProblem(d.Problem).Note(p.Plan, list)
	}
	decode, _ := plan.(attention.Plan)
	step := 0 // of stepPart
	for i := range list {
		x := &list[i].Note
		switch {
		case strings.HasPrefix(list[i].Kernel, "attention_append"):
			x.FLOPs, x.Bytes = 0, d.appendBytes()
			continue
		case d.Part == prefillPart || !strings.HasPrefix(list[i].Kernel, "attention_decode"):
			continue
		}
		lens := make([]int32, len(d.Lens))
		for b, n := range d.Lens {
			lens[b] = int32(n + step*d.NewKeys)
		}
		step++
		x.FLOPs, x.Bytes = d.FLOPsOf(lens), d.BytesOf(lens)
		if decode.Decode.Append {
			x.Bytes += d.appendBytes()
		}
		x.Matrices, x.DType, x.Text = decode.Decode.Impl == attention.CoopMat, d.DType, fmt.Sprintf("%d sequences, keys %v", d.Batch, d.derived()["keys"])
	}
}

// keyCounts are the numbers of keys of --keys: equal steps from first to last, in random order.
type keyCounts struct{ first, last int }

// String returns what parseKeys reads.
func (k keyCounts) String() string {
	if k.first == k.last {
		return fmt.Sprint(k.first)
	}
	return fmt.Sprintf("%d..%d", k.first, k.last)
}

// parseKeys reads N or FIRST..LAST.
func parseKeys(text string) (k keyCounts, err error) {
	first, last, ranges := strings.Cut(text, "..")
	if k.first, err = parseCount(first); err != nil || !ranges {
		return keyCounts{k.first, k.first}, err
	}
	if k.last, err = parseCount(last); err == nil && k.last < k.first {
		err = fmt.Errorf("not a range: %d is less than %d", k.last, k.first)
	}
	return k, err
}

func parseCount(text string) (int, error) {
	n, err := ParseInt(text)
	if err == nil && (n < 0 || n > math.MaxInt32/2) {
		err = fmt.Errorf("not from 0 to %d", math.MaxInt32/2)
	}
	return n, err
}

// lens returns the numbers of keys of a batch.
func (k keyCounts) lens(batch int) []int {
	lens := make([]int, batch)
	for b := range lens {
		lens[b] = k.first + (k.last-k.first)*b/max(batch-1, 1)
	}
	rand.New(rand.NewPCG(2, 2)).Shuffle(batch, func(i, j int) { lens[i], lens[j] = lens[j], lens[i] })
	return lens
}
