package lm

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/parallel"
)

// Weights are the elements of a model's parameters.
type Weights interface {
	// Read fills p with elements of a parameter in a format, from element first on.
	Read(x Param, t dtype.DType, p []byte, first int64) error
}

// pieces calls f with all bytes of a parameter in a format, a piece after the other.
func pieces(x Param, t dtype.DType, w Weights, f func(piece []byte, offset int64) error) error {
	const piece = 8 << 20 // bytes
	size := int64(t.Size())
	b := make([]byte, min(piece, x.elements()*size))
	for at := int64(0); at < x.elements()*size; at += piece {
		b = b[:min(piece, x.elements()*size-at)]
		if err := w.Read(x, t, b, at/size); err != nil {
			return err
		}
		if err := f(b, at); err != nil {
			return err
		}
	}
	return nil
}

// Random are weights for tests and measurements: of matrices uniform numbers whose deviation is the
// inverse root of the inner dimension, of tables and biases numbers of deviation 1 and 0.1, and of
// norms 1. Of an adapter they are what a training begins with, as PEFT has it: uniform numbers between
// ±1/√in for A, and 0 for B.
type Random struct{ Seed uint64 }

// Read is of Weights. The number of an element does not depend on how much is read.
func (r Random) Read(x Param, t dtype.DType, p []byte, first int64) error {
	scale, mean := 0.1, 0.0
	switch table := strings.Contains(x.Name, "embed_tokens") || strings.Contains(x.Name, ".wte") || strings.Contains(x.Name, ".wpe"); {
	case len(x.Shape) == 1 && !strings.HasSuffix(x.Name, "bias"):
		scale, mean = 0, 1
	case table:
		scale = 1
	case strings.HasSuffix(x.Name, ".lora_A.weight"):
		scale = 1 / math.Sqrt(3*float64(x.Shape[1]))
	case strings.HasSuffix(x.Name, ".lora_B.weight"):
		scale = 0
	case len(x.Shape) == 2:
		scale = 1 / math.Sqrt(float64(min(x.Shape[0], x.Shape[1])))
	}
	uniform(r.Seed, x.Name, t, p, first, scale, mean)
	return nil
}

// Initial are the weights that the training of a model begins with, as GPT-2's did: of matrices and tables
// numbers of deviation 0.02, of those whose product is added to the residual stream 0.02/√(2·Layers); of norms 1,
// of biases 0. The numbers are uniform.
type Initial struct {
	Seed   uint64
	Layers int
}

// Read is of Weights.
func (r Initial) Read(x Param, t dtype.DType, p []byte, first int64) error {
	scale, mean := 0.02, 0.0
	switch {
	case len(x.Shape) == 1 && strings.HasSuffix(x.Name, "bias"):
		scale = 0
	case len(x.Shape) == 1:
		scale, mean = 0, 1
	case strings.HasSuffix(x.Name, ".c_proj.weight") || strings.HasSuffix(x.Name, ".o_proj.weight") || strings.HasSuffix(x.Name, ".down_proj.weight"):
		scale /= math.Sqrt(2 * float64(r.Layers))
	}
	uniform(r.Seed, x.Name, t, p, first, scale, mean)
	return nil
}

// uniform fills p with uniform numbers of a deviation and a mean, which a seed, a name and their places
// determine, from element first on.
func uniform(seed uint64, name string, t dtype.DType, p []byte, first int64, deviation, mean float64) {
	h := fnv.New64a()
	h.Write([]byte(name))
	values := make([]float32, len(p)/t.Size())
	const run = 1 << 12 // numbers of a generator
	runs := (first+int64(len(values))-1)/run - first/run + 1
	parallel.For(int(runs), func(i int) {
		begin := (first/run + int64(i)) * run
		source := rand.NewPCG(seed, h.Sum64()+uint64(begin/run))
		for at := begin; at < min(begin+run, first+int64(len(values))); at++ {
			if x := source.Uint64(); at >= first {
				values[at-first] = float32(mean + deviation*math.Sqrt(12)*(float64(x>>11)/(1<<53)-0.5))
			}
		}
	})
	storage.Encode(t, p, values)
}
