package trial

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// wholeCycle is a family of Space.Soft for each unit of the kernels' weights.
var wholeCycle = softFamily * weights(call.All())

var (
	kernelsOnly = flag.String("kernels-only", "", "kernel of the tests; empty: all")
	randomCount = flag.Int("random-count", wholeCycle, "how many problems TestRandom checks; 20 with -short")
	randomSeed  = flag.Uint64("random-seed", 4954402, "seed of TestRandom")
)

// drawNumber draws problem n of a kernel, eight in a family.
func drawNumber(k *Kernel, n int, s call.Space) Problem {
	return k.Draw(rand.New(rand.NewPCG(3, uint64(n/8))), rand.New(rand.NewPCG(4, uint64(n))), s)
}

// eachKernel runs a test for each kernel.
func eachKernel(t *testing.T, test func(t *testing.T, k *Kernel)) {
	for _, k := range call.All() {
		if *kernelsOnly == "" || k.Name == *kernelsOnly {
			t.Run(k.Name, func(t *testing.T) { test(t, &k) })
		}
	}
}

// TestProblems wants problems to be the same after JSON, most of them to be supported on a device like
// an H200, and steps to a smaller problem to come to an end.
func TestProblems(t *testing.T) {
	vktest.Sequential(t)
	eachKernel(t, func(t *testing.T, k *Kernel) {
		for _, soft := range []bool{false, true} {
			refused := 0
			const count = 1000
			for n := range count {
				p := drawNumber(k, n, call.Space{Soft: soft, Work: 1e7})
				text := Encode(k, p)
				again, q, err := Decode(text)
				require.NoError(t, err)
				require.Equal(t, p, q, text)
				require.NoError(t, p.Validate(), text)
				require.Equal(t, text, Encode(again, q))
				whole, err := json.Marshal(p)
				require.NoError(t, err)
				q = k.New()
				require.NoError(t, json.Unmarshal(whole, q))
				require.Equal(t, p, q)
				if err := call.Supports(p, call.TypicalCaps(soft)); err != nil {
					require.ErrorIs(t, err, vk.ErrUnsupported, "%s", text)
					refused++
				}
				list := call.Smaller(p)
				for _, q := range list {
					require.NotEqual(t, p, q)
				}
				for steps := 0; len(list) > 0 && !soft && n%400 == 0; steps++ {
					require.Less(t, steps, 3000, "%v", p)
					list = call.Smaller(list[min(n/400, len(list)-1)])
				}
			}
			t.Logf("soft=%v: %d of %d refused", soft, refused, count)
			most := count / 4
			if soft {
				most = count
			}
			if k.Name == "attention" {
				most = 10
			}
			require.Less(t, refused, most+1, "of %d", count)
		}
	})
}

// TestSpace wants some thousands of problems to have every option, attention every two features and every
// path in every format, and to run every module of their kernels, on a device like an H200.
func TestSpace(t *testing.T) {
	vktest.Sequential(t)
	modules, seen := map[string]int{}, map[string]int{}
	eachKernel(t, func(t *testing.T, k *Kernel) {
		for n := range 3000 {
			p := drawNumber(k, 8*n, call.Space{Work: 5e7})
			plan, err := p.Host().Choose(call.TypicalCaps(false), p.Pass())
			if err != nil {
				continue
			}
			for _, name := range plan.Kernels() {
				stem, _, _ := strings.Cut(name, ".")
				modules[stem]++
			}
			for _, name := range optionsOf(reflect.ValueOf(p).Elem()) {
				seen[k.Name+" "+name]++
			}
			if a, ok := p.(*call.Attention); ok {
				seen[fmt.Sprint("attention ", a.Features())]++
				seen[fmt.Sprintf("%v backward=%v %v plain=%v", a.Impl, a.Backward, a.DType, a.Plain())]++
			}
		}
	})
	if *kernelsOnly != "" {
		return
	}
	for _, v := range shaders.Variants() {
		for _, prefix := range []string{"attention_decode", "attention_append", "attention_advance", "gemm_", "norm_", "normlinear", "decoder", "embed_", "sum_rows", "glu_", "gmm_", "rope", "sample", "dropout", "xent_", "adamw"} {
			if strings.HasPrefix(v.Kernel, prefix) && v.Kernel != "gemm_align" { // it is in no plan
				require.GreaterOrEqual(t, modules[v.Kernel], 20, v.Kernel)
			}
		}
	}
	features := []string{"value_dim", "window", "softcap", "alibi", "bias", "key_mask", "sinks", "varlen", "dropout"}
	for i, a := range features {
		for _, b := range features[i:] {
			seen[fmt.Sprint("attention ", slices.Compact([]string{a, b}))] += 0
		}
	}
	for _, impl := range []attention.Impl{attention.CoopMat2, attention.CoopMat, attention.Scalar, attention.Unfused} {
		for _, format := range dtype.All() {
			for i := range 4 {
				name := fmt.Sprintf("%v backward=%v %v plain=%v", impl, i%2 == 0, format, i/2 == 0)
				require.GreaterOrEqual(t, seen[name], 3, name)
			}
		}
	}
	for _, option := range []string{"Config.Splits", "Config.Stripes", "BackwardConfig.Stored.Stream", "BackwardConfig.Fused.Stream", "DecodeConfig.Rows"} {
		seen["attention "+option+"=0: false"] += 0
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[name], name)
		if len(strings.Fields(name)) < 4 && strings.Count(name, ".") < 2 { // else three features, or part of a tile
			require.GreaterOrEqual(t, seen[name], 3, name)
		}
	}
}

