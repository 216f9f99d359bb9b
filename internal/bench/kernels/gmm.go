package kernels

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

const gmmFormulas = `
    log_w = log_softmax(logit)
    log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
    log_p = logsumexp over components of log_w + log_n
    loss  = -mean(log_p)
`

func mixtures() Kernel {
	return Kernel{
		Name: "gmm", Title: "the log-probability of Gaussian mixtures", Impls: []string{"auto"},
		Fixed: "its workgroups are of one size on every device",
		Bench: Help{
			Long: `Measures the log-probability of a number for each token under a mixture of normal
distributions, and minus the mean of that,
` + gmmFormulas + `
on tensors (tokens, components, 3) of logit, mu and log sigma, after checking all of it
against a float64 reference.`,
			Example: `  flashvk bench gmm
  flashvk bench gmm --tokens 5000 --components 10 --backward
  flashvk bench gmm --suite training --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes the log-probability of a number for each token under a mixture of normal
distributions, and minus the mean of that,
` + gmmFormulas + `
The input file holds
    p  (tokens, components, 3), F16, BF16 or F32: logit, mu, log sigma
or
    logit, mu, log_sigma  (tokens, components), of one format
and
    y  (tokens), F32
The output file gets
    log_p  (tokens), F32
    loss   (1), F32
With --backward the input file may hold
    dloss  (1), F32: the gradient by the loss; 1 if it is missing
and the output file also gets dp, or dlogit, dmu and dlog_sigma.`,
			Example: `  flashvk run gmm --in p.safetensors --out loss.safetensors --backward`,
		},
		Sweep: "--tokens 1024..65536x4",
		New:   func() Flags { return &gmmFlags{tokens: 16000, components: 10} },
	}
}

// gmmFlags are the flags of both commands.
type gmmFlags struct {
	tokens, components int
	dtype              dtype.DType
}

// Add implements Flags.
func (g *gmmFlags) Add(f *pflag.FlagSet, sizes bool) {
	if !sizes {
		return
	}
	f.IntVar(&g.tokens, "tokens", g.tokens, "tokens")
	f.IntVar(&g.components, "components", g.components, "components of a mixture")
	DTypeVar(f, &g.dtype, "dtype", "format of the mixtures: float16, bfloat16 or float32 (default)")
}

// FromFlags implements Flags.
func (g *gmmFlags) FromFlags(bool) (bench.Op, error) {
	op := gmmOp{p: gmm.Problem{Tokens: g.tokens, Components: g.components, DType: g.dtype}, whole: true}
	return op, op.p.Validate()
}

// FromFile implements Flags.
func (g *gmmFlags) FromFile(in File) (bench.Op, error) {
	h := Header(in.Tensors())
	op := gmmOp{}
	var shape []int
	var err error
	if _, op.whole = h.Tensor("p"); op.whole {
		shape, op.p.DType, err = h.Floats("p", "tokens", "components", "logit mu log_sigma")
	} else {
		shape, op.p.DType, err = h.Floats("logit", "tokens", "components")
	}
	if err != nil {
		return nil, err
	}
	if op.whole && shape[2] != 3 {
		return nil, fmt.Errorf(`tensor "p": shape %v has a last axis of %d, want 3: logit, mu, log sigma`, shape, shape[2])
	}
	op.p.Tokens, op.p.Components = shape[0], shape[1]
	_, op.dloss = h.Tensor("dloss")
	return op, op.p.Validate()
}

// Suite implements Flags.
func (g *gmmFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, tokens := range []int{16000, 5000} {
		if small {
			tokens /= 10
		}
		list = append(list, gmmOp{p: gmm.Problem{Tokens: tokens, Components: 10}, whole: true})
	}
	return list
}

// A gmmOp is a problem of package gmm.
type gmmOp struct {
	p     gmm.Problem
	whole bool // one tensor p, not three
	dloss bool // there is a tensor dloss
}

// Name implements bench.Op.
func (o gmmOp) Name() string { return "gmm" }

// Describe implements bench.Op.
func (o gmmOp) Describe() string {
	return fmt.Sprintf("%v: tokens %d, components %d", o.p.DType, o.p.Tokens, o.p.Components)
}

// Keys implements bench.Op.
func (o gmmOp) Keys() []bench.Key {
	return []bench.Key{{Name: "dtype", Value: o.p.DType.String()}, {Name: "tokens", Value: o.p.Tokens}, {Name: "components", Value: o.p.Components}}
}

