package ref

import (
	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
)

// Upstream holds the gradients that a backward pass starts from, those of a
// loss with respect to the results of the forward pass. They are finite.
type Upstream[T Float] struct {
	DO   []T // attention.Problem.OShape
	DLSE []T // attention.Problem.LSEShape; nil stands for zeros
}

// Gradients are the results of a backward pass: the gradients of the same loss
// with respect to the inputs of the forward pass, contiguous in logical order.
type Gradients struct {
	DQ []float64 // attention.Problem.QShape
	DK []float64 // KShape
	DV []float64 // VShape

	// DBias (BiasShape) is summed over the axes that the bias shares, DSinks
	// (num_heads) over batches and rows. Nil leaves them out.
	DBias, DSinks []float64
}

// NewGradients returns room for all gradients of p.
func NewGradients(p attention.Problem) Gradients {
	make64 := func(shape []int) []float64 { return make([]float64, product(shape)) }
	g := Gradients{DQ: make64(p.QShape()), DK: make64(p.KShape()), DV: make64(p.VShape())}
	if p.Bias.On {
		g.DBias = make64(p.BiasShape())
	}
	if p.Sinks {
		g.DSinks = make64(p.SinksShape())
	}
	return g
}

// checkBackward returns an error that names the first slice that does not fit p.
func checkBackward[T Float](g *Gradients, up *Upstream[T], in *Inputs[T], p attention.Problem) error {
	if err := in.check(p); err != nil {
		return err
	}
	return checkSlices(false, []slice{
		{"do", true, len(up.DO), p.OShape()},
		{"dlse", up.DLSE != nil, len(up.DLSE), p.LSEShape()},
		{"dq", true, len(g.DQ), p.QShape()},
		{"dk", true, len(g.DK), p.KShape()},
		{"dv", true, len(g.DV), p.VShape()},
		{"dbias", p.Bias.On && g.DBias != nil, len(g.DBias), p.BiasShape()},
		{"dsinks", p.Sinks && g.DSinks != nil, len(g.DSinks), p.SinksShape()},
	})
}

// checkSaved does the same for the lengths of O and LSE.
func checkSaved(o, lse int, p attention.Problem) error {
	return checkSlices(false, []slice{{"o", true, o, p.OShape()}, {"lse", true, lse, p.LSEShape()}})
}

// Saved returns what the backward kernels are given of the forward pass: O and LSE
// as Forward computes them, rounded to p.DType and float32. Rows that are in no
// sequence are 0.
func Saved[T Float](in Inputs[T], p attention.Problem) (o, lse []float64, err error) {
	o, lse = make([]float64, product(p.OShape())), make([]float64, product(p.LSEShape()))
	err = Forward(o, lse, in, p)
	round(o, p.DType)
	round(lse, dtype.Float32)
	return o, lse, err
}

// biasAt returns the position in a bias of the first key of row r.
func biasAt(p attention.Problem, r Row) int {
	at, shape := 0, p.BiasShape()
	for axis, i := range []int{r.Batch, r.Head, r.Row} {
		if n := shape[axis]; n > 1 {
			at = at*n + i
		}
	}
	return at * p.SeqKV
}

// eachKeyHead calls a worker's function for each batch and key head, on several
// goroutines unless they add to the same elements of a bias's gradient: sums
// are in one order always.
func eachKeyHead(p attention.Problem, dbias bool, newWorker func() func(batch, kv int)) {
	n := p.Batch * p.NumKVHeads
	if dbias && !(p.Bias.Batch && p.Bias.Heads) {
		work := newWorker()
		for i := range n {
			work(i/p.NumKVHeads, i%p.NumKVHeads)
		}
		return
	}
	parallel.Workers(n, func() func(int) {
		work := newWorker()
		return func(i int) { work(i/p.NumKVHeads, i%p.NumKVHeads) }
	})
}

// sumSinks adds up what the heads of each batch, (batch, num_heads), found.
func sumSinks[F Float](dsinks []float64, parts []F) {
	clear(dsinks)
	if len(dsinks) == 0 {
		return
	}
	sums := make([]F, len(dsinks))
	for i, x := range parts {
		sums[i%len(sums)] += x
	}
	for h, x := range sums {
		dsinks[h] = float64(x)
	}
}

// round rounds float32 values to t in place.
func round(x []float64, t dtype.DType) {
	for i := range x {
		x[i] = float64(t.Round(float32(x[i])))
	}
}
