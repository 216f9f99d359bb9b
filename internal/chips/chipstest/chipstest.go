// Package chipstest has devices for tests of how kernels are chosen.
package chipstest

import (
	"iter"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// H200 returns the capabilities of an H200 that decide how products are computed.
func H200() *vk.Caps {
	caps := &vk.Caps{
		Name: "NVIDIA H200", VendorID: chips.VendorNVIDIA, ComputeUnits: 132, APIVersion: vk.MakeVersion(1, 4, 0),
		SubgroupSize: 32, MaxSharedMemoryBytes: 49152, MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64},
		MaxStorageBufferRange: 1<<32 - 1, MaxWorkgroupCount: [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1},
		Float16: true, Int16: true, Storage16: true, ScalarBlockLayout: true, VulkanMemoryModel: true,
		SubgroupSizeControl: true, ComputeFullSubgroups: true, CoopMat: true, BFloat16CoopMat: true, SubgroupOps: vk.SubgroupBasic | vk.SubgroupVote,
	}
	for _, t := range []vk.ComponentType{vk.F16, vk.BF16} {
		caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: 16, N: 16, K: 16, A: t, B: t, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	}
	caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: 16, N: 8, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	return caps
}

// MatrixFormats yields the 16-bit formats that the device has matrices of, and their shapes.
func MatrixFormats(t *testing.T, d *vk.Device) iter.Seq2[dtype.DType, vk.CoopMatShape] {
	return func(yield func(dtype.DType, vk.CoopMatShape) bool) {
		for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			if shape, lack := chips.MatrixShape(d.Caps(), format); lack != "" {
				t.Logf("%v: %s", format, lack)
			} else if !yield(format, shape) {
				return
			}
		}
	}
}
