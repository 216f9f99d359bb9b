package call

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Gemm is a call of gemm.Forward, with the options of package engine. Batch is 0 for tensors without
// that axis.
type Gemm struct {
	engine.Problem
	Impl   string // "": auto
	Config string // "": the table's
	// Alias names a tensor that shares memory with another: "residual" and "x" with c, "s" with x.
	Alias              string
	Broadcast          bool // all products share a
	Bias32             bool // the bias is float32
	AlignedA, AlignedB bool // Options of those names
	PadK, PadN         int  // rows and columns of op(b) that b lacks, as in Options.PadB
	onePass
	Data
	GemmFlags `json:"-"`
}

// GemmFlags are flags of commands.
type GemmFlags struct {
	Trans, Group string
	OutDType     dtype.Option
	NoBatch      bool // a file has tensors of two axes
}

// Tidy drops options that need a tensor or a batch which the call lacks.
func (g *Gemm) Tidy() {
	g.Broadcast = g.Broadcast && g.Batch > 0 && !g.Ones
	g.Bias32 = g.Bias32 && g.Bias
	if has := map[string]bool{"residual": g.Residual, "x": g.ReadsX(), "s": g.HasS()}; !has[g.Alias] {
		g.Alias = ""
	}
}

func (g *Gemm) Validate() error {
	if err := g.Problem.Validate(); err != nil {
		return err
	}
	if g.PadK >= g.K || g.PadN >= g.N {
		return fmt.Errorf("gemm: b lacks %d rows and %d columns of %dx%d", g.PadK, g.PadN, g.K, g.N)
	}
	return nil
}

// Tensors implements Call. Products are about Magnitude and Second.
func (g *Gemm) Tensors() []Tensor {
	size, k, n := OrOne(g.Magnitude)*OrOne(g.Second)*math.Abs(g.Scale()), g.K-g.PadK, g.N-g.PadN
	corner := engine.Problem{Batch: g.Batch, N: n, K: k, TransB: g.TransB}
	a, b, c, bias := g.AShape(), corner.BShape(), g.CShape(), g.BiasShape()
	if g.Broadcast {
		a[0] = 1
	}
	if g.Batch == 0 {
		a, b, c, bias = a[1:], b[1:], c[1:], bias[1:]
	}
	sum, x := Tensor{Role: Output, Scale: size}, Tensor{Scale: 3, Off: !g.HasX() || g.Alias == "x"}
	if g.Beta != 0 || g.Alias == "residual" || g.Alias == "x" {
		sum.Role = Update
	}
	if g.Alias == "x" {
		sum.Scale = x.Scale
	}
	switch {
	case g.WritesX():
		x.Role = Output
	case g.Alias == "s":
		x.Role = Update
	}
	list := []Tensor{
		{Name: "a", Shape: a, Scale: g.Magnitude, Main: true, Off: g.Ones},
		{Name: "b", Shape: b, Scale: OrOne(g.Second) / math.Sqrt(float64(max(g.K, 1))), Main: true},
		sum, {Scale: size, Off: !g.Residual || g.Alias == "residual"}, x, {Role: Output, Off: !g.HasS() || g.Alias == "s"},
	}
	for i := range list {
		if list[i].DType = g.DType; i > 1 {
			list[i].Name, list[i].Shape, list[i].DType = []string{"c", "r", "x", "s"}[i-2], c, g.Out
		}
	}
	format := g.Out
	if g.Bias32 {
		format = dtype.Float32
	}
	return append(list, Tensor{Name: "bias", Shape: bias, DType: format, Scale: size, Off: !g.Bias})
}

// Want implements Call. With Sample it has some rows of each product.
func (g *Gemm) Want(x Values, _ kit.Pass) Outputs {
	var in ref.Inputs
	Bind(x, &in)
	if g.Ones {
		in.A = slices.Repeat([]float64{1}, g.Batches()*g.M*g.K)
	}
	if g.Broadcast {
		in.A = slices.Repeat(in.A, g.Batches())
	}
	if g.PadK+g.PadN > 0 {
		in.B = g.padded(in.B)
	}
	switch g.Alias {
	case "residual":
		in.R = in.C
	case "x":
		in.X = in.C
	}
	if g.Beta == 0 {
		in.C = nil
	}
	p, rows := g.Problem, SampleRows(g.Rand(10), g.M, g.Sample)
	var sample []int
	if rows != nil {
		p, in = ref.Rows(rows, in, p)
		for batch := range p.Batches() {
			for _, row := range rows {
				sample = append(sample, Elements([]int{batch*g.M + row}, g.N)...)
			}
		}
	}
	want := ref.Multiply(in, p)
	bounds := ref.NewBounds(want, ref.Plain(in, p), in, p)
	list := Outputs{"c": {Want: want.C, Bound: bounds.C, Sample: sample}}
	if want.X != nil {
		list["x"] = Wanted{Want: want.X, Bound: bounds.X, Sample: sample}
	}
	if s := (Wanted{Want: want.S, Bound: bounds.S, Sample: sample}); g.Alias == "s" {
		list["x"] = s
	} else if want.S != nil {
		list["s"] = s
	}
	return list
}

