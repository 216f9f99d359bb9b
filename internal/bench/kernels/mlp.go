package kernels

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

const mlpFormulas = `
    pre  = x * w1
    y    = silu(pre) * w2                      silu(v) = v / (1 + exp(-v))
    dpre = (dy * w2ᵀ) ∘ silu'(pre)
    dx   = dpre * w1ᵀ,   dw1 = xᵀ * dpre,   dw2 = silu(pre)ᵀ * dy
`

// fusedImpl is the path of mlp that is one kernel. The other paths are those of its products; auto
// takes the fastest.
const fusedImpl = "fused"

// perceptron is the row of mlp.
func perceptron() Kernel {
	return Kernel{
		Name: "mlp", Title: "a two-layer perceptron with SiLU", Impls: slices.Insert(implNames(), 1, fusedImpl),
		Bench: Help{
			Long: `Measures a two-layer perceptron,
` + mlpFormulas + `
on random normal inputs, after checking sampled tokens and hidden units against a
float64 reference. Rates count the products of the formulas, 2 forward and 4 backward.
The backward pass computes pre again, which is not counted, unless --keep makes the forward
pass write it; PyTorch writes pre and hidden, which is silu(pre). Path fused is the forward
pass as one kernel.`,
			Example: `  flashvk bench mlp
  flashvk bench mlp --tokens 11000 --in 512 --hidden 1365 --out 512 --dtype bfloat16 --backward
  flashvk bench mlp --suite training --impl auto,fused
  flashvk bench mlp --tokens 11000 --impl fused --config "pair s8 t4x4 h2x1 x16 ahead8 double"
  flashvk bench mlp --suite training --backward --keep hidden
  flashvk bench mlp --suite training --backward --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes a two-layer perceptron,
` + mlpFormulas + `
The input file holds the tensors
    x   (tokens, in), F16, BF16 or F32
    w1  (in, hidden), as x
    w2  (hidden, out), as x
The output file gets
    y       (tokens, out), as x
    pre     (tokens, hidden), as x, with --keep pre or hidden
    hidden  the same of silu(pre), with --keep hidden
With --backward the input file also holds the gradient of a loss by y,
    dy   (tokens, out), as x
and the output file also gets
    dx   (tokens, in), as x
    dw1  (in, hidden), in the format of --grad-dtype
    dw2  (hidden, out), likewise`,
			Example: `  flashvk run mlp --in x.safetensors --out y.safetensors
  flashvk run mlp --in x.safetensors --out y.safetensors --backward --grad-dtype float32`,
		},
		Sweep: "--tokens 1024..65536x4 --dtype float16,bfloat16",
		Tune: &Tune{
			Help: Help{
				Long: `Tries tile sizes of the products of mlp on this device, in the forward pass or with
--backward in the backward pass. Each product is tuned alone, as a row of gemm, and all
kernels use that row. Path fused is not tuned; bench mlp --config forces its tile sizes.
Problem and default sizes are those of bench mlp.`,
				Example: `  flashvk tune mlp
  flashvk tune mlp --tokens 11000 --keep pre --backward --impl coopmat`,
			},
			Table: productTable, Impls: implNames()[1:],
		},
		New: func() Flags { return &mlpFlags{} },
		How: []string{"keep"},
	}
}

const groupedFormulas = `
    pre[k]  = x * w1[k]
    y[:,k]  = silu(pre[k]) * w2[k]             silu(v) = v / (1 + exp(-v))
    dpre[k] = (dy[:,k] * w2[k]ᵀ) ∘ silu'(pre[k])
    dx      = sum over k of dpre[k] * w1[k]ᵀ
    dw1[k]  = xᵀ * dpre[k],   dw2[k] = silu(pre[k])ᵀ * dy[:,k]
`

