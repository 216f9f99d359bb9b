package gp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"

	"github.com/flashvk/flashvk/pipelines/tnp"
)

var shape = tnp.Shape{Batch: 5, Context: 7, Targets: 4}

// TestSame wants a batch to follow from seed and step alone, whatever the number of processors.
func TestSame(t *testing.T) {
	for _, exact := range []int{128, 0} {
		first := batch(shape, 1, 2, exact)
		before := runtime.GOMAXPROCS(1)
		again := batch(shape, 1, 2, exact)
		runtime.GOMAXPROCS(before)
		require.Equal(t, first, again)
		for _, other := range [][]Task{batch(shape, 1, 3, exact), batch(shape, 2, 2, exact)} {
			for i := range other {
				require.NotEqual(t, first[i].X, other[i].X)
				require.NotEqual(t, first[i].Y, other[i].Y)
			}
		}
		require.NotEqual(t, first[0].X, first[1].X)
	}
}

// TestCovariance wants both ways to draw to have the covariance of the kernel. The mean of
// products of many draws is off by about 1/√draws.
func TestCovariance(t *testing.T) {
	const draws = 20000
	for kernel := range kernels {
		for _, features := range []int{0, 64} {
			t.Run(fmt.Sprint(kernel, features), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(3, uint64(kernel)))
				task := Task{Kernel: kernel, LengthScale: 0.5, Noise: 0.3, X: []float64{0, 0.1, 0.7, -0.6}}
				var sums [4][4]float64
				for range draws {
					if features == 0 {
						task.exact(rng)
					} else {
						task.waves(rng, features)
					}
					for i := range sums {
						for j := range sums {
							sums[i][j] += task.Y[i] * task.Y[j] / draws
						}
					}
				}
				want := task.covariance(4)
				for i := range sums {
					for j := range sums {
						require.InDelta(t, want[4*i+j], sums[i][j], 5*math.Sqrt2*1.09/math.Sqrt(draws), "%d, %d", i, j)
					}
				}
			})
		}
	}
}

// TestNLL: log p of a target given the context is log p of both less log p of the context.
func TestNLL(t *testing.T) {
	for _, task := range Batch(shape, 4, 0) {
		got := task.NLL()
		logProb := func(x, y []float64) float64 {
			all := Task{Kernel: task.Kernel, LengthScale: task.LengthScale, Noise: task.Noise, X: x}
			c, v := mat.NewDense(len(x), len(x), all.covariance(len(x))), mat.NewVecDense(len(y), y)
			var inverse mat.Dense
			require.NoError(t, inverse.Inverse(c))
			return -(mat.Inner(v, &inverse, v) + math.Log(mat.Det(c)) + float64(len(x))*math.Log(2*math.Pi)) / 2
		}
		n := task.Context
		for i := range got {
			x, y := append(task.X[:n:n], task.X[n+i]), append(task.Y[:n:n], task.Y[n+i])
			require.InDelta(t, logProb(x[:n], y[:n])-logProb(x, y), got[i], 1e-9)
		}
	}
}

// TestCurve wants targets in order from end to end, near the prediction of the process, and the
// context off the curve by its noise.
func TestCurve(t *testing.T) {
	total, squares := 0, 0.0
	for i := range 50 {
		task := Curve(30, 101, 1, 2, i)
		require.Equal(t, task, Curve(30, 101, 1, 2, i))
		require.Equal(t, -2.0, task.X[30])
		require.Equal(t, 2.0, task.X[130])
		require.InDelta(t, 0.04, task.X[32]-task.X[31], 1e-12)
		mean, variance := task.Predict(task.X[30:])
		for j, y := range task.Y[30:] {
			require.Less(t, math.Abs(y-mean[j]), 6*math.Sqrt(variance[j]))
		}
		for j, x := range task.X[:30] {
			at := int(math.Round((x + 2) / 0.04))
			squares += math.Pow((task.Y[j]-task.Y[30+at])/task.Noise, 2)
			total++
		}
	}
	require.InDelta(t, 1, math.Sqrt(squares/float64(total)), 0.3)
}

// TestTokens wants no y of a target among the tokens.
func TestTokens(t *testing.T) {
	x, y := Tokens([]Task{{Context: 1, X: []float64{1, 2, 3}, Y: []float64{4, 5, 6}}, {Context: 1, X: []float64{7, 8, 9}, Y: []float64{10, 11, 12}}})
	require.Equal(t, []float32{1, 4, 1, 2, 0, -1, 3, 0, -1, 7, 10, 1, 8, 0, -1, 9, 0, -1}, x)
	require.Equal(t, []float32{5, 6, 11, 12}, y)
}

func TestKernel(t *testing.T) {
	require.Equal(t, 1.0, RBF.Covariance(0, 1))
	require.Equal(t, "RBF, Matérn 5/2", fmt.Sprintf("%v, %v", RBF, Matern))
	(&Task{LengthScale: 1, Noise: 1e-3, X: make([]float64, 50)}).factor(50) // all at one place: it does not panic
}
