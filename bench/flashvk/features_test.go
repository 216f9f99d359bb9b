package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// runFeatures are problems with a feature each, and the flags that stand for what
// tensors do not tell.
var runFeatures = []struct {
	name   string
	flags  []string
	change func(*attention.Problem)
}{
	{"window", []string{"--window", "9,4"}, func(p *attention.Problem) { p.Window = attention.Window{On: true, Left: 9, Right: 4} }},
	{"window-open", []string{"--window=-1,-1"}, func(*attention.Problem) {}},
	{"softcap", []string{"--softcap", "2.5"}, func(p *attention.Problem) { p.Softcap = 2.5 }},
	{"dropout", []string{"--dropout", "0.25", "--seed", "18446744073709551615"}, func(p *attention.Problem) {
		p.Dropout = attention.Dropout{P: 0.25, Seeded: true, Seed: math.MaxUint64}
	}},
	{"value-dim", nil, func(p *attention.Problem) { p.ValueDim = 40 }},
	{"bias", nil, func(p *attention.Problem) { p.Bias = attention.Bias{On: true, Heads: true, Rows: true} }},
	{"bias-own-type", nil, func(p *attention.Problem) { p.Bias = attention.Bias{On: true, DType: p.DType, Batch: true} }},
	{"alibi", []string{"--causal-align", "top-left"}, func(p *attention.Problem) {
		p.ALiBi, p.CausalAlign = attention.ALiBiPerHead, attention.TopLeft
	}},
	{"alibi-batch", nil, func(p *attention.Problem) { p.ALiBi = attention.ALiBiPerBatchHead }},
	{"key-mask", []string{"--causal"}, func(p *attention.Problem) { p.KeyMask, p.Causal = true, true }},
	{"sinks", nil, func(p *attention.Problem) { p.Sinks = true }},
	{"varlen", []string{"--causal"}, func(p *attention.Problem) {
		p.Batch, p.SeqQ, p.SeqKV, p.Causal = 4, 20, 30, true
		p.Varlen = attention.Varlen{On: true, TotalQ: 38, TotalKV: 41}
	}},
}

// eachFeature calls f for every problem of runFeatures, counting them, in every format.
func eachFeature(f func(i int, name string, flags []string, p attention.Problem, in ref.Inputs[float32])) {
	for i, c := range runFeatures {
		for _, dt := range dtype.All() {
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 35, SeqKV: 50, HeadDim: 24, DType: dt}
			c.change(&p)
			in := randomInputs(p)
			if p.Varlen.On {
				in.CuSeqlensQ, in.CuSeqlensKV = []int32{0, 20, 20, 21, 35}, []int32{0, 9, 10, 40, 41}
			}
			f(i, fmt.Sprintf("%s/%v", c.name, dt), c.flags, p, in)
		}
	}
}

// softwarePaths has a path for each format: lavapipe compiles a kernel for up to seconds.
var softwarePaths = map[dtype.DType][]attention.Impl{
	dtype.Float16: {attention.Auto}, dtype.BFloat16: {attention.Unfused}, dtype.Float32: {attention.Scalar},
}

// featurePaths are the paths that files with feature i run through: all, but on lavapipe one in
// each format, and unless there is time formats in turn from float16 on, one for a feature. Package attention tests
// the kernels, TestReadProblem reads all files.
func featurePaths(caps *vk.Caps, p attention.Problem, i int) []attention.Impl {
	switch formats := dtype.All(); {
	case caps.Type != vk.CPU:
		return append([]attention.Impl{attention.Auto}, attention.Impls()...)
	case p.DType != formats[(i+1)%len(formats)] && !vktest.ThoroughWith(caps):
		return nil
	}
	return softwarePaths[p.DType]
}

