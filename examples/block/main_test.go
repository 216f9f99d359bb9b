package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// TestBlock compares the program with its formulas, written out.
func TestBlock(t *testing.T) {
	vktest.Open(t) // skips
	values := func(name string, i int) float32 { return float32((7*i*i+11*i+len(name)*5)%23-11) / 40 }
	got := block(values)
	load := func(name string, n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(values(name, i))
		}
		return x
	}
	product := func(a, b []float64, k, n int) []float64 {
		c := make([]float64, len(a)/k*n)
		for i := range c {
			for j := range k {
				c[i] += a[i/n*k+j] * b[j*n+i%n]
			}
		}
		return c
	}
	normalize := func(x []float64) []float64 {
		w, y := load("wn", width), make([]float64, len(x))
		for r := 0; r < len(x); r += width {
			mean, variance := 0.0, 0.0
			for _, v := range x[r : r+width] {
				mean += v / width
			}
			for _, v := range x[r : r+width] {
				variance += (v - mean) * (v - mean) / width
			}
			for i := range width {
				y[r+i] = (x[r+i] - mean) / math.Sqrt(variance+1e-5) * w[i]
			}
		}
		return y
	}
	x := load("x", tokens*width)
	qkv := product(normalize(x), load("wqkv", 3*width*width), width, 3*width)
	o := make([]float64, tokens*width)
	for i := range tokens {
		for h := range heads {
			sum := 0.0
			for j := range i + 1 {
				score := 0.0
				for e := range dim {
					score += qkv[i*3*width+h*dim+e] * qkv[j*3*width+width+h*dim+e] / 4
				}
				sum += math.Exp(score)
				for e := range dim {
					o[i*width+h*dim+e] += math.Exp(score) * qkv[j*3*width+2*width+h*dim+e]
				}
			}
			for e := range dim {
				o[i*width+h*dim+e] /= sum
			}
		}
	}
	plus := func(a, b []float64) []float64 {
		for i := range a {
			a[i] += b[i]
		}
		return a
	}
	h := plus(product(o, load("wo", width*width), width, width), x)
	up := product(normalize(h), load("w1", width*hidden), width, hidden)
	for i, v := range up {
		up[i] = v / (1 + math.Exp(-v))
	}
	want := plus(product(up, load("w2", hidden*width), hidden, width), h)
	for i := range want {
		require.InDelta(t, want[i], got[i], 1e-5, i)
	}
}