// optionsOf names the options of a problem: fields that are not zero, values of fields with few
// values, and words of configurations.
func optionsOf(v reflect.Value) (list []string) {
	for i := range v.NumField() {
		name, f := v.Type().Field(i).Name, v.Field(i)
		switch {
		case v.Type().Field(i).Anonymous:
			list = append(list, optionsOf(f)...)
		case f.Kind() == reflect.Struct || f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct && !f.IsNil():
			for _, option := range optionsOf(reflect.Indirect(f)) {
				list = append(list, name+"."+option)
			}
		case name == "Layout" || name == "Config" || name == "FusedConfig":
			list = append(list, fmt.Sprintf("%s=%v", name, !f.IsZero()))
			if name == "Config" && f.Kind() == reflect.String && v.Type() == reflect.TypeFor[call.Gemm]() && !f.IsZero() {
				for _, word := range strings.Fields(f.String())[1:] {
					list = append(list, "config "+strings.TrimRight(word, "0123456789x"))
				}
			}
		case f.Kind() == reflect.Bool || f.Kind() == reflect.String || f.Kind() == reflect.Uint8:
			list = append(list, fmt.Sprintf("%s=%v", name, f.Interface()))
		case f.Kind() == reflect.Float64 || f.Kind() == reflect.Int:
			list = append(list, fmt.Sprintf("%s=0: %v", name, f.IsZero()))
		}
	}
	return list
}

// mostSteps bounds the error of an output's largest element in half of the drawn problems, in steps
// of the format: about twice the error found. Outputs that are not named have 6 in 16 bits, 60 in
// float32.
var mostSteps = map[string]float64{
	"decode o float16": 3, "decode o bfloat16": 3, "decode o float32": 20, "decode lse float32": 120,
	"step o float16": 3, "step o bfloat16": 3, "step o float32": 20, "step lse float32": 120,
	"attention dq float16": 8, "attention dq float32": 160, "attention dk float32": 120, "attention dsinks float32": 1e4, "attention dbias float32": 2e4,
	"grouped dw float32": 3e4, "gmm dlogit float32": 500, "gmm dmu float32": 150, "gmm dlog_sigma float32": 250, "gmm dp float32": 250, "gmm loss float32": 125,
	"mixture dw float16": 40, "mixture dw bfloat16": 30, "mixture dw float32": 800, "mixture dx float16": 40, "mixture dx bfloat16": 40, "mixture dx float32": 700,
	"mixture log_p float32": 4e4, "mixture loss float32": 2e4, "optim norm float32": 170, "xent dw float32": 450, "xent dh float32": 450, "xent logits float32": 140, "xent loss float32": 150,
}

// TestBounds wants bounds to say something: half of the problems of a kernel find an output that is off by
// a few steps of its format.
func TestBounds(t *testing.T) {
	vktest.Sequential(t)
	eachKernel(t, func(t *testing.T, k *Kernel) {
		found := map[string][]float64{}
		for n := range 160 {
			p := drawNumber(k, n, call.Space{Soft: true, Work: 1e5})
			if p == nil {
				continue
			}
			outputs := p.Want(call.Inputs(p), p.Pass())
			for _, x := range p.Tensors() {
				o, _ := outputs.Of(x.Name)
				bound, most := o.Bound, 0.0
				for _, b := range o.Bounds {
					bound = max(bound, b)
				}
				for _, w := range o.Want {
					if !math.IsInf(w, 0) && !math.IsNaN(w) {
						most = max(most, math.Abs(w))
					}
				}
				if most > 0 && bound > 0 && !x.Off {
					name := fmt.Sprintf("%s %s %v", k.Name, strings.TrimRight(x.Name, "0123456789"), x.DType)
					found[name] = append(found[name], bound/(x.DType.Eps()*most))
				}
			}
		}
		for name, list := range found {
			slices.Sort(list)
			most := 60.0
			if strings.HasSuffix(name, "16") {
				most = 6
			}
			if named, ok := mostSteps[name]; ok {
				most = named
			}
			require.True(t, list[len(list)/2] < most || strings.HasSuffix(name, " int8") || strings.HasSuffix(name, " e4m3"), "%s: %g of %d", name, list[len(list)/2], len(list))
		}
	})
}