// TestReadProblem says that a problem is read from its tensors as it was written.
func TestReadProblem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	eachFeature(func(_ int, name string, words []string, p attention.Problem, in ref.Inputs[float32]) {
		writeInputs(t, path, in, p)
		file, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		flags, set := find("attention").New(), pflag.NewFlagSet("attention", pflag.ContinueOnError)
		flags.Add(set, false)
		if err := set.Parse(words); err != nil {
			t.Fatal(err)
		}
		op, err := flags.FromFile(file)
		if err != nil || op.(*bench.AttentionOp).Problem() != p {
			t.Fatalf("%s: read %v, %v, want %v", name, op, err, p)
		}
		starts := map[string][]int32{}
		for _, x := range op.Tensors() {
			starts[x.Name] = x.Ints
		}
		if !slices.Equal(starts["cu_seqlens_q"], in.CuSeqlensQ) || !slices.Equal(starts["cu_seqlens_kv"], in.CuSeqlensKV) {
			t.Errorf("%s: sequences begin at %v", name, starts)
		}
	})
}

// TestRunFeatures runs files with the tensors of features through every path,
// where there are kernels for them.
func TestRunFeatures(t *testing.T) {
	caps, dev := device(t)
	eachFeature(func(i int, name string, flags []string, p attention.Problem, in ref.Inputs[float32]) {
		for _, impl := range featurePaths(caps, p, i) {
			t.Run(fmt.Sprintf("%s/%v", name, impl), func(t *testing.T) {
				runFile(t, p, in, attention.Supports(caps, p, kit.Forward, attention.Options{Impl: impl}), append(flags, "--impl", impl.String(), dev)...)
			})
		}
	})
}

// randomInputs returns tensors for p and all its features.
func randomInputs(p attention.Problem) ref.Inputs[float32] {
	normal := func(t dtype.DType, shape []int, seed uint64) []float32 {
		n := 1
		for _, s := range shape {
			n *= s
		}
		return bench.Normal(t, n, seed)
	}
	in := ref.Inputs[float32]{Q: normal(p.DType, p.QShape(), 1), K: normal(p.DType, p.KShape(), 2), V: normal(p.DType, p.VShape(), 3)}
	if p.Bias.On {
		in.Bias = normal(p.Bias.DType, p.BiasShape(), 4)
	}
	if p.ALiBi != attention.ALiBiOff {
		in.ALiBiSlopes = normal(dtype.Float32, p.SlopesShape(), 5)
		for i, x := range in.ALiBiSlopes {
			in.ALiBiSlopes[i] = x * x / 4
		}
	}
	if p.Sinks {
		in.Sinks = normal(dtype.Float32, p.SinksShape(), 6)
	}
	if p.KeyMask {
		for i := range p.Batch * p.SeqKV {
			in.KeyMask = append(in.KeyMask, i%3 > 0)
		}
	}
	return in
}

// writeInputs writes the tensors of p and its features to a file.
func writeInputs(t *testing.T, path string, in ref.Inputs[float32], p attention.Problem) {
	t.Helper()
	writeBackwardInputs(t, path, in, ref.Upstream[float32]{}, p)
}

// writeBackwardInputs does the same with the gradients of a loss by O and LSE.
func writeBackwardInputs(t *testing.T, path string, in ref.Inputs[float32], up ref.Upstream[float32], p attention.Problem) {
	t.Helper()
	var tensors []safetensors.Tensor
	data := make(map[string][]byte)
	add := func(name string, format safetensors.DType, shape []int, b []byte) {
		if len(b) > 0 {
			tensors, data[name] = append(tensors, safetensors.Tensor{Name: name, DType: format, Shape: shape}), b
		}
	}
	add("q", bench.FileDType(p.DType), p.QShape(), storage.Bytes(p.DType, in.Q))
	add("k", bench.FileDType(p.DType), p.KShape(), storage.Bytes(p.DType, in.K))
	add("v", bench.FileDType(p.DType), p.VShape(), storage.Bytes(p.DType, in.V))
	add("bias", bench.FileDType(p.Bias.DType), p.BiasShape(), storage.Bytes(p.Bias.DType, in.Bias))
	add("alibi_slopes", "F32", p.SlopesShape(), storage.Bytes(dtype.Float32, in.ALiBiSlopes))
	add("sinks", "F32", p.SinksShape(), storage.Bytes(dtype.Float32, in.Sinks))
	add("key_mask", "BOOL", p.KeyMaskShape(), encodeBools(in.KeyMask))
	add("cu_seqlens_q", "I32", p.CuSeqlensShape(), encodeLengths(in.CuSeqlensQ))
	add("cu_seqlens_kv", "I32", p.CuSeqlensShape(), encodeLengths(in.CuSeqlensKV))
	add("do", bench.FileDType(p.DType), p.OShape(), storage.Bytes(p.DType, up.DO))
	add("dlse", "F32", p.LSEShape(), storage.Bytes(dtype.Float32, up.DLSE))
	filetest.Write(t, path, tensors, data)
}

