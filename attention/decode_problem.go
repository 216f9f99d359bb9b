package attention

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/flashvk/flashvk/dtype"
)

// A DecodeProblem is attention of the last few queries of each sequence with a cache of keys and
// values. Only the device knows the lengths. Sequence b has
//
//	n = SeqLens[b] + NewKeys
//
// keys, and its query i is at position n - SeqQ + i: the causal mask, Window and ALiBi of the
// Problem are aligned to the bottom right of (SeqQ, n).
type DecodeProblem struct {
	// Problem says what to compute. SeqKV is the capacity: the most keys of a sequence. Bias is (…,
	// SeqKV), with column j for key j of the sequence. KeyMask, Varlen, Dropout and TopLeft are not
	// available.
	Problem

	// NewKeys is the number of keys of each sequence that SeqLens does not count. It is the number
	// that Append wrote before this call, if Advance adds it to SeqLens afterwards; otherwise 0.
	NewKeys int

	// PageSize divides the cache into Pages pages of this many keys, a power of two from 8 on. A
	// sequence has SeqKV/PageSize pages, in the order of its row of BlockTable. 0 is a contiguous
	// cache.
	PageSize int
	Pages    int

	// CacheRows is the number of sequences in a contiguous cache, of which CacheBatchIdx chooses
	// Batch. 0 stands for Batch, all in order.
	CacheRows int

	// Cache is the format of the cache, if it is not DType.
	Cache CacheFormat

	// LeftPad hides keys 0 to LeftPad[b]-1 of each sequence.
	LeftPad bool

	// Tree replaces the causal mask by TreeMask, for speculative decoding of several continuations
	// at once. Bit j of a query's two words shows it key n - SeqQ + j. SeqQ is at most 64.
	Tree bool
}

// MaxDecodeQueries is the largest SeqQ of a DecodeProblem.
const MaxDecodeQueries = 64

// Validate returns an error that names the first value that breaks a rule.
func (p DecodeProblem) Validate() error {
	if err := p.validateCache(); err != nil {
		return err
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{p.KeyMask, "key_mask"}, {p.Varlen.On, "varlen"}, {p.Dropout.On(), "dropout"}, {p.CausalAlign != BottomRight, "causal_align=top-left"},
		{p.Quant != dtype.NoQuant, "quant"},
		{p.Tree && p.Window.On, "window with a tree mask"},
		{!p.Causal && p.Window.On && p.Window.Right != Unlimited, "window with a right side but without causal"},
		{p.Tree && p.ALiBi != ALiBiOff, "alibi with a tree mask"},
		{p.Tree && p.Causal, "causal with a tree mask"},
	} {
		if f.on {
			return fmt.Errorf("attention: decoding has no %s", f.name)
		}
	}
	if p.SeqQ > MaxDecodeQueries {
		return fmt.Errorf("attention: seq_q=%d is larger than the %d of decoding", p.SeqQ, MaxDecodeQueries)
	}
	return nil
}

// validateCache validates the sizes and the cache.
func (p *DecodeProblem) validateCache() error {
	if err := p.Problem.Validate(); err != nil {
		return err
	}
	if err := p.validateFormat(); err != nil {
		return err
	}
	switch {
	case p.NewKeys < 0 || p.NewKeys > p.SeqKV:
		return fmt.Errorf("attention: new_keys=%d is not from 0 to the capacity seq_kv=%d", p.NewKeys, p.SeqKV)
	case p.SeqKV > math.MaxInt32/2:
		return fmt.Errorf("attention: the capacity seq_kv=%d is larger than %d", p.SeqKV, math.MaxInt32/2)
	case p.CacheRows < 0 || p.CacheRows > math.MaxInt32:
		return fmt.Errorf("attention: cache_rows=%d is not from 0 to %d", p.CacheRows, math.MaxInt32)
	case p.PageSize != 0 && p.CacheRows != 0:
		return fmt.Errorf("attention: decoding has no cache_rows with pages")
	case p.PageSize == 0 && p.Pages != 0:
		return fmt.Errorf("attention: pages=%d without a page_size", p.Pages)
	case p.PageSize == 0:
		return nil
	case p.PageSize < MinPageSize || bits.OnesCount(uint(p.PageSize)) != 1:
		return fmt.Errorf("attention: page_size=%d is not a power of two from %d", p.PageSize, MinPageSize)
	case p.SeqKV%p.PageSize != 0:
		return fmt.Errorf("attention: the capacity seq_kv=%d is not a number of pages of page_size=%d", p.SeqKV, p.PageSize)
	case p.Pages < 1 || p.Pages > math.MaxInt32:
		return fmt.Errorf("attention: pages=%d is not from 1 to %d", p.Pages, math.MaxInt32)
	}
	return nil
}

// MinPageSize is the smallest PageSize.
const MinPageSize = 8