// padded returns op(b) with its zeros, of b without them.
func (g *Gemm) padded(b []float64) []float64 {
	rows, cols, all := g.K-g.PadK, g.N-g.PadN, g.BShape()
	if g.TransB {
		rows, cols = cols, rows
	}
	whole := make([]float64, Product(all))
	for i := range len(b) / cols {
		copy(whole[(i/rows*all[1]+i%rows)*all[2]:], b[i*cols:(i+1)*cols])
	}
	return whole
}

func (g *Gemm) options() (engine.Options, error) {
	opt, err := engineOptions(g.Impl, g.Config)()
	opt.AlignedA, opt.AlignedB, opt.PadB, opt.Tuning = g.AlignedA, g.AlignedB, g.PadK+g.PadN > 0, g.Tuning
	return opt, err
}

func (g *Gemm) Host() Host { return engineHost(g.options, g.Workspace, g.choose, g.bind) }

func (g *Gemm) choose(caps *vk.Caps, opt engine.Options) (kit.Plan, error) {
	config, err := engine.Choose(caps, g.Problem, opt)
	if err == nil && opt.PadB && !config.PackB {
		err = engine.Unsupported("%v takes no part of op(b)", config)
	}
	opt.Config = &config
	bytes, err2 := engine.Workspace(caps, g.Problem, opt)
	return simplePlan{config.String(), bytes, config.Kernels(g.Problem)}, cmp.Or(err, err2)
}

func (g *Gemm) bind(t map[string]vk.Tensor, opt engine.Options) Recording {
	x := tensorsOf(func(name string) vk.Tensor { return t[name] })
	if g.Broadcast {
		x.A = shared(vk.Tensor{Buffer: x.A.Buffer, DType: x.A.DType, Offset: x.A.Offset, Shape: x.A.Shape[1:], Strides: x.A.Strides[1:]}, g.Batch)
	}
	switch g.Alias {
	case "residual":
		x.Residual = x.C
	case "x":
		x.X = x.C
	case "s":
		x.S = x.X
	}
	p := g.Problem
	return func(c *vk.Cmd) error { return engine.Multiply(c, x, p, opt) }
}

// tensorsOf returns the tensors of a product by name.
func tensorsOf(t func(name string) vk.Tensor) engine.Tensors {
	return engine.Tensors{A: t("a"), B: t("b"), C: t("c"), Bias: t("bias"), Residual: t("r"), X: t("x"), S: t("s")}
}

// GemmGroup is a call of gemm.ForwardGroup. Tensors of one kind lie one after the other in memory.
type GemmGroup struct {
	Products       []GemmProduct
	TransA, TransB bool
	Activation     engine.Activation
	Bias, Residual bool
	DType, Out     dtype.DType
	Impl, Config   string
	Lie            GemmLie
	onePass
	Data
	Whole bool `json:"-"` // tensors of a kind are one tensor of one axis
}

// A GemmProduct is what the products of a group differ in.
type GemmProduct struct {
	M, N, K     int
	Alpha, Beta float64 // as in gemm.Problem
}

// GemmLie says where the tensors of a group lie, in elements.
type GemmLie struct {
	Offset int // before the first element
	Pad    int // after each row; -1: rows begin at multiples of 8
}

// Few returns the sizes of the first products, and how many more there are.
func (g *GemmGroup) Few() string {
	const most = 4
	var words []string
	for i, x := range g.Products {
		if n := len(g.Products); i == most-1 && n > most {
			words = append(words, fmt.Sprintf("%d more", n-i))
			break
		}
		words = append(words, fmt.Sprintf("%dx%dx%d", x.M, x.N, x.K))
	}
	return strings.Join(words, " ")
}

func (g *GemmGroup) Validate() error {
	_, err := problem.ValidateGroup(g.problems())
	return err
}

