package attention

import (
	"math/bits"
	"reflect"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// A DecodeConfig says how Decode divides its work.
type DecodeConfig struct {
	Impl      Impl // Scalar or CoopMat
	Rows      int  `word:"rows=%d" tune:"1 2 4 8 16 32"`     // queries of a group of heads that one workgroup computes together; a power of two
	Subgroups int  `word:"subgroups=%d" tune:"4 8 12 16 32"` // per workgroup
	Groups    int  `word:"groups=%d"`                        // workgroups of the dispatch
	Append    bool `word:"append"`                           // of Step alone: the same kernel appends. A key head has at most Rows rows
	Detour    bool `word:"detour"`                           // of CoopMat: the kernel that knows nothing of the layout of matrices, for all devices but NVIDIA's
}

// String returns what --config of decode takes.
func (c DecodeConfig) String() string { return strings.ReplaceAll(table.Text(c), " ", ",") }

// ParseDecodeConfig reads what DecodeConfig.String writes.
func ParseDecodeConfig(text string) (DecodeConfig, error) {
	return table.Parse[DecodeConfig]("attention: decode", text)
}

// decodeVec is the number of elements in 16 bytes.
func (p *DecodeProblem) decodeVec() int { return 16 / p.DType.Size() }

// team returns how many invocations hold a key. On matrices the whole subgroup holds all keys of a
// tile.
func (c *DecodeConfig) team(caps *vk.Caps, p *DecodeProblem) int {
	if c.Impl == CoopMat {
		return int(caps.SubgroupSize)
	}
	return min(max(nextPower(p.HeadDim/p.decodeVec()), 4), int(caps.SubgroupSize))
}

// nextPower returns the smallest power of two that is at least n.
func nextPower(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// decodeBuffers is the number of bindings of the kernel.
func (p *DecodeProblem) decodeBuffers() uint32 {
	if p.Cache != CacheSame {
		return decodeBuffers + cacheBuffers
	}
	return decodeBuffers
}

// decodeParamsBytes is the size of the kernel's push constants.
func (p *DecodeProblem) decodeParamsBytes() uint32 {
	if p.Cache != CacheSame {
		return uint32(reflect.TypeFor[decodeCache8Params]().Size())
	}
	return uint32(reflect.TypeFor[decodeParams]().Size())
}

// operands is the format of matrices.
func (p *DecodeProblem) operands() dtype.DType {
	if p.Cache != CacheSame {
		return dtype.Float16
	}
	return p.DType
}

// keys is the number of keys that a team loads at a time. On NVIDIA's matrices 8-bit keys are twice as
// many, as an 8-bit key has half the bytes.
func (c *DecodeConfig) keys(caps *vk.Caps, p *DecodeProblem) int {
	switch {
	case c.Impl != CoopMat:
		return 4
	case c.Detour:
		shape, _ := matrixShape(caps, CoopMat, p.operands())
		return int(shape.N)
	case p.Cache == CacheSame:
		return 16
	}
	return 32
}

// groupRows is the number of rows that share the keys of a key head.
func (p *DecodeProblem) groupRows() int { return p.NumHeads / p.NumKVHeads * p.SeqQ }

// groupInverse is the factor by which by_group of lib/decode_work.glsl divides a row of a key head
// by the size of a group. The quotient is exact for mostByGroup/group rows.
func groupInverse(group int) uint32 { return uint32(mostByGroup/group + 1) }

const mostByGroup = 1 << 31

// Feasible returns nil if Decode can run p on a device with c, and otherwise the reason, which
// wraps vk.ErrUnsupported.
func (c DecodeConfig) Feasible(caps *vk.Caps, p DecodeProblem) error {
	const ops = vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupShuffle
	team := c.team(caps, &p)
	switch {
	case c.Impl != Scalar && c.Impl != CoopMat:
		return unsupported("decode: no kernel of path %v", c.Impl)
	case c.Append:
		return unsupported("decode: the configuration appends, which Step alone does")
	case caps.SubgroupOps&ops != ops:
		return unsupported("decode: the device has no votes or shuffles of subgroups")
	case !caps.ComputeFullSubgroups:
		return unsupported("decode: the device does not promise full subgroups")
	case caps.MaxStorageBuffers < p.decodeBuffers():
		return unsupported("decode: %d storage buffers are more than the device's %d", p.decodeBuffers(), caps.MaxStorageBuffers)
	case caps.MaxPushConstantsBytes < p.decodeParamsBytes():
		return unsupported("decode: %d bytes of push constants are more than the device's %d", p.decodeParamsBytes(), caps.MaxPushConstantsBytes)
	case c.Groups < 1 || c.Groups > int(caps.MaxWorkgroupCount[0]):
		return unsupported("decode: groups=%d is not from 1 to the device's %d workgroups", c.Groups, caps.MaxWorkgroupCount[0])
	case p.groupRows() > mostByGroup/(p.NumHeads/p.NumKVHeads):
		return unsupported("decode: seq_q=%d of %d heads a key head are %d rows, more than the kernels' %d", p.SeqQ, p.NumHeads/p.NumKVHeads, p.groupRows(), mostByGroup/(p.NumHeads/p.NumKVHeads))
	case c.Subgroups < 1:
		return unsupported("decode: subgroups=%d is not positive", c.Subgroups)
	case c.Impl == CoopMat:
		if err := c.feasibleMatrix(caps, &p); err != nil {
			return err
		}
	case c.Rows < 1 || c.Rows > 16 || bits.OnesCount(uint(c.Rows)) != 1:
		return unsupported("decode: rows=%d is not a power of two up to 16", c.Rows)
	case team < 4:
		return unsupported("decode: subgroups of %d are less than 4", caps.SubgroupSize)
	}
	if c.partsBytes(p) > int64(min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)) {
		return unsupported("decode: groups=%d need %d bytes for partial results, more than the device's %d", c.Groups, c.partsBytes(p), min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes))
	}
	if err := argument.FitsWorkgroup("attention", caps, Scalar, c.Subgroups*int(caps.SubgroupSize)); err != nil {
		return err
	}
	if most := caps.MaxWorkgroupSubgroups; most > 0 && c.Subgroups > int(most) {
		return unsupported("decode: subgroups=%d are more than the device's %d", c.Subgroups, most)
	}
	return argument.FitsShared("attention", caps, Scalar, c.sharedBytes(caps, p))
}

