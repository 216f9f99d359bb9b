package selftest

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ondevice"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// onDevice runs attention.Forward and attention.Backward for the suites.
func onDevice(ctx context.Context, r *trial.Runner, it *item) *ondevice.Kernel {
	return &ondevice.Kernel{Context: ctx, Device: r.Guard(), Options: attention.Options{Impl: it.impl}, Record: r.Record}
}

// forwardRefuses returns why a path does not take a forward problem.
func forwardRefuses(caps *vk.Caps, impl attention.Impl, p attention.Problem) error {
	if err := compilesSoon(caps, impl, p); err != nil {
		return err
	}
	return attention.Supports(caps, p, kit.Forward, attention.Options{Impl: impl})
}

// softwareHeadDim is the largest head_dim of float32 on a software driver's matrices. Above it a
// kernel takes up to a minute to compile.
const softwareHeadDim = 64

// compilesSoon returns an error for kernels that a software driver compiles for too long.
func compilesSoon(caps *vk.Caps, impl attention.Impl, p attention.Problem) error {
	matrices := impl == attention.CoopMat2 || impl == attention.CoopMat
	if caps.Type == vk.CPU && matrices && p.DType == dtype.Float32 && p.HeadDim > softwareHeadDim {
		return fmt.Errorf("float32 on software matrices beyond head_dim %d takes a minute to compile", softwareHeadDim)
	}
	return nil
}

// softwareBackwardDim is the largest head_dim of the backward pass on a software driver's matrices,
// and softwareF32x2Dim that of float32. Above them a kernel takes tens of seconds to compile, and
// minutes with head_dim 192.
const (
	softwareBackwardDim = 72
	softwareF32x2Dim    = 24
)

// backwardCompilesSoon is compilesSoon for the backward pass.
func backwardCompilesSoon(caps *vk.Caps, impl attention.Impl, p attention.Problem) error {
	if caps.Type != vk.CPU || impl != attention.CoopMat2 && impl != attention.CoopMat {
		return nil
	}
	most := softwareBackwardDim
	if p.DType == dtype.Float32 {
		most = softwareF32x2Dim
	}
	if max(p.HeadDim, p.ValueHeadDim()) > most {
		return fmt.Errorf("the backward pass of %v on software matrices beyond head_dim %d takes long to compile", p.DType, most)
	}
	return nil
}
