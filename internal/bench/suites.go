package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// A Suite is a list of problems whose results make one table, a row for each.
type Suite struct {
	Name     string
	About    string              // what it repeats
	Problems []attention.Problem // of attention

	sizes   []string // the keys that tell the rows apart; nil: those that differ
	show    show     // in the columns of implementations
	shrinks shrink   // to the small form
	small   bool     // this is the small form
	retype  bool     // the format is not part of the suite
}

// A show is what the columns of implementations show.
type show int

const (
	times show = iota
	perSequence
	rates
)

// of returns the median of a result that was timed.
func (s show) of(x Result) string {
	switch s {
	case rates:
		return FormatSI(x.FLOPRate(), "FLOP/s")
	case perSequence:
		return FormatTime(x.NS() / float64(x.Subject.key("batch").(int)))
	}
	return FormatTime(x.NS())
}

// Grid returns the suite of the problems of flags with lists.
func Grid() *Suite { return &Suite{Name: "grid", About: "every combination of the sizes given"} }

// name returns the name for machines, "" for no suite.
func (s *Suite) name() string {
	switch {
	case s == nil:
		return ""
	case s.small:
		return s.Name + "-small"
	}
	return s.Name
}

// A shrink says what a suite's sizes are divided by in its small form.
type shrink struct{ batch, heads, seq int }

// TrainingSuite is the name of a suite of attention and of the only one of the
// other kernels: the shapes of a training step.
const TrainingSuite = "training"

// square returns a problem of float16 whose lengths and heads are equal.
func square(batch, heads, seq, headDim int, causal bool) attention.Problem {
	return attention.Problem{
		Batch: batch, NumHeads: heads, NumKVHeads: heads, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float16, Causal: causal,
	}
}

// Suites returns every suite of attention, named by what it measures: the shapes
// of five reports on attention kernels, with the columns of those reports, and
// the shapes on which FlashAttention is usually compared. All are forward.
func Suites() []Suite {
	training := Suite{
		Name: TrainingSuite, About: "training and prefill shapes with grouped heads, against PyTorch",
		sizes: []string{"batch", "heads", "kv_heads", "seq_q", "head_dim", "dtype"}, shrinks: shrink{8, 4, 16},
	}
	f16, bf16, f32 := dtype.Float16, dtype.BFloat16, dtype.Float32
	for _, c := range []struct {
		batch, heads, kvHeads, seq, headDim int
		dtype                               dtype.DType
	}{
		{2, 8, 4, 1024, 128, bf16}, {32, 10, 10, 2048, 128, bf16},
		{1, 8, 8, 512, 64, f32}, {1, 8, 8, 512, 64, f16},
		{4, 32, 32, 1024, 64, f32}, {4, 32, 32, 1024, 64, f16},
		{8, 32, 32, 2048, 128, f32}, {8, 32, 32, 2048, 128, f16},
	} {
		p := square(c.batch, c.heads, c.seq, c.headDim, true)
		p.NumKVHeads, p.DType = c.kvHeads, c.dtype
		training.Problems = append(training.Problems, p)
	}
	decoder := Suite{
		Name: "decoder", About: "a decoder's shape, against the unfused formula (MATH)",
		sizes: []string{"batch", "heads", "seq_q", "head_dim", "dtype", "causal"}, shrinks: shrink{1, 4, 4},
		Problems: []attention.Problem{square(1, 8, 1024, 64, false), square(1, 8, 1024, 64, true)},
	}
	length := Suite{
		Name: "length", About: "float16, batch 4, heads 8, headdim 64, no mask: rates against the length", show: rates,
		sizes: []string{"batch", "heads", "seq_q"}, shrinks: shrink{4, 8, 16},
	}
	for _, seq := range []int{256, 512, 1024, 2048, 4096, 4864} {
		length.Problems = append(length.Problems, square(4, 8, seq, 64, false))
	}
	latency := Suite{
		Name: "latency", About: "float16, heads 8, headdim 64, causal: time for a sequence, aiming at 5 µs", show: perSequence,
		sizes: []string{"seq_q", "batch", "heads"}, shrinks: shrink{8, 4, 4},
	}
	for _, seq := range []int{128, 256, 512} {
		for _, batch := range []int{8, 16, 32} {
			latency.Problems = append(latency.Problems, square(batch, 8, seq, 64, true))
		}
	}
	rectangular := Suite{
		Name: "rectangular", About: "bfloat16, heads 8, headdim 64, no mask: M+N queries over M keys",
		sizes: []string{"batch", "heads", "seq_q", "seq_kv"}, shrinks: shrink{16, 8, 128},
	}
	for _, c := range []struct{ batch, m, n int }{{32, 64, 500}, {1, 10000, 1000}, {1, 200000, 5000}} {
		p := square(c.batch, 8, c.m, 64, false)
		p.SeqQ, p.DType = c.m+c.n, dtype.BFloat16
		rectangular.Problems = append(rectangular.Problems, p)
	}
	throughput := Suite{
		Name: "throughput", About: "rates at FlashAttention's shapes: 16384 tokens in all, heads * headdim = 2048", show: rates,
		sizes: []string{"head_dim", "causal", "batch", "heads", "seq_q"}, shrinks: shrink{32, 8, 64}, retype: true,
	}
	for _, headDim := range []int{64, 128, 256} {
		for _, causal := range []bool{false, true} {
			for seq := 512; seq <= 16384; seq *= 2 {
				throughput.Problems = append(throughput.Problems, square(16384/seq, 2048/headDim, seq, headDim, causal))
			}
		}
	}
	return []Suite{training, decoder, length, latency, rectangular, throughput}
}

// ParseSuite returns the suite of a name.
func ParseSuite(name string) (*Suite, error) {
	var names []string
	for _, s := range Suites() {
		if s.Name == name {
			return &s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("%q is not one of %s", name, strings.Join(names, ", "))
}

// Small returns the suite with sizes that a CPU device computes in a short
// time. Ratios of heads, formats, masks and head dimensions stay.
func (s Suite) Small() Suite {
	s.small = true
	s.Problems = slices.Clone(s.Problems)
	for i := range s.Problems {
		p := &s.Problems[i]
		group := p.NumHeads / p.NumKVHeads
		p.Batch = max(p.Batch/s.shrinks.batch, 1)
		p.NumKVHeads = max(p.NumKVHeads/s.shrinks.heads, 1)
		p.NumHeads = group * p.NumKVHeads
		p.SeqQ = max(p.SeqQ/s.shrinks.seq, 1)
		p.SeqKV = max(p.SeqKV/s.shrinks.seq, 1)
	}
	return s
}

// Retype returns the suite with another format of its tensors.
func (s Suite) Retype(t dtype.DType) (*Suite, error) {
	if !s.retype {
		return nil, fmt.Errorf("suite %s says which formats its cases have", s.Name)
	}
	s.Problems = slices.Clone(s.Problems)
	for i := range s.Problems {
		s.Problems[i].DType = t
	}
	return &s, nil
}
