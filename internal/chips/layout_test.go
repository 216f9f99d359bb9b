package chips

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// TestLayouts compares the Go mirror of this package's kernels with their shaders.
func TestLayouts(t *testing.T) {
	for _, element := range []string{"f16", "bf16"} {
		module, err := shaders.Get("matrix_layout", element)
		require.NoError(t, err)
		layouttest.Check(t, module, nil, layoutSpec{}, "Index", "Index32", "Left", "Acc")
		module, err = shaders.Get("matrix_right", element)
		require.NoError(t, err)
		layouttest.Check(t, module, nil, layoutSpec{}, "Index", "Right")
	}
}

// layoutFrom makes what matrix_layout.comp writes from a function that says
// which (row, column) element e of a lane is.
func layoutFrom(lanes, length, n int, at func(lane, e int) (row, col int)) [][]int {
	list := make([][]int, lanes)
	for lane := range list {
		for e := range length {
			row, col := at(lane, e)
			list[lane] = append(list[lane], row*n+col)
		}
	}
	return list
}

// TestAnalyzeLayout holds layouts of real devices, and irregular ones.
func TestAnalyzeLayout(t *testing.T) {
	nvidia := layoutFrom(32, 8, 16, func(lane, e int) (int, int) { // 16x16, measured on an H200
		return lane/4 + 8*(e/4), lane%4*2 + e%2 + 8*(e/2%2)
	})
	lavapipe := layoutFrom(8, 8, 8, func(lane, e int) (int, int) { return e, lane })
	columns := layoutFrom(8, 8, 8, func(lane, e int) (int, int) { return lane, e }) // a row for each lane
	crossed := layoutFrom(8, 8, 8, func(lane, e int) (int, int) { return e, lane ^ 1 })
	other := layoutFrom(8, 8, 8, func(lane, e int) (int, int) { return e ^ 1, lane })
	interleaved := layoutFrom(32, 8, 16, func(lane, e int) (int, int) { return 2*e + lane/16, lane % 16 })
	swapped := layoutFrom(32, 8, 16, func(lane, e int) (int, int) { return 8*(lane%2) + e, lane / 2 })
	twice := layoutFrom(8, 8, 8, func(lane, e int) (int, int) { return e, lane / 2 * 2 }) // columns missing
	for _, c := range []struct {
		name      string
		left, acc [][]int
		n         int
		want      MatrixLayout
	}{
		{"nvidia", nvidia, nvidia, 16, MatrixLayout{8, 4, 4, 4, true, true, true}},
		{"lavapipe", lavapipe, lavapipe, 8, MatrixLayout{8, 1, 8, 1, true, true, true}},
		{"row per lane", lavapipe, columns, 8, MatrixLayout{8, 8, 1, 8, false, true, true}},
		{"interleaved", interleaved, interleaved, 16, MatrixLayout{8, 1, 16, 1, true, true, true}},
		{"rows exchanged", other, other, 8, MatrixLayout{8, 1, 8, 1, true, true, false}},
		{"columns crossed", crossed, crossed, 8, MatrixLayout{8, 1, 8, 1, true, false, true}},
		{"rows among distant lanes", swapped, swapped, 16, MatrixLayout{8, 1, 0, 1, true, false, false}},
		{"columns missing", twice, twice, 8, MatrixLayout{8, 1, 0, 1, true, false, false}},
		{"left has more", append([][]int{append([]int{0}, lavapipe[0]...)}, lavapipe[1:]...), lavapipe, 8, MatrixLayout{8, 1, 8, 1, false, true, true}},
		{"uneven", lavapipe, append([][]int{lavapipe[0]}, layoutFrom(7, 4, 8, func(lane, e int) (int, int) { return e, lane })...), 8, MatrixLayout{8, 1, 0, 8, false, false, false}},
	} {
		require.Equal(t, c.want, analyzeLayout(c.left, c.acc, c.n), c.name)
	}
}

// TestQuads has the layout of NVIDIA's matrices, and what differs from it in one matrix: what AsksQuads
// would find on a device that has the shapes of NVIDIA's matrices, but keeps their elements elsewhere.
func TestQuads(t *testing.T) {
	quads := func(lane, e int) (int, int) { return lane/4 + 8*(e/4), lane%4*2 + e%2 + 8*(e/2%2) }
	turned := func(lane, e int) (int, int) { row, col := quads(lane, e); return col, row }
	other := func(lane, e int) (int, int) { row, col := quads(lane, e^1); return row, col } // neighbours exchanged
	make16 := func(at func(lane, e int) (int, int)) [][]int { return layoutFrom(32, 8, 16, at) }
	// 16x8: four elements of an accumulator and of a right matrix
	narrow := func(lane, e int) (int, int) { return lane/4 + 8*(e/2), lane%4*2 + e%2 }
	narrowRight := func(lane, e int) (int, int) { return lane%4*2 + e%2 + 8*(e/2), lane / 4 }
	byRows := func(lane, e int) (int, int) { return lane / 2, lane%2*4 + e }
	make8 := func(at func(lane, e int) (int, int)) [][]int { return layoutFrom(32, 4, 8, at) }
	for _, c := range []struct {
		name string
		e    elements
		n    int
		want bool
	}{
		{"nvidia", elements{make16(quads), make16(quads), make16(turned)}, 16, true},
		{"right as left", elements{make16(quads), make16(quads), make16(quads)}, 16, false},
		{"left turned", elements{make16(turned), make16(quads), make16(turned)}, 16, false},
		{"accumulator exchanged", elements{make16(quads), make16(other), make16(turned)}, 16, false},
		{"no right", elements{make16(quads), make16(quads), make([][]int, 32)}, 16, false},
		{"8x8", elements{layoutFrom(8, 8, 8, quads), layoutFrom(8, 8, 8, quads), layoutFrom(8, 8, 8, turned)}, 16, false},
		{"nvidia 16x8", elements{make16(quads), make8(narrow), make8(narrowRight)}, 8, true},
		{"16x8, right by rows", elements{make16(quads), make8(narrow), make8(byRows)}, 8, false},
		{"16x8, accumulator by rows", elements{make16(quads), make8(byRows), make8(narrowRight)}, 8, false},
		{"16x8, left turned", elements{make16(turned), make8(narrow), make8(narrowRight)}, 8, false},
		{"16x8 for 16x16", elements{make16(quads), make8(narrow), make8(narrowRight)}, 16, false},
		{"16x16 for 16x8", elements{make16(quads), make16(quads), make16(turned)}, 8, false},
	} {
		require.Equal(t, c.want, c.e.quads(c.n), c.name)
	}
}

