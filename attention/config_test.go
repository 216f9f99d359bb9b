package attention

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestMatrixDemands has the reason for each thing that a device lacks for the
// matrix paths, and that Auto then takes the next path.
func TestMatrixDemands(t *testing.T) {
	p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: dtype.BFloat16}
	for _, c := range []struct {
		lose func(*vk.Caps)
		impl Impl // the last that refuses
		want string
	}{
		{func(c *vk.Caps) { c.CoopMat2.Reductions = false }, CoopMat2, "the device has no cooperative-matrix reductions (VK_NV_cooperative_matrix2)"},
		{func(c *vk.Caps) { c.CoopMat2.Conversions = false }, CoopMat2, "the device has no cooperative-matrix conversions (VK_NV_cooperative_matrix2)"},
		{func(c *vk.Caps) { c.CoopMat2.PerElement = false }, CoopMat2, "the device has no cooperative-matrix per-element operations (VK_NV_cooperative_matrix2)"},
		{func(c *vk.Caps) { c.CoopMat = false }, CoopMat, "the device has no VK_KHR_cooperative_matrix"},
		{func(c *vk.Caps) { c.APIVersion = vk.MakeVersion(1, 2, 300) }, CoopMat, "the device has Vulkan 1.2.300, matrices need 1.3"},
		{func(c *vk.Caps) { c.VulkanMemoryModel = false }, CoopMat, "the device has no Vulkan memory model"},
		{func(c *vk.Caps) { c.Int16 = false }, CoopMat, "the device has no 16-bit integers"},
		{func(c *vk.Caps) { c.ComputeFullSubgroups = false }, CoopMat, "the device cannot promise full subgroups"},
		{func(c *vk.Caps) { c.SubgroupOps &^= vk.SubgroupVote }, CoopMat, "the device has no votes of subgroups"},
		{func(c *vk.Caps) { c.BFloat16CoopMat = false }, CoopMat, "the device has no bfloat16 cooperative matrices"},
		{func(c *vk.Caps) { c.CoopMatShapes = nil }, CoopMat, "no bfloat16 cooperative-matrix shape of the device has float32 sums and N = K"},
	} {
		caps := nvidia("NVIDIA H200", 132, true)
		c.lose(&caps)
		for _, impl := range []Impl{CoopMat2, CoopMat} {
			err := Supports(&caps, p, kit.Forward, Options{Impl: impl})
			if impl > c.impl {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.EqualError(t, err, "attention: "+impl.String()+": "+c.want+": unsupported on this device")
		}
		config, err := chooseForward(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, c.impl+1, config.Impl)
	}
}

// TestAuto says where a format goes to matrices: never on a CPU device.
func TestAuto(t *testing.T) {
	for name, want := range map[string]Impl{"NVIDIA H200": CoopMat2, "llvmpipe (LLVM 20.1.2, 256 bits)": Scalar, "Least with 16-bit storage": Scalar} {
		caps := fakeNamed(t, name)
		for _, format := range dtype.All() {
			p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: format}
			config, err := chooseForward(&caps, p, Options{})
			require.NoError(t, err)
			require.Equal(t, want, config.Impl, "%s %v", name, format)
			backward, err := chooseBackward(&caps, p, Options{})
			if err != nil { // the least device lacks storage buffers
				require.ErrorIs(t, err, vk.ErrUnsupported)
				continue
			}
			require.Equal(t, want, backward.Impl, "%s %v", name, format)
		}
	}
}

// TestFeasibleFeatures: every path has a kernel for features, and says what a device
// lacks for it.
func TestFeasibleFeatures(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: dtype.Float16}
	p.Window, p.Sinks = Window{On: true, Left: 5}, true
	for _, impl := range Impls() {
		for _, p.DType = range dtype.All() {
			require.NoError(t, Supports(&caps, p, kit.Forward, Options{Impl: impl}), "%v %v", impl, p.DType)
		}
	}
	caps.MaxPushConstantsBytes = 128
	for _, impl := range Impls() {
		err := Supports(&caps, p, kit.Forward, Options{Impl: impl})
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.Regexp(t, fmt.Sprintf("^attention: %v: window, sinks take [0-9]+ bytes of push constants, more than the device's 128: ", impl), err.Error())
	}

	least := leastDevice()
	p.DType = dtype.Float32
	require.ErrorContains(t, Supports(&least, p, kit.Forward, Options{Impl: Scalar}), "scalar: window, sinks take 11 storage buffers, more than the device's 4")
	require.ErrorContains(t, Supports(&least, p, kit.Forward, Options{Impl: Unfused}), "unfused: window, sinks take 9 storage buffers, more than the device's 4")
	least.MaxStorageBuffers = 11
	require.ErrorContains(t, Supports(&least, p, kit.Forward, Options{Impl: Scalar}), "bytes of push constants, more than the device's 128")
	least.MaxPushConstantsBytes = 256
	require.NoError(t, Supports(&least, p, kit.Forward, Options{Impl: Scalar}))
	require.NoError(t, Supports(&least, p, kit.Forward, Options{Impl: Unfused}))
	p.ValueDim = 256 // what the table has for head_dim 64 is too much for it
	require.NoError(t, Supports(&least, p, kit.Forward, Options{Impl: Scalar}))
	require.NoError(t, Supports(&least, p, kit.Forward, Options{Impl: Unfused}))
}