// TestFailedBefore checks problems that were wrong on a GPU. For a CPU device it only parses them:
// their kernels take minutes to compile there, and were right.
func TestFailedBefore(t *testing.T) {
	text, err := os.ReadFile("testdata/failed.txt")
	require.NoError(t, err)
	d, n := openPoisoned(t), 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, p, err := Decode(line)
		require.NoError(t, err)
		for range 3 {
			if d.Caps().Type != vk.CPU && call.Supports(p, d.Caps()) == nil {
				_, err := Examine(context.Background(), d, k, p, false, time.Minute)
				require.NoError(t, err, line)
			}
		}
		n++
	}
	require.Greater(t, n, 15)
}

// onMatrices matches the names of modules that multiply cooperative matrices.
var onMatrices = regexp.MustCompile(`coopmat|^gemm_(skinny|skinny_bwd|mixture|pair)\.`)

// TestRandom checks random problems of all kernels and paths under core and synchronization
// validation, which flashvk selftest --random does without. An error of the layer fails the
// call that comes next, and so a problem, and the device's Close.
func TestRandom(t *testing.T) {
	d := openPoisoned(t)
	all := call.All()
	for i := range all {
		all[i].Weight = 1 // few problems that have all kernels
	}
	all = slices.DeleteFunc(all, func(k Kernel) bool { return *kernelsOnly != "" && k.Name != *kernelsOnly })
	o := Options{Seed: *randomSeed, Problems: *randomCount, Kernels: all, Hang: 10 * time.Minute, Shrink: 5 * time.Second, Space: call.Space{Work: 5e7}}
	if testing.Short() {
		o.Problems = min(o.Problems, 20)
	}
	if d.Caps().Type == vk.CPU {
		o.Space.Soft, o.Space.Work = true, 1e6
	}
	if !d.Caps().Storage16 {
		o.Space.DTypes = []dtype.DType{dtype.Float32}
	}
	x, err := Run(context.Background(), d, o, nil)
	require.NoError(t, err)
	t.Log(x.Summary())
	for _, f := range x.Failures {
		t.Errorf("%s\n%s\nsmaller: %s\n%s", f.What, f.Problem, f.Smaller, f.Smallest)
	}
	matrices := map[string]bool{} // kernels that ran on them
	for _, m := range x.Record.Modules {
		t.Log(m.Name, m.Random)
		for kernel := range m.Random {
			if onMatrices.MatchString(m.Name) {
				matrices[kernel] = true
			}
		}
	}
	require.Greater(t, x.Problems, o.Problems*9/10) // some may have found too little memory
	if o.Problems < wholeCycle || *kernelsOnly != "" {
		return
	}
	require.Len(t, x.Record.Random, len(o.Kernels))
	require.Greater(t, len(x.Record.Modules), 30)
	if d.Caps().CoopMat {
		require.Greater(t, len(matrices), 2) // conformance has a case for each of them
	}
}

// TestDraw says that a seed draws the same problems each time, that problems of a family share
// pipelines, and that all kinds of sizes occur.
func TestDraw(t *testing.T) {
	type drawn struct{ family, n uint64 }
	var got []drawn
	kernels := []Kernel{{Weight: 1, Draw: func(of, rng *rand.Rand, _ call.Space) call.Call {
		got = append(got, drawn{of.Uint64(), rng.Uint64()})
		return &made{}
	}}}
	for range 2 {
		for n := range 4 * family * turns {
			_, _, ok := Draw(5, n, kernels, call.Space{})
			require.True(t, ok)
		}
	}
	half := len(got) / 2
	require.Equal(t, got[:half], got[half:])
	families, all := map[uint64]int{}, map[uint64]bool{}
	for i, x := range got[:half] {
		families[x.family]++
		all[x.n] = true
		require.True(t, i == 0 || x.family != got[i-1].family, "problems %d and %d are of one family", i-1, i)
	}
	require.Len(t, families, 4*turns)
	require.Len(t, all, half)
	for _, n := range families {
		require.Equal(t, family, n)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	sizes := map[int]int{}
	for range 10000 {
		n := call.Size(rng, 700)
		require.True(t, 1 <= n && n <= 700)
		sizes[n]++
	}
	for _, n := range []int{1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512} {
		require.Positive(t, sizes[n], n)
	}
	s := call.Space{Impls: []string{"b", "c"}, DTypes: []dtype.DType{dtype.Float16}}
	impl, ok := s.Impl(rng, "a", "b")
	require.True(t, ok)
	require.Equal(t, "b", impl)
	_, ok = s.DType(rng, dtype.Float32)
	require.False(t, ok)
}
