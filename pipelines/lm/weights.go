package lm

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// A Param is a tensor of a checkpoint. A matrix is (out, in), and of GPT-2 (in, out).
type Param = train.Param

// headName is the head of a model that does not tie it to the embeddings.
const headName = "lm_head.weight"

// names are those of parameters that belong to no layer; norm is without the ending.
type names struct{ embed, positions, norm string }

func (c *Config) names() names {
	if c.GPT2() {
		return names{"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f"}
	}
	return names{embed: "model.embed_tokens.weight", norm: "model.norm"}
}

// layer returns the name of a parameter of a layer.
func (c *Config) layer(i int, name string) string {
	if c.GPT2() {
		return fmt.Sprintf("transformer.h.%d.%s", i, name)
	}
	return fmt.Sprintf("model.layers.%d.%s", i, name)
}

// Params returns all parameters, in the order of the forward pass, which names them.
func (c *Config) Params() []Param { return c.params(nil) }

// params returns the parameters of a model and of an adapter.
func (c *Config) params(l *LoRA) []Param {
	f := &Forward{Config: c, Sizes: Sizes{Batch: 1, Seq: 1}, LoRA: l}
	all, _ := train.Params(&vk.Caps{}, f.Tape, train.Options{}) // an error is NewModel's
	return all
}

// NumParams returns the number of weights.
func (c *Config) NumParams() (n int64) {
	for _, p := range c.Params() {
		n += int64(p.Size())
	}
	return n
}

// Weights are the elements of a model's parameters.
type Weights interface {
	// Read fills x with elements of a parameter, from element first on.
	Read(p Param, x []float32, first int) error
}

// read returns all elements of a parameter.
func read(w Weights, p Param) ([]float32, error) {
	x := make([]float32, p.Size())
	return x, w.Read(p, x, 0)
}

// pieces calls f with all elements of a parameter in a format, a piece after the other, and with the first of each. An
// element that the format cannot hold is an error.
func pieces(p Param, t dtype.DType, w Weights, f func(piece []byte, first int) error) error {
	size, n := t.Size(), p.Size()
	most := (8 << 20) / size
	raw := make([]byte, size*min(most, n))
	for first := 0; first < n; first += most {
		raw = raw[:size*min(most, n-first)]
		if err := encoded(p, t, w, raw, first); err != nil {
			return err
		}
		if err := f(raw, first); err != nil {
			return err
		}
	}
	return nil
}

// encoded fills raw with elements of a parameter in a format, from element first on. Those of a file in this format are
// read as they are.
func encoded(p Param, t dtype.DType, w Weights, raw []byte, first int) error {
	if c, ok := w.(*Checkpoint); ok {
		if s, ok := c.tensors[p.Name]; ok && formats[s.DType] == t {
			return s.file.ReadAt(s.Tensor, raw, int64(first*t.Size()))
		}
	}
	x := make([]float32, len(raw)/t.Size())
	if err := w.Read(p, x, first); err != nil {
		return err
	}
	for i := 0; t == dtype.Float16 && i < len(x); i++ {
		if a, v := math.Abs(float64(x[i])), x[i]; a > 65504 && !math.IsInf(a, 1) {
			return fmt.Errorf("lm: tensor %q: element %d is %v, beyond the 65504 of float16: take bfloat16 or float32", p.Name, first+i, v)
		}
	}
	storage.Encode(t, raw, x)
	return nil
}

// Random are weights for tests and measurements: of matrices uniform numbers whose deviation is the
// inverse root of the inner dimension, of tables and biases numbers of deviation 1 and 0.1, and of
// norms 1. Of an adapter they are what a training begins with, as PEFT has it: uniform numbers between
// ±1/√in for A, and 0 for B.
type Random struct{ Seed uint64 }

// Read is of Weights. The number of an element does not depend on how much is read.
func (r Random) Read(p Param, x []float32, first int) error {
	scale, mean := 0.1, 0.0
	switch table := strings.Contains(p.Name, "embed_tokens") || strings.Contains(p.Name, ".wte") || strings.Contains(p.Name, ".wpe"); {
	case len(p.Shape) == 1 && !strings.HasSuffix(p.Name, "bias"):
		scale, mean = 0, 1
	case table:
		scale = 1
	case strings.HasSuffix(p.Name, ".lora_A.weight"):
		scale = 1 / math.Sqrt(3*float64(p.Shape[1]))
	case strings.HasSuffix(p.Name, ".lora_B.weight"):
		scale = 0
	case len(p.Shape) == 2:
		scale = 1 / math.Sqrt(float64(min(p.Shape[0], p.Shape[1])))
	}
	uniform(r.Seed, p.Name, x, first, scale, mean)
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
func (r Initial) Read(p Param, x []float32, first int) error {
	scale, mean := 0.02, 0.0
	switch {
	case len(p.Shape) == 1 && strings.HasSuffix(p.Name, "bias"):
		scale = 0
	case len(p.Shape) == 1:
		scale, mean = 0, 1
	case strings.HasSuffix(p.Name, ".c_proj.weight") || strings.HasSuffix(p.Name, ".o_proj.weight") || strings.HasSuffix(p.Name, ".down_proj.weight"):
		scale /= math.Sqrt(2 * float64(r.Layers))
	}
	uniform(r.Seed, p.Name, x, first, scale, mean)
	return nil
}

// uniform fills x with uniform numbers of a deviation and a mean, which a seed, a name and their places
// determine, from element first on.
func uniform(seed uint64, name string, x []float32, first int, deviation, mean float64) {
	h := fnv.New64a()
	h.Write([]byte(name))
	const run = 1 << 12 // numbers of a generator
	end := first + len(x)
	parallel.For((end-1)/run-first/run+1, func(i int) {
		begin := (first/run + i) * run
		source := rand.NewPCG(seed, h.Sum64()+uint64(begin/run))
		for at := begin; at < min(begin+run, end); at++ {
			if v := source.Uint64(); at >= first {
				x[at-first] = float32(mean + deviation*math.Sqrt(12)*(float64(v>>11)/(1<<53)-0.5))
			}
		}
	})
}
