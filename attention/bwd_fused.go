package attention

import (
	"reflect"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// bwdFused names the kernel that computes all gradients.
const bwdFused = "attention_bwd_fused"

// fused reports whether one kernel computes all gradients.
func (c *BackwardConfig) fused() bool { return c.Fused != BackwardTile{} }

// fusedTensors is the number of tensors of the kernel: backwardTensors and dq.
const fusedTensors = backwardTensors + 1

// feasibleFused is Feasible for a kernel that computes all gradients.
func (c *BackwardConfig) feasibleFused(caps *vk.Caps, p *Problem) error {
	t := c.Fused
	switch {
	case c.Impl != CoopMat2 && c.Impl != CoopMat || p.DType == dtype.Float32:
		return unsupported("%v: no kernel computes all gradients of %v at once", c.Impl, p.DType)
	case !p.Plain():
		return unsupported("%v: no kernel computes all gradients at once with %s", c.Impl, strings.Join(p.Features(), ", "))
	case caps.MaxStorageBuffers < fusedTensors:
		return unsupported("%v: all gradients at once take %d storage buffers, more than the device's %d", c.Impl, fusedTensors, caps.MaxStorageBuffers)
	}
	if n := uint32(reflect.TypeFor[bwdFusedParams]().Size()); n > caps.MaxPushConstantsBytes {
		return unsupported("%v: all gradients at once take %d bytes of push constants, more than the device's %d", c.Impl, n, caps.MaxPushConstantsBytes)
	}
	if err := t.feasibleMatrix(caps, c.Impl, *p); err != nil {
		return err
	}
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return err
	}
	m, n, own := int(shape.M), int(shape.N), t.owned(caps, c.Impl, p.DType)
	switch {
	case p.SeqKV > own:
		return unsupported("%v: all gradients at once take up to %d keys, seq_kv=%d are more", c.Impl, own, p.SeqKV)
	case own%n != 0:
		return unsupported("%v: a block of %d keys is not a multiple of the matrix size %d", c.Impl, own, n)
	case t.BlockN%m != 0:
		return unsupported("%v: by%d is not a multiple of the matrix size %d", c.Impl, t.BlockN, m)
	}
	row8 := (p.HeadDim + n - 1) / n * n / 8
	extra := own * (row8 + 1 + t.BlockN/8 + 1) * 16 // keys and exchange, lib/bwd_fused_matrix.glsl
	return argument.FitsShared("attention", caps, c.Impl, t.matrixShared(c.Impl, m, n, *p)+extra)
}

// recordFused records the kernel.
func (b *backward) recordFused() error {
	p, d := &b.p, b.c.Device()
	b.fits(1, 1, p.NumKVHeads)
	matrix := b.matrixSpec(b.config.Fused, argument.Aligned(8, b.dq, b.dk, b.dv, b.q, b.k, b.v, b.do))
	kernel := newKernel[bwdFusedParams](b.c, b.config.Impl.kernel(bwdFused, p.DType), p.DType.Short(), p, bwdFusedSpec{matrix, true}, matrixKernelOptions(d))
	params := bwdFusedParams{bwdParams: newBwdParams(b.do, b.q, b.k, b.v, *p), DQ: placeOf(b.dq)}
	params.DX, params.DV = placeOf(b.dk), placeOf(b.dv)
	inSteps(d, p.Batch, func(_, n uint32) {
		kernel.dispatch(b.c, vk.Groups{X: 1, Y: uint32(p.NumKVHeads), Z: n}, params, nil, b.q, b.k, b.v, b.do, b.rows, b.dk, b.dv, b.dq)
		params.skipBatches(p, n)
		params.DQ.skip(n)
	})
	return b.c.Err()
}

// bwdFusedParams is the push-constant block of lib/params_bwd.glsl with WITH_DQ.
type bwdFusedParams struct {
	bwdParams
	DQ place `glsl:"dq"`
}

// bwdFusedSpec is the specialization of attention_bwd_fused_matrix.comp.
type bwdFusedSpec struct {
	Matrix   bwdMatrixSpec
	OneBlock bool `glsl:"ONE_BLOCK"` // always
}
