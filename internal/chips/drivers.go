package chips

import "github.com/flashvk/flashvk/vk"

// Drivers, by VkDriverId.
const driverNVIDIA = 4 // VK_DRIVER_ID_NVIDIA_PROPRIETARY

// LosesLoneIndex reports whether workgroups of one subgroup are wrong on the device in kernels
// that find out through shared memory which element of a matrix an invocation holds
// (shaders/lib/rows_coopmat.glsl). With NVIDIA's driver 580 masks fall on the wrong elements
// then, whatever the tile sizes. The same kernel is right with two subgroups, without a mask, and
// where more than the index goes through that memory. A guess: the driver drops barriers of such
// a workgroup, and the matrix is loaded before the stores that it reads.
func LosesLoneIndex(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }

// Quads reports whether a driver is known to keep 16x16 matrices as AsksQuads says. AsksQuads
// asks the device.
func Quads(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }
