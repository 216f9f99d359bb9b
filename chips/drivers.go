package chips

import "github.com/flashvk/flashvk/vk"

// Drivers, as VkDriverId has them.
const driverNVIDIA = 4 // VK_DRIVER_ID_NVIDIA_PROPRIETARY

// LosesLoneIndex reports whether a kernel that finds out through shared memory which element
// of a matrix an invocation holds (shaders/lib/rows_coopmat.glsl) must not have workgroups
// of one subgroup on the device. NVIDIA's driver 580 takes barriers of such a workgroup for
// nothing, and loads the matrix before the stores: masks fall on the wrong elements. With the
// same kernel, two subgroups are right.
func LosesLoneIndex(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }

// LosesSpilledIndex reports whether float32 gradients of Q must not have several rows of
// matrices for each subgroup on path coopmat2. On NVIDIA's driver 580 such kernels spill, and
// compute which element of a matrix an invocation holds anew where they need it, wrongly: masks
// fall on the wrong elements. With the index sent through a shuffle that changes nothing,
// which hides where it comes from, they are right.
func LosesSpilledIndex(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }
