package kernels

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

const headMixtureFormulas = `
    (logit, mu, log_sigma)[:,k] = silu(x * w1[k]) * w2[k]      silu(v) = v / (1 + exp(-v))
    log_w = log_softmax(logit)
    log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
    log_p = logsumexp over heads of log_w + log_n
    loss  = -mean(log_p)
`

// headMixture is the row of mixture.
func headMixture() Kernel {
	return Kernel{
		Name: "mixture", Title: "the log-probability of Gaussian mixtures whose components are heads", Impls: implNames(),
		Bench: Help{
			Long: `Measures the log-probability of a number for each token under a mixture of normal
distributions whose components are heads, and minus the mean of that,
` + headMixtureFormulas + `
on random normal inputs. On matrices the outputs of heads stay on the chip. For comparison,
--outputs writes them to memory, as the kernels grouped and gmm do.

First log_p and dx of sampled tokens are compared with a float64 reference. The loss and
the gradients of weights are sums over all tokens: they are compared if all tokens are
sampled; otherwise they must only be written.`,
			Example: `  flashvk bench mixture
  flashvk bench mixture --tokens 16000 --heads 10 --in 512 --hidden 1365 --dtype bfloat16 --outputs
  flashvk bench mixture --suite training --both --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes the log-probability of a number for each token under a mixture of normal
distributions whose components are heads, and minus the mean of that,
` + headMixtureFormulas + `
The input file holds the tensors
    x   (tokens, in), F16, BF16 or F32
    w1  (heads, in, hidden), as x
    w2  (heads, hidden, 3), as x: logit, mu, log sigma
    y   (tokens), F32
The output file gets
    log_p  (tokens), F32
    loss   (1), F32
With --backward the input file may hold
    dloss  (1), F32: the gradient by the loss; 1 if it is missing
and the output file also gets
    dx   (tokens, in), as x
    dw1  (heads, in, hidden), in the format of --grad-dtype
    dw2  (heads, hidden, 3), likewise`,
			Example: `  flashvk run mixture --in x.safetensors --out loss.safetensors
  flashvk run mixture --in x.safetensors --out loss.safetensors --backward --grad-dtype float32`,
		},
		Sweep: "--heads 1..16x2",
		Tune: &Tune{
			Help: Help{
				Long: `Tries tile sizes of the kernels of mixture on this device: the fused kernel of the forward
pass or, where outputs are in memory (as with --backward), the products and kernels of
grouped. Each product is tuned alone, as a row of gemm, and all kernels use that row.
Problem and default sizes are those of bench mixture.`,
				Example: `  flashvk tune mixture
  flashvk tune mixture --suite training --backward`,
			},
			Table: productTable, Impls: implNames()[1:],
		},
		New: func() Flags { return &mixtureFlags{} },
		How: []string{"outputs"},
	}
}

// mixtureFlags are the flags of both commands.
type mixtureFlags struct {
	tokens, heads, in, hidden int
	dtype, grad               dtype.DType
	opt                       mixture.Options
	set                       *pflag.FlagSet
}

// Add implements Flags.
func (m *mixtureFlags) Add(f *pflag.FlagSet, sizes bool) {
	m.set = f
	DTypeVar(f, &m.grad, "grad-dtype", "format of dw1 and dw2: float16, bfloat16 or float32 (default: that of x)")
	f.IntVar(&m.opt.Groups, "groups", 0, "most groups of heads that workgroups divide (default: what fills the device)")
	f.BoolVar(&m.opt.Outputs, "outputs", false, "write the outputs of heads to memory in the forward pass, also where it needs not")
	f.IntVar(&m.opt.HeadsAtATime, "heads-at-a-time", 0, "most heads whose hidden units are in memory at a time (default: 256 MiB of them, 512 MiB if a pass has one such tensor instead of two, 256 MiB of sums of outputs if it has none)")
	if !sizes {
		return
	}
	f.IntVar(&m.tokens, "tokens", 0, "rows of x (default 16000 on a GPU, 128 on a CPU device)")
	f.IntVar(&m.heads, "heads", 0, "heads (default 10, or 3)")
	f.IntVar(&m.in, "in", 0, "columns of x (default 512, or 32)")
	f.IntVar(&m.hidden, "hidden", 0, "hidden units of a head (default 1365, or 85)")
	DTypeVar(f, &m.dtype, "dtype", "format of x, w1 and w2: float16, bfloat16 (default on a GPU) or float32")
}

// FromFlags implements Flags.
func (m *mixtureFlags) FromFlags(cpu bool) (bench.Op, error) {
	p := mixture.Problem{Tokens: 16000, Heads: 10, In: 512, Hidden: 1365, DType: dtype.BFloat16}
	if cpu {
		p = mixture.Problem{Tokens: 128, Heads: 3, In: 32, Hidden: 85, DType: dtype.Float16}
	}
	setGiven(m.set, []sizeFlag{{"tokens", &p.Tokens, &m.tokens}, {"heads", &p.Heads, &m.heads}, {"in", &p.In, &m.in}, {"hidden", &p.Hidden, &m.hidden}})
	if m.set.Changed("dtype") {
		p.DType = m.dtype
	}
	return m.op(p)
}

// op adds the flags that both commands have to a problem.
func (m *mixtureFlags) op(p mixture.Problem) (bench.Op, error) {
	if m.set.Changed("grad-dtype") {
		p.Grad = dtype.Some(m.grad)
	}
	if err := m.opt.Validate(); err != nil {
		return nil, err
	}
	return mixtureOp{p: p, opt: m.opt}, p.Validate()
}

// FromFile implements Flags.
func (m *mixtureFlags) FromFile(in File) (bench.Op, error) {
	h := Header(in.Tensors())
	x, format, err := h.Floats("x", "tokens", "in")
	if err != nil {
		return nil, err
	}
	w2, _, err := h.Floats("w2", "heads", "hidden", "logit mu log_sigma")
	if err != nil {
		return nil, err
	}
	if w2[2] != 3 {
		return nil, fmt.Errorf(`tensor "w2": shape %v has a last axis of %d, want 3: logit, mu, log sigma`, w2, w2[2])
	}
	op, err := m.op(mixture.Problem{Tokens: x[0], Heads: w2[0], In: x[1], Hidden: w2[1], DType: format})
	if err != nil {
		return nil, err
	}
	one := op.(mixtureOp)
	_, one.dloss = h.Tensor("dloss")
	return one, nil
}

// Suite implements Flags: the heads of the training workload.
func (m *mixtureFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, tokens := range []int{16000, 5000} {
		p := mixture.Problem{Tokens: tokens, Heads: 10, In: 512, Hidden: 1365, DType: dtype.BFloat16}
		if small {
			p = mixture.Problem{Tokens: tokens / 200, Heads: 3, In: 32, Hidden: 85, DType: dtype.Float16}
		}
		list = append(list, mixtureOp{p: p, opt: m.opt})
	}
	return list
}

// A mixtureOp is a problem of package mixture.
type mixtureOp struct {
	p     mixture.Problem
	opt   mixture.Options
	dloss bool // there is a tensor dloss
}

// Name implements bench.Op.
func (o mixtureOp) Name() string { return "mixture" }

// Describe implements bench.Op.
func (o mixtureOp) Describe() string { return describePerceptron(o.p.Perceptrons()) }

// Keys implements bench.Op.
func (o mixtureOp) Keys() []bench.Key {
	p := o.p
	return []bench.Key{
		{Name: "dtype", Value: p.DType.String()}, {Name: "grad_dtype", Value: p.GradDType().String()},
		{Name: "tokens", Value: p.Tokens}, {Name: "heads", Value: p.Heads}, {Name: "in", Value: p.In}, {Name: "hidden", Value: p.Hidden},
		{Name: "groups", Value: o.opt.Groups}, {Name: "outputs", Value: o.opt.Outputs}, {Name: "heads_at_a_time", Value: o.opt.HeadsAtATime},
	}
}

// Cost implements bench.Op.
func (o mixtureOp) Cost(p bench.Pass) (flops, bytes float64) { return cost(o.p, p) }