// perceptrons is the row of grouped.
func perceptrons() Kernel {
	return Kernel{
		Name: "grouped", Title: "perceptron heads with SiLU that share their input", Impls: implNames(),
		Bench: Help{
			Long: `Measures two-layer perceptrons that share their input,
` + groupedFormulas + `
on random normal inputs, after checking sampled tokens and hidden units against a
float64 reference. Rates count the products of the formulas, 2 forward and 4 backward for
each head. The backward pass computes pre again, which is not counted, unless --keep makes
the forward pass write it.`,
			Example: `  flashvk bench grouped
  flashvk bench grouped --tokens 16000 --heads 10 --in 512 --hidden 1365 --out 3 --dtype bfloat16 --backward
  flashvk bench grouped --suite training --backward --products
  flashvk bench grouped --suite training --backward --keep pre
  flashvk bench grouped --suite training --backward --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes two-layer perceptrons that share their input,
` + groupedFormulas + `
The input file holds the tensors
    x   (tokens, in), F16, BF16 or F32
    w1  (heads, in, hidden), as x
    w2  (heads, hidden, out), as x
The output file gets
    y    (tokens, heads, out), as x
    pre  (tokens, heads, hidden), as x, with --keep pre
With --backward the input file also holds the gradient of a loss by y,
    dy   (tokens, heads, out), as x
and the output file also gets
    dx   (tokens, in), as x
    dw1  (heads, in, hidden), in the format of --grad-dtype
    dw2  (heads, hidden, out), likewise`,
			Example: `  flashvk run grouped --in x.safetensors --out y.safetensors
  flashvk run grouped --in x.safetensors --out y.safetensors --backward --grad-dtype float32`,
		},
		Sweep: "--heads 1..16x2",
		Tune: &Tune{
			Help: Help{
				Long: `Tries tile sizes of the kernels of grouped on this device, in the forward pass or with
--backward in the backward pass: kernels that keep hidden units on the chip, and products.
Each product is tuned alone, as a row of gemm, and all kernels use that row. Problem and
default sizes are those of bench grouped.`,
				Example: `  flashvk tune grouped
  flashvk tune grouped --tokens 16000 --heads 10 --out 3 --dtype bfloat16 --backward --impl coopmat`,
			},
			Table: productTable, Impls: implNames()[1:],
		},
		New: func() Flags { return &mlpFlags{grouped: true} },
		How: []string{"products", "keep"},
	}
}

// mlpFlags are the flags of the commands of mlp and of grouped.
type mlpFlags struct {
	grouped                        bool
	tokens, heads, in, hidden, out int
	dtype, grad                    dtype.DType
	keep                           mlp.Keep
	config                         string
	opt                            mlp.Options
	set                            *pflag.FlagSet
}

// Add implements Flags.
func (m *mlpFlags) Add(f *pflag.FlagSet, sizes bool) {
	m.set = f
	DTypeVar(f, &m.grad, "grad-dtype", "format of dw1 and dw2: float16, bfloat16 or float32 (default: that of x)")
	units, columns := "hidden units (default 1365, or 85)", "columns of y (default 512, or 32)"
	if m.grouped {
		f.IntVar(&m.opt.HeadsAtATime, "heads-at-a-time", 0, "most heads whose hidden units are in memory at a time (default: 256 MiB of them, 512 MiB if a pass has one such tensor instead of two, 256 MiB of sums of outputs if it has none)")
		f.BoolVar(&m.opt.Products, "products", false, "write hidden units to memory, also where a pass needs not")
		keepVar(f, &m.keep, mlp.Keeps()[:2], "what the forward pass writes for the backward pass: nothing (default) or pre")
		units, columns = "hidden units of a head (default 1365, or 85)", "columns of y of a head (default 3)"
	} else {
		keepVar(f, &m.keep, mlp.Keeps(), "what the forward pass writes for the backward pass: nothing (default), pre, or hidden, which is pre and silu(pre)")
	}
	if !sizes {
		return
	}
	f.IntVar(&m.tokens, "tokens", 0, fmt.Sprintf("rows of x (default %d on a GPU, 128 on a CPU device)", m.defaults(false).Tokens))
	if m.grouped {
		f.IntVar(&m.heads, "heads", 0, "heads (default 10, or 3)")
	}
	f.IntVar(&m.in, "in", 0, "columns of x (default 512, or 32)")
	f.IntVar(&m.hidden, "hidden", 0, units)
	f.IntVar(&m.out, "out", 0, columns)
	DTypeVar(f, &m.dtype, "dtype", "format of all tensors: float16, bfloat16 (default on a GPU) or float32")
	if !m.grouped {
		f.StringVar(&m.config, "config", "", "tile sizes of path fused, in the words of the column runs, instead of the table's")
	}
}