// writePacked writes zeros for q (3, 4, 16) and k, v (5, 2, 16), with these starts of
// sequences.
func writePacked(t *testing.T, q, kv []int32, format safetensors.DType) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "packed.safetensors")
	key := []int{5, 2, 16}
	tensors := append(qkv([]int{3, 4, 16}, key, key),
		safetensors.Tensor{Name: "cu_seqlens_q", DType: format, Shape: []int{len(q)}},
		safetensors.Tensor{Name: "cu_seqlens_kv", DType: format, Shape: []int{len(kv)}})
	filetest.Write(t, path, tensors, map[string][]byte{"cu_seqlens_q": encodeLengths(q), "cu_seqlens_kv": encodeLengths(kv)})
	return path
}

func encodeBools(x []bool) (b []byte) {
	for _, v := range x {
		b = append(b, map[bool]byte{true: 1}[v])
	}
	return b
}

func encodeLengths(x []int32) (b []byte) {
	for _, n := range x {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return b
}

// TestBenchFeatures says that the flags of features reach the problem, and that a
// path without kernels for them says so.
func TestBenchFeatures(t *testing.T) {
	caps, dev := device(t)
	for _, c := range []struct {
		flags, key string
		change     func(*attention.Problem)
	}{
		{"--window 9,-1", "window=9,-1", func(p *attention.Problem) { p.Window = attention.Window{On: true, Left: 9, Right: -1} }},
		{"--softcap 20", "softcap=20", func(p *attention.Problem) { p.Softcap = 20 }},
		{"--dropout 0.5 --seed 4", "dropout=0.5", func(p *attention.Problem) { p.Dropout = attention.Dropout{P: 0.5, Seeded: true, Seed: 4} }},
		{"--value-dim 32", "value_dim=32", func(p *attention.Problem) { p.ValueDim = 32 }},
		{"--alibi", "alibi=heads", func(p *attention.Problem) { p.ALiBi = attention.ALiBiPerHead }},
		{"--alibi=batch-heads", "alibi=batch-heads", func(p *attention.Problem) { p.ALiBi = attention.ALiBiPerBatchHead }},
		{"--bias heads,rows", "bias=float32+heads+rows", func(p *attention.Problem) { p.Bias = attention.Bias{On: true, Heads: true, Rows: true} }},
		{"--bias shared --bias-dtype float16", "bias=float16", func(p *attention.Problem) { p.Bias = attention.Bias{On: true, DType: dtype.Float16} }},
		{"--key-mask", "key_mask=true", func(p *attention.Problem) { p.KeyMask = true }},
		{"--sinks", "sinks=true", func(p *attention.Problem) { p.Sinks = true }},
		{"--varlen --batch 4", "varlen=84x100", func(p *attention.Problem) {
			p.Batch, p.Varlen = 4, attention.Varlen{On: true, TotalQ: 84, TotalKV: 100}
		}},
	} {
		p := attention.Problem{Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: 33, SeqKV: 40, HeadDim: 16, DType: dtype.Float16, Causal: true}
		c.change(&p)
		unsupported := attention.Supports(caps, p, kit.Forward, attention.Options{Impl: attention.Scalar})
		code, stdout, stderr := flashvk(small(append([]string{dev, "--impl=scalar"}, strings.Fields(c.flags)...)...)...)
		if !strings.Contains(stdout, ", causal (bottom-right), "+c.key+"\n") {
			t.Errorf("%s: %s is missing in\n%s", c.flags, c.key, stdout)
		}
		switch {
		case unsupported != nil && (code != 1 || !strings.Contains(stderr, "scalar is not supported: "+bench.Reason("attention", "scalar", unsupported))):
			t.Errorf("%s: status %d, %s, want %v", c.flags, code, stderr, unsupported)
		case unsupported == nil && (code != 0 || !strings.Contains(stdout, "  pass ")):
			t.Errorf("%s: status %d, %s\n%s", c.flags, code, stderr, stdout)
		}
	}
}
