package kernels

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	normal "github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

const normFormulas = `
    s       = round(x + residual)                    to the format of x, if there is a residual; else x
    mean[r] = mean(s[r,:])                           0 with --rms
    rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])²) + eps)
    y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c]
`

func norm() Kernel {
	return Kernel{
		Name: "norm", Title: "layer normalization", Impls: []string{"auto"},
		Bench: Help{
			Long: `Measures layer normalization of rows, LayerNorm or with --rms RMSNorm,
` + normFormulas + `
on random normal inputs, after checking all of it against a float64 reference. The rate is
that of memory traffic: x, residual and w read, y, sum and the statistics written;
backward dy, s, w, dsum and the statistics read, dx and dw written.`,
			Example: `  flashvk bench norm
  flashvk bench norm --rows 18048 --cols 512 --dtype bfloat16 --backward
  flashvk bench norm --suite training --both --format markdown`,
		},
		Run: Help{
			Long: `Computes layer normalization of rows, LayerNorm or with --rms RMSNorm,
` + normFormulas + `
The input file holds the tensors
    x         (rows, cols), F16, BF16 or F32
    w         (cols), F32 or as x
    residual  (rows, cols), as x; may be missing
The output file gets
    y     (rows, cols), as x
    mean  (rows), F32; not with --rms
    rstd  (rows), F32
    sum   (rows, cols), as x: s, if there is a residual
With --backward the input file also holds the gradients of a loss by y and sum,
    dy    (rows, cols), as x
    dsum  (rows, cols), as x, if there is a residual
and the output file also gets
    dx         (rows, cols), as x
    dresidual  the same, if there is a residual
    dw         (cols), as w`,
			Example: `  flashvk run norm --in x.safetensors --out y.safetensors
  flashvk run norm --in x.safetensors --out y.safetensors --rms --eps 1e-6 --backward`,
		},
		Sweep: "--rows 1024..262144x4 --cols 512,4096",
		Tune: &Tune{
			Help: Help{
				Long: `Tries how workgroups share rows of layer normalization on this device, in the forward
pass or with --backward in the backward pass. Problem and default sizes are those of
bench norm.`,
				Example: `  flashvk tune norm
  flashvk tune norm --rows 18048,205000 --cols 512 --dtype bfloat16 --backward
  flashvk tune norm --suite training --budget 20s`,
			},
			Impls: []string{"auto"},
		},
		New: func() Flags { return &normFlags{eps: 1e-5} },
	}
}

// normFlags are the flags of both commands.
type normFlags struct {
	rms, residual bool
	eps           float64
	rows, cols    int
	dtype, weight dtype.DType
	set           *pflag.FlagSet
}

// Add implements Flags.
func (n *normFlags) Add(f *pflag.FlagSet, sizes bool) {
	n.set = f
	f.BoolVar(&n.rms, "rms", false, "RMSNorm: without the mean")
	f.Float64Var(&n.eps, "eps", n.eps, "term added to the variance")
	if !sizes {
		return
	}
	f.IntVar(&n.rows, "rows", 0, "rows (default 205000 on a GPU, 256 on a CPU device)")
	f.IntVar(&n.cols, "cols", 0, "elements of a row (default 512)")
	DTypeVar(f, &n.dtype, "dtype", "format of the rows: float16, bfloat16 (default) or float32")
	DTypeVar(f, &n.weight, "weight-dtype", "format of the weight: float32 (default) or that of the rows")
	f.BoolVar(&n.residual, "residual", false, "add a second tensor first, and write the sum")
}

// FromFlags implements Flags.
func (n *normFlags) FromFlags(cpu bool) (bench.Op, error) {
	p := normal.Problem{Rows: 205000, Cols: 512, RMS: n.rms, Eps: n.eps, DType: dtype.BFloat16, WeightDType: n.weight, Residual: n.residual}
	if cpu {
		p.Rows, p.DType = 256, dtype.Float16
	}
	if n.set.Changed("rows") {
		p.Rows = n.rows
	}
	if n.set.Changed("cols") {
		p.Cols = n.cols
	}
	if n.set.Changed("dtype") {
		p.DType = n.dtype
	}
	return normOp{p: p}, p.Validate()
}

// FromFile implements Flags.
func (n *normFlags) FromFile(in File) (bench.Op, error) {
	h := Header(in.Tensors())
	shape, format, err := h.Floats("x", "rows", "cols")
	if err != nil {
		return nil, err
	}
	_, weight, err := h.Floats("w", "cols")
	if err != nil {
		return nil, err
	}
	p := normal.Problem{Rows: shape[0], Cols: shape[1], RMS: n.rms, Eps: n.eps, DType: format, WeightDType: weight}
	_, p.Residual = h.Tensor("residual")
	return normOp{p: p}, p.Validate()
}

// Suite implements Flags with the rows of the training shapes, and wider rows.
func (n *normFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, s := range [][2]int{{18048, 512}, {11000, 512}, {205000, 512}, {16384, 4096}} {
		p := normal.Problem{Rows: s[0], Cols: s[1], Eps: 1e-5, DType: dtype.BFloat16}
		if small {
			p.Rows /= 100
		}
		list = append(list, normOp{p: p})
	}
	return list
}

// A normOp is a problem of package norm.
type normOp struct {
	p      normal.Problem
	config *normal.Config // nil: the package's rule
	tuning *kit.Tuning
}

// options returns those of a call.
func (o normOp) options() normal.Options { return normal.Options{Config: o.config, Tuning: o.tuning} }

// Use implements bench.Tuner.
func (o normOp) Use(tuning *kit.Tuning) bench.Op {
	o.tuning = tuning
	return o
}