// TestShape16x8 wants a shape of the asked format, float32 sums and subgroups alone.
func TestShape16x8(t *testing.T) {
	narrow := vk.CoopMatShape{M: 16, N: 8, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup}
	half, short, wide := narrow, narrow, narrow
	half.C, half.Result = vk.F16, vk.F16
	short.K = 8
	wide.N = 16
	caps := &vk.Caps{CoopMatShapes: []vk.CoopMatShape{half, short, wide}}
	_, ok := Shape16x8(caps, dtype.Float16)
	require.False(t, ok)
	caps.CoopMatShapes = append(caps.CoopMatShapes, narrow)
	shape, ok := Shape16x8(caps, dtype.Float16)
	require.True(t, ok)
	require.Equal(t, narrow, shape)
	_, ok = Shape16x8(caps, dtype.BFloat16)
	require.False(t, ok)
}

// TestRight wants every element of a right matrix in some invocation.
func TestRight(t *testing.T) {
	d := vktest.Open(t)
	shape, lack := MatrixShape(d.Caps(), dtype.Float16)
	if lack != "" {
		t.Skip(lack)
	}
	e, _, err := probe(d, dtype.Float16, shape)
	require.NoError(t, err)
	if shape.M < shape.N {
		require.Empty(t, e.right)
		return
	}
	require.NoError(t, checkElements("right matrix", e.right, int(shape.K*shape.N)))
	quads, err := AsksQuads(d, dtype.Float16, shape)
	require.NoError(t, err)
	require.Equal(t, shape.M == 16 && shape.N == 16 && e.quads(16), quads)
}

// TestKnownElements: the matrices of RDNA3 have all of their elements, and the layout that AMD's manual
// draws, in subgroups of both sizes.
func TestKnownElements(t *testing.T) {
	square := vk.CoopMatShape{M: 16, N: 16, K: 16}
	for _, lanes := range []int{32, 64} {
		caps := &vk.Caps{VendorID: VendorAMD, Name: "AMD Radeon RX 7900 XTX (RADV NAVI31)", SubgroupSize: uint32(lanes)}
		lists, err := knownElements(caps, "matrix_layout", square)
		require.NoError(t, err)
		require.NoError(t, checkElements("left matrix", lists[0], 256))
		require.NoError(t, checkElements("accumulator", lists[1], 256))
		require.Equal(t, MatrixLayout{Length: 256 / lanes, RowRun: 1, RowLanes: 16, ColRun: 1, Pairs: true, Spread: true},
			analyzeLayout(lists[0], lists[1], 16))
		require.Equal(t, lanes/16*16+3, lists[1][3][1], "invocation 3 has a row of each group of 16")
		lists, err = knownElements(caps, "matrix_right", square)
		require.NoError(t, err)
		require.NoError(t, checkElements("right matrix", lists[0], 256))
	}
	_, err := knownElements(&vk.Caps{VendorID: VendorNVIDIA, Name: "H200"}, "matrix_layout", square)
	require.ErrorIs(t, err, vk.ErrUnsupported)
}

// TestCheckLayout says what is wrong with layouts that no device has, and nothing of that here.
func TestCheckLayout(t *testing.T) {
	require.NoError(t, checkElements("left matrix", [][]int{{0, 3}, {2, 1}, {1, 1}}, 4))
	require.ErrorContains(t, checkElements("left matrix", [][]int{{0, 3}, {2, 2}}, 4), "no invocation has element 1 of a left matrix of 4")
	require.ErrorIs(t, checkElements("accumulator", [][]int{{0, 4}, {2, 1}, {3}}, 4), ErrLayout)
	d := vktest.Open(t)
	for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		shape, lack := MatrixShape(d.Caps(), format)
		if lack != "" {
			t.Log(lack)
			continue
		}
		ran, err := CheckLayout(d, format, shape)
		require.NoError(t, err)
		require.Equal(t, "matrix_layout."+format.Short(), ran[0].Name)
		if shape.M >= shape.N {
			require.Equal(t, "matrix_right."+format.Short(), ran[1].Name)
		}
		for _, m := range ran {
			require.NotEmpty(t, m.SPIRV)
		}
	}
}
