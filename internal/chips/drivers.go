package chips

import "github.com/flashvk/flashvk/vk"

// Drivers, as VkDriverId has them.
const driverNVIDIA = 4 // VK_DRIVER_ID_NVIDIA_PROPRIETARY

// LosesLoneIndex reports whether a kernel that finds out through shared memory which element
// of a matrix an invocation holds (shaders/lib/rows_coopmat.glsl) must not have workgroups
// of one subgroup on the device. With NVIDIA's driver 580 masks fall on the wrong elements
// then, whatever the tile sizes; the same kernel is right with two subgroups, without a mask,
// and where more than the index goes through that memory. A guess: barriers of such a
// workgroup are taken for nothing, and the matrix is loaded before the stores that it reads.
func LosesLoneIndex(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }

// Quads reports whether a driver is known to keep 16x16 matrices as AsksQuads says,
// which asks the device itself.
func Quads(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }
