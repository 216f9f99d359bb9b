// Package vk is compute Vulkan for Go: it runs SPIR-V kernels on device memory, and does nothing
// else. It knows no kernel.
//
//	Device   an open device with one queue       shared by goroutines
//	Caps     the capabilities of a device        plain data
//	Buffer   device memory, or a slice of it     shared by goroutines
//	Tensor   view of a Buffer: dtype, strides    value
//	Kernel   pipeline with typed parameters      shared by goroutines
//	Cmd      recorded commands, for any number   one goroutine
//	         of submissions
//	Timer    timestamps of the device            one goroutine
//	Trace    times of each dispatch of a Cmd     one goroutine
//	Memory   memory of buffers, by name          plain data
//
// A program opens a device, makes buffers and kernels, records, submits:
//
//	d, err := vk.Open(vk.Options{})
//	x, err := d.NewTensor("x", dtype.Float16, rows, cols)
//	err = x.Upload(ctx, values)
//	k, err := vk.NewKernel[params](d, "scale", spirv, spec{WorkgroupSize: 128}, vk.KernelOptions{})
//	c, err := d.NewCmd("step")                    Device.Run records, submits and closes in one call
//	k.Dispatch(c, vk.Groups{X: rows}, params{Cols: cols}, x)
//	err = c.Submit(ctx)
//
// # Ownership
//
// Whoever creates something closes it. Close is idempotent and may be called on nil. Objects that a
// running submission uses are destroyed when it has finished. Device.Close reports by name what was
// left open.
//
// # Memory order
//
// Submissions of one device run one after the other, and each sees what earlier ones wrote; the
// same holds for Upload and Download. Cmd.Start and Upload return before the device has done anything,
// Download when it has finished. Within a Cmd, a command sees what earlier commands wrote, and
// independent commands overlap: see Cmd. Kernels that need memory beside their tensors take it from
// the Cmd (Cmd.Scratch, Cmd.Scope). Device.Measure returns the memory of a recording before
// anything is allocated.
//
// # Errors
//
// An error of Vulkan names the call and wraps the Result. errors.Is finds ErrDeviceLost,
// ErrOutOfDeviceMemory, ErrUnsupported and the others.
//
// # Requirements
//
// To build: cgo, which is a C compiler and CGO_ENABLED=1; go sets that unless it cross-compiles. No
// headers or libraries of Vulkan. To run: 64-bit Linux, the loader libvulkan.so.1, and a driver of
// Vulkan 1.2. If one of these is missing, the error of Open says what to install (ErrNoLoader,
// ErrNoDevice).
//
// The first call of a kernel on a device compiles it, which takes from milliseconds to seconds.
// Options.UserCache keeps the result for the next start; Options.Compiling reports compilations.
//
// # Implementation
//
// Core Vulkan calls go through github.com/vulkan-go/vulkan, which is Vulkan 1.1. ext.go and the C
// files beside it add what it lacks. The Vulkan loader is opened at run time: a program that
// imports this package builds and starts on a machine without Vulkan.
//
// There is no global state but the loader's function pointers: several devices, and one device
// several times, may be open at once.
package vk
