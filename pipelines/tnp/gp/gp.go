// Package gp draws regression tasks from Gaussian processes: points of noisy functions, which a
// neural process learns to continue.
//
//	y = f(x) + noise * z        z normal, f normal with mean 0 and covariance k(|x - x'|)
//
//	kernel  k(r), l the length scale
//	RBF     exp(-r²/(2l²))
//	Matern  (1 + √5 r/l + 5r²/(3l²)) exp(-√5 r/l)     Matérn of smoothness 5/2
//
// Each task draws its kernel, its length scale, its noise and its x. Tasks of up to Problem.Exact
// points are exact: the Cholesky factor of their covariance times normal numbers. Larger ones are
// sums of Problem.Features random waves; their covariance is k with an error of about
// 1/√features.
//
// NLL is the least loss that a model can have on a task, on average: the loss of the true kernel,
// length scale and noise.
package gp

import (
	"fmt"
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

// A Problem is a distribution of tasks. The logarithms of length scales and noises are uniform.
type Problem struct {
	MinX, MaxX                     float64 // points are uniform in between
	MinLengthScale, MaxLengthScale float64
	MinNoise, MaxNoise             float64 // standard deviations
	Exact                          int     // the most points, context and targets, of tasks that are exact
	Features                       int     // waves of the others
}

// Default returns the distribution that flashvk train uses.
func Default() Problem {
	return Problem{MinX: -2, MaxX: 2, MinLengthScale: 0.2, MaxLengthScale: 1, MinNoise: 0.05, MaxNoise: 0.2, Exact: 128, Features: 256}
}

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	for _, f := range []struct {
		name        string
		low, high   float64
		least, most float64
	}{
		{"x", p.MinX, p.MaxX, -1e6, 1e6},
		{"length_scale", p.MinLengthScale, p.MaxLengthScale, 1e-6, 1e6},
		{"noise", p.MinNoise, p.MaxNoise, 1e-3, 1e3}, // less makes covariances singular
	} {
		if !(f.low >= f.least && f.low <= f.high && f.high <= f.most) {
			return fmt.Errorf("gp: %s from %g to %g is no range in %g to %g", f.name, f.low, f.high, f.least, f.most)
		}
	}
	switch {
	case p.Exact < 0 || p.Exact > 1<<13:
		return fmt.Errorf("gp: exact=%d is not from 0 to %d", p.Exact, 1<<13)
	case p.Features < 1 || p.Features > 1<<20:
		return fmt.Errorf("gp: features=%d is not from 1 to %d", p.Features, 1<<20)
	}
	return nil
}

// A Task is a function at some points: first Context points whose y the model sees, then targets.
type Task struct {
	Kernel             Kernel
	LengthScale, Noise float64
	Context            int
	X, Y               []float64
}

// Draw returns task i of the batch of a step. The same numbers give the same task.
func (p Problem) Draw(s tnp.Shape, seed, step uint64, i int) Task {
	rng := rand.New(rand.NewPCG(seed, step<<24|uint64(i))) // a batch has at most 2^24 tasks
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	logarithmic := func(low, high float64) float64 { return math.Exp(between(math.Log(low), math.Log(high))) }
	t := Task{
		Kernel:      Kernel(rng.IntN(int(kernels))),
		LengthScale: logarithmic(p.MinLengthScale, p.MaxLengthScale),
		Noise:       logarithmic(p.MinNoise, p.MaxNoise),
		Context:     s.Context,
		X:           make([]float64, s.Context+s.Targets),
	}
	for j := range t.X {
		t.X[j] = float64(float32(between(p.MinX, p.MaxX)))
	}
	if len(t.X) <= p.Exact {
		t.exact(rng)
	} else {
		t.waves(rng, p.Features)
	}
	for j := range t.Y {
		t.Y[j] = float64(float32(t.Y[j])) // what the model sees
	}
	return t
}

// Curve returns a task to plot. The context is drawn as the context of task i is. Targets are
// evenly spaced x, and their y is the function without noise.
func (p Problem) Curve(context, targets int, seed, step uint64, i int) Task {
	p.Exact = context + targets
	t := p.Draw(tnp.Shape{Batch: 1, Context: context, Targets: targets}, seed, step, i)
	for j := range targets {
		t.X[context+j] = p.MinX + (p.MaxX-p.MinX)*float64(j)/float64(max(targets-1, 1))
	}
	rng := rand.New(rand.NewPCG(seed, step<<24|uint64(i)))
	rng.Uint64() // the numbers that follow differ from the numbers of Draw
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

// factor returns U with UᵀU the covariance of y at the first n points; ok is false if it is not
// positive. The methods are called directly: a value in an interface, as package mat has it, links all
// of LAPACK into the program.
func (t *Task) factor(n int) (u blas64.Triangular, ok bool) {
	u = blas64.Triangular{N: n, Stride: n, Data: t.covariance(n), Uplo: blas.Upper, Diag: blas.NonUnit}
	return u, lapack.Implementation{}.Dpotrf(u.Uplo, n, u.Data, n)
}

// exact draws Y = Uᵀz with UᵀU the covariance.
func (t *Task) exact(rng *rand.Rand) {
	t.Y = make([]float64, len(t.X))
	for i := range t.Y {
		t.Y[i] = rng.NormFloat64()
	}
	u, ok := t.factor(len(t.X))
	if !ok {
		panic("gp: covariance is not positive") // its noise is at least 1e-3
	}
	blas64.Trmv(blas.Trans, u, blas64.Vector{N: len(t.Y), Inc: 1, Data: t.Y})
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
func (t *Task) NLL() ([]float64, error) {
	mean, variance, err := t.Predict(t.X[t.Context:])
	if err != nil {
		return nil, err
	}
	for i, y := range t.Y[t.Context:] {
		mean[i] = ((y-mean[i])*(y-mean[i])/variance[i] + math.Log(2*math.Pi*variance[i])) / 2
	}
	return mean, nil
}

// Predict returns mean and variance of y at each x, noise included, given the context.
func (t *Task) Predict(x []float64) (mean, variance []float64, err error) {
	n := t.Context
	u, ok := t.factor(n)
	if !ok {
		return nil, nil, fmt.Errorf("gp: covariance of %d points, length scale %g, noise %g is not positive", n, t.LengthScale, t.Noise)
	}
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
	return mean, variance, nil
}

// Batch returns the tasks of a step.
func (p Problem) Batch(s tnp.Shape, seed, step uint64) []Task {
	tasks := make([]Task, s.Batch)
	parallel.For(len(tasks), func(i int) { tasks[i] = p.Draw(s, seed, step, i) })
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
func NLL(tasks []Task) (float64, error) {
	sums, errs := make([]float64, len(tasks)), make([]error, len(tasks))
	parallel.For(len(tasks), func(i int) {
		all, err := tasks[i].NLL()
		errs[i] = err
		for _, v := range all {
			sums[i] += v / float64(len(all)*len(tasks))
		}
	})
	total := 0.0
	for i := range sums {
		if errs[i] != nil {
			return 0, errs[i]
		}
		total += sums[i]
	}
	return total, nil
}
