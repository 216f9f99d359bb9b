package micro

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		kernel, typ  string
		params, spec any
		bindings     []string
	}{
		{"micro_matrix", "f16", matrixParams{}, matrixSpec{}, []string{"A", "B", "C"}},
		{"micro_matrix", "bf16", matrixParams{}, matrixSpec{}, []string{"A", "B", "C"}},
		{"micro_fma", "", fmaParams{}, workgroupSpec{}, []string{"Y"}},
		{"micro_copy", "", copyParams{}, workgroupSpec{}, []string{"Src", "Dst"}},
	} {
		module, err := shaders.Get(c.kernel, c.typ)
		require.NoError(t, err)
		layouttest.Check(t, module, c.params, c.spec, c.bindings...)
	}
}

// TestLoops says that each loop computes what it says, that its check would
// notice if it did not, and that its calls take as long as is asked for.
func TestLoops(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			l, err := New(ctx, d, name)
			if name == "matrix f16" {
				vktest.Require(t, "coopmat", err)
			} else if name == "matrix bf16" && err != nil {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				t.Skip(err)
			}
			require.NoError(t, err)
			defer l.Close()
			require.Equal(t, name, l.Name)
			require.NoError(t, l.Check(ctx))

			right := l.record
			l.record = func(c *vk.Cmd, iters uint32) { right(c, iters+1) }
			if name == "copy" {
				l.record = func(*vk.Cmd, uint32) {} // records nothing: the last copy is still there
				require.NoError(t, l.free[1].Buffer.Upload(ctx, 4, []byte{1}))
			}
			require.ErrorContains(t, l.Check(ctx), "element ")
			l.record = right

			start := time.Now()
			took, err := l.Calibrate(ctx, 4*time.Millisecond)
			require.NoError(t, err)
			require.Positive(t, took)
			if !l.fixed {
				// On a machine with other work the time is several times off.
				require.Greater(t, took, 100*time.Microsecond)
				require.Less(t, took, time.Since(start))
				require.Greater(t, l.iters, uint32(1))
			}
			require.InDelta(t, l.work*float64(l.iters), l.Work(), 1e-6*l.Work())
		})
	}
	_, err := New(ctx, d, "matrix f4")
	require.EqualError(t, err, `micro: "matrix f4" is not the name of a loop`)
}

// TestWork compares the operations that are counted with the shader's loops.
func TestWork(t *testing.T) {
	d := vktest.Open(t)
	l, err := New(context.Background(), d, "matrix f16")
	vktest.Require(t, "coopmat", err)
	require.NoError(t, err)
	defer l.Close()
	s, err := matrixShape(d.Caps(), dtype.Float16)
	require.NoError(t, err)
	subgroups := float64(4*l.free[2].NumElements()) / float64(4*tilesA*tilesB*s.M*s.N)
	require.Equal(t, subgroups*tilesA*tilesB*2*float64(s.M*s.N*s.K), l.work)
}

// TestUnsupported says why a device has no matrices.
func TestUnsupported(t *testing.T) {
	whole := vk.Caps{
		APIVersion: vk.MakeVersion(1, 3, 0), CoopMat: true, Float16: true, Int16: true, Storage16: true, ScalarBlockLayout: true,
		VulkanMemoryModel: true, SubgroupSizeControl: true, ComputeFullSubgroups: true,
		CoopMatShapes: []vk.CoopMatShape{
			{M: 16, N: 8, K: 8, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup},
			{M: 16, N: 16, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup},
			{M: 32, N: 32, K: 16, A: vk.F16, B: vk.F16, C: vk.F16, Result: vk.F16, Scope: vk.ScopeSubgroup},
			{M: 64, N: 64, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeWorkgroup},
		},
	}
	s, err := matrixShape(&whole, dtype.Float16)
	require.NoError(t, err)
	require.Equal(t, whole.CoopMatShapes[1], s)
	for want, change := range map[string]func(c *vk.Caps){
		"no VK_KHR_cooperative_matrix": func(c *vk.Caps) { c.CoopMat = false },
		"no float16 arithmetic":        func(c *vk.Caps) { c.Float16 = false },
		"lacks Vulkan 1.3":             func(c *vk.Caps) { c.APIVersion = vk.MakeVersion(1, 2, 0) },
		"cannot promise full":          func(c *vk.Caps) { c.ComputeFullSubgroups = false },
		"no f16 cooperative-matrix":    func(c *vk.Caps) { c.CoopMatShapes = c.CoopMatShapes[2:] },
	} {
		c := whole
		change(&c)
		_, err := matrixShape(&c, dtype.Float16)
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	_, err = matrixShape(&whole, dtype.BFloat16)
	require.ErrorContains(t, err, "no bfloat16 cooperative matrices")
}
