package attention

import (
	"math"
	"slices"

	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// candidates returns configurations of a path that are worth measuring for p on a device, by their
// distance from start. They differ in the choices with a tag tune; Splits follows from the number of
// blocks. Function variants has the rest. More than eight subgroups in a workgroup, more than two
// row tiles in a subgroup or more than 128 keys in a tile have never won on any GPU that we know of:
// registers do not suffice.
//
// Blocks of rows that p would fill to less than half are left out, except for the smallest.
func candidates(caps *vk.Caps, p Problem, start Config) []Config {
	plain := start
	plain.Stripes = 0
	all := table.Grid(plain, start.Impl.String())
	if start.Impl == CoopMat2 && p.SeqKV <= mostStripedKeys {
		// With more than two rows of blocks the way of keys through shared memory pays.
		for _, stripes := range []int{2, 4, 8, 16} {
			for _, c := range table.Grid(Config{Impl: CoopMat2, Stripes: stripes}, start.Impl.String()) {
				if c.Subgroups *= stripes; c.Subgroups <= 2*stripes {
					all = append(all, c)
				}
			}
		}
	}
	least := math.MaxInt
	for i := range all {
		c := &all[i]
		if c.Impl == Scalar {
			c.ValueRows = min(start.ValueRows, c.BlockN)
		}
		c.Splits = c.splitsToFill(caps, p)
		if c.Feasible(caps, p) == nil {
			least = min(least, c.blockRows(caps, p.DType))
		}
	}
	all = slices.DeleteFunc(all, func(c Config) bool {
		rows := c.blockRows(caps, p.DType)
		// Without the next tile in registers the operands of this one fit.
		return !c.Prefetch && c.LoadAhead > 0 || rows > least && rows >= 2*p.SeqQ
	})
	return table.ByDistance(all, start)
}

// variants returns the configurations that differ from c in one of the choices that candidates does
// not vary: the arrangement of loops, the part of a tile that is in shared memory at a time, the
// number of workgroups that divide the keys.
func variants(caps *vk.Caps, p Problem, c Config) []Config {
	all := table.Changed(c, c.Impl.String())
	for _, n := range c.splitChoices(caps, p) {
		v := c
		v.Splits = n
		all = append(all, v)
	}
	return all
}

// backwardCandidates is candidates for the backward pass. The times of its two kernels add up, so
// each candidate differs from the table's choice in the tile of one kernel, and backwardVariants
// combines the best of both. On the matrix paths there are also candidates with one kernel for all
// gradients and with stored weights.
func backwardCandidates(caps *vk.Caps, p Problem, start BackwardConfig) []BackwardConfig {
	impl := start.Impl
	if start.fused() { // the row has no tiles of two kernels
		start.DKV, start.DQ = start.Fused, start.Fused
	}
	if start.stored() {
		start.DKV = start.DQ
	}
	start = BackwardConfig{Impl: impl, DKV: start.DKV, DQ: start.DQ}
	var all []BackwardConfig
	for _, tile := range backwardTiles(impl, start.DKV) {
		c := start
		c.DKV = tile
		all = append(all, c)
		if onMatrices(impl) {
			all = append(all, BackwardConfig{Impl: impl, Fused: tile})
		}
	}
	for _, tile := range backwardTiles(impl, start.DQ) {
		c := start
		c.DQ = tile
		all = append(all, c)
		if products := productTiles(caps, p, impl, tile); len(products) > 0 {
			all = append(all, BackwardConfig{Impl: impl, DQ: tile, Stored: products[0]})
		}
	}
	return append([]BackwardConfig{start}, table.ByDistance(all, start)...)
}

// backwardTiles varies the workgroup, the block that it owns and the tile that it walks over.
func backwardTiles(impl Impl, start BackwardTile) []BackwardTile {
	all := table.Grid(start, impl.String())
	for i := range all {
		all[i].StageRows = min(start.StageRows, all[i].BlockN)
	}
	return all
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
			list = append(list, BackwardTile{Subgroups: dq.Subgroups * dq.RowTiles / rowTiles * columns, RowTiles: rowTiles, BlockN: n * int(shape.N)})
		}
	}
	return list
}

// backwardVariants returns the configurations that differ from c in the tile of the kernel of dQ,
// or in one of the choices that backwardCandidates does not vary: the arrangement of loops and the
// distance of loads; on the scalar path the part of a tile that is in shared memory at a time; with
// Stored the heads of a chunk and the tiles of the products.
func backwardVariants(caps *vk.Caps, p Problem, c BackwardConfig) (all []BackwardConfig) {
	change := func(f func(v *BackwardConfig)) {
		v := c
		f(&v)
		all = append(all, v)
	}
	for _, n := range []int{1, 2, 4, 8} {
		if c.stored() {
			change(func(v *BackwardConfig) { v.Chunk = n })
		}
	}
	for i, tile := range []BackwardTile{c.Fused, c.Stored, c.DKV, c.DQ} {
		for _, x := range table.Changed(tile, c.Impl.String()) {
			if tile != (BackwardTile{}) {
				change(func(v *BackwardConfig) { *[]*BackwardTile{&v.Fused, &v.Stored, &v.DKV, &v.DQ}[i] = x })
			}
		}
	}
	if c.stored() {
		for _, x := range productTiles(caps, p, c.Impl, c.DQ) {
			change(func(v *BackwardConfig) { v.Stored = x })
		}
	}
	if !c.fused() {
		for _, x := range backwardTiles(c.Impl, c.DQ) {
			change(func(v *BackwardConfig) { v.DQ = x })
		}
	}
	return all
}

// decodeVariants returns c with two to four times the workgroups.
func decodeVariants(_ *vk.Caps, _ DecodeProblem, c DecodeConfig) []DecodeConfig {
	list := []DecodeConfig{c, c, c}
	for i := range list {
		list[i].Groups *= i + 2
	}
	return list
}

// blocks returns the number of blocks of rows of p. A block whose keys are divided among workgroups
// counts once.
func (c *Config) blocks(caps *vk.Caps, p Problem) int {
	if c.Impl != Unfused && packs(&p) {
		p = packProblem(p)
	}
	rows := c.blockRows(caps, p.DType)
	return p.Batch * p.NumHeads * ((p.SeqQ + rows - 1) / rows)
}