// Tensors implements bench.Op.
func (o mixtureOp) Tensors() []bench.OpTensor {
	p := o.p
	list := []bench.OpTensor{
		{Name: "x", DType: p.DType, Shape: p.XShape()},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Draw: perRoot(p.In)},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Draw: perRoot(p.Hidden)},
		{Name: "y", DType: dtype.Float32, Shape: []int{p.Tokens}},
	}
	if o.dloss {
		list = append(list, bench.OpTensor{Name: "dloss", DType: dtype.Float32, Shape: []int{1}, Role: bench.Upstream})
	}
	return append(list,
		bench.OpTensor{Name: "log_p", DType: dtype.Float32, Shape: []int{p.Tokens}, Role: bench.Output},
		bench.OpTensor{Name: "loss", DType: dtype.Float32, Shape: []int{1}, Role: bench.Output},
		bench.OpTensor{Name: "dx", DType: p.DType, Shape: p.XShape(), Role: bench.Gradient},
		bench.OpTensor{Name: "dw1", DType: p.GradDType(), Shape: p.W1Shape(), Role: bench.Gradient},
		bench.OpTensor{Name: "dw2", DType: p.GradDType(), Shape: p.W2Shape(), Role: bench.Gradient})
}

// options returns those of a call on a path.
func (o mixtureOp) options(impl string) (opt mixture.Options, err error) {
	opt = o.opt
	opt.Impl, err = gemm.ParseImpl(impl)
	return opt, err
}

// Use implements bench.Tuner.
func (o mixtureOp) Use(tuning *kit.Tuning) bench.Op {
	o.opt.Tuning = tuning
	return o
}

// Tunables implements bench.Tuner: choices of the one kernel, or of the products and kernels of the
// heads.
func (o mixtureOp) Tunables(caps *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	return partTunables(caps, o, p, 3)
}

// Choose implements bench.Op.
func (o mixtureOp) Choose(caps *vk.Caps, impl string, p bench.Pass) (kit.Plan, error) {
	opt, err := o.options(impl)
	if err != nil {
		return nil, err
	}
	return mixture.Choose(caps, o.p, p.Kit(), opt)
}

// Record implements bench.Op.
func (o mixtureOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) error {
	opt, err := o.options(impl)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	x := mixture.Tensors{X: t["x"], W1: t["w1"], W2: t["w2"], Y: t["y"], LogP: t["log_p"], Loss: t["loss"]}
	if p == bench.Backward {
		return mixture.Backward(c, x, mixture.Gradients{DLoss: t["dloss"], DX: t["dx"], DW1: t["dw1"], DW2: t["dw2"]}, o.p, opt)
	}
	return mixture.Forward(c, x, o.p, opt)
}

// Reference implements bench.Op. For large problems it has some tokens of each tensor by token.
// Sums over all tokens then only have to be written.
func (o mixtureOp) Reference(t map[string][]float32, pass bench.Pass) (bench.Reference, error) {
	p := o.p
	in := ref.Inputs{X: wide(t["x"]), W1: wide(t["w1"]), W2: wide(t["w2"]), Y: wide(t["y"])}
	const most = 1 << 28 // multiplications of a product
	tokens := sample(p.Tokens, most/(p.Heads*p.Hidden*max(p.In, 3)))
	dloss := 1.0
	if o.dloss && pass == bench.Backward {
		dloss = float64(t["dloss"][0])
	}
	part, some, dloss := ref.Tokens(tokens, in, dloss, p)
	all := len(tokens) == p.Tokens
	if pass != bench.Backward {
		logP, loss := ref.Forward(some, part)
		b := ref.ForwardBounds(some, part)
		sum := bench.Expected{Name: "loss", At: []int{}}
		if all {
			sum = bench.Expected{Name: "loss", Want: []float64{loss}, Limit: b.Loss}
		}
		return bench.Expectations{{Name: "log_p", At: rowsAt(tokens, p.Tokens, 1), Want: logP, Limit: b.LogP}, sum}, nil
	}
	want := ref.Backward(some, dloss, part)
	b := ref.BackwardBounds(some, want, dloss, part)
	list := bench.Expectations{{Name: "dx", At: rowsAt(tokens, p.Tokens, p.In), Want: want.DX, Limit: b.DX}}
	if !all {
		return append(list, bench.Expected{Name: "dw1", At: []int{}}, bench.Expected{Name: "dw2", At: []int{}}), nil
	}
	return append(list, bench.Expected{Name: "dw1", Want: want.DW1, Limit: b.DW1}, bench.Expected{Name: "dw2", Want: want.DW2, Limit: b.DW2}), nil
}
