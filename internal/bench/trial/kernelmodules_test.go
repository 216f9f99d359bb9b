package trial

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestKernelPaths wants some thousands of problems to have every option, and to run every module of
// their kernels that configurations tell, on a device like an H200.
func TestKernelPaths(t *testing.T) {
	vktest.Sequential(t)
	caps := call.TypicalCaps(false)
	modules, options := map[string]int{}, map[string]int{}
	for _, k := range trainingKernels() {
		for n := range 3000 {
			p := drawNumber(&k, n, call.Space{Work: 5e7})
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
		for _, prefix := range []string{"attention_decode", "attention_append", "attention_advance", "gemm_", "norm_", "sum_rows", "gmm_", "adamw"} {
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

// modulesOf returns the modules that a problem runs, as far as configurations tell them. Some occur
// more than once.
func modulesOf(t *testing.T, caps *vk.Caps, p Problem) []string {
	t.Helper()
	m := &moduleList{t: t, caps: caps}
	m.ofCall(p.(*called).Call)
	return m.names
}

// A moduleList is a list of modules.
type moduleList struct {
	t     *testing.T
	caps  *vk.Caps
	names []string
}

// add adds a module of a format.
func (m *moduleList) add(name string, format dtype.DType) {
	m.names = append(m.names, name+"."+format.Short())
}

// ofCall adds those of a call's plan, and those that its plan does not tell.
func (m *moduleList) ofCall(c call.Call) {
	if o, ok := c.(*call.Optim); ok {
		m.ofOptim(o)
		return
	}
	plan, err := c.Choose(m.caps, c.Pass())
	require.NoError(m.t, err)
	format := dtype.Float32
	if f := call.Field(c, "dtype"); f.IsValid() {
		format = f.Interface().(dtype.DType)
	}
	m.plan(plan, format)
	if g, ok := c.(*call.Gemm); ok { // gemm_pack is in no plan
		unaligned := g.Layout == "o" || g.Layout == "p"
		if strings.Contains(plan.String(), " align") && g.DType != dtype.Float32 && !g.AlignedA && g.N >= 256 && g.AShape()[2]%8 != 0 && unaligned {
			m.names = append(m.names, "gemm_pack")
		}
	}
	if c.Pass() == kit.Backward {
		if n, ok := c.(*call.Norm); ok {
			m.names[len(m.names)-1] = "sum_rows." + n.WeightDType.Short()
		}
	} else if g, ok := c.(*call.GMM); ok {
		if g.Call == call.GMMMerge {
			m.names = []string{"gmm_merge"}
		}
		if g.Loss {
			m.add("sum_rows", dtype.Float32)
		}
	}
}

// plan adds those of a plan.
func (m *moduleList) plan(plan kit.Plan, format dtype.DType) { m.list(plan.Kernels(), format) }

// list adds kernels.
func (m *moduleList) list(kernels []string, format dtype.DType) {
	for _, name := range kernels {
		switch {
		case strings.HasPrefix(name, "attention_") || slices.ContainsFunc(shaders.Variants(), func(v shaders.Variant) bool { return v.Name() == name }):
			m.names = append(m.names, name)
		case name == "gemm_coopmat" && format == dtype.Float32: // in two parts
			m.add(name, dtype.Float16)
		default:
			m.add(name, format)
		}
	}
}

func (m *moduleList) ofOptim(p *call.Optim) {
	format := p.Copy
	if p.Grad == dtype.Float32 && !p.HasCopy {
		format = dtype.BFloat16
	}
	m.add("adamw", format)
	m.names = append(m.names, "adamw_prepare")
	if p.Clip != "" {
		m.add("adamw_norm", format)
	}
}

// optionsOf names the options of a problem: fields that are not zero, values of fields with few
// values, and further ones of products.
func optionsOf(p Problem) (list []string) {
	v := reflect.ValueOf(p).Elem()
	if c, ok := p.(*called); ok {
		v = reflect.ValueOf(c.Call).Elem()
	}
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
	if x, ok := p.(*called).Call.(*call.Gemm); ok && x.Config != "" {
		for _, word := range strings.Fields(x.Config)[1:] {
			list = append(list, "config "+strings.TrimRight(word, "0123456789x"))
		}
	}
	return list
}
