package cli

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/safetensors"
)

// Sizes of inputs. Two query heads share a key head.
const (
	heads, headDim = 2, 16
)

// draw returns random normal numbers as they are in float32.
func draw(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// qkv draws q (1, heads, seq, headDim) and k, v (1, 1, seq, headDim).
func qkv(seq int) (q, k, v []float32) {
	r := rand.New(rand.NewPCG(18, 5))
	return draw(r, heads*seq*headDim), draw(r, seq*headDim), draw(r, seq*headDim)
}

// inputs makes a file of what qkv draws.
func inputs(t *testing.T, seq int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qkv.safetensors")
	list := []safetensors.Tensor{filetest.F32("q", 1, heads, seq, headDim), filetest.F32("k", 1, 1, seq, headDim), filetest.F32("v", 1, 1, seq, headDim)}
	q, k, v := qkv(seq)
	filetest.Write(t, path, list, map[string][]float32{"q": q, "k": k, "v": v})
	return path
}

// tensor reads a float32 tensor of a file.
func tensor(t *testing.T, f *safetensors.File, name string, shape ...int) []float32 {
	t.Helper()
	x, ok := f.Tensor(name)
	require.True(t, ok, "no tensor %s", name)
	require.Equal(t, safetensors.F32, x.DType)
	require.Equal(t, shape, x.Shape)
	raw := make([]byte, x.Bytes())
	require.NoError(t, f.ReadAt(x, raw, 0))
	list := make([]float32, len(raw)/4)
	for i := range list {
		list[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return list
}

// TestRun computes attention from file to file and compares with the formula, in float64.
// A second run writes the same bytes.
func TestRun(t *testing.T) {
	_, dev := device(t)
	const seq = 37
	in, dir := inputs(t, seq), t.TempDir()
	var files [2]string
	for i := range files {
		files[i] = filepath.Join(dir, string(rune('a'+i)))
		code, stdout, stderr := flashvk(t, "run", "attention", dev, "--in", in, "--out", files[i], "--causal", "--no-tuning")
		require.Zero(t, code, stderr)
		require.Empty(t, stdout)
		oneError(t, stderr)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, len(files), "something else was left behind")
	first, err := os.ReadFile(files[0])
	require.NoError(t, err)
	second, err := os.ReadFile(files[1])
	require.NoError(t, err)
	require.Equal(t, first, second)

	f, err := safetensors.Open(files[0])
	require.NoError(t, err)
	defer f.Close()
	require.Len(t, f.Tensors(), 2)
	o, lse := tensor(t, f, "o", 1, heads, seq, headDim), tensor(t, f, "lse", 1, heads, seq)
	q, k, v := qkv(seq)
	for row := range heads * seq {
		wantO, wantLSE := formula(q[row*headDim:][:headDim], k, v, row%seq+1)
		require.InDelta(t, wantLSE, float64(lse[row]), 1e-5, "lse of row %d", row)
		for i, want := range wantO {
			require.InDelta(t, want, float64(o[row*headDim+i]), 1e-5, "o of row %d, element %d", row, i)
		}
	}
}

// formula returns o and lse of a row that sees the first keys.
func formula(q, k, v []float32, keys int) (o [headDim]float64, lse float64) {
	sum := 0.0
	for j := range keys {
		score := 0.0
		for i, x := range q {
			score += float64(x) * float64(k[j*headDim+i])
		}
		p := math.Exp(score / math.Sqrt(headDim))
		sum += p
		for i := range o {
			o[i] += p * float64(v[j*headDim+i])
		}
	}
	for i := range o {
		o[i] /= sum
	}
	return o, math.Log(sum)
}

// TestRunInPlace says that the output may replace the input, whole and at once.
func TestRunInPlace(t *testing.T) {
	_, dev := device(t)
	path := inputs(t, 5)
	code, _, stderr := flashvk(t, "run", "attention", dev, "--in", path, "--out", path)
	require.Zero(t, code, stderr)
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	tensor(t, f, "o", 1, heads, 5, headDim)
}

// exchange returns x, of shape (a, b, n), as (b, a, n).
func exchange(x []float32, a, b, n int) []float32 {
	y := make([]float32, len(x))
	for i := range a {
		for j := range b {
			copy(y[(j*a+i)*n:][:n], x[(i*b+j)*n:][:n])
		}
	}
	return y
}

// saved makes a file of tensors of float32.
func saved(t *testing.T, shapes map[string][]int, data map[string][]float32) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.safetensors")
	var list []safetensors.Tensor
	for name, shape := range shapes {
		list = append(list, filetest.F32(name, shape...))
	}
	filetest.Write(t, path, list, data)
	return path
}

// TestRunLayout says that with --layout bshd a file in flash-attn's order of axes gives the same
// numbers in that order, in both passes. Without the flag the program names the order that it
// assumes, and warns if both orders are valid.
func TestRunLayout(t *testing.T) {
	_, dev := device(t)
	const seq, many = 5, 6 // fewer queries than heads
	r := rand.New(rand.NewPCG(22, 2))
	data := map[string][]float32{}
	bhsd, bshd := map[string][]int{}, map[string][]int{}
	swapped := map[string][]float32{}
	for _, name := range []string{"q", "k", "v", "do"} {
		data[name] = draw(r, many*seq*headDim)
		swapped[name] = exchange(data[name], many, seq, headDim)
		bhsd[name], bshd[name] = []int{1, many, seq, headDim}, []int{1, seq, many, headDim}
	}
	run := func(in string, more ...string) (*safetensors.File, string) {
		out := filepath.Join(t.TempDir(), "out.safetensors")
		code, _, stderr := flashvk(t, append([]string{"run", "attention", dev, "--in", in, "--out", out, "--causal", "--backward", "--no-tuning"}, more...)...)
		require.Zero(t, code, stderr)
		f, err := safetensors.Open(out)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f, stderr
	}
	const doubt = "say --layout bshd"
	want, stderr := run(saved(t, bhsd, data))
	require.Contains(t, stderr, "flashvk: attention float32: batch 1, heads 6, kv-heads 6, seqlen 5, headdim 16, causal (bottom-right)\n")
	require.Contains(t, stderr, doubt)
	_, stderr = run(saved(t, bhsd, data), "--layout", "bhsd")
	require.NotContains(t, stderr, doubt)
	got, stderr := run(saved(t, bshd, swapped), "--layout", "bshd")
	require.Contains(t, stderr, "flashvk: attention float32: batch 1, heads 6, kv-heads 6, seqlen 5, headdim 16, causal (bottom-right)\n")
	require.NotContains(t, stderr, doubt)
	for _, name := range []string{"o", "dq", "dk", "dv"} {
		x := tensor(t, want, name, 1, many, seq, headDim)
		require.InDeltaSlice(t, exchange(x, many, seq, headDim), tensor(t, got, name, 1, seq, many, headDim), 1e-6, name)
	}
	require.InDeltaSlice(t, tensor(t, want, "lse", 1, many, seq), tensor(t, got, "lse", 1, many, seq), 1e-6)
	_, stderr = run(saved(t, bshd, swapped)) // with as many queries as the file really has heads
	require.NotContains(t, stderr, doubt)

	code, _, stderr := flashvk(t, "run", "attention", dev, "--in", saved(t, bhsd, data), "--out", filepath.Join(t.TempDir(), "x"), "--layout", "sbhd")
	require.Equal(t, 2, code)
	require.Contains(t, oneError(t, stderr), "not one of bhsd, bshd")
}
