// Package engine plans matrix products with an epilogue and records their kernels. Package
// pipelines/gemm is its public face; the other kernels made of products use it, too.
//
//	multiply.go    a product: Multiply, and MultiplySteps for products that run side by side
//	group.go       products of different sizes in one launch: MultiplyGroup
//	tuning.go      which path, and which tile sizes: Choose
//	splits.go      split-K: how k is divided among workgroups, and gemm_combine, which adds up their sums
//	config.go      Config, and what kernels demand of one: Feasible
//	candidates.go  configurations that are worth measuring
//	arguments.go   the tensors of a call, and what it keeps in memory
//
//	kernels.go     gemm_coopmat and gemm_scalar, and what all kernels of products have in common
//	pack.go        gemm_pack, which packs op(B) into the order of registers
//	gemv.go        gemm_gemv, for few rows: its configurations and how it is recorded
//	align.go       gemm_align, which copies operands to rows that are aligned: Pad
//	f32x2.go       gemm_amax and gemm_f32x2: float32 operands as high and low float16 (f32x2)
//
// Package skinny has products with few columns behind another one, in one kernel that keeps silu
// of the first on the chip. Package fused of mlp has the same for some hundred columns.
package engine

import (
	"slices"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Problem holds the sizes, formats and epilogue of one call.
type Problem = problem.Problem

// An Activation is what an epilogue does to the sum.
type Activation = problem.Activation

// The activations, described in package problem.
const (
	Identity       = problem.Identity
	SiLU           = problem.SiLU
	SiLUKeep       = problem.SiLUKeep
	TimesDSiLU     = problem.TimesDSiLU
	TimesDSiLUKeep = problem.TimesDSiLUKeep
)

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration instead of the tuning table's. It must be feasible, and is
	// for tuning and tests.
	Config *Config
	// Tuning has rows measured on the device; these rows come before the rows of the built-in
	// table. Nil is none.
	Tuning *kit.Tuning
	// AlignedA and AlignedB promise that rows of A and B start at multiples of 8 elements,
	// whatever their length: Workspace has no memory for copies.
	AlignedA, AlignedB bool
	// PadB lets b be a corner of op(B), with fewer rows than k or fewer columns than n. Op(B) is
	// zero elsewhere. Tensors of a chain of products can so have rows of whole cache lines, where
	// kernels have no edges. It needs a configuration with PackB. An infinity in op(A) meets the
	// zeros, too, and gives NaN.
	PadB bool
	// Workspace is memory for partial sums and copies, at least as many bytes as the function
	// Workspace says. Its content is lost. Calls that share it run one after the other. Nil takes
	// memory of the Cmd.
	Workspace *vk.Buffer
	// WorkspaceOffset is the beginning of that memory in bytes, a multiple of 16.
	WorkspaceOffset int64
}

// Multiply is gemm.Forward.
func Multiply(c *vk.Cmd, t Tensors, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	s, err := MultiplySteps(c, t, p, opt)
	if err != nil {
		return err
	}
	return s.Record(c)
}

// Steps are what a call records, for a caller who runs other kernels beside it.
type Steps struct {
	Copies  steps.List // copies of operands, a step or none; it does not read operands with AlignedA or AlignedB
	Product steps.List // the rest
}

// Record records copies and product.
func (s *Steps) Record(c *vk.Cmd) error { return slices.Concat(s.Copies, s.Product).Record(c) }

// MultiplySteps returns what Multiply records. It takes memory of c, but records nothing.
func MultiplySteps(c *vk.Cmd, t Tensors, p Problem, opt Options) (s Steps, err error) {
	config, err := Choose(c.Device().Caps(), p, opt)
	if err != nil {
		return s, err
	}
	if opt.PadB && !config.PackB {
		return s, Unsupported("%v: a part of op(B) is given, and a part is not packed", config)
	}
	args, err := newArguments("gemm", t, p, opt.PadB)
	if err != nil {
		return s, err
	}
	config = config.Fit(&p)
	plan := config.Memory(c.Device().Caps(), &p, &opt)
	memory, at, err := plan.Workspace(c, &opt, &args)
	if err != nil {
		return s, err
	}
	args.Slice()
	if plan.f32x2 {
		s.Product, args, p, config = plan.split(args, p, config, memory, at)
	} else {
		s.Copies = plan.Pack(&args, memory, at)
	}
	if config.PackB {
		if args.Deal, err = DealFor(c.Device(), p.DType, &config, args.C, args.R, args.X, args.S); err != nil {
			return s, err
		}
		step := plan.PackB(c.Device().Caps(), &args, p, memory, at)
		if opt.AlignedB { // the kernels before may write b
			s.Product = steps.List{step}
		} else {
			s.Copies = steps.Together(s.Copies, steps.List{step})
		}
	}
	s.Product = append(s.Product, Program(multiply).Steps(args, p, config, memory, at+plan.Partials)...)
	return s, nil
}

// multiply records the one kernel of config.
func multiply(c *vk.Cmd, args Args, p Problem, config Config) error {
	switch config.Impl {
	case Scalar:
		return multiplyScalar(c, args, p, config)
	case GEMV:
		return multiplyGEMV(c, args, p, config)
	}
	return multiplyMatrix(c, args, p, config)
}
