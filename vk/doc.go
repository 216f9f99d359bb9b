// Package vk is compute Vulkan for Go: what it takes to run SPIR-V kernels on
// device memory, and nothing else. It knows no kernel.
//
//	Device   an open device with one queue       shared by goroutines
//	Caps     what a device can do                plain data
//	Buffer   device memory, or a slice of it     shared by goroutines
//	Tensor   view of a Buffer: dtype, strides    value
//	Kernel   pipeline with typed parameters      shared by goroutines
//	Cmd      recorded commands, submitted again  one goroutine
//	         and again
//	Timer    timestamps of the device            one goroutine
//	Trace    times of each dispatch of a Cmd     one goroutine
//	Memory   what buffers take, by name          plain data
//
// A program opens a device, makes buffers and kernels, records, submits:
//
//	d, err := vk.Open(vk.Options{})
//	x, err := d.NewTensor("x", dtype.Float16, rows, cols)
//	err = x.Upload(ctx, values)
//	k, err := vk.NewKernel[params](d, "scale", spirv, spec{WorkgroupSize: 128}, vk.KernelOptions{})
//	c, err := d.NewCmd("step")
//	k.Dispatch(c, vk.Groups{X: rows}, params{Cols: cols}, x)
//	err = c.Submit(ctx)
//
// # Ownership
//
// Who creates something closes it. Close is idempotent and may be called on
// nil; what a running submission uses is destroyed when that has finished.
// Device.Close reports by name what was left open.
//
// # Memory order
//
// Submissions of one device run one after the other, and each sees what
// earlier ones wrote; so do Upload and Download. Within a Cmd, a command sees what those
// recorded before it wrote, and commands with nothing in common overlap: see Cmd. Memory that
// kernels need beside their tensors comes from the Cmd, too (Cmd.Scratch, Cmd.Scope); what a
// recording takes is known before anything is allocated (Device.Measure).
//
// # Errors
//
// An error of Vulkan names the call and wraps the Result. errors.Is finds
// ErrDeviceLost, ErrOutOfDeviceMemory, ErrUnsupported and the others.
//
// # What it needs
//
// To build: cgo, that is a C compiler and CGO_ENABLED=1, which go sets unless it
// cross-compiles. Neither headers nor libraries of Vulkan. To run: 64-bit Linux, the
// loader libvulkan.so.1, and a driver of Vulkan 1.2; what is missing is an error of Open
// (ErrNoLoader, ErrNoDevice) that says what to install.
//
// A kernel's first call on a device compiles it, which takes from milliseconds to seconds.
// Options.UserCache keeps what was compiled for the next start, Options.Compiling tells what
// is being compiled.
//
// # Beneath
//
// Core Vulkan calls go through github.com/vulkan-go/vulkan, which is Vulkan
// 1.1; what it lacks is in ext.go and the C files beside it. The Vulkan loader
// is opened at run time: a program that imports this package builds and starts
// on a machine without Vulkan.
//
// There is no global state but the loader's function pointers: several devices
// and several opens of one device live side by side. The package is for 64-bit
// Linux.
package vk