// Tunables implements bench.Tuner.
func (o normOp) Tunables(_ *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	return []bench.Tunable{bench.ChoicesOf("norm", o, p, o.p, func(c normal.Config) bench.Op {
		o.config = &c
		return o
	})}, nil
}

// Name implements bench.Op.
func (o normOp) Name() string { return "norm" }

// Describe implements bench.Op.
func (o normOp) Describe() string {
	s := fmt.Sprintf("%v: %s, rows %d, cols %d, weight %v", o.p.DType, o.kind(), o.p.Rows, o.p.Cols, o.p.WeightDType)
	if o.p.Residual {
		s += ", residual"
	}
	return s
}

func (o normOp) kind() string {
	if o.p.RMS {
		return "RMSNorm"
	}
	return "LayerNorm"
}

// Keys implements bench.Op.
func (o normOp) Keys() []bench.Key {
	return []bench.Key{
		{Name: "kind", Value: o.kind()}, {Name: "dtype", Value: o.p.DType.String()}, {Name: "weight_dtype", Value: o.p.WeightDType.String()},
		{Name: "rows", Value: o.p.Rows}, {Name: "cols", Value: o.p.Cols}, {Name: "residual", Value: o.p.Residual}, {Name: "eps", Value: o.p.Eps},
	}
}

// Cost implements bench.Op.
func (o normOp) Cost(p bench.Pass) (flops, bytes float64) { return cost(o.p, p) }

// Tensors implements bench.Op.
func (o normOp) Tensors() []bench.OpTensor {
	rows, cols, row := []int{o.p.Rows, o.p.Cols}, []int{o.p.Cols}, []int{o.p.Rows}
	t, w := o.p.DType, o.p.WeightDType
	list := []bench.OpTensor{
		{Name: "x", DType: t, Shape: rows},
		{Name: "w", DType: w, Shape: cols},
		{Name: "y", DType: t, Shape: rows, Role: bench.Output},
		{Name: "rstd", DType: dtype.Float32, Shape: row, Role: bench.Output},
		{Name: "dy", DType: t, Shape: rows, Role: bench.Upstream},
		{Name: "dx", DType: t, Shape: rows, Role: bench.Gradient},
		{Name: "dw", DType: w, Shape: cols, Role: bench.Gradient},
	}
	if !o.p.RMS {
		list = append(list, bench.OpTensor{Name: "mean", DType: dtype.Float32, Shape: row, Role: bench.Output})
	}
	if o.p.Residual {
		list = append(list,
			bench.OpTensor{Name: "residual", DType: t, Shape: rows},
			bench.OpTensor{Name: "sum", DType: t, Shape: rows, Role: bench.Output},
			bench.OpTensor{Name: "dsum", DType: t, Shape: rows, Role: bench.Upstream},
			bench.OpTensor{Name: "dresidual", DType: t, Shape: rows, Role: bench.Gradient})
	}
	return list
}

// Choose implements bench.Op.
func (o normOp) Choose(caps *vk.Caps, _ string, p bench.Pass) (kit.Plan, error) {
	return normal.Choose(caps, o.p, p.Kit(), o.options())
}

// Record implements bench.Op.
func (o normOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, _ string, p bench.Pass) error {
	x := normal.Tensors{X: t["x"], Residual: t["residual"], W: t["w"], Y: t["y"], Sum: t["sum"], Mean: t["mean"], RStd: t["rstd"]}
	if p == bench.Forward {
		return normal.Forward(c, x, o.p, o.options())
	}
	g := normal.Gradients{DY: t["dy"], DSum: t["dsum"], DX: t["dx"], DResidual: t["dresidual"], DW: t["dw"]}
	opt := o.options()
	opt.Workspace = workspace
	return normal.Backward(c, x, g, o.p, opt)
}

// Reference implements bench.Op.
func (o normOp) Reference(t map[string][]float32, p bench.Pass) (bench.Reference, error) {
	in := ref.Inputs{X: wide(t["x"]), Residual: wide(t["residual"]), W: wide(t["w"])}
	if p == bench.Backward {
		s := in.X
		if o.p.Residual {
			s = ref.Forward(in, o.p).Sum
		}
		up := ref.Upstream{DY: wide(t["dy"]), DSum: wide(t["dsum"])}
		want, plain := ref.Backward(s, in.W, up, o.p), ref.PlainBackward(s, in.W, up, o.p)
		limit := ref.BackwardBounds(want, plain, s, in.W, up, o.p)
		list := bench.Expectations{{Name: "dx", Want: want.DX, Limit: limit.DX}, {Name: "dw", Want: want.DW, Limit: limit.DW}}
		if o.p.Residual {
			list = append(list, bench.Expected{Name: "dresidual", Want: want.DX, Limit: limit.DX})
		}
		return list, nil
	}
	want := ref.Forward(in, o.p)
	limit := ref.Bounds(want, ref.PlainForward(in, o.p), o.p)
	list := bench.Expectations{{Name: "y", Want: want.Y, Limit: limit.Y}, {Name: "rstd", Want: want.Rstd, Limit: limit.Rstd}}
	if !o.p.RMS {
		list = append(list, bench.Expected{Name: "mean", Want: want.Mean, Limit: limit.Mean})
	}
	if o.p.Residual {
		list = append(list, bench.Expected{Name: "sum", Want: want.Sum, Limit: limit.Sum})
	}
	return list, nil
}

// wide returns x in float64, nil for nil.
func wide(x []float32) []float64 {
	if x == nil {
		return nil
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
