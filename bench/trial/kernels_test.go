package trial

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/grouped"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

var (
	kernelsOnly  = flag.String("kernels-only", "", "kernel of TestKernelProblems; empty: all")
	kernelsFirst = flag.Int("kernels-first", 0, "number of the first problem of TestKernelProblems")
	kernelsCount = flag.Int("kernels-count", 2, "how many problems of each kernel TestKernelProblems checks")
	kernelsSoft  = flag.Bool("kernels-soft", true, "problems of TestKernelProblems are for a software driver")
	kernelsImpl  = flag.String("kernels-impl", "", "path of TestKernelProblems; empty: all")
	kernelsWork  = flag.Float64("kernels-work", 2e6, "Space.Work of TestKernelProblems")
)

// drawNumber draws problem n of a kernel, eight in a family.
func drawNumber(k *Kernel, n int, s Space) Problem {
	return k.Draw(rand.New(rand.NewPCG(3, uint64(n/8))), rand.New(rand.NewPCG(4, uint64(n))), s)
}

// trainingKernels are those of this file.
func trainingKernels() (list []Kernel) {
	for _, k := range All() {
		if k.Name != "attention" && (*kernelsOnly == "" || k.Name == *kernelsOnly) {
			list = append(list, k)
		}
	}
	return list
}

// TestKernelProblems checks problems on the device.
func TestKernelProblems(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	s := Space{Soft: *kernelsSoft, Work: *kernelsWork}
	if *kernelsImpl != "" {
		s.Impls = []string{*kernelsImpl}
	}
	for _, k := range trainingKernels() {
		refused, start := 0, time.Now()
		for n := *kernelsFirst; n < *kernelsFirst+*kernelsCount; n++ {
			p := drawNumber(&k, n, s)
			if p == nil || p.Supports(d.Caps()) != nil {
				refused++
				continue
			}
			start := time.Now()
			err := p.Check(context.Background(), &Runner{d: d})
			text, _ := json.Marshal(p)
			if took := time.Since(start); took > 2*time.Second {
				t.Logf("%s %d took %v: %v", k.Name, n, took, p)
			}
			if err != nil && !errors.Is(err, vk.ErrUnsupported) {
				t.Errorf("%s %d: %v\n%v\n%s", k.Name, n, err, p, text)
			}
		}
		t.Logf("%s: %d of %d refused, %v", k.Name, refused, *kernelsCount, time.Since(start))
	}
}

// TestKernelJSON wants problems to be the same after JSON, and what is said to be supported on a
// device like an H200 to be most of them.
func TestKernelJSON(t *testing.T) {
	for _, soft := range []bool{false, true} {
		caps := kernelCaps(soft)
		for _, k := range trainingKernels() {
			refused := 0
			const count = 1000
			for n := range count {
				p := drawNumber(&k, n, Space{Soft: soft, Work: 1e7})
				text, err := json.Marshal(p)
				require.NoError(t, err)
				again := k.New()
				require.NoError(t, json.Unmarshal(text, again))
				require.Equal(t, p, again)
				require.NotEmpty(t, p.String())
				if err := p.Supports(caps); err != nil {
					require.ErrorIs(t, err, vk.ErrUnsupported, "%s", text)
					refused++
				}
				for _, q := range p.Smaller() {
					require.NotEqual(t, p, q)
				}
			}
			t.Logf("%s: soft=%v: %d of %d refused", k.Name, soft, refused, count)
			if !soft {
				require.Less(t, refused, count/4, k.Name)
			}
		}
	}
}

// TestKernelPaths wants some thousands of problems to run, on a device like an H200, every module
// of their kernels, as far as configurations tell; and to have every option.
func TestKernelPaths(t *testing.T) {
	caps := kernelCaps(false)
	modules, options := map[string]int{}, map[string]int{}
	for _, k := range trainingKernels() {
		for n := range 3000 {
			p := drawNumber(&k, n, Space{Work: 5e7})
			if p.Supports(caps) != nil {
				continue
			}
			seen := map[string]bool{}
			for _, name := range modulesOf(t, caps, p) {
				seen[name] = true
			}
			for name := range seen {
				modules[name]++
			}
			for _, name := range optionsOf(p) {
				options[k.Name+" "+name]++
			}
		}
	}
	for _, v := range shaders.Variants() {
		for _, prefix := range []string{"gemm_", "norm_", "sum_rows", "gmm_", "adamw"} {
			if strings.HasPrefix(v.Name(), prefix) {
				require.GreaterOrEqual(t, modules[v.Name()], 20, v.Name())
			}
		}
	}
	for _, counts := range []map[string]int{modules, options} {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%6d %s", counts[name], name)
			require.GreaterOrEqual(t, counts[name], 20, name)
		}
	}
}

