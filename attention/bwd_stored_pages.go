package attention

import (
	"math"

	"github.com/flashvk/flashvk/vk"
)

// storedBytes bounds the memory for P and dX. It holds two heads of 16384 rows and keys under a
// causal mask, or one head without a mask. Less memory makes more launches, and the end of each
// leaves a part of the device idle.
const storedBytes = 5 << 28

// A device is busy with storedRounds times as many blocks of keys as compute units, even if some
// blocks have more rows than others.
const storedRounds = 4

// unknownUnits stands for the compute units of a device that does not report them.
const unknownUnits = 32

// cutsPages reports whether p has other pages than a causal or unmasked problem: a window has a
// left side, or sequences are packed.
func (p *Problem) cutsPages() bool {
	return p.Varlen.On || newFeatureSpec(p).WindowLeft
}

// newPageSpec returns the features that decide which pages there are. A kernel that reads pages knows
// no others.
func newPageSpec(p *Problem) featureSpec {
	all := newFeatureSpec(p)
	return featureSpec{WindowLeft: all.WindowLeft, WindowRight: all.WindowRight, Varlen: all.Varlen}
}

// pagesShift returns n such that row i sees no key after i + n. A window with a right side is a
// causal mask with another n.
func (p *Problem) pagesShift() int { return p.Mask().Shift + p.Mask().Right }

// A pageRoom is the number of pages of P that there is room for; dX has as many. A page is a block
// of rows by a block of keys of which some row sees some key. Kernels with features take it as
// their last push constants.
type pageRoom struct {
	Head  uint32 `glsl:"head_pages"`
	Block uint32 `glsl:"block_pages"` // of a block of rows, if a window has a left side
}

// newPageRoom returns the room for pages of block rows and block keys. shaders/lib/pages.glsl has
// the same formulas. Unless p cuts pages, a head has exactly that many pages.
func newPageRoom(p *Problem, block int) pageRoom {
	blocks, most := int(groups(p.SeqQ, block)), int(groups(p.SeqKV, block))
	mask, masks := p.Mask(), newFeatureSpec(p)
	room := func(head, block int) pageRoom { // a saturated number still exceeds any memory
		return pageRoom{uint32(min(max(head, 1), math.MaxUint32)), uint32(block)}
	}
	switch {
	case masks.WindowLeft && masks.WindowRight:
		// A block of rows sees the keys of one page and the window. The window may begin and end inside pages.
		most = min(most, int(groups(mask.Left+mask.Right, block))+2)
		fallthrough
	case !masks.WindowRight:
		return room(blocks*most, most)
	}
	shift := p.pagesShift()
	if p.Varlen.On && p.CausalAlign == BottomRight {
		// The last row of a sequence sees all keys. If it is alone in its block, the blocks before have the most pages.
		shift += p.SeqQ - ((blocks-1)*block + 1)
	}
	first := 1 - floorDiv(-shift, block) // pages of block i: i + first, from 0 to most
	some := min(max(-first, 0), blocks)
	full := min(max(most-first, some), blocks)
	return room((full-some)*(some+full-1+2*first)/2+(blocks-full)*most, most)
}

func floorDiv(a, b int) int {
	if a < 0 {
		return -((b - 1 - a) / b)
	}
	return a / b
}

// A storedChunk is the set of heads whose P and dX are stored at a time: members of the heads that
// read each of keyHeads key heads. If these are not all members of the group, their sums wait in
// memory.
type storedChunk struct{ keyHeads, members int }

// pagesShape returns the shape of bwdWorkspace.pages, nil if there are none.
func (c *BackwardConfig) pagesShape(caps *vk.Caps, p *Problem) []int {
	if !c.stored() {
		return nil
	}
	chunk, block := c.chunk(caps, p), c.DQ.owned(caps, c.Impl, p.DType)
	return []int{chunk.keyHeads * chunk.members, int(newPageRoom(p, block).Head), block, block}
}

// sumsShape returns the shape of bwdWorkspace.sums, nil if there are none.
func (c *BackwardConfig) sumsShape(caps *vk.Caps, p *Problem) []int {
	if !c.stored() {
		return nil
	}
	chunk := c.chunk(caps, p)
	if chunk.members == p.NumHeads/p.NumKVHeads {
		return nil
	}
	return []int{2, chunk.keyHeads, c.keyHeadSums(caps, p)}
}

// keyHeadSums returns the number of elements of dK, or dV, of a key head in whole matrices.
func (c *BackwardConfig) keyHeadSums(caps *vk.Caps, p *Problem) int {
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return 0
	}
	block := c.DQ.owned(caps, c.Impl, p.DType)
	return int(groups(p.SeqKV, block)) * block * c.productsWidth(caps, p, shape)
}

// chunk returns the heads that are stored at a time: as many as there is memory for, in chunks of
// about equal size. If whole groups of heads do not keep the device busy, or one group does not
// fit, a chunk has some members of each group.
func (c *BackwardConfig) chunk(caps *vk.Caps, p *Problem) storedChunk {
	keyHeads, members, block := p.Batch*p.NumKVHeads, p.NumHeads/p.NumKVHeads, c.DQ.owned(caps, c.Impl, p.DType)
	most := c.Chunk
	if most == 0 {
		limit := c.storedLimit(caps, p)
		heads := func(limit float64) int {
			return max(int(min(limit/c.headBytes(caps, p), float64(keyHeads*members))), 1)
		}
		if most = heads(limit); most < keyHeads*members { // there are sums between chunks
			limit -= 4 * float64(size(c.sharedBias(p)))
			if members > 1 {
				limit -= 8 * float64(min(most, keyHeads)) * float64(c.keyHeadSums(caps, p))
			}
			most = heads(limit)
		}
	}
	even := func(n, most int) int { return int(groups(n, int(groups(n, most)))) }
	units := int(caps.ComputeUnits)
	if units == 0 {
		units = unknownUnits
	}
	if whole := min(most/members, keyHeads); whole == keyHeads || whole > 0 && (members == 1 || whole*int(groups(p.SeqKV, block)) >= storedRounds*units) {
		return storedChunk{even(keyHeads, whole), members}
	}
	return storedChunk{even(keyHeads, min(most, keyHeads)), even(members, min(max(most/keyHeads, 1), members))}
}

// storedLimit returns the most bytes of P and dX. They share one storage buffer with the rest of
// the workspace. With Chunk the device alone limits them.
func (c *BackwardConfig) storedLimit(caps *vk.Caps, p *Problem) float64 {
	rest := *c
	rest.Stored = BackwardTile{}
	limit := float64(min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)) - float64(alignWorkspace(workspaceBytes(rest.workspaceShapes(caps, p))))
	if c.Chunk == 0 {
		limit = min(limit, storedBytes)
	}
	return limit
}

func (c *BackwardConfig) headBytes(caps *vk.Caps, p *Problem) float64 {
	block := c.DQ.owned(caps, c.Impl, p.DType)
	return 4 * float64(newPageRoom(p, block).Head) * float64(block*block)
}
