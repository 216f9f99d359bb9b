package attention

import (
	"errors"
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A BackwardConfig is a path of the backward pass with the tile sizes of its two
// kernels: what becomes specialization constants.
type BackwardConfig struct {
	Impl Impl
	DKV  BackwardTile // of the kernel that owns keys, and computes dK and dV
	DQ   BackwardTile // of the kernel that owns rows, and computes dQ
}

// A BackwardTile is the tile of one kernel: BlockM rows by BlockN keys, computed
// by Threads invocations, ThreadsX in a row. Depth columns of all tensors are in shared
// memory at a time, and then Slice rows of those that the kernel walks over.
type BackwardTile struct {
	Threads, ThreadsX int
	BlockM, BlockN    int
	Depth, Slice      int
}

// String names the choices in a few words, as Config.String does.
func (c BackwardConfig) String() string {
	return fmt.Sprintf("%v dkv %v dq %v", c.Impl, c.DKV, c.DQ)
}

// String returns rows x keys and the rest.
func (t BackwardTile) String() string {
	return fmt.Sprintf("%dx%d t%dx%d depth%d rows%d", t.BlockM, t.BlockN, t.Threads/max(t.ThreadsX, 1), t.ThreadsX, t.Depth, t.Slice)
}

// backwardTensors is how many tensors the kernel of most takes: q, k, v, do, rows,
// dk and dv.
const backwardTensors = 7

// Feasible returns nil if c can compute the gradients of p on a device, and
// otherwise the reason, wrapping ErrUnsupported. It is the only statement of what
// the backward kernels demand of a configuration.
func (c BackwardConfig) Feasible(caps *vk.Caps, p Problem) error {
	switch {
	case c.Impl != Scalar:
		return unsupported("%v: no backward kernel", c.Impl)
	case !p.Plain():
		return unsupported("%v: no backward kernel has %s", c.Impl, strings.Join(p.Features(), ", "))
	case p.DType != dtype.Float32 && !caps.Storage16:
		return unsupported("%v: %v needs 16-bit storage", c.Impl, p.DType)
	case !caps.ScalarBlockLayout:
		return unsupported("%v: the device has no scalar block layout", c.Impl)
	case caps.MaxStorageBuffers < backwardTensors:
		return unsupported("%v: the backward pass takes %d storage buffers, more than the device's %d", c.Impl, backwardTensors, caps.MaxStorageBuffers)
	}
	if err := c.DKV.feasible(caps, c.Impl, p, c.DKV.BlockN, c.DKV.BlockM); err != nil {
		return err
	}
	return c.DQ.feasible(caps, c.Impl, p, c.DQ.BlockM, c.DQ.BlockN)
}

// feasible is what Feasible demands of a tile of which a workgroup owns own rows or
// keys, and walks over the others stream at a time.
func (t BackwardTile) feasible(caps *vk.Caps, impl Impl, p Problem, own, stream int) error {
	if t.Threads < 1 || t.ThreadsX < 1 || t.BlockM < 1 || t.BlockN < 1 || t.Depth < 1 || t.Slice < 1 {
		return unsupported("%v: a tile size of %v is not positive", impl, t)
	}
	threadsY := t.Threads / t.ThreadsX
	switch {
	case t.Threads%t.ThreadsX != 0:
		return unsupported("%v: %d invocations are not rows of %d", impl, t.Threads, t.ThreadsX)
	case own%threadsY != 0 || stream%t.ThreadsX != 0:
		return unsupported("%v: a tile of %dx%d does not divide among %dx%d invocations", impl, own, stream, threadsY, t.ThreadsX)
	case t.Depth%4 != 0 || t.Slice%4 != 0 || stream%t.Slice != 0:
		return unsupported("%v: depth=%d or slice=%d is not a multiple of 4, or slice does not divide %d", impl, t.Depth, t.Slice, stream)
	}
	if err := fitsWorkgroup(caps, impl, t.Threads); err != nil {
		return err
	}
	cols4 := (p.HeadDim/4 + t.ThreadsX - 1) / t.ThreadsX // lib/bwd_scalar.glsl has these sizes
	pair, slice := (own+stream)*(t.Depth/4+1), t.Slice*cols4*t.ThreadsX
	weights := own * (stream/4 + 1)
	return fitsShared(caps, impl, (max(pair, slice)+weights)*16)
}

// bwdRow is one row of the tuning table of the backward pass.
type bwdRow struct {
	headDim int // matches problems with HeadDim <= headDim
	BackwardConfig
}

// bwdTable is searched in order; the first feasible match of a path wins.
var bwdTable = []bwdRow{
	// Any device. This fits Vulkan's guaranteed 16 KiB and 128 invocations for every
	// head_dim.
	{headDim: 256, BackwardConfig: BackwardConfig{
		Impl: Scalar,
		DKV:  BackwardTile{Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 32, Depth: 32, Slice: 8},
		DQ:   BackwardTile{Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 32, Depth: 32, Slice: 8},
	}},
}

// ChooseBackward returns the configuration that Backward takes for p on a device.
// Its error wraps ErrUnsupported if no path, or not the forced one, handles p.
func ChooseBackward(caps *vk.Caps, p Problem, opt Options) (BackwardConfig, error) {
	if err := p.Validate(); err != nil {
		return BackwardConfig{}, err
	}
	switch {
	case opt.Config != nil:
		return BackwardConfig{}, errors.New("attention: Options.Config is of the forward pass, the backward pass takes Options.BackwardConfig")
	case opt.BackwardConfig != nil:
		return *opt.BackwardConfig, opt.BackwardConfig.Feasible(caps, p)
	case opt.Impl != Auto:
		return searchBackward(caps, p, opt.Impl)
	}
	var err error
	for _, impl := range autoPaths(caps, p.DType) {
		var c BackwardConfig
		if c, err = searchBackward(caps, p, impl); err == nil {
			return c, nil
		}
	}
	return BackwardConfig{}, err
}

// searchBackward returns the configuration of the first row of a path that matches
// and is feasible, or the reason why the last one that matches is not.
func searchBackward(caps *vk.Caps, p Problem, impl Impl) (BackwardConfig, error) {
	err := BackwardConfig{Impl: impl}.Feasible(caps, p)
	for i := range bwdTable {
		row := &bwdTable[i]
		if row.Impl != impl || p.HeadDim > row.headDim {
			continue
		}
		if err = row.Feasible(caps, p); err == nil {
			return row.BackwardConfig, nil
		}
	}
	return BackwardConfig{}, err
}

// SupportsBackward is Supports for the backward pass.
func SupportsBackward(caps *vk.Caps, impl Impl, p Problem) error {
	_, err := ChooseBackward(caps, p, Options{Impl: impl})
	return err
}
