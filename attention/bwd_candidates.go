package attention

import (
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// backwardCandidates is candidates for the backward pass. The times of its two kernels add up, so
// each candidate differs from the table's choice in the tile of one kernel, and backwardVariants
// combines the best of both. On the matrix paths there are also candidates with one kernel for all
// gradients and with stored weights.
func backwardCandidates(caps *vk.Caps, p Problem, impl Impl) []BackwardConfig {
	start, err := chooseBackward(caps, p, Options{Impl: impl})
	if err != nil {
		return nil
	}
	if start.fused() { // the row has no tiles of two kernels
		start.DKV, start.DQ = start.Fused, start.Fused
	}
	if start.stored() {
		start.DKV = start.DQ
	}
	first := start
	start.Fused, start.Stored, start.Chunk = BackwardTile{}, BackwardTile{}, 0
	switch {
	case first.fused():
		first = BackwardConfig{Impl: impl, Fused: first.Fused}
	case first.stored():
		first = BackwardConfig{Impl: impl, DQ: first.DQ, Stored: first.Stored}
	}
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
		if products := productTiles(caps, p, impl, tile); len(products) > 0 {
			all = append(all, BackwardConfig{Impl: impl, DQ: tile, Stored: products[0]})
		}
	}
	all = append([]BackwardConfig{start}, byDistance(all, start)...)
	return feasibleBackward(caps, p, first, all)
}

// productTiles returns tiles of the products of stored weights: 4 or 2 rows of sums per subgroup,
// by up to 64 columns, the likeliest first.
func productTiles(caps *vk.Caps, p Problem, impl Impl, dq BackwardTile) (list []BackwardTile) {
	shape, err := matrixShape(caps, impl, p.DType)
	if !onMatrices(impl) || err != nil {
		return nil
	}
	columns := (p.HeadDim + 63) / 64 // subgroups along head_dim
	for _, rowTiles := range []int{4, 2} {
		if dq.Subgroups*dq.RowTiles%rowTiles != 0 {
			continue
		}
		for _, n := range []int{2, 4, 1} {
			list = append(list, BackwardTile{Subgroups: dq.Subgroups * dq.RowTiles / rowTiles * columns, RowTiles: rowTiles, Stream: n * int(shape.N)})
		}
	}
	return list
}

// backwardVariants returns the feasible configurations that differ from c in the tile of the kernel
// of dQ, and those that differ in one of the choices that backwardCandidates does not vary: the
// arrangement of loops and the distance of loads; on the scalar path the part of a tile that is in
// shared memory at a time; with Fused the splits of the keys; with Stored the heads of a
// chunk.
func backwardVariants(caps *vk.Caps, p Problem, c BackwardConfig) []BackwardConfig {
	var all []BackwardConfig
	for _, n := range []int{1, 2, 4, 8} {
		if v := c; c.fused() {
			v.Splits = n
			all = append(all, v)
		} else if c.stored() {
			v.Chunk = n
			all = append(all, v)
		}
	}
	tile := func(v *BackwardConfig) []*BackwardTile {
		switch {
		case c.fused():
			return []*BackwardTile{&v.Fused}
		case c.stored():
			return []*BackwardTile{&v.Stored, &v.DQ}
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
		change(func(t *BackwardTile) { t.PeelMask = !t.PeelMask })
		for _, n := range []int{0, 2, 4, 6} {
			change(func(t *BackwardTile) { t.LoadAhead = n })
		}
	}
	if c.stored() {
		for _, tile := range productTiles(caps, p, c.Impl, c.DQ) {
			v := c
			v.Stored = tile
			all = append(all, v)
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

// feasibleBackward returns first, then the feasible configurations of a list without repeats.
func feasibleBackward(caps *vk.Caps, p Problem, first BackwardConfig, list []BackwardConfig) []BackwardConfig {
	all := []BackwardConfig{first}
	for _, c := range list {
		if !slices.Contains(all, c) && c.Feasible(caps, p) == nil {
			all = append(all, c)
		}
	}
	return all
}

// backwardTiles varies the workgroup, what it owns and what it walks over.
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

// backwardTableRow is tableRow for the backward pass.
func backwardTableRow(caps *vk.Caps, p Problem, c BackwardConfig, fill float64) string {
	c.Splits, c.Chunk = 0, 0 // the numbers are p's
	return sourceRow(caps, &p, c.Impl, fill) + source(reflect.ValueOf(c)) + "},"
}
