package ref

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

// A matrix is row-major.
type matrix struct {
	rows, cols int
	v          []float64
}

func newMatrix(rows, cols int) matrix { return matrix{rows, cols, make([]float64, rows*cols)} }

func (m matrix) general() blas64.General {
	return blas64.General{Rows: m.rows, Cols: m.cols, Stride: m.cols, Data: m.v}
}

// row returns one row.
func (m matrix) row(i int) []float64 { return m.v[i*m.cols : (i+1)*m.cols] }

// slice returns the rows from first to end-1, which it shares.
func (m matrix) slice(first, end int) matrix {
	return matrix{end - first, m.cols, m.v[first*m.cols : end*m.cols]}
}

// nn, nt and tn return a*b, a*bᵀ and aᵀ*b.
func nn(a, b matrix) matrix { return product(blas.NoTrans, blas.NoTrans, a, b, a.rows, b.cols) }
func nt(a, b matrix) matrix { return product(blas.NoTrans, blas.Trans, a, b, a.rows, b.rows) }
func tn(a, b matrix) matrix { return product(blas.Trans, blas.NoTrans, a, b, a.cols, b.cols) }

func product(ta, tb blas.Transpose, a, b matrix, rows, cols int) matrix {
	c := newMatrix(rows, cols)
	blas64.Gemm(ta, tb, 1, a.general(), b.general(), 0, c.general())
	return c
}

// plus returns a+b.
func plus(a, b matrix) matrix {
	c := newMatrix(a.rows, a.cols)
	for i := range c.v {
		c.v[i] = a.v[i] + b.v[i]
	}
	return c
}

// columns returns the columns from first to end-1, a copy.
func (m matrix) columns(first, end int) matrix {
	c := newMatrix(m.rows, end-first)
	for i := range m.rows {
		copy(c.row(i), m.row(i)[first:end])
	}
	return c
}

// apply returns f of each element.
func (m matrix) apply(f func(float64) float64) matrix {
	c := newMatrix(m.rows, m.cols)
	for i, v := range m.v {
		c.v[i] = f(v)
	}
	return c
}

// times multiplies m by f of x, element by element.
func (m matrix) times(x matrix, f func(float64) float64) matrix {
	c := newMatrix(m.rows, m.cols)
	for i, v := range m.v {
		c.v[i] = v * f(x.v[i])
	}
	return c
}
