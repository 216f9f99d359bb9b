// Package kit has the types that all kernel packages share. A kernel package has
//
//	type Problem                    what is computed: sizes, formats, options of the formula
//	type Tensors                    inputs and outputs of Forward, by name
//	type Gradients                  inputs and outputs that only Backward has, by name
//	type Options                    how, never what; the zero value is right
//
//	func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) error
//	func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) error
//	func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (Plan, error)
//	func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error
//	func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error)
//
// Its Plan is a [Plan]. Forward and Backward also leave their error with the Cmd ([vk.Cmd.Keep]).
// They bind kernels to the memory of the tensors alone ([vk.Narrow]), record no barriers, because
// the Cmd derives them, and release the memory that they take ([vk.Cmd.Scope]). A matrix product
// has gradients that are calls of the kernel itself: the package of such a kernel has no Gradients
// and no Backward, and refuses that pass.
//
// An optimizer has one pass, and a value with its state from call to call:
//
//	func New(ctx context.Context, d *vk.Device, params []Param, p Problem) (*AdamW, error)
//	func (a *AdamW) Step(c *vk.Cmd) error
//	func Choose(caps *vk.Caps, p Problem) (Plan, error)
//	func Supports(caps *vk.Caps, p Problem) error
//
// Its Tensors are the tensors of one Param; it has no Gradients and no Options.
//
// TestContract of package tests checks all of them.
package kit

import "github.com/flashvk/flashvk/internal/enum"

// A Pass is a direction through a computation.
type Pass uint8

// Forward computes the outputs, Backward the gradients of a loss by the inputs.
const (
	Forward Pass = iota
	Backward
)

var passNames = enum.Names[Pass]{Forward: "forward", Backward: "backward"}

// String returns the name as flags and tables have it.
func (p Pass) String() string { return passNames.Of(p) }

// Valid reports whether p is one of the passes.
func (p Pass) Valid() bool { return p <= Backward }

// A Plan says how a problem runs on a device.
type Plan interface {
	// String names the choices in a few words, as the column "runs" of benchmarks does.
	String() string
	// Workspace is the bytes of memory that a call needs beside its tensors.
	Workspace() int64
	// Kernels lists the modules that run, in order.
	Kernels() []string
}