// defaults returns the problem of no flags.
func (m *mlpFlags) defaults(cpu bool) mlp.Problem {
	p := mlp.Problem{Tokens: 18048, In: 512, Hidden: 1365, Out: 512, DType: dtype.BFloat16}
	if cpu {
		p = mlp.Problem{Tokens: 128, In: 32, Hidden: 85, Out: 32, DType: dtype.Float16}
	}
	if m.grouped {
		p.Heads, p.Out = 10, 3
		if p.Tokens = 16000; cpu {
			p.Tokens, p.Heads = 128, 3
		}
	}
	return p
}

// FromFlags implements Flags.
func (m *mlpFlags) FromFlags(cpu bool) (bench.Op, error) {
	p := m.defaults(cpu)
	setGiven(m.set, []sizeFlag{{"tokens", &p.Tokens, &m.tokens}, {"heads", &p.Heads, &m.heads}, {"in", &p.In, &m.in}, {"hidden", &p.Hidden, &m.hidden}, {"out", &p.Out, &m.out}})
	if m.set.Changed("dtype") {
		p.DType = m.dtype
	}
	return m.op(p, engine.RowStride(p.Hidden))
}

// op adds the flags that both commands have to a problem. Stride is the distance of rows of hidden
// units in elements.
func (m *mlpFlags) op(p mlp.Problem, stride int) (bench.Op, error) {
	if m.grouped && p.Heads < 1 {
		return nil, fmt.Errorf("grouped: heads=%d is not positive", p.Heads)
	}
	p.Keep = m.keep
	if m.set.Changed("grad-dtype") {
		p.Grad = dtype.Some(m.grad)
	}
	opt := m.opt
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if opt.FusedConfig = m.config; opt.Validate() != nil {
		return nil, fmt.Errorf("--config: %w", opt.Validate())
	}
	return mlpOp{p, opt, stride}, p.Validate()
}

// FromFile implements Flags.
func (m *mlpFlags) FromFile(in File) (bench.Op, error) {
	h := Header(in.Tensors())
	x, format, err := h.Floats("x", "tokens", "in")
	if err != nil {
		return nil, err
	}
	axes := []string{"heads", "hidden", "out"}
	if !m.grouped {
		axes = axes[1:]
	}
	w2, _, err := h.Floats("w2", axes...)
	if err != nil {
		return nil, err
	}
	p := mlp.Problem{Tokens: x[0], In: x[1], DType: format}
	if m.grouped {
		p.Heads, w2 = w2[0], w2[1:]
	}
	p.Hidden, p.Out = w2[0], w2[1]
	return m.op(p, p.Hidden)
}

// Suite implements Flags. Its cases are the tokens of the training shapes, or the heads of that
// workload.
func (m *mlpFlags) Suite(small bool) []bench.Op {
	tokens := []int{18048, 11000, 205000}
	if m.grouped {
		tokens = []int{16000, 5000}
	}
	var list []bench.Op
	for _, n := range tokens {
		p := m.defaults(small)
		if p.Tokens = n; small {
			p.Tokens = n / 200
		}
		p.Keep = m.keep
		list = append(list, mlpOp{p, m.opt, engine.RowStride(p.Hidden)})
	}
	return list
}
