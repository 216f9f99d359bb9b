package ref

import (
	"fmt"
	"math"
	"sort"

	"github.com/flashvk/flashvk/attention"
)

// A Float is the element type of the inputs. Results are float64 always.
type Float interface{ ~float32 | ~float64 }

// Inputs are the tensors that attention reads, contiguous in logical order.
// attention.Problem has their shapes; tensors of features that are off are nil.
type Inputs[T Float] struct {
	Q, K, V []T

	Bias                    []T     // attention.Problem.BiasShape
	ALiBiSlopes             []T     // (num_heads) or (batch, num_heads)
	Sinks                   []T     // (num_heads)
	KeyMask                 []bool  // (batch, seq_kv)
	CuSeqlensQ, CuSeqlensKV []int32 // (batch+1)

	quant *quantised[T] // of Quantised, or nil
}

// check returns an error that names the first slice that does not fit p.
func (in *Inputs[T]) check(p attention.Problem) error {
	if err := p.Validate(); err != nil {
		return err
	}
	err := checkSlices(false, []slice{
		{"q", true, len(in.Q), p.QShape()},
		{"k", true, len(in.K), p.KShape()},
		{"v", true, len(in.V), p.VShape()},
		{"bias", p.Bias.On, len(in.Bias), p.BiasShape()},
		{"alibi_slopes", p.ALiBi != attention.ALiBiOff, len(in.ALiBiSlopes), p.SlopesShape()},
		{"sinks", p.Sinks, len(in.Sinks), p.SinksShape()},
		{"key_mask", p.KeyMask, len(in.KeyMask), p.KeyMaskShape()},
		{"cu_seqlens_q", p.Varlen.On, len(in.CuSeqlensQ), p.CuSeqlensShape()},
		{"cu_seqlens_kv", p.Varlen.On, len(in.CuSeqlensKV), p.CuSeqlensShape()},
	})
	if err == nil && p.Varlen.On {
		err = p.CheckCuSeqlens(in.CuSeqlensQ, in.CuSeqlensKV)
	}
	return err
}

// A slice is an input: whether the problem has it, its elements, and their shape.
type slice struct {
	name  string
	on    bool
	got   int
	shape []int
}

// checkSlices returns an error that names the first slice that does not fit. More says that slices
// which the problem has not may be given.
func checkSlices(more bool, list []slice) error {
	for _, s := range list {
		if !s.on {
			if s.got > 0 && !more {
				return fmt.Errorf("attention: %s is given, but the problem has none", s.name)
			}
			continue
		}
		if want := product(s.shape); s.got != want {
			return fmt.Errorf("attention: %s has %d elements, want %d of shape %v", s.name, s.got, want, s.shape)
		}
	}
	return nil
}

