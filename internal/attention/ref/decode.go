package ref

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/parallel"
)

// DecodeInputs are the tensors that attention.Decode reads, contiguous in logical order, with the
// shapes of attention.DecodeTensors; tensors that the problem does not have are nil.
type DecodeInputs[T Float] struct {
	Q, K, V                                     []T
	SeqLens, BlockTable, CacheBatchIdx, LeftPad []int32
	TreeMask                                    []int32
	Bias, ALiBiSlopes, Sinks                    []T

	// KeysFirst says that K and V are (cache_rows, seq_kv, num_kv_heads, head_dim) or (pages,
	// page_size, num_kv_heads, head_dim).
	KeysFirst bool
}

// A DecodeHead is what decoding makes of some rows of a key head of a sequence.
type DecodeHead struct {
	Rows  []Row
	O     []float64 // (rows, value_dim)
	LSE   []float64 // (rows)
	Bound Bound     // of these rows: sequences of different lengths have errors of their own
}

// Decode computes in float64 what attention.Decode does: Forward of each sequence with its keys,
// under PlainBound. Keys that no row of a sequence sees may be anything.
//
// A row costs 4*keys*(head_dim+value_dim) operations. If all would cost more than operations, it
// computes some rows of every key head, or of some key heads, the same ones each time. 0 is no
// limit.
func Decode[T Float](in DecodeInputs[T], p attention.DecodeProblem, operations float64) ([]DecodeHead, error) {
	if err := in.check(p); err != nil {
		return nil, err
	}
	heads := p.Batch * p.NumKVHeads
	rows := p.NumHeads / p.NumKVHeads * p.SeqQ // of a head
	if operations > 0 {
		keys := 0
		for b := range p.Batch {
			keys += in.keys(&p, b)
		}
		each := 4 * max(float64(keys)/float64(p.Batch), 1) * float64(p.HeadDim+p.ValueHeadDim())
		if most := max(int(operations/each), minDecodeRows); most < heads*rows {
			rows = min(max(most/heads, 1), rows)
			heads = min(most, heads)
		}
	}
	list := make([]DecodeHead, heads)
	errs := make([]error, heads)
	pick := sample(p.Batch*p.NumKVHeads, heads, 1)
	parallel.Workers(heads, func() func(int) {
		return func(x int) {
			list[x], errs[x] = in.compute(&p, pick[x]/p.NumKVHeads, pick[x]%p.NumKVHeads, rows)
		}
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// minDecodeRows are computed whatever they cost.
const minDecodeRows = 32

// check returns an error that names the first slice that does not fit p.
func (in *DecodeInputs[T]) check(p attention.DecodeProblem) error {
	if err := p.Validate(); err != nil {
		return err
	}
	err := checkSlices(true, []slice{
		{"q", true, len(in.Q), p.QShape()},
		{"k", true, len(in.K), p.KShape()},
		{"v", true, len(in.V), p.VShape()},
		{"seq_lens", true, len(in.SeqLens), p.SeqLensShape()},
		{"block_table", p.PageSize > 0, len(in.BlockTable), p.BlockTableShape()},
		{"cache_batch_idx", p.CacheRows > 0, len(in.CacheBatchIdx), p.SeqLensShape()},
		{"left_pad", p.LeftPad, len(in.LeftPad), p.SeqLensShape()},
		{"tree_mask", p.Tree, len(in.TreeMask), p.TreeMaskShape()},
		{"bias", p.Bias.On, len(in.Bias), p.BiasShape()},
		{"alibi_slopes", p.ALiBi != attention.ALiBiOff, len(in.ALiBiSlopes), p.SlopesShape()},
		{"sinks", p.Sinks, len(in.Sinks), p.SinksShape()},
	})
	if err != nil {
		return err
	}
	for b := range p.Batch {
		if n := in.keys(&p, b); n < 0 || n > p.SeqKV {
			return fmt.Errorf("attention: sequence %d has %d keys, which are not from 0 to the capacity seq_kv=%d", b, n, p.SeqKV)
		}
	}
	return nil
}

// keys returns how many keys sequence b has.
func (in *DecodeInputs[T]) keys(p *attention.DecodeProblem, b int) int {
	return int(in.SeqLens[b]) + p.NewKeys
}

// At returns which row of K and V is key j of a key head of sequence b.
func (in *DecodeInputs[T]) At(p *attention.DecodeProblem, b, kv, j int) int {
	row, size := b, p.SeqKV // the part of the cache, and how many keys it has
	if p.CacheRows > 0 {
		row = int(in.CacheBatchIdx[b])
	}
	if p.PageSize > 0 {
		row, size = int(in.BlockTable[b*(p.SeqKV/p.PageSize)+j/p.PageSize]), p.PageSize
	}
	if in.KeysFirst {
		return (row*size+j%size)*p.NumKVHeads + kv
	}
	return (row*p.NumKVHeads+kv)*size + j%size
}

// compute computes some rows of a key head.
func (in *DecodeInputs[T]) compute(p *attention.DecodeProblem, b, kv, rows int) (DecodeHead, error) {
	group, dv := p.NumHeads/p.NumKVHeads, p.ValueHeadDim()
	head, one := in.head(p, b, kv)
	var h DecodeHead
	if one.SeqKV == 0 { // which Forward does not take
		for g := range group {
			for i := range p.SeqQ {
				h.Rows = append(h.Rows, Row{b, kv*group + g, i})
				h.O = append(h.O, make([]float64, dv)...)
				h.LSE = append(h.LSE, sinkOf[float64](&head, one, g))
			}
		}
		one.SeqKV = 1 // the sum has one term at the most, the sink
		h.Bound.LSE = PlainBound(h.O, h.O, h.LSE, Measure(head, one), one).LSE
		return h, nil
	}
	some := SampleRows(head, one, rows)
	n := len(some)
	h.O, h.LSE = make([]float64, n*dv), make([]float64, n)
	plain := make([]float64, n*dv)
	if err := Forward(h.O, h.LSE, head, one, some); err != nil {
		return h, err
	}
	if err := Plain(plain, nil, head, one, some); err != nil {
		return h, err
	}
	h.Bound = PlainBound(h.O, plain, h.LSE, Measure(head, one), one)
	for _, r := range some {
		h.Rows = append(h.Rows, Row{b, kv*group + r.Head, r.Row})
	}
	return h, nil
}

// head returns a problem of one key head with the keys that a sequence has, and its tensors. A key
// mask hides the keys of left_pad, and a bias the keys of a tree mask.
func (in *DecodeInputs[T]) head(p *attention.DecodeProblem, b, kv int) (Inputs[T], attention.Problem) {
	one, group, n := p.Problem, p.NumHeads/p.NumKVHeads, in.keys(p, b)
	one.Batch, one.NumHeads, one.NumKVHeads, one.SeqKV = 1, group, 1, n
	first := b*p.NumHeads + kv*group // of the query heads
	x := Inputs[T]{Q: in.Q[first*p.SeqQ*p.HeadDim:][:group*p.SeqQ*p.HeadDim]}
	switch p.ALiBi {
	case attention.ALiBiPerHead:
		x.ALiBiSlopes = in.ALiBiSlopes[kv*group:][:group]
	case attention.ALiBiPerBatchHead:
		one.ALiBi, x.ALiBiSlopes = attention.ALiBiPerHead, in.ALiBiSlopes[first:][:group]
	}
	if p.Sinks {
		x.Sinks = in.Sinks[kv*group:][:group]
	}
	if p.LeftPad {
		one.KeyMask, x.KeyMask = true, make([]bool, n)
		for j := range n {
			x.KeyMask[j] = j >= int(in.LeftPad[b])
		}
	}
	if p.Bias.On || p.Tree {
		one.Bias = attention.Bias{On: true, Heads: true, Rows: true}
		x.Bias = in.bias(p, b, kv, n)
	}
	x.K, x.V = make([]T, n*p.HeadDim), make([]T, n*p.ValueHeadDim())
	if n == 0 {
		return x, one
	}
	seen, _ := one.Mask().Keys(0)
	if p.LeftPad {
		seen = max(seen, int(in.LeftPad[b]))
	}
	for j := min(seen, n); j < n; j++ { // the others are 0 here
		at := in.At(p, b, kv, j)
		copy(x.K[j*p.HeadDim:][:p.HeadDim], in.K[at*p.HeadDim:])
		copy(x.V[j*p.ValueHeadDim():][:p.ValueHeadDim()], in.V[at*p.ValueHeadDim():])
	}
	return x, one
}

// bias returns the summand of the scores of a key head, (group, seq_q, n): the bias, and -Inf where
// the tree mask hides a key.
func (in *DecodeInputs[T]) bias(p *attention.DecodeProblem, b, kv, n int) []T {
	group := p.NumHeads / p.NumKVHeads
	shape := p.BiasShape()
	x := make([]T, 0, group*p.SeqQ*n)
	for g := range group {
		for i := range p.SeqQ {
			for j := range n {
				var y T
				if p.Bias.On {
					at := 0
					for axis, index := range []int{b, kv*group + g, i, j} {
						at = at*shape[axis] + index%shape[axis]
					}
					y = in.Bias[at]
				}
				if last := j - (n - p.SeqQ); p.Tree && last >= 0 && in.TreeMask[(b*p.SeqQ+i)*2+last/32]>>(last%32)&1 == 0 {
					y = T(math.Inf(-1))
				}
				x = append(x, y)
			}
		}
	}
	return x
}
