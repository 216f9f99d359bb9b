package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// Suites returns every suite of attention, named by what it measures: the shapes
// of five reports on attention kernels, with the columns of those reports, and
// the shapes on which FlashAttention is usually compared. All are forward.
func Suites() []Suite {
	return []Suite{training(), decoder(), length(), latency(), rectangular(), throughput()}
}

// TrainingSuite is the name of a suite of attention and of the only one of the
// other kernels: the shapes of a training step.
const TrainingSuite = "training"

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

// training has the cases of a report on a fused kernel for training: two of its
// text, six of its table.
func training() Suite {
	f16, bf16, f32 := dtype.Float16, dtype.BFloat16, dtype.Float32
	s := Suite{
		Name: TrainingSuite, About: "training and prefill shapes with grouped heads, against PyTorch", unit: milliseconds,
		sizes: []string{"batch", "heads", "kv", "seqlen", "dim", "dtype"}, shrinks: shrink{8, 4, 16},
	}
	for _, c := range []struct {
		batch, heads, kvHeads, seq, headDim int
		dtype                               dtype.DType
	}{
		{2, 8, 4, 1024, 128, bf16}, {32, 10, 10, 2048, 128, bf16},
		{1, 8, 8, 512, 64, f32}, {1, 8, 8, 512, 64, f16},
		{4, 32, 32, 1024, 64, f32}, {4, 32, 32, 1024, 64, f16},
		{8, 32, 32, 2048, 128, f32}, {8, 32, 32, 2048, 128, f16},
	} {
		s.Problems = append(s.Problems, attention.Problem{
			Batch: c.batch, NumHeads: c.heads, NumKVHeads: c.kvHeads, SeqQ: c.seq, SeqKV: c.seq, HeadDim: c.headDim, DType: c.dtype, Causal: true,
		})
	}
	return s
}

// square returns a problem of float16 whose lengths and heads are equal.
func square(batch, heads, seq, headDim int, causal bool) attention.Problem {
	return attention.Problem{
		Batch: batch, NumHeads: heads, NumKVHeads: heads, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float16, Causal: causal,
	}
}

// decoder has the case of a report on a fused kernel for a small GPU, which leaves
// the mask open.
func decoder() Suite {
	return Suite{
		Name: "decoder", About: "a decoder's shape, against the unfused formula (MATH)", unit: milliseconds,
		sizes: []string{"B,H,N,D", "dtype", "causal"}, shrinks: shrink{1, 4, 4},
		Problems: []attention.Problem{square(1, 8, 1024, 64, false), square(1, 8, 1024, 64, true)},
	}
}

// length has the lengths of a report that draws TFLOP/s against them.
func length() Suite {
	s := Suite{
		Name: "length", About: "float16, batch 4, heads 8, headdim 64, no mask: rates against the length", unit: teraflops,
		sizes: []string{"batch", "heads", "seqlen"}, shrinks: shrink{4, 8, 16},
	}
	for _, seq := range []int{256, 512, 1024, 2048, 4096, 4864} {
		s.Problems = append(s.Problems, square(4, 8, seq, 64, false))
	}
	return s
}

// latency has the configurations of a report that aims at 5 µs for a sequence.
func latency() Suite {
	s := Suite{
		Name: "latency", About: "float16, heads 8, headdim 64, causal: time for a sequence, aiming at 5 µs", unit: perSequence, target: 5,
		sizes: []string{"seqlen", "batch", "heads"}, shrinks: shrink{8, 4, 4},
	}
	for _, seq := range []int{128, 256, 512} {
		for _, batch := range []int{8, 16, 32} {
			s.Problems = append(s.Problems, square(batch, 8, seq, 64, true))
		}
	}
	return s
}

// rectangular has the shapes of a model whose M+N queries look at M keys.
func rectangular() Suite {
	s := Suite{
		Name: "rectangular", About: "bfloat16, heads 8, headdim 64, no mask: M+N queries over M keys", unit: milliseconds,
		sizes: []string{"batch", "heads", "seqlen", "seqlen-kv"}, shrinks: shrink{16, 8, 128},
	}
	for _, c := range []struct{ batch, m, n int }{{32, 64, 500}, {1, 10000, 1000}, {1, 200000, 5000}} {
		p := square(c.batch, 8, c.m, 64, false)
		p.SeqQ, p.DType = c.m+c.n, dtype.BFloat16
		s.Problems = append(s.Problems, p)
	}
	return s
}

// throughput has the shapes of FlashAttention's own benchmarks: 16k tokens,
// heads * headdim = 2048.
func throughput() Suite {
	s := Suite{
		Name: "throughput", About: "rates at FlashAttention's shapes: 16384 tokens in all, heads * headdim = 2048", unit: teraflops,
		sizes: []string{"dim", "causal", "batch", "heads", "seqlen"}, shrinks: shrink{32, 8, 64}, retype: true,
	}
	for _, headDim := range []int{64, 128, 256} {
		for _, causal := range []bool{false, true} {
			for seq := 512; seq <= 16384; seq *= 2 {
				s.Problems = append(s.Problems, square(16384/seq, 2048/headDim, seq, headDim, causal))
			}
		}
	}
	return s
}

// A shrink says what a suite's sizes are divided by in its small form.
type shrink struct{ batch, heads, seq int }

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
