package main

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/safetensors"
)

// checkStep compares o of four heads of queries with the formula, of keys and values (keys, 2, dim)
// that two heads share.
func checkStep(t *testing.T, dim int, q, o, k, v []float32) {
	t.Helper()
	for h := range 4 {
		sum, want := 0.0, make([]float64, dim)
		for j := range len(k) / (2 * dim) {
			at := (j*2 + h/2) * dim
			s := 0.0
			for e := range dim {
				s += float64(q[h*dim+e]) * float64(k[at+e])
			}
			w := math.Exp(s / math.Sqrt(float64(dim)))
			sum += w
			for e := range dim {
				want[e] += w * float64(v[at+e])
			}
		}
		for e := range dim {
			require.InDelta(t, want[e]/sum, o[h*dim+e], 4e-3)
		}
	}
}

// TestRunDecodeCache8 compares a step with caches of 8 bits with the formula: one sequence of 9
// keys, two key heads for four of queries, 32 elements of a head.
func TestRunDecodeCache8(t *testing.T) {
	_, dev := device(t)
	const keys, dim = 9, 32
	lens := float32(keys)
	q := bench.Normal(dtype.Float16, 4*dim, 1)
	run := func(cache []bench.OpTensor, values map[string][]float32) (code int, stderr, out string) {
		in, out := filepath.Join(t.TempDir(), "step.safetensors"), filepath.Join(t.TempDir(), "o.safetensors")
		list := append([]bench.OpTensor{{Name: "q", DType: dtype.Float16, Shape: []int{1, 4, 1, dim}}, {Name: "seq_lens", DType: dtype.Int32, Shape: []int{1}}}, cache...)
		values["q"], values["seq_lens"] = q, []float32{lens}
		writeOp(t, in, list, values)
		code, _, stderr = flashvk("run", "decode", "--in", in, "--out", out, dev)
		return code, stderr, out
	}
	shape, blocks := []int{1, keys, 2, dim}, []int{1, keys, 2, 1}
	heads := []float32{0.5, 3}
	for name, x := range map[string]struct {
		format dtype.DType
		scales []bench.OpTensor
		cache  attention.CacheFormat
		heads  []float32
	}{
		"e4m3":      {dtype.E4M3, []bench.OpTensor{{Name: "k_scale", Shape: []int{2}}, {Name: "v_scale", Shape: []int{2}}}, attention.CacheE4M3, heads},
		"no scales": {dtype.E4M3, nil, attention.CacheE4M3, []float32{1, 1}},
		"q8_0":      {dtype.Int8, []bench.OpTensor{{Name: "k_scale", DType: dtype.Float16, Shape: blocks}, {Name: "v_scale", DType: dtype.Float16, Shape: blocks}}, attention.CacheQ8_0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			scale := func(row int) float32 { return x.heads[row%2] }
			k := ref.Quantise(x.cache, bench.Normal(dtype.Float32, keys*2*dim, 2), dim, scale)
			v := ref.Quantise(x.cache, bench.Normal(dtype.Float32, keys*2*dim, 3), dim, scale)
			values := map[string][]float32{"k_cache": k.Stored, "v_cache": v.Stored, "k_scale": k.Scales, "v_scale": v.Scales}
			if x.cache == attention.CacheE4M3 {
				values["k_scale"], values["v_scale"] = x.heads, x.heads
			}
			tensors := append([]bench.OpTensor{{Name: "k_cache", DType: x.format, Shape: shape}, {Name: "v_cache", DType: x.format, Shape: shape}}, x.scales...)
			code, stderr, out := run(tensors, values)
			require.Zero(t, code, stderr)
			f, err := safetensors.Open(out)
			require.NoError(t, err)
			defer f.Close()
			o := read(t, f, "o", dtype.Float16, 1, 4, 1, dim)
			checkStep(t, dim, q, o, k.Values, v.Values)

			// The last key once more, as a new one: what the file has in its place is another's.
			whole := []int{(keys - 1) * 2 * dim, keys * 2 * dim}
			list := append(tensors, bench.OpTensor{Name: "k_new", DType: dtype.Float16, Shape: []int{1, 2, 1, dim}}, bench.OpTensor{Name: "v_new", DType: dtype.Float16, Shape: []int{1, 2, 1, dim}})
			for i, c := range []*ref.Cache8[float32]{&k, &v} {
				name := []string{"k", "v"}[i]
				fresh := bench.Normal(dtype.Float16, 2*dim, uint64(4+i))
				fresh[0], fresh[dim] = 127.0/16, 127.0/16 // by 127 this is a power of two
				row := ref.Quantise(x.cache, fresh, dim, scale)
				values[name+"_new"] = fresh
				copy(c.Values[whole[0]:], row.Values)
				c.Stored = append(slices.Clone(c.Stored[:whole[0]]), row.Stored...)
				if c.Scales != nil {
					c.Scales = append(slices.Clone(c.Scales[:len(c.Scales)-2]), row.Scales...)
				}
			}
			lens = keys - 1
			defer func() { lens = keys }()
			code, stderr, out = run(list, values)
			require.Zero(t, code, stderr)
			g, err := safetensors.Open(out)
			require.NoError(t, err)
			defer g.Close()
			checkStep(t, dim, q, read(t, g, "o", dtype.Float16, 1, 4, 1, dim), k.Values, v.Values)
			require.Equal(t, k.Stored, read(t, g, "k_cache", x.format, shape...))
			require.Equal(t, v.Stored, read(t, g, "v_cache", x.format, shape...))
			if x.cache == attention.CacheQ8_0 {
				require.Equal(t, k.Scales, read(t, g, "k_scale", dtype.Float16, blocks...))
				require.Equal(t, v.Scales, read(t, g, "v_scale", dtype.Float16, blocks...))
			}
		})
	}

	values := func() map[string][]float32 {
		return map[string][]float32{"k_cache": make([]float32, keys*2*dim), "v_cache": make([]float32, keys*2*dim), "k_scale": make([]float32, keys*2), "v_scale": make([]float32, keys*2)}
	}
	k, v := bench.OpTensor{Name: "k_cache", DType: dtype.Int8, Shape: shape}, bench.OpTensor{Name: "v_cache", DType: dtype.Int8, Shape: shape}
	code, stderr, _ := run([]bench.OpTensor{k, v}, values())
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `tensor "k_scale" is missing`)
	v.DType = dtype.E4M3
	code, stderr, _ = run([]bench.OpTensor{k, v}, values())
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `tensor "v_cache": dtype F8_E4M3 is not one of F16, BF16, F32`)
}

