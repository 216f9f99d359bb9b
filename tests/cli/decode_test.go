package cli

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/safetensors"
)

// Sizes of a step. Sequences of 9 and 3 keys in pages of 8 get 3 more keys, one for each query. Two
// query heads share a key head.
const (
	stepBatch, stepHeads, stepKVHeads, stepNew = 2, 4, 2, 3
	stepPages, stepPage                        = 5, 8
)

// A decodeStep is a file of run decode.
type decodeStep struct {
	q, k, v, newK, newV []float32
	lens, table, tree   []int32
}

func newDecodeStep() *decodeStep {
	r := rand.New(rand.NewPCG(20, 3))
	cache, fresh := stepPages*stepPage*stepKVHeads*headDim, stepBatch*stepKVHeads*stepNew*headDim
	s := &decodeStep{
		q: draw(r, stepBatch*stepHeads*stepNew*headDim), k: draw(r, cache), v: draw(r, cache), newK: draw(r, fresh), newV: draw(r, fresh),
		lens: []int32{9, 3}, table: []int32{3, 0, 4, -1},
	}
	return s
}

// write writes the file.
func (s *decodeStep) write(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "step.safetensors")
	cache, fresh := []int{stepPages, stepPage, stepKVHeads, headDim}, []int{stepBatch, stepKVHeads, stepNew, headDim}
	list := []safetensors.Tensor{
		{Name: "q", DType: safetensors.F32, Shape: []int{stepBatch, stepHeads, stepNew, headDim}},
		{Name: "k_cache", DType: safetensors.F32, Shape: cache}, {Name: "v_cache", DType: safetensors.F32, Shape: cache},
		{Name: "k_new", DType: safetensors.F32, Shape: fresh}, {Name: "v_new", DType: safetensors.F32, Shape: fresh},
		{Name: "seq_lens", DType: "I32", Shape: []int{stepBatch}}, {Name: "block_table", DType: "I32", Shape: []int{stepBatch, 2}},
		{Name: "tree_mask", DType: "I32", Shape: []int{stepBatch, stepNew, 2}},
	}
	if s.tree == nil {
		list = list[:7]
	}
	filetest.Write(t, path, list, map[string]any{
		"q": s.q, "k_cache": s.k, "v_cache": s.v, "k_new": s.newK, "v_new": s.newV, "seq_lens": s.lens, "block_table": s.table, "tree_mask": s.tree,
	})
	return path
}

// append puts the new rows into the caches.
func (s *decodeStep) append() {
	for b, n := range s.lens {
		for h := range stepKVHeads {
			for i := range stepNew {
				from, to := ((b*stepKVHeads+h)*stepNew+i)*headDim, s.at(b, h, int(n)+i)
				copy(s.k[to:][:headDim], s.newK[from:])
				copy(s.v[to:][:headDim], s.newV[from:])
			}
		}
	}
}

// at returns where a key is in the caches.
func (s *decodeStep) at(b, h, key int) int {
	return ((int(s.table[b*2+key/stepPage])*stepPage+key%stepPage)*stepKVHeads + h) * headDim
}

// sees reports whether query i sees a key of n.
func (s *decodeStep) sees(b, i, key, n int) bool {
	last := key - (n - stepNew)
	if s.tree == nil || last < 0 {
		return last <= i
	}
	return s.tree[(b*stepNew+i)*2]>>last&1 == 1
}

// formula returns o and lse in float64, from the caches.
func (s *decodeStep) formula() (o, lse []float64) {
	for row := range stepBatch * stepHeads * stepNew {
		b, h, i := row/(stepHeads*stepNew), row/stepNew%stepHeads*stepKVHeads/stepHeads, row%stepNew
		sum, out := 0.0, make([]float64, headDim)
		n := int(s.lens[b]) + stepNew
		for j := range n {
			if !s.sees(b, i, j, n) {
				continue
			}
			score, at := 0.0, s.at(b, h, j)
			for e := range headDim {
				score += float64(s.q[row*headDim+e]) * float64(s.k[at+e])
			}
			p := math.Exp(score / math.Sqrt(headDim))
			sum += p
			for e := range headDim {
				out[e] += p * float64(s.v[at+e])
			}
		}
		for _, x := range out {
			o = append(o, x/sum)
		}
		lse = append(lse, math.Log(sum))
	}
	return o, lse
}

// TestRunDecode appends new keys to a cache in pages and decodes, with a causal and a tree mask,
// and compares with the formula.
func TestRunDecode(t *testing.T) {
	_, dev := device(t)
	for name, tree := range map[string][]int32{
		"causal": nil,
		"tree":   {1, -1, 3, 0, 5, 77, 0, 0, 2, 0, 7, 0}, // the first query of the second sequence sees no new key
	} {
		s := newDecodeStep()
		s.tree = tree
		out := filepath.Join(t.TempDir(), name)
		code, stdout, stderr := flashvk(t, "run", "decode", dev, "--in", s.write(t), "--out", out)
		require.Zero(t, code, stderr)
		require.Empty(t, stdout)
		f, err := safetensors.Open(out)
		require.NoError(t, err)
		defer f.Close()
		require.Len(t, f.Tensors(), 4)
		s.append()
		require.Equal(t, s.k, tensor(t, f, "k_cache", stepPages, stepPage, stepKVHeads, headDim))
		require.Equal(t, s.v, tensor(t, f, "v_cache", stepPages, stepPage, stepKVHeads, headDim))
		o, lse := tensor(t, f, "o", stepBatch, stepHeads, stepNew, headDim), tensor(t, f, "lse", stepBatch, stepHeads, stepNew)
		wantO, wantLSE := s.formula()
		for i, want := range wantO {
			require.InDelta(t, want, float64(o[i]), 1e-5, "%s: o, element %d", name, i)
		}
		for i, want := range wantLSE {
			require.InDelta(t, want, float64(lse[i]), 1e-5, "%s: lse of row %d", name, i)
		}
	}
}

// TestRunDecodeRefuses has new keys without a place of their own, and masks that contradict each
// other.
func TestRunDecodeRefuses(t *testing.T) {
	_, dev := device(t)
	for _, c := range []struct {
		change func(s *decodeStep)
		args   []string
		want   string
	}{
		{func(s *decodeStep) { s.lens[0] = 14 }, nil, `tensor "seq_lens": 14 keys of sequence 0 and 3 new ones are more than the 16 that the cache has room for`},
		{func(s *decodeStep) { s.table[2] = 0 }, nil, `tensor "block_table": new keys of sequences 0 and 1 go to the same place, 0`},
		{func(s *decodeStep) { s.lens[1] = 7 }, nil, `tensor "block_table": page 1 of sequence 1 is -1, and not one of the 5 pages`},
		{func(s *decodeStep) { s.tree = slices.Repeat([]int32{1}, 12) }, []string{"--causal"}, "decoding has no causal with a tree mask"},
		{func(s *decodeStep) { s.tree = slices.Repeat([]int32{1}, 12) }, []string{"--window=3,0"}, "decoding has no window with a tree mask"},
	} {
		s := newDecodeStep()
		c.change(s)
		out := filepath.Join(t.TempDir(), "o")
		code, _, stderr := flashvk(t, append([]string{"run", "decode", dev, "--in", s.write(t), "--out", out}, c.args...)...)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, c.want)
		require.NoFileExists(t, out)
	}
}
