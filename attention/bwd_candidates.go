package attention

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// BackwardCandidates is Candidates for the backward pass. The times of its two kernels add up,
// so each candidate differs from what the table takes in the tile of one of them:
// BackwardVariants puts the best of both together. On the matrix paths there is the one kernel
// that computes all gradients, too.
func BackwardCandidates(caps *vk.Caps, p Problem, impl Impl) []BackwardConfig {
	start, err := chooseBackward(caps, p, Options{Impl: impl})
	if err != nil {
		return nil
	}
	if start.fused() { // the tiles of two kernels, which the row does not tell
		start.DKV, start.DQ = start.Fused, start.Fused
	}
	fused := start.Fused
	start.Fused = BackwardTile{}
	var all []BackwardConfig
	for _, tile := range backwardTiles(caps, p, impl, start.DKV) {
		c := start
		c.DKV = tile
		all = append(all, c)
		if onMatrices(impl) {
			all = append(all, BackwardConfig{Impl: impl, Fused: tile})
		}
	}
	for _, tile := range backwardTiles(caps, p, impl, start.DQ) {
		c := start
		c.DQ = tile
		all = append(all, c)
	}
	all = byDistance(all, start)
	first := start
	if fused != (BackwardTile{}) {
		first = BackwardConfig{Impl: impl, Fused: fused}
		all = append([]BackwardConfig{start}, all...)
	}
	return feasibleBackward(caps, p, first, append([]BackwardConfig{first}, all...))
}

// BackwardVariants returns the feasible configurations that differ from c in the tile of the
// kernel of dQ, and those that differ in one of the choices that BackwardCandidates leaves as they
// are: how the loops are arranged, how far ahead operands are loaded, and of path scalar how much of
// a tile is in shared memory at a time; of one kernel for all gradients, among how many shares
// the keys are divided.
func BackwardVariants(caps *vk.Caps, p Problem, c BackwardConfig) []BackwardConfig {
	var all []BackwardConfig
	for _, shares := range []int{1, 2, 4, 8} {
		if v := c; c.fused() {
			v.Shares = shares
			all = append(all, v)
		}
	}
	tile := func(v *BackwardConfig) []*BackwardTile {
		if c.fused() {
			return []*BackwardTile{&v.Fused}
		}
		return []*BackwardTile{&v.DKV, &v.DQ}
	}
	for i := range tile(&c) {
		change := func(f func(t *BackwardTile)) {
			v := c
			f(tile(&v)[i])
			all = append(all, v)
		}
		if !onMatrices(c.Impl) {
			for _, n := range []int{8, 16, 32, 64} {
				change(func(t *BackwardTile) { t.Depth = n })
				change(func(t *BackwardTile) { t.Slice = n / 2 })
			}
			continue
		}
		change(func(t *BackwardTile) { t.SplitLoop = !t.SplitLoop })
		for _, n := range []int{0, 2, 4, 6} {
			change(func(t *BackwardTile) { t.Fence = n })
		}
	}
	if !c.fused() {
		for _, tile := range backwardTiles(caps, p, c.Impl, c.DQ) {
			v := c
			v.DQ = tile
			all = append(all, v)
		}
	}
	return feasibleBackward(caps, p, c, all)[min(1, len(all)):]
}

// feasibleBackward returns first, and those of a list that are feasible and not the same.
func feasibleBackward(caps *vk.Caps, p Problem, first BackwardConfig, list []BackwardConfig) []BackwardConfig {
	all := []BackwardConfig{first}
	for _, c := range list {
		if !slices.Contains(all, c) && c.Feasible(caps, p) == nil {
			all = append(all, c)
		}
	}
	return all
}

// backwardTiles varies the workgroup and how much it owns and walks over.
func backwardTiles(caps *vk.Caps, p Problem, impl Impl, start BackwardTile) []BackwardTile {
	var all []BackwardTile
	if !onMatrices(impl) {
		for _, threads := range []int{64, 128, 256} {
			for _, threadsX := range []int{8, 16} {
				for _, own := range []int{2, 4, 8} {
					for _, stream := range []int{1, 2, 4} {
						t := start
						t.Threads, t.ThreadsX = threads, threadsX
						t.Own, t.Stream = threads/threadsX*own, threadsX*stream
						t.Slice = min(start.Slice, t.Stream)
						all = append(all, t)
					}
				}
			}
		}
		return all
	}
	shape, err := matrixShape(caps, impl, p.DType)
	if err != nil {
		return nil
	}
	for _, subgroups := range []int{2, 4, 8} {
		for _, rowTiles := range []int{1, 2} {
			for _, n := range []int{1, 2, 4} {
				for _, prefetch := range []bool{false, true} {
					t := start
					t.Subgroups, t.RowTiles, t.Stream, t.Prefetch = subgroups, rowTiles, n*int(shape.N), prefetch
					all = append(all, t)
				}
			}
		}
	}
	return all
}

// BackwardTableRow is TableRow for the backward pass.
func BackwardTableRow(caps *vk.Caps, p Problem, c BackwardConfig, fill float64) string {
	c.Shares = 0 // the number is p's
	return sourceRow(caps, &p, c.Impl, fill) + fmt.Sprintf("%#v},", c)
}

// Fill returns how many blocks of keys, or of rows if they are fewer, p makes for each compute
// unit of a device with configuration c, 0 if the driver does not tell their number.
func (c BackwardConfig) Fill(caps *vk.Caps, p Problem) float64 {
	return kit.Fill(caps, c.blocks(caps, &p))
}
