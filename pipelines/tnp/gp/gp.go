// Package gp draws regression tasks from Gaussian processes: points of noisy functions, which a
// neural process learns to continue.
//
//	y = f(x) + noise * z        z normal, f normal with mean 0 and covariance k(|x - x'|)
//
//	kernel  k(r), l the length scale
//	RBF     exp(-r²/(2l²))
//	Matern  (1 + √5 r/l + 5r²/(3l²)) exp(-√5 r/l)     Matérn of smoothness 5/2
//
// Each task draws its kernel, its x from -2 to 2, its length scale from 0.2 to 1 and its noise from 0.05 to
// 0.2; the logarithms of both are uniform. Tasks of up to 128 points are exact: the Cholesky factor of
// their covariance times normal numbers. Larger ones are sums of 256 random waves; their covariance is
// k with an error of about 1/√256.
//
// NLL is the least loss that a model can have on a task, on average: the loss of the true kernel,
// length scale and noise.
package gp

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	lapack "gonum.org/v1/gonum/lapack/gonum"

	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// A Kernel is a covariance function of variance 1.
type Kernel uint8

// The kernels.
const (
	RBF Kernel = iota
	Matern
	kernels
)

var kernelNames = enum.Names[Kernel]{RBF: "RBF", Matern: "Matérn 5/2"}

// String returns the name.
func (k Kernel) String() string { return kernelNames.Of(k) }

// Covariance returns the covariance of f at two points, distance r apart.
func (k Kernel) Covariance(r, lengthScale float64) float64 {
	r = math.Abs(r) / lengthScale
	if k == RBF {
		return math.Exp(-r * r / 2)
	}
	r *= math.Sqrt(5)
	return (1 + r + r*r/3) * math.Exp(-r)
}

// The distribution of tasks. Standard deviations of noise are large enough for covariances to be positive.
const (
	minX, maxX                     = -2.0, 2.0
	minLengthScale, maxLengthScale = 0.2, 1.0
	minNoise, maxNoise             = 0.05, 0.2
	mostExact                      = 128 // points, context and targets
	features                       = 256 // waves
)

// A Task is a function at some points: first Context points whose y the model sees, then targets.
type Task struct {
	Kernel             Kernel
	LengthScale, Noise float64
	Context            int
	X, Y               []float64
}

// draw returns task i of the batch of a step. The same numbers give the same task.
func draw(s tnp.Shape, seed, step uint64, i, mostExact int) Task {
	rng := rand.New(rand.NewPCG(seed, step<<24|uint64(i))) // a batch has at most 2^24 tasks
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	logarithmic := func(low, high float64) float64 { return math.Exp(between(math.Log(low), math.Log(high))) }
	t := Task{
		Kernel:      Kernel(rng.IntN(int(kernels))),
		LengthScale: logarithmic(minLengthScale, maxLengthScale),
		Noise:       logarithmic(minNoise, maxNoise),
		Context:     s.Context,
		X:           make([]float64, s.Context+s.Targets),
	}
	for j := range t.X {
		t.X[j] = float64(float32(between(minX, maxX)))
	}
	if len(t.X) <= mostExact {
		t.exact(rng)
	} else {
		t.waves(rng, features)
	}
	for j := range t.Y {
		t.Y[j] = float64(float32(t.Y[j])) // what the model sees
	}
	return t
}

// Curve returns a task to plot. The context is drawn as the context of task i is. Targets are
// evenly spaced x, and their y is the function without noise.
func Curve(context, targets int, seed, step uint64, i int) Task {
	t := draw(tnp.Shape{Batch: 1, Context: context, Targets: targets}, seed, step, i, context+targets)
	for j := range targets {
		t.X[context+j] = minX + (maxX-minX)*float64(j)/float64(max(targets-1, 1))
	}
	rng := rand.New(rand.NewPCG(seed, step<<24|uint64(i)))
	rng.Uint64() // the numbers that follow differ from the numbers of draw
	noise := t.Noise
	t.Noise = 1e-3
	t.exact(rng)
	t.Noise = noise
	for j := range context {
		t.Y[j] = float64(float32(t.Y[j] + noise*rng.NormFloat64()))
	}
	return t
}

// covariance returns the covariance of y at the first n points, (n, n).
func (t *Task) covariance(n int) []float64 {
	c := make([]float64, n*n)
	for i := range n {
		for j := range n {
			c[i*n+j] = t.Kernel.Covariance(t.X[i]-t.X[j], t.LengthScale)
		}
		c[i*n+i] = 1 + t.Noise*t.Noise
	}
	return c
}

// factor returns U with UᵀU the covariance of y at the first n points. The methods are called directly: a value
// in an interface, as package mat has it, links all of LAPACK into the program.
func (t *Task) factor(n int) blas64.Triangular {
	u := blas64.Triangular{N: n, Stride: n, Data: t.covariance(n), Uplo: blas.Upper, Diag: blas.NonUnit}
	if !(lapack.Implementation{}).Dpotrf(u.Uplo, n, u.Data, n) {
		panic("gp: covariance is not positive") // the variance of its noise is at least 0.05²
	}
	return u
}

// exact draws Y = Uᵀz with UᵀU the covariance.
func (t *Task) exact(rng *rand.Rand) {
	t.Y = make([]float64, len(t.X))
	for i := range t.Y {
		t.Y[i] = rng.NormFloat64()
	}
	blas64.Trmv(blas.Trans, t.factor(len(t.X)), blas64.Vector{N: len(t.Y), Inc: 1, Data: t.Y})
}

// waves draws Y = noise + sum of random waves. Their frequencies have the spectrum of the kernel
// as distribution: normal for RBF, Student's t of 5 degrees for Matérn 5/2 (Rahimi, Recht, Random
// Features for Large-Scale Kernel Machines, 2007).
func (t *Task) waves(rng *rand.Rand, features int) {
	t.Y = make([]float64, len(t.X))
	for i := range t.Y {
		t.Y[i] = t.Noise * rng.NormFloat64()
	}
	for range features {
		omega := rng.NormFloat64() / t.LengthScale
		if t.Kernel == Matern {
			chi := 0.0
			for range 5 {
				z := rng.NormFloat64()
				chi += z * z
			}
			omega *= math.Sqrt(5 / chi)
		}
		a, phase := rng.NormFloat64()*math.Sqrt(2/float64(features)), 2*math.Pi*rng.Float64()
		for i, x := range t.X {
			t.Y[i] += a * math.Cos(omega*x+phase)
		}
	}
}

// NLL returns -log p of the y of each target alone, given the context, under the true process.
// The loss of no model is below its mean, on average over tasks. It takes time cubic in the size
// of the context.
func (t *Task) NLL() []float64 {
	mean, variance := t.Predict(t.X[t.Context:])
	for i, y := range t.Y[t.Context:] {
		mean[i] = ((y-mean[i])*(y-mean[i])/variance[i] + math.Log(2*math.Pi*variance[i])) / 2
	}
	return mean
}

// Predict returns mean and variance of y at each x, noise included, given the context.
func (t *Task) Predict(x []float64) (mean, variance []float64) {
	n := t.Context
	u := t.factor(n)
	cross := make([]float64, n*len(x))
	for i := range cross {
		cross[i] = t.Kernel.Covariance(t.X[i/len(x)]-x[i%len(x)], t.LengthScale)
	}
	solved := slices.Clone(cross)
	lapack.Implementation{}.Dpotrs(u.Uplo, n, len(x), u.Data, n, solved, len(x))
	mean, variance = make([]float64, len(x)), make([]float64, len(x))
	for j := range x {
		variance[j] = 1 + t.Noise*t.Noise
		for i := range n {
			mean[j] += solved[i*len(x)+j] * t.Y[i]
			variance[j] -= solved[i*len(x)+j] * cross[i*len(x)+j]
		}
	}
	return mean, variance
}

// Batch returns the tasks of a step. The same numbers give the same tasks.
func Batch(s tnp.Shape, seed, step uint64) []Task { return batch(s, seed, step, mostExact) }

func batch(s tnp.Shape, seed, step uint64, mostExact int) []Task {
	tasks := make([]Task, s.Batch)
	parallel.For(len(tasks), func(i int) { tasks[i] = draw(s, seed, step, i, mostExact) })
	return tasks
}

// Tokens returns the inputs of the model: tokens (batch, context+targets, 3), which are (x, y, 1)
// for the context and (x, 0, -1) for targets, and the y of targets, (batch, targets).
//
// The flag of targets is not 0. The model has no bias, so the first norm would map (x, 0, 0) to
// one vector for all positive x and to another for all negative x, and predictions would jump at
// x = 0.
func Tokens(tasks []Task) (x, y []float32) {
	for _, t := range tasks {
		for i := range t.X {
			if i < t.Context {
				x = append(x, float32(t.X[i]), float32(t.Y[i]), 1)
			} else {
				x = append(x, float32(t.X[i]), 0, -1)
				y = append(y, float32(t.Y[i]))
			}
		}
	}
	return x, y
}

// NLL returns the mean of Task.NLL over the targets of all tasks.
func NLL(tasks []Task) (mean float64) {
	sums := make([]float64, len(tasks))
	parallel.For(len(tasks), func(i int) {
		all := tasks[i].NLL()
		for _, v := range all {
			sums[i] += v / float64(len(all)*len(tasks))
		}
	})
	for _, x := range sums {
		mean += x
	}
	return mean
}
