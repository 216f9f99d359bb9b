package ref

import "github.com/flashvk/flashvk/pipelines/mlp"

// Tokens returns the problem of some tokens, whose pre, y and dx are those of all.
func Tokens(rows []int, in Inputs, p mlp.Problem) (mlp.Problem, Inputs) {
	part := p
	part.Tokens = len(rows)
	return part, Inputs{
		X: pickRows(in.X, rows, p.In), W1: in.W1, W2: in.W2,
		DY: pickRows(in.DY, rows, heads(p)*p.Out), Pre: pickRows(in.Pre, rows, heads(p)*p.Hidden),
	}
}

// Units returns the problem of some hidden units of every head, whose columns of dW1 and
// rows of dW2 are those of all.
func Units(units []int, in Inputs, p mlp.Problem) (mlp.Problem, Inputs) {
	part := p
	part.Hidden = len(units)
	out := Inputs{
		X: in.X, DY: in.DY,
		W1: pickColumns(in.W1, units, p.Hidden), Pre: pickColumns(in.Pre, units, p.Hidden),
	}
	for k := range heads(p) {
		out.W2 = append(out.W2, pickRows(in.W2[k*p.Hidden*p.Out:], units, p.Out)...)
	}
	return part, out
}

// pickRows returns some rows of a matrix; nil of nil.
func pickRows(data []float64, rows []int, cols int) []float64 {
	if data == nil {
		return nil
	}
	out := make([]float64, 0, len(rows)*cols)
	for _, r := range rows {
		out = append(out, data[r*cols:(r+1)*cols]...)
	}
	return out
}

// pickColumns returns some columns of a matrix; nil of nil.
func pickColumns(data []float64, columns []int, cols int) (out []float64) {
	for ; len(data) > 0; data = data[cols:] {
		out = append(out, pickRows(data[:cols], columns, 1)...)
	}
	return out
}
