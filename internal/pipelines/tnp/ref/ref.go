// Package ref computes the loss of a transformer neural process in float64, to compare a device with, and its gradients
// as differences of the loss.
//
// The program follows the formulas: the last block on all rows. Tensors are slices in row-major order. Parameters have
// the names of tnp.Config.Params.
package ref

import (
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/diff/fd"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"

	"github.com/flashvk/flashvk/internal/parallel"
	gmms "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	mixtures "github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	norms "github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// Inputs are a batch of tasks: X (batch, context+targets, input_dim), Y (batch, targets).
type Inputs struct{ X, Y []float64 }

// Outputs are the results of a forward pass.
type Outputs struct {
	Mixtures gmms.Inputs // the components of the targets, in order
	LogP     []float64   // (batch, targets)
	Loss     float64     // -mean(LogP)
}

// A Model is a model with its weights, and a batch.
type Model struct {
	tnp.Config
	tnp.Shape
	Weights map[string][]float64
	Inputs
}

// Gradient returns the gradient of the loss by the elements 0, distance, 2*distance and so on of a parameter, as central
// differences: they are off by about 1e-9.
func (m Model) Gradient(name string, distance int) []float64 {
	g := make([]float64, (len(m.Weights[name])+distance-1)/distance)
	parallel.For(len(g), func(i int) {
		moved := m
		moved.Weights = maps.Clone(m.Weights)
		x := slices.Clone(m.Weights[name])
		moved.Weights[name] = x
		at := i * distance
		g[i] = fd.Derivative(func(v float64) float64 {
			x[at] = v
			return moved.Forward().Loss
		}, x[at], &fd.Settings{Formula: fd.Central, Step: 1e-5})
	})
	return g
}

// Forward computes the loss.
func (m Model) Forward() (out Outputs) {
	x := linear(mat.NewDense(m.Tokens(), m.InputDim, m.X), m.Weights["embed.weight"])
	for i := range m.Layers {
		weight := func(name string) []float64 { return m.Weights[tnp.BlockName(i, name)] }
		qkv := linear(normalized(x, weight("norm1.weight")), weight("qkv.weight"))
		x.Add(x, linear(m.attend(qkv), weight("out.weight")))
		hidden := linear(normalized(x, weight("norm2.weight")), weight("up.weight"))
		hidden.Apply(func(_, _ int, v float64) float64 { return v / (1 + math.Exp(-v)) }, hidden)
		x.Add(x, linear(hidden, weight("down.weight")))
	}
	targets := mat.NewDense(m.Batch*m.Targets, m.DModel, nil)
	for i := range m.Batch * m.Targets {
		targets.SetRow(i, x.RawRowView(i/m.Targets*(m.Context+m.Targets)+m.Context+i%m.Targets))
	}
	p := mixture.Problem{Tokens: m.Batch * m.Targets, Heads: m.Components, In: m.DModel, Hidden: m.DFF}
	heads := mixtures.Inputs{W1: m.Weights["heads.up"], W2: m.Weights["heads.down"], Y: m.Y}
	heads.X = normalized(targets, m.Weights["norm.weight"]).RawMatrix().Data
	out.Mixtures = mixtures.Outputs(heads, p)
	out.LogP, out.Loss = gmms.Forward(out.Mixtures, p.Mixtures())
	return out
}

// attend returns O of all heads side by side: all rows of a task see those of its context.
func (m Model) attend(qkv *mat.Dense) *mat.Dense {
	d, n := m.HeadDim, m.Context+m.Targets
	o := mat.NewDense(m.Tokens(), m.Heads*d, nil)
	for i := range m.Batch * m.Heads {
		first, head := i/m.Heads*n, i%m.Heads
		part := func(of, rows int) mat.Matrix {
			at := (of*m.Heads + head) * d
			return qkv.Slice(first, first+rows, at, at+d)
		}
		var p mat.Dense
		p.Mul(part(0, n), part(1, m.Context).T())
		for row := range n {
			s := p.RawRowView(row)
			floats.Scale(1/math.Sqrt(float64(d)), s)
			floats.AddConst(-floats.LogSumExp(s), s)
		}
		p.Apply(func(_, _ int, v float64) float64 { return math.Exp(v) }, &p)
		o.Slice(first, first+n, head*d, (head+1)*d).(*mat.Dense).Mul(&p, part(2, m.Context))
	}
	return o
}

// normalized returns LayerNorm of rows with weights.
func normalized(x *mat.Dense, w []float64) *mat.Dense {
	rows, cols := x.Dims()
	p := norm.Problem{Rows: rows, Cols: cols, Eps: tnp.NormEps}
	return mat.NewDense(rows, cols, norms.Forward(norms.Inputs{X: x.RawMatrix().Data, W: w}, p).Y)
}

// linear returns x * wᵀ; w is (out, in).
func linear(x *mat.Dense, w []float64) *mat.Dense {
	_, in := x.Dims()
	var y mat.Dense
	y.Mul(x, mat.NewDense(len(w)/in, in, w).T())
	return &y
}
