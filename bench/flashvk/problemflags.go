package main

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// problemFlagSet holds the flags that describe a problem.
type problemFlagSet struct {
	set                                         *pflag.FlagSet
	batch, heads, kvHeads, seqQ, seqKV, headDim int
	dtype                                       dtype.DType
	mask                                        maskFlags
	features                                    featureFlags
}

// problemFlags are their names.
var problemFlags = []string{"batch", "heads", "kv-heads", "seqlen", "seqlen-kv", "headdim", "dtype", "causal", "causal-align", "scale",
	"window", "softcap", "dropout", "seed", "value-dim", "alibi", "bias", "bias-dtype", "key-mask", "sinks", "varlen"}

func (b *problemFlagSet) add(f *pflag.FlagSet) {
	b.set = f
	intVar(f, &b.batch, "batch", "number of sequences")
	intVar(f, &b.heads, "heads", "query heads")
	intVar(f, &b.kvHeads, "kv-heads", "key and value heads, a divisor of heads (default: heads)")
	intVar(f, &b.seqQ, "seqlen", "queries per sequence")
	intVar(f, &b.seqKV, "seqlen-kv", "keys per sequence (default: seqlen)")
	intVar(f, &b.headDim, "headdim", "elements of a head, a multiple of 8 up to 256")
	f.Var(value[dtype.DType]{&b.dtype, parseDType, "TYPE"}, "dtype", "float16 (default), bfloat16 or float32")
	b.mask.add(f)
	b.features.add(f)
}

// given reports whether one of the flags was given.
func (b *problemFlagSet) given() bool { return slices.ContainsFunc(problemFlags, b.set.Changed) }

// gpuDefault and cpuDefault are the problems whose sizes stand for flags that
// are not given: one that fills a large GPU, and one that a CPU device computes in
// well under a second.
func gpuDefault() attention.Problem {
	return attention.Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: 128, DType: dtype.Float16}
}

func cpuDefault() attention.Problem {
	return attention.Problem{Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: 256, SeqKV: 256, HeadDim: 64, DType: dtype.Float16}
}

// problem returns p with the values of the flags that were given. An error is a
// usage error.
func (b *problemFlagSet) problem(p attention.Problem) (attention.Problem, error) {
	if b.set.Changed("heads") {
		p.NumHeads, p.NumKVHeads = b.heads, b.heads
	}
	if b.set.Changed("seqlen") {
		p.SeqQ, p.SeqKV = b.seqQ, b.seqQ
	}
	for _, f := range []struct {
		name   string
		target *int
		n      int
	}{{"batch", &p.Batch, b.batch}, {"kv-heads", &p.NumKVHeads, b.kvHeads}, {"seqlen-kv", &p.SeqKV, b.seqKV}, {"headdim", &p.HeadDim, b.headDim}} {
		if b.set.Changed(f.name) {
			*f.target = f.n
		}
	}
	if b.set.Changed("dtype") {
		p.DType = b.dtype
	}
	if err := b.mask.apply(&p); err != nil {
		return p, err
	}
	if err := b.features.apply(&p); err != nil {
		return p, err
	}
	if err := b.mask.checkAlign(&p); err != nil {
		return p, err
	}
	if err := p.Validate(); err != nil {
		return p, usageError{err}
	}
	return p, nil
}