// modulesOf returns the modules that a problem runs, some more than once. Those of which
// configurations do not tell are left out.
func modulesOf(t *testing.T, caps *vk.Caps, p Problem) (list []string) {
	t.Helper()
	typed := func(name string, format dtype.DType) { list = append(list, name+"."+format.Short()) }
	// product adds the modules of a product in a configuration.
	product := func(c gemm.Config, format dtype.DType) {
		switch {
		case c.Impl == gemm.Scalar:
			typed("gemm_scalar", format)
		case format == dtype.Float32:
			list = append(list, "gemm_tops", "gemm_parts")
			typed("gemm_coopmat", dtype.Float16)
		case c.Fragments:
			typed("gemm_coopmat_fragmented", format)
			typed("gemm_fragments", format)
		default:
			typed("gemm_coopmat", format)
		}
		if c.Splits > 1 {
			list = append(list, "gemm_combine")
		}
	}
	// words adds those of what Describe says.
	words := func(text string, format dtype.DType, keep bool) {
		for _, x := range strings.Split(text, " | ") {
			x = strings.TrimPrefix(x, "outputs in memory: ")
			narrow := strings.HasPrefix(x, "narrow ")
			x = strings.TrimPrefix(x, "narrow ")
			switch c, err := gemm.ParseConfig(x); {
			case strings.HasPrefix(x, "pair "):
				typed("gemm_pair", format)
				typed("gemm_fragments", format)
			case strings.HasPrefix(x, "mixture "):
				typed("gemm_mixture", format)
			case x == "dsilu":
				typed("gemm_narrow_dsilu", format)
				list = append(list, "gemm_combine")
			case narrow && keep:
				typed("gemm_narrow_bwd", format)
			case narrow:
				typed("gemm_narrow", format)
			case err == nil:
				product(c, format)
			}
		}
	}
	switch p := p.(type) {
	case *gemmProblem:
		opt, err := p.options()
		require.NoError(t, err)
		c, err := gemm.Choose(caps, p.Problem, opt)
		require.NoError(t, err)
		product(c, p.DType)
		unaligned := func(trans bool) bool { return p.Layout == "o" || trans }
		if c.Pack && p.DType != dtype.Float32 && !p.AlignedA && p.N >= 256 && p.AShape()[2]%8 != 0 && unaligned(p.Layout == "p") {
			list = append(list, "gemm_pack")
		}
	case *gemmGroupProblem:
		opt, err := p.options()
		require.NoError(t, err)
		c, err := gemm.ChooseGroup(caps, p.Group, opt)
		require.NoError(t, err)
		typed(map[gemm.Impl]string{gemm.Scalar: "gemm_scalar_group", gemm.CoopMat: "gemm_coopmat_group"}[c.Impl], p.DType)
	case *mlpProblem:
		opt, err := p.options()
		require.NoError(t, err)
		text, err := mlp.Describe(caps, p.Problem, opt, p.Backward, p.Keep)
		require.NoError(t, err)
		words(text, p.DType, false)
	case *groupedProblem:
		switch {
		case p.Narrow && p.Backward && p.Keep == grouped.KeepPre:
			typed("gemm_narrow_dsilu", p.DType)
		case p.Narrow && p.Backward:
			typed("gemm_narrow_bwd", p.DType)
		case p.Narrow:
			typed("gemm_narrow", p.DType)
		default:
			opt, err := p.options()
			require.NoError(t, err)
			text, err := grouped.Describe(caps, p.Problem, opt, p.Backward, p.Keep)
			require.NoError(t, err)
			words(text, p.DType, p.Backward)
		}
	case *mixtureProblem:
		if p.Direct {
			typed("gemm_mixture", p.DType)
			list = append(list, "gmm_merge")
			break
		}
		opt, err := p.options()
		require.NoError(t, err)
		text, err := mixture.Describe(caps, p.Problem, opt, p.Backward)
		require.NoError(t, err)
		words(text, p.DType, p.Backward)
	case *gmmProblem:
		switch p.Call {
		case gmmForward:
			typed("gmm_fwd", p.DType)
		case gmmBackward:
			typed("gmm_bwd", p.DType)
		case gmmMerge:
			list = append(list, "gmm_merge")
		}
		if p.Loss && p.Call != gmmBackward {
			typed("sum_rows", dtype.Float32)
		}
	case *normProblem:
		if p.Backward {
			typed("norm_bwd", p.DType)
			typed("sum_rows", p.WeightDType)
		} else {
			typed("norm_fwd", p.DType)
		}
	case *optimProblem:
		format := p.Copy
		if p.Grad == dtype.Float32 && !p.HasCopy {
			format = dtype.BFloat16
		}
		typed("adamw", format)
		list = append(list, "adamw_prepare")
		if p.Clip != "" {
			typed("adamw_norm", format)
		}
	}
	return list
}

// optionsOf names what a problem has: fields that are not zero, values of those that are few, and
// more than that of products.
func optionsOf(p Problem) (list []string) {
	v := reflect.ValueOf(p).Elem()
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		for i := range v.NumField() {
			name, f := v.Type().Field(i).Name, v.Field(i)
			switch {
			case v.Type().Field(i).Anonymous:
				walk(f)
			case name == "Layout" || name == "Config" || name == "FusedConfig":
				list = append(list, fmt.Sprintf("%s=%v", name, !f.IsZero()))
			case f.Kind() == reflect.Bool || f.Kind() == reflect.String || f.Kind() == reflect.Uint8:
				list = append(list, fmt.Sprintf("%s=%v", name, f.Interface()))
			case f.Kind() == reflect.Float64 || f.Kind() == reflect.Int:
				list = append(list, fmt.Sprintf("%s=0: %v", name, f.IsZero()))
			}
		}
	}
	walk(v)
	if x, ok := p.(*gemmProblem); ok && x.Config != "" {
		for _, word := range strings.Fields(x.Config)[1:] {
			list = append(list, "config "+strings.TrimRight(word, "0123456789x"))
		}
	}
	return list
}
