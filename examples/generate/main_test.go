package main

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// TestGenerate compares the tokens with the tokens of float64 on the host.
func TestGenerate(t *testing.T) {
	d := vktest.Open(t)
	w := newWeights()
	tokens := generate(t.Context(), d, w, 7)
	require.Equal(t, expected(w, 7), tokens)
	slices.Sort(tokens)
	require.Greater(t, len(slices.Compact(tokens)), 3, "different tokens, else the test says little")
}

// expected is generate by its formula.
func expected(w weights, token int) (tokens []int) {
	var keys, values [][]float64 // (position, kv_heads*dim)
	for position := range steps {
		x := make([]float64, width)
		for i := range x {
			x[i] = float64(w.embed[token*width+i])
		}
		qkv := times(x, w.qkv, fused)
		for h := range heads + kvHeads { // q and k
			for i := range dim / 2 {
				s, c := math.Sincos(float64(position) * math.Pow(10000, -2*float64(i)/dim))
				a, b := &qkv[h*dim+i], &qkv[h*dim+i+dim/2]
				*a, *b = *a*c-*b*s, *b*c+*a*s
			}
		}
		keys, values = append(keys, qkv[width:width+kvHeads*dim]), append(values, qkv[width+kvHeads*dim:])
		o := make([]float64, width)
		for h := range heads {
			kv, sum := h/(heads/kvHeads)*dim, 0.0
			for j := range keys {
				score := 0.0
				for e := range dim {
					score += qkv[h*dim+e] * keys[j][kv+e]
				}
				weight := math.Exp(score / math.Sqrt(dim))
				sum += weight
				for e := range dim {
					o[h*dim+e] += weight * values[j][kv+e]
				}
			}
			for e := range dim {
				o[h*dim+e] /= sum
			}
		}
		for i, y := range times(o, w.o, width) {
			x[i] += y
		}
		logits := make([]float64, vocab)
		for t := range logits {
			for i := range x {
				logits[t] += x[i] * float64(w.head[t*width+i])
			}
		}
		token = slices.Index(logits, slices.Max(logits))
		tokens = append(tokens, token)
	}
	return tokens
}

func times(x []float64, m []float32, n int) []float64 {
	y := make([]float64, n)
	for i := range x {
		for j := range y {
			y[j] += x[i] * float64(m[i*n+j])
		}
	}
	return y
}