// feasibleMatrix is Feasible for CoopMat.
func (c *DecodeConfig) feasibleMatrix(caps *vk.Caps, p *DecodeProblem) error {
	if p.DType == dtype.Float32 {
		return unsupported("decode: coopmat: no kernel for float32")
	}
	shape, err := matrixShape(caps, CoopMat, p.operands())
	if err != nil {
		return err
	}
	m, n, lanes := int(shape.M), int(shape.N), int(caps.SubgroupSize)
	switch {
	case c.Detour && (p.Cache != CacheSame && p.DType != dtype.Float16):
		return unsupported("decode: coopmat: detour: a cache of 8 bits has no kernel for queries of %v", p.DType)
	case c.Detour && c.Rows != m:
		return unsupported("decode: coopmat: detour: rows=%d are not the %d of a matrix", c.Rows, m)
	case c.Detour && (lanes%m != 0 || n%(2*lanes/m) != 0):
		return unsupported("decode: coopmat: detour: subgroups of %d do not divide matrices of %dx%d", lanes, m, n)
	case c.Detour && c.Subgroups == 1 && chips.LosesLoneIndex(caps):
		return errLoneSubgroup
	case c.Detour:
		return nil
	case !quadsKnown(caps, shape):
		return unsupported("decode: coopmat: the kernel knows where NVIDIA keeps elements of 16x16 matrices, no others, but for detour")
	case c.Rows != 8 && c.Rows != 16 && c.Rows != 32:
		return unsupported("decode: coopmat: rows=%d are neither 8, 16 nor 32", c.Rows)
	case p.Cache != CacheSame && !has16x8(caps, p.operands()):
		return unsupported("decode: coopmat: a cache of 8 bits needs float16 matrices of 16x8x16")
	case c.Subgroups%c.columnParts(p) != 0:
		return unsupported("decode: coopmat: subgroups=%d are odd, but each key has %d", c.Subgroups, c.columnParts(p))
	}
	return nil
}

// quadsKnown reports whether a driver is known to keep matrices of a shape where the kernels without Detour
// expect their elements.
func quadsKnown(caps *vk.Caps, shape vk.CoopMatShape) bool {
	return chips.Quads(caps) && shape.M == 16 && shape.N == 16 && caps.SubgroupSize == 32
}

// has16x8 reports whether the device has matrices of 16x8 of a format.
func has16x8(caps *vk.Caps, t dtype.DType) bool {
	_, ok := chips.Shape16x8(caps, t)
	return ok
}

// layouts returns the shapes of the matrices of which the kernel knows where elements are.
func (c *DecodeConfig) layouts(caps *vk.Caps, p *DecodeProblem) (list []vk.CoopMatShape, err error) {
	if c.Impl != CoopMat || c.Detour {
		return nil, nil
	}
	shape, err := matrixShape(caps, CoopMat, p.operands())
	list = append(list, shape)
	if narrow, ok := chips.Shape16x8(caps, p.operands()); ok && p.Cache != CacheSame {
		list = append(list, narrow)
	}
	return list, err
}