func product(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// places says where the rows and keys of a problem lie, packed or not. All
// positions and distances are in rows of a tensor.
type places struct {
	p         attention.Problem
	cuQ, cuKV []int32
}

func (in *Inputs[T]) places(p attention.Problem) places {
	return places{p, in.CuSeqlensQ, in.CuSeqlensKV}
}

// mask returns the mask of a sequence, and with it the sequence's lengths.
func (l places) mask(batch int) attention.Mask {
	if !l.p.Varlen.On {
		return l.p.Mask()
	}
	return l.p.MaskOf(int(l.cuQ[batch+1]-l.cuQ[batch]), int(l.cuKV[batch+1]-l.cuKV[batch]))
}

// query returns the position of a row in Q and O.
func (l places) query(r Row) int {
	if l.p.Varlen.On {
		return (int(l.cuQ[r.Batch])+r.Row)*l.p.NumHeads + r.Head
	}
	return (r.Batch*l.p.NumHeads+r.Head)*l.p.SeqQ + r.Row
}

// keys returns where the keys of a key head begin in K and V, and their distance.
func (l places) keys(batch, kv int) (first, step int) {
	if l.p.Varlen.On {
		return int(l.cuKV[batch])*l.p.NumKVHeads + kv, l.p.NumKVHeads
	}
	return (batch*l.p.NumKVHeads + kv) * l.p.SeqKV, 1
}

// lse returns the position of a row in LSE.
func (l places) lse(r Row) int {
	if l.p.Varlen.On {
		return r.Head*l.p.Varlen.TotalQ + int(l.cuQ[r.Batch]) + r.Row
	}
	return l.query(r)
}

// KeyAt returns where a key is in whole tensors K and V, in rows.
func (in Inputs[T]) KeyAt(p attention.Problem, k Key) int {
	first, step := in.places(p).keys(k.Batch, k.Head)
	return first + k.Key*step
}

// At returns where the result of a row is in whole tensors O and LSE, in rows.
func (in Inputs[T]) At(p attention.Problem, r Row) (o, lse int) {
	l := in.places(p)
	return l.query(r), l.lse(r)
}

// NumRows returns the number of rows of all sequences and heads.
func (in Inputs[T]) NumRows(p attention.Problem) int {
	if !p.Varlen.On {
		return p.Batch * p.NumHeads * p.SeqQ
	}
	return p.NumHeads * int(in.CuSeqlensQ[p.Batch])
}

// Row returns row n of AllRows.
func (in Inputs[T]) Row(p attention.Problem, n int) Row {
	if !p.Varlen.On {
		return Row{n / p.SeqQ / p.NumHeads, n / p.SeqQ % p.NumHeads, n % p.SeqQ}
	}
	b := sort.Search(p.Batch, func(b int) bool { return int(in.CuSeqlensQ[b+1])*p.NumHeads > n })
	n -= int(in.CuSeqlensQ[b]) * p.NumHeads
	seqQ := int(in.CuSeqlensQ[b+1] - in.CuSeqlensQ[b])
	return Row{b, n / seqQ, n % seqQ}
}

// SeesNothing reports whether a row sees no key.
func (in Inputs[T]) SeesNothing(p attention.Problem, r Row) bool {
	s := newScorer[float64](&in, p, in.places(p).mask(r.Batch), r)
	for j := s.lo; j < s.hi; j++ {
		if s.sees(j) {
			return false
		}
	}
	return true
}

// Hidden calls f for every key that masks hide from all rows, with the number of its row in K and V,
// and whether it is in no sequence.
func (in Inputs[T]) Hidden(p attention.Problem, f func(row int, slack bool)) {
	l, seen := in.places(p), make([]bool, product(p.KShape())/p.HeadDim)
	end := len(seen)
	for b := range p.Batch {
		mask := l.mask(b)
		if p.Varlen.On {
			end = int(in.CuSeqlensKV[b+1]) * p.NumKVHeads
		}
		lo, hi := mask.KeyTiles(0, max(mask.SeqQ-1, 0), 1)
		for j := range mask.SeqKV {
			visible := mask.SeqQ > 0 && lo <= j && j < hi && (!p.KeyMask || in.KeyMask[b*p.SeqKV+j])
			for h := range p.NumKVHeads {
				seen[in.KeyAt(p, Key{Batch: b, Head: h, Key: j})] = visible && !in.hiddenByBias(p, b, h, j)
			}
		}
	}
	for at, s := range seen {
		if !s {
			f(at, at >= end)
		}
	}
}

// hiddenByBias reports whether a bias that all rows share, or the only one has, is -Inf for a key, in all heads that read
// a key head. If rows do not share the bias the result is false: then kernels multiply V by weights
// of 0.
func (in *Inputs[T]) hiddenByBias(p attention.Problem, b, kvHead, key int) bool {
	shape, group := p.BiasShape(), p.NumHeads/p.NumKVHeads
	if !p.Bias.On || shape[2] > 1 {
		return false
	}
	for h := kvHead * group; h < (kvHead+1)*group; h++ {
		at := min(b, shape[0]-1)*shape[1] + min(h, shape[1]-1)
		if !math.IsInf(float64(in.Bias[at*p.SeqKV+key]), -1) {
			return false
		}
	}
	return true
}

// gather returns n rows of d elements of src: the row first and the rows that follow at a distance
// of step. The result is a part of src where src has the type and the rows are adjacent, and
// otherwise a copy in buf, which grows.
func gather[To, From Float](buf *[]To, src []From, first, step, n, d int) []To {
	if same, ok := any(src).([]To); ok && step == 1 {
		return same[first*d : (first+n)*d]
	}
	if cap(*buf) < n*d {
		*buf = make([]To, n*d)
	}
	to := (*buf)[:n*d]
	for i := range n {
		for e, x := range src[(first+i*step)*d:][:d] {
			to[i*d+e] = To(x)
		}
	}
	return to
}
