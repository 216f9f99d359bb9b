package bench

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// A Suite is a list of problems whose results make one table.
type Suite struct {
	Name     string
	About    string              // what it repeats
	Problems []attention.Problem // of attention

	shrinks [3]int // what batch, heads and lengths are divided by in the small form
	small   bool   // this is the small form
	retype  bool   // the format is not part of the suite
}

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
// of five reports on attention kernels, and the shapes on which FlashAttention is usually
// compared. All are forward.
func Suites() []Suite {
	training := Suite{Name: TrainingSuite, About: "training and prefill shapes with grouped heads, against PyTorch", shrinks: [3]int{8, 4, 16}}
	for i, p := range []attention.Problem{
		square(2, 8, 1024, 128, true), square(32, 10, 2048, 128, true), square(1, 8, 512, 64, true), square(4, 32, 1024, 64, true), square(8, 32, 2048, 128, true),
	} {
		formats := []dtype.DType{dtype.Float32, dtype.Float16}
		if i < 2 {
			formats = []dtype.DType{dtype.BFloat16}
		}
		if i == 0 {
			p.NumKVHeads = 4
		}
		for _, p.DType = range formats {
			training.Problems = append(training.Problems, p)
		}
	}
	decoder := Suite{Name: "decoder", About: "a decoder's shape, against the unfused formula (MATH)", shrinks: [3]int{1, 4, 4}}
	decoder.Problems = []attention.Problem{square(1, 8, 1024, 64, false), square(1, 8, 1024, 64, true)}
	length := Suite{Name: "length", About: "float16, batch 4, heads 8, headdim 64, no mask: rates against the length", shrinks: [3]int{4, 8, 16}}
	for _, seq := range []int{256, 512, 1024, 2048, 4096, 4864} {
		length.Problems = append(length.Problems, square(4, 8, seq, 64, false))
	}
	latency := Suite{Name: "latency", About: "float16, heads 8, headdim 64, causal: aiming at 5 µs for a sequence", shrinks: [3]int{8, 4, 4}}
	for _, seq := range []int{128, 256, 512} {
		for _, batch := range []int{8, 16, 32} {
			latency.Problems = append(latency.Problems, square(batch, 8, seq, 64, true))
		}
	}
	rectangular := Suite{Name: "rectangular", About: "bfloat16, heads 8, headdim 64, no mask: M+N queries over M keys", shrinks: [3]int{16, 8, 128}}
	for _, c := range [][3]int{{32, 64, 500}, {1, 10000, 1000}, {1, 200000, 5000}} {
		p := square(c[0], 8, c[1], 64, false)
		p.SeqQ, p.DType = c[1]+c[2], dtype.BFloat16
		rectangular.Problems = append(rectangular.Problems, p)
	}
	throughput := Suite{Name: "throughput", About: "rates at FlashAttention's shapes: 16384 tokens in all, heads * headdim = 2048", shrinks: [3]int{32, 8, 64}, retype: true}
	for _, headDim := range []int{64, 128, 256} {
		for _, causal := range []bool{false, true} {
			for seq := 512; seq <= 16384; seq *= 2 {
				throughput.Problems = append(throughput.Problems, square(16384/seq, 2048/headDim, seq, headDim, causal))
			}
		}
	}
	return []Suite{training, decoder, length, latency, rectangular, throughput}
}

// Small returns the suite with sizes that a CPU device computes in a short
// time. Ratios of heads, formats, masks and head dimensions stay.
func (s Suite) Small() Suite {
	s.small = true
	s.Problems = slices.Clone(s.Problems)
	for i := range s.Problems {
		p := &s.Problems[i]
		group := p.NumHeads / p.NumKVHeads
		p.Batch = max(p.Batch/s.shrinks[0], 1)
		p.NumKVHeads = max(p.NumKVHeads/s.shrinks[1], 1)
		p.NumHeads = group * p.NumKVHeads
		p.SeqQ = max(p.SeqQ/s.shrinks[2], 1)
		p.SeqKV = max(p.SeqKV/s.shrinks[2], 1)
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