// Problem returns product i.
func (g *GemmGroup) Problem(i int) engine.Problem {
	x := g.Products[i]
	return engine.Problem{
		M: x.M, N: x.N, K: x.K, Alpha: x.Alpha, Beta: x.Beta,
		TransA: g.TransA, TransB: g.TransB, Activation: g.Activation, Bias: g.Bias, Residual: g.Residual, DType: g.DType, Out: g.Out,
	}
}

func (g *GemmGroup) problems() (list []engine.Problem) {
	for i := range g.Products {
		list = append(list, g.Problem(i))
	}
	return list
}

// FLOPs returns the operations of all products.
func (g *GemmGroup) FLOPs() (flops float64) {
	for _, p := range g.problems() {
		flops += p.FLOPs()
	}
	return flops
}

// Bytes returns the least memory traffic of all products.
func (g *GemmGroup) Bytes() (bytes float64) {
	for _, p := range g.problems() {
		if !p.Empty() {
			bytes += p.Bytes()
		}
	}
	return bytes
}

// product returns a product of the group as a call of its own.
func (g *GemmGroup) product(i int) *Gemm { return &Gemm{Problem: g.Problem(i), Data: g.Data} }

// part returns the name of a tensor of a product.
func part(name string, i int) string { return fmt.Sprintf("%s of product %d", name, i) }

func (g *GemmGroup) Tensors() (list []Tensor) {
	deepest, size := 0, map[string]int{}
	for i, x := range g.Products {
		if x.K > g.Products[deepest].K {
			deepest = i
		}
		for _, t := range g.product(i).Tensors() {
			size[t.Name] += Product(t.Shape)
			t.Place = &guard.Place{Offset: g.Lie.Offset, RowGap: max(g.Lie.Pad, 0), Aligned: g.Lie.Pad < 0, Tight: true}
			t.Off = t.Off || Product(t.Shape) == 0
			t.Memory, t.Name = t.Name, part(t.Name, i)
			list = append(list, t)
		}
	}
	if !g.Whole {
		return list
	}
	list = g.product(deepest).Tensors()
	for i := range list {
		list[i].Shape = []int{size[list[i].Name]}
	}
	return list
}

func (g *GemmGroup) Want(x Values, pass kit.Pass) Outputs {
	list, at := Outputs{}, map[string]int{}
	for i := range g.Products {
		p, of, first := g.product(i), Values{}, map[string]int{}
		for _, t := range p.Tensors() {
			n := Product(t.Shape)
			if of[t.Name] = x[part(t.Name, i)]; g.Whole && x[t.Name] != nil {
				of[t.Name] = x[t.Name][at[t.Name]:][:n]
			}
			first[t.Name] = at[t.Name]
			at[t.Name] += n
		}
		if p.Empty() {
			continue
		}
		for name, w := range p.Want(of, pass) {
			if !g.Whole {
				list[part(name, i)] = w
				continue
			}
			all := list[name]
			for j, v := range w.Want {
				if w.Sample != nil {
					j = w.Sample[j]
				}
				all.Want, all.Bounds, all.Sample = append(all.Want, v), append(all.Bounds, w.Bound), append(all.Sample, first[name]+j)
			}
			list[name] = all
		}
	}
	return list
}

func (g *GemmGroup) Host() Host {
	return engineHost(engineOptions(g.Impl, g.Config), false, g.choose, g.bind)
}

func (g *GemmGroup) choose(caps *vk.Caps, opt engine.Options) (kit.Plan, error) {
	config, err := engine.ChooseGroup(caps, g.problems(), opt)
	kernels := config.GroupKernels()
	if !slices.ContainsFunc(g.problems(), func(p engine.Problem) bool { return p.M > 0 && p.N > 0 }) {
		kernels = nil // nothing runs
	}
	return simplePlan{config.String(), engine.GroupWorkspace(g.problems()), kernels}, err
}

func (g *GemmGroup) bind(t map[string]vk.Tensor, opt engine.Options) Recording {
	list, at := make([]engine.Tensors, len(g.Products)), map[string]int{}
	for i := range list {
		shapes := map[string][]int{}
		for _, x := range g.product(i).Tensors() {
			shapes[x.Name] = x.Shape
		}
		list[i] = tensorsOf(func(name string) vk.Tensor {
			whole := t[name]
			if !g.Whole || whole.IsZero() {
				return t[part(name, i)]
			}
			x := vk.View(whole.Buffer, whole.DType, shapes[name]...)
			x.Offset = whole.Offset + at[name]
			at[name] += x.NumElements()
			return x
		})
	}
	problems := g.problems()
	return func(c *vk.Cmd) error { return engine.MultiplyGroup(c, list, problems, opt) }
}