// A layoutQuestion is chips.AsksQuads of a device.
type layoutQuestion func(dtype.DType, vk.CoopMatShape) (bool, error)

func askDevice(d *vk.Device) layoutQuestion {
	return func(t dtype.DType, shape vk.CoopMatShape) (bool, error) { return chips.AsksQuads(d, t, shape) }
}

// checkLayout returns an error if the driver does not keep elements of matrices where the kernel
// expects them. Only a kernel on the device can find that out.
func (c *DecodeConfig) checkLayout(caps *vk.Caps, p *DecodeProblem, asks layoutQuestion) error {
	list, err := c.layouts(caps, p)
	if err != nil {
		return err
	}
	for _, s := range list {
		if quads, err := asks(p.operands(), s); err != nil {
			return err
		} else if !quads {
			return unsupported("decode: coopmat: the driver does not keep elements of %dx%d matrices where NVIDIA's 580 does", s.M, s.N)
		}
	}
	return nil
}

// kernel returns the name of the module.
func (c *DecodeConfig) kernel(p *DecodeProblem) string {
	name := "attention_decode"
	if p.Cache != CacheSame {
		name += "_cache8"
	}
	if c.Append {
		name += "_append"
	}
	if c.Detour {
		name += "_tiles"
	}
	if c.Impl == CoopMat {
		name += "_coopmat"
	}
	return name
}

// columnParts is the number of subgroups that divide the columns of V.
func (c *DecodeConfig) columnParts(p *DecodeProblem) int {
	if c.Impl == CoopMat && !c.Detour && p.ValueHeadDim() > 128 {
		return 2
	}
	return 1
}

// sharedBytes is the shared memory of the kernel: the arrays of lib/decode_combine.glsl,
// decode_work.glsl, decode_operands.glsl, decode_loads8.glsl and decode_tiles.glsl.
func (c DecodeConfig) sharedBytes(caps *vk.Caps, p DecodeProblem) int {
	threads := c.Subgroups * int(caps.SubgroupSize)
	value := p.ValueHeadDim()
	stripes := c.Subgroups / c.columnParts(&p)
	pass, most := 1, 4 // rows whose sums are in shared memory
	if c.Impl == CoopMat {
		pass, most = 2, 16
	}
	floats := 4096
	switch {
	case c.Detour:
		floats = 2048
	case c.Impl == CoopMat && c.Rows == 8 && p.Cache == CacheSame:
		floats = 8192
	}
	fit := floats / max(stripes*value, 1)
	for pass < most && pass*2 <= fit {
		pass *= 2
	}
	if c.Impl == Scalar && fit >= c.Rows {
		pass = c.Rows
	}
	sizes := []int{16 * max(stripes*pass*value/4, threads), 8 * max(threads, stripes*c.Rows), 4, 8 * threads}
	switch {
	case c.Detour:
		shape, _ := matrixShape(caps, CoopMat, p.operands())
		m, n := int(shape.M), int(shape.N)
		words := func(dim int) int { return (dim + n - 1) / n * n / 8 }
		tile := max(n*(max(words(p.HeadDim), words(value))+1), m*(n/4+1))
		sizes = append(sizes, 16*m*(words(p.HeadDim)+1), 16*c.Subgroups*tile, 4*c.Subgroups*m*n, 2*c.Subgroups*m*n)
	case c.Impl == CoopMat:
		rows := c.Rows
		if p.Cache != CacheSame {
			rows = (rows + 15) / 16 * 16
		}
		sizes = append(sizes, 16*rows*((p.HeadDim+31)/32)*4)
		if p.Cache != CacheSame && p.DType == dtype.BFloat16 {
			sizes = append(sizes, 4*((c.Rows+15)/16*16))
		}
	}
	return vk.SharedVariables(sizes...)
}

// partsBytes returns the bytes of the partial results that workgroups leave for others.
func (c DecodeConfig) partsBytes(p DecodeProblem) int64 {
	return 2 * int64(c.Groups) * 16 * int64((c.Rows+1)/2+c.Rows*p.ValueHeadDim()/4)
}

// units is the number of units, which are row blocks of all key heads of all sequences.
func (c *DecodeConfig) units(p *DecodeProblem) int {
	return p.Batch * p.NumKVHeads * int(groups(p.groupRows(), c.Rows))
}

// splits is the number of splits of each unit, one workgroup each, 0 if there are more units.
func (c *DecodeConfig) splits(p *DecodeProblem) int { return c.Groups / max(c.units(p), 1) }

// alone reports whether each workgroup has a split of one unit, whatever the length: for a single
// sequence that leaves few workgroups idle.
func (c *DecodeConfig) alone(p *DecodeProblem) bool {
	return p.Batch == 1 && c.splits(p)*c.units(p) >= c.Groups-c.Groups/8
}
