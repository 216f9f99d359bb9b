package attention

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// candidates returns feasible configurations of a path that are worth measuring for p on a device.
// The first is the tuning table's; the others follow by their distance from it, so that a search
// that runs out of time has seen the likely ones. They differ in tile sizes and, on the matrix
// paths, in Prefetch and LoadAhead; Splits follows from the number of blocks. Function variants has
// the rest.
//
// Blocks of rows that p would fill to less than half are left out, except for the smallest. There
// is no candidate if the device does not have the path.
func candidates(caps *vk.Caps, p Problem, impl Impl) []Config {
	start, err := chooseForward(caps, p, Options{Impl: impl})
	if err != nil {
		return nil
	}
	var all []Config
	switch impl {
	case CoopMat2, CoopMat:
		all = matrixCandidates(caps, p, start)
		if impl == CoopMat2 && p.SeqKV <= mostStripedKeys {
			all = append(all, stripedCandidates()...)
		}
	case Scalar, Unfused:
		all = scalarCandidates(start)
	}
	least := math.MaxInt
	for i := range all {
		all[i].Splits = all[i].splitsToFill(caps, p)
		least = min(least, all[i].blockRows(caps, p.DType))
	}
	all = slices.DeleteFunc(all, func(c Config) bool {
		rows := c.blockRows(caps, p.DType)
		return c == start || rows > least && rows >= 2*p.SeqQ || c.Feasible(caps, p) != nil
	})
	return append([]Config{start}, byDistance(all, start)...)
}

// matrixCandidates varies the tile sizes of a matrix path. More than eight subgroups in a
// workgroup, more than two row tiles in a subgroup or more than 128 keys in a tile have never won
// on any GPU that we know of: registers do not suffice.
func matrixCandidates(caps *vk.Caps, p Problem, start Config) []Config {
	shape, err := matrixShape(caps, start.Impl, p.DType)
	if err != nil {
		return nil
	}
	var all []Config
	for _, subgroups := range []int{1, 2, 4, 8} {
		for _, rowTiles := range []int{1, 2} {
			for _, n := range []int{1, 2, 3, 4, 6, 8} {
				c := start
				c.Subgroups, c.RowTiles, c.BlockN, c.Stripes = subgroups, rowTiles, n*int(shape.N), 0
				if c.BlockN > 128 {
					continue
				}
				// With the next tile in registers, LoadAhead decides whether the
				// operands of this one fit too.
				c.Prefetch, c.LoadAhead = false, 0
				all = append(all, c)
				c.Prefetch = true
				all = append(all, c)
				c.LoadAhead = cmp.Or(start.LoadAhead, 4)
				all = append(all, c)
			}
		}
	}
	return all
}

// stripedCandidates returns configurations with Stripes and at most two rows of blocks. With more
// rows, the way of keys through shared memory pays.
func stripedCandidates() []Config {
	var all []Config
	for _, stripes := range []int{2, 4, 8, 16} {
		for _, rows := range []int{1, 2} {
			for _, rowTiles := range []int{1, 2} {
				for _, n := range []int{16, 32, 64} {
					all = append(all, Config{Impl: CoopMat2, Subgroups: stripes * rows, RowTiles: rowTiles, BlockN: n, Stripes: stripes})
				}
			}
		}
	}
	return all
}