// Cost implements bench.Op.
func (o gmmOp) Cost(p bench.Pass) (flops, bytes float64) { return cost(o.p, p) }

// Tensors implements bench.Op.
func (o gmmOp) Tensors() (list []bench.OpTensor) {
	add := func(name string, t dtype.DType, role bench.Role, shape ...int) {
		list = append(list, bench.OpTensor{Name: name, DType: t, Shape: shape, Role: role})
	}
	names, shape := []string{"logit", "mu", "log_sigma"}, []int{o.p.Tokens, o.p.Components}
	if o.whole {
		names, shape = []string{"p"}, append(shape, 3)
	}
	for _, name := range names {
		add(name, o.p.DType, bench.Input, shape...)
	}
	add("y", dtype.Float32, bench.Input, o.p.Tokens)
	if o.dloss {
		add("dloss", dtype.Float32, bench.Upstream, 1)
	}
	add("log_p", dtype.Float32, bench.Output, o.p.Tokens)
	add("loss", dtype.Float32, bench.Output, 1)
	for _, name := range names {
		add("d"+name, o.p.GradDType(), bench.Gradient, shape...)
	}
	return list
}

// Choose implements bench.Op.
func (o gmmOp) Choose(caps *vk.Caps, _ string, p bench.Pass) (kit.Plan, error) {
	return gmm.Choose(caps, o.p, p.Kit(), gmm.Options{})
}

// parts returns logit, mu and log sigma, or with prefix d their gradients.
func (o gmmOp) parts(t map[string]vk.Tensor, prefix string) (logit, mu, logSigma vk.Tensor) {
	if o.whole {
		return gmm.Interleaved(t[prefix+"p"])
	}
	return t[prefix+"logit"], t[prefix+"mu"], t[prefix+"log_sigma"]
}

// Record implements bench.Op.
func (o gmmOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, _ string, p bench.Pass) error {
	x := gmm.Tensors{Y: t["y"], LogP: t["log_p"], Loss: t["loss"]}
	x.Logit, x.Mu, x.LogSigma = o.parts(t, "")
	if p == bench.Forward {
		return gmm.Forward(c, x, o.p, gmm.Options{Workspace: workspace})
	}
	g := gmm.Gradients{DLoss: t["dloss"]}
	g.DLogit, g.DMu, g.DLogSigma = o.parts(t, "d")
	return gmm.Backward(c, x, g, o.p, gmm.Options{})
}

// Reference implements bench.Op.
func (o gmmOp) Reference(t map[string][]float32, p bench.Pass) (bench.Reference, error) {
	in := ref.Inputs{Logit: wide(t["logit"]), Mu: wide(t["mu"]), LogSigma: wide(t["log_sigma"]), Y: wide(t["y"])}
	if o.whole {
		x := wide(t["p"])
		for i := 0; i < len(x); i += 3 {
			in.Logit, in.Mu, in.LogSigma = append(in.Logit, x[i]), append(in.Mu, x[i+1]), append(in.LogSigma, x[i+2])
		}
	}
	if p == bench.Forward {
		logP, loss := ref.Forward(in, o.p)
		plain, plainLoss := ref.PlainForward(in, o.p)
		b := ref.ForwardBounds(in, logP, plain, loss, plainLoss)
		return bench.Expectations{{Name: "log_p", Want: logP, Limit: b.LogP}, {Name: "loss", Want: []float64{loss}, Limit: b.Loss}}, nil
	}
	dloss := 1.0
	if o.dloss {
		dloss = float64(t["dloss"][0])
	}
	want := ref.Backward(in, dloss, o.p)
	b := ref.BackwardBounds(in, want, ref.PlainBackward(in, dloss, o.p), dloss, o.p)
	if !o.whole {
		return bench.Expectations{{Name: "dlogit", Want: want.Logit, Limit: b.DLogit}, {Name: "dmu", Want: want.Mu, Limit: b.DMu}, {Name: "dlog_sigma", Want: want.LogSigma, Limit: b.DLogSigma}}, nil
	}
	// Each of the three has a limit of its own.
	parts := bench.Expectations{{Name: "dp", Limit: b.DLogit}, {Name: "dp", Limit: b.DMu}, {Name: "dp", Limit: b.DLogSigma}}
	for part, x := range [][]float64{want.Logit, want.Mu, want.LogSigma} {
		parts[part].Want = x
		for i := range x {
			parts[part].At = append(parts[part].At, 3*i+part)
		}
	}
	return parts, nil
}