// TestBenchDecodeCache8 has the flag.
func TestBenchDecodeCache8(t *testing.T) {
	_, dev := device(t)
	for format, want := range map[string]string{"e4m3": "a cache of e4m3", "q8_0": "a cache of q8_0"} {
		code, stdout, stderr := flashvk("bench", "decode", dev, "--batch=2", "--keys=40", "--page-size=8", "--count=1", "--iters=1", "--cache-dtype="+format)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, want)
		code, stdout, stderr = flashvk("bench", "decode", dev, "--batch=2", "--keys=5", "--queries=3", "--count=1", "--iters=1", "--part=append,step", "--steps=2", "--format=csv", "--cache-dtype="+format)
		require.Zero(t, code, stderr)
		require.Equal(t, 2, strings.Count(stdout, ",ok,"), stdout)
	}
	for want, flags := range map[string][]string{
		`--cache-dtype`: {"--cache-dtype=int4"},
		"--part prefill reads a cache of --dtype, not of e4m3":            {"--cache-dtype=e4m3", "--part=prefill"},
		"head_dim=40 is not a multiple of 32, a block of q8_0":            {"--cache-dtype=q8_0", "--headdim=40"},
		"a cache of e4m3 has queries of float16 or bfloat16, not float32": {"--cache-dtype=e4m3", "--dtype=float32"},
	} {
		code, _, stderr := flashvk(append([]string{"bench", "decode"}, flags...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, want)
	}
}