// scalarCandidates varies the workgroup, and the rows and keys of an invocation.
func scalarCandidates(start Config) []Config {
	var all []Config
	for _, threads := range []int{64, 128, 256} {
		for _, threadsX := range []int{8, 16} {
			for _, rows := range []int{2, 4, 8} {
				for _, cols := range []int{1, 2, 4, 8} {
					c := start
					c.Threads, c.ThreadsX = threads, threadsX
					c.BlockM, c.BlockN = threads/threadsX*rows, threadsX*cols
					if c.Impl == Scalar {
						c.ValueRows = min(start.ValueRows, c.BlockN)
					}
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// variants returns the feasible configurations that differ from c in one of the choices that
// candidates does not vary: the arrangement of loops, the part of a tile that is in shared memory
// at a time, the number of workgroups that divide the keys.
func variants(caps *vk.Caps, p Problem, c Config) []Config {
	numbers := map[string][]int{"LoadAhead": {0, 2, 4, 6, 8}}
	if c.Impl == Scalar || c.Impl == Unfused {
		numbers = map[string][]int{"Depth": {8, 16, 32, 64}}
	}
	numbers["Splits"] = c.splitChoices(caps, p)
	if c.Impl == Scalar {
		numbers["ValueRows"] = []int{4, 8, 16, 32}
	}
	var all []Config
	for i := range reflect.TypeFor[Config]().NumField() {
		name := reflect.TypeFor[Config]().Field(i).Name
		v := c
		field := reflect.ValueOf(&v).Elem().Field(i)
		add := func() {
			if v != c && v.Feasible(caps, p) == nil {
				all = append(all, v)
			}
		}
		for _, n := range numbers[name] {
			field.SetInt(int64(n))
			add()
		}
		// Every switch belongs to the matrix paths; Detour is for tests.
		matrix := c.Impl == CoopMat2 || c.Impl == CoopMat
		if field.Kind() == reflect.Bool && matrix && name != "Prefetch" && name != "Detour" {
			field.SetBool(!field.Bool())
			add()
		}
	}
	return all
}

// byDistance sorts configurations by their distance from one: the doublings of numbers, and one for
// each other change.
func byDistance[C any](list []C, from C) []C {
	slices.SortStableFunc(list, func(a, b C) int { return cmp.Compare(distance(a, from), distance(b, from)) })
	return list
}

func distance[C any](a, b C) int { return fieldDistance(reflect.ValueOf(a), reflect.ValueOf(b)) }

func fieldDistance(x, y reflect.Value) int {
	d := 0
	for i := range x.NumField() {
		switch f, g := x.Field(i), y.Field(i); f.Kind() {
		case reflect.Int:
			n := bits.Len(uint(f.Int())) - bits.Len(uint(g.Int()))
			d += max(n, -n)
			if n == 0 && f.Int() != g.Int() {
				d++
			}
		case reflect.Bool:
			if f.Bool() != g.Bool() {
				d++
			}
		case reflect.Struct:
			d += fieldDistance(f, g)
		}
	}
	return d
}

// source returns a configuration, or a tile of one, as Go source without zero fields.
func source(v reflect.Value) string {
	names := map[Impl]string{Auto: "Auto", CoopMat2: "CoopMat2", CoopMat: "CoopMat", Scalar: "Scalar", Unfused: "Unfused"}
	var fields []string
	for i := range v.NumField() {
		f, value := v.Field(i), fmt.Sprint(v.Field(i))
		if f.IsZero() && f.Type() != reflect.TypeFor[Impl]() {
			continue
		}
		switch x := f.Interface().(type) {
		case Impl:
			value = names[x]
		case BackwardTile:
			value = source(f)
		}
		fields = append(fields, v.Type().Field(i).Name+": "+value)
	}
	return v.Type().Name() + "{" + strings.Join(fields, ", ") + "}"
}

// tableRow returns the row of the tuning table that gives c to problems with p's head_dim and mask
// on devices like caps, as Go source. If fill is not 0, the row demands that many blocks of rows
// per compute unit.
func tableRow(caps *vk.Caps, p Problem, c Config, fill float64) string {
	c.Splits = 0 // the number is p's: Choose finds the next problem's
	return sourceRow(caps, &p, c.Impl, fill) + source(reflect.ValueOf(c)) + "},"
}

// sourceRow is a row of a table up to its configuration.
func sourceRow(caps *vk.Caps, p *Problem, impl Impl, fill float64) string {
	formats := ""
	if onMatrices(impl) {
		formats = "table.Of16Bits"
		if p.DType == dtype.Float32 {
			formats = "table.OfFloat32"
		}
	}
	shape := fmt.Sprintf("headDim: %d", p.HeadDim)
	if p.Causal {
		shape += ", causal: true"
	}
	return table.SourceRow(family(caps), formats, "shape{"+shape+"}", fill)
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