// KShape returns (pages, num_kv_heads, page_size, head_dim), or without pages (cache_rows,
// num_kv_heads, seq_kv, head_dim).
func (p DecodeProblem) KShape() []int {
	if p.PageSize > 0 {
		return []int{p.Pages, p.NumKVHeads, p.PageSize, p.HeadDim}
	}
	return []int{p.cacheRows(), p.NumKVHeads, p.SeqKV, p.HeadDim}
}

// VShape returns KShape with the value_dim.
func (p DecodeProblem) VShape() []int {
	shape := p.KShape()
	shape[3] = p.ValueHeadDim()
	return shape
}

func (p *DecodeProblem) cacheRows() int {
	if p.CacheRows > 0 {
		return p.CacheRows
	}
	return p.Batch
}

// slots returns the number of pages of the cache, or of rows.
func (p *DecodeProblem) slots() int {
	if p.PageSize == 0 {
		return p.cacheRows()
	}
	return p.Pages
}

// SeqLensShape returns (batch), which is also the shape of LeftPad and CacheBatchIdx.
func (p DecodeProblem) SeqLensShape() []int { return []int{p.Batch} }

// BlockTableShape returns (batch, seq_kv/page_size), nil without pages.
func (p DecodeProblem) BlockTableShape() []int {
	if p.PageSize == 0 {
		return nil
	}
	return []int{p.Batch, p.SeqKV / p.PageSize}
}

// TreeMaskShape returns (batch, seq_q, 2): the low word of 32 bits first.
func (p DecodeProblem) TreeMaskShape() []int { return []int{p.Batch, p.SeqQ, 2} }

// StateShape returns (1 + batch*num_heads*seq_q).
func (p DecodeProblem) StateShape() []int { return []int{1 + p.Batch*p.NumHeads*p.SeqQ} }

// String returns the benchmark keys of p, the keys of the Problem first.
func (p DecodeProblem) String() string {
	s := p.Problem.String()
	for _, k := range p.keys() {
		s += "/" + k
	}
	return s
}

// keys returns the benchmark keys that a Problem does not have.
func (p *DecodeProblem) keys() []string {
	var keys []string
	for _, n := range []struct {
		name  string
		value int
	}{{"new_keys", p.NewKeys}, {"page_size", p.PageSize}, {"pages", p.Pages}, {"cache_rows", p.CacheRows}} {
		if n.value != 0 {
			keys = append(keys, fmt.Sprintf("%s=%d", n.name, n.value))
		}
	}
	if p.Cache != CacheSame {
		keys = append(keys, fmt.Sprintf("cache=%v", p.Cache))
	}
	if p.LeftPad {
		keys = append(keys, "left_pad=true")
	}
	if p.Tree {
		keys = append(keys, "tree=true")
	}
	return slices.Clip(keys)
}

// biasFormat returns the format of the bias, Float32 without one.
func (p *DecodeProblem) biasFormat() dtype.DType {
	if p.Bias.On {
		return p.Bias.DType
	}
	return dtype.Float32
}

// An AppendProblem appends NewKeys keys and values to the cache of a DecodeProblem. SeqQ may be
// larger than Decode's, when a prompt is read. Fields about scores have no effect.
type AppendProblem struct {
	DecodeProblem

	// RoPE says how K and Q are rotated.
	RoPE RoPE
}

// RoPE is the rotation of keys and queries by their positions. Pair i of a row, (x, y), becomes
//
//	(x*cos - y*sin, y*cos + x*sin) with cos = Cos[position, i], sin = Sin[position, i]
//
// in float32, rounded once. The zero value rotates nothing.
type RoPE struct {
	Dims        int  // elements of a row that are rotated, the first; even
	Interleaved bool // pair i is elements 2i and 2i+1; else, as in GPT-NeoX and LLaMA, i and i + Dims/2
}

// Validate returns an error that names the first value that breaks a rule.
func (p AppendProblem) Validate() error {
	if err := p.DecodeProblem.validateCache(); err != nil {
		return err
	}
	r := p.RoPE
	switch {
	case p.NewKeys == 0:
		return fmt.Errorf("attention: append: new_keys=0: there is nothing to append")
	case r.Dims < 0 || r.Dims%2 != 0 || r.Dims > p.HeadDim:
		return fmt.Errorf("attention: append: rotary dims=%d are not an even number up to head_dim=%d", r.Dims, p.HeadDim)
	case r.Dims == 0 && r.Interleaved:
		return fmt.Errorf("attention: append: rotary interleaved is set, but no dims")
	}
	return nil
}

// NewKShape returns (batch, num_kv_heads, new_keys, head_dim).
func (p AppendProblem) NewKShape() []int {
	return []int{p.Batch, p.NumKVHeads, p.NewKeys, p.HeadDim}
}

// NewVShape returns NewKShape with the value_dim.
func (p AppendProblem) NewVShape() []int {
	return []int{p.Batch, p.NumKVHeads, p.NewKeys, p.ValueHeadDim()}
}
