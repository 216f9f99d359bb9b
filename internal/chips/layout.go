package chips

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// layoutSpec is the specialization of matrix_layout.comp and matrix_right.comp.
type layoutSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	MaxLength     uint32 `glsl:"MAX_LENGTH"`
	MatK          uint32 `glsl:"MAT_K"`
}

// A MatrixLayout says where the invocations of a subgroup keep the elements of an accumulator.
// shaders/lib/rows.glsl defines the words.
type MatrixLayout struct {
	Length    int  // elements of one invocation
	RowRun    int  // neighbouring elements of one row
	RowLanes  int  // neighbouring invocations that share a row; 0: not so regular
	ColRun    int  // element i is of the column of element i mod ColRun
	SameAsAcc bool // left matrices keep theirs in the same places

	// Pairs says which columns of a row invocation l holds, of those that share the row: element
	// e is of column e/w*w*RowLanes + l*w + e%w. W is 2, or 1 where RowRun is.
	Pairs bool

	// Spread says which rows invocation n holds a part of: n/RowLanes + i*lanes/RowLanes, i being 0,
	// 1, and so on, lanes the length of the subgroup.
	Spread bool
}

// Forget leaves only the length of matrices known.
func (l *MatrixLayout) Forget() { *l = MatrixLayout{Length: l.Length, RowRun: 1, ColRun: l.Length} }

// layoutKey is the key of a probe in the values that a device keeps.
type layoutKey struct {
	format dtype.DType
	shape  vk.CoopMatShape
}

// LayoutOf returns the layout of matrices of a shape and format on the device. It runs
// matrix_layout.comp once for each device, format and shape.
func LayoutOf(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) (MatrixLayout, error) {
	return vk.Cached(d, layoutKey{t, shape}, func() (MatrixLayout, error) {
		lists, _, err := askLayout(d, t, shape)
		if err != nil {
			return MatrixLayout{}, err
		}
		return analyzeLayout(lists[0], lists[1], int(shape.N)), nil
	})
}

// quadsKey is the key of the result of AsksQuads in the values that a device keeps.
type quadsKey layoutKey

// AsksQuads asks the device whether matrices of a shape and format are 16x16 by 16x16, or by 16x8, and
// kept as NVIDIA's are: element i of invocation 4g + t, of accumulators and left matrices, is of row
// g + i/4*8 and column 2t + i%2 + i%4/2*8, and right matrices are left ones with rows and columns
// exchanged. Of accumulators 8 wide it is of row g + i/2*8 and column 2t + i%2, and right matrices 8
// wide are the left halves of those 16 wide. It runs matrix_layout.comp and matrix_right.comp once for
// each device, format and shape.
func AsksQuads(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) (bool, error) {
	return vk.Cached(d, quadsKey{t, shape}, func() (bool, error) {
		if shape.M != 16 || shape.K != 16 || shape.N != 16 && shape.N != 8 {
			return false, nil
		}
		e, _, err := probe(d, t, shape)
		return err == nil && e.quads(int(shape.N)), err
	})
}

// Shape16x8 returns the shape of matrices of 16x16 by 16x8 of a format with float32 sums, if the device
// has them.
func Shape16x8(caps *vk.Caps, t dtype.DType) (shape vk.CoopMatShape, ok bool) {
	component := vk.F16
	if t == dtype.BFloat16 {
		component = vk.BF16
	}
	i := slices.IndexFunc(caps.CoopMatShapes, func(s vk.CoopMatShape) bool {
		return s.Scope == vk.ScopeSubgroup && s.M == 16 && s.N == 8 && s.K == 16 && s.A == component && s.B == component && s.C == vk.F32 && s.Result == vk.F32
	})
	if i < 0 {
		return shape, false
	}
	return caps.CoopMatShapes[i], true
}

// CheckLayout runs matrix_layout.comp and matrix_right.comp and checks their answers. It returns
// an error that wraps ErrLayout if an element of a matrix is in no invocation, or an invocation
// has one that does not exist. It returns the modules that ran.
func CheckLayout(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) ([]vk.ModuleInfo, error) {
	e, ran, err := probe(d, t, shape)
	if err == nil {
		err = errors.Join(checkElements("left matrix", e.left, int(shape.M*shape.K)), checkElements("accumulator", e.acc, int(shape.M*shape.N)))
		if e.right != nil {
			err = errors.Join(err, checkElements("right matrix", e.right, int(shape.K*shape.N)))
		}
	}
	return ran, err
}

// ErrLayout is wrapped by the error of CheckLayout if the answers of the device make no sense.
var ErrLayout = errors.New("what the device says of matrices is wrong")

// checkElements wants each of n elements in some invocation, and nothing else.
func checkElements(what string, lanes [][]int, n int) error {
	seen := make([]bool, n)
	for lane, elements := range lanes {
		for _, x := range elements {
			if x < 0 || x >= n {
				return fmt.Errorf("%w: invocation %d has element %d of a %s of %d", ErrLayout, lane, x, what, n)
			}
			seen[x] = true
		}
	}
	if i := slices.Index(seen, false); i >= 0 {
		return fmt.Errorf("%w: no invocation has element %d of a %s of %d", ErrLayout, i, what, n)
	}
	return nil
}

// elements are those that each invocation has of a left matrix, an accumulator and a right
// matrix, numbered row*columns + column.
type elements struct{ left, acc, right [][]int }

// quads reports whether they are as AsksQuads says, of right matrices and accumulators n wide.
func (e *elements) quads(n int) bool {
	const lanes, k = 32, 16
	if len(e.acc) != lanes || len(e.left) != lanes || len(e.right) != lanes {
		return false
	}
	at := func(lane, i int) (row, col int) { return lane/4 + i/4*8, lane%4*2 + i%2 + i%4/2*8 }
	for lane := range lanes {
		if len(e.left[lane]) != 8 || len(e.acc[lane]) != n/2 || len(e.right[lane]) != n/2 {
			return false
		}
	}
	return every(e.left, func(lane, i, x int) bool { row, col := at(lane, i); return x == row*k+col }) &&
		every(e.right, func(lane, i, x int) bool { row, col := at(lane, i); return x == col*n+row }) &&
		every(e.acc, func(lane, i, x int) bool {
			row, col := at(lane, i)
			if n == 8 {
				row, col = lane/4+i/2*8, lane%4*2+i%2
			}
			return x == row*n+col
		})
}

// probe returns the elements of each invocation, and the modules that ran. Right matrices that
// have more rows than left ones are not asked for.
func probe(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) (e elements, ran []vk.ModuleInfo, err error) {
	lists, module, err := askLayout(d, t, shape)
	if err != nil {
		return e, nil, err
	}
	e.left, e.acc = lists[0], lists[1]
	ran = append(ran, module)
	if shape.M >= shape.N {
		if lists, module, err = ask(d, "matrix_right", t, shape, []dtype.DType{t}, 1); err != nil {
			return e, ran, err
		}
		e.right = lists[0]
		ran = append(ran, module)
	}
	return e, ran, nil
}

func askLayout(d *vk.Device, t dtype.DType, shape vk.CoopMatShape) ([][][]int, vk.ModuleInfo, error) {
	return ask(d, "matrix_layout", t, shape, []dtype.DType{t, dtype.Float32}, 2)
}

// ask runs a kernel that loads matrices from tensors of the numbers 0, 1, 2, ..., one of each
// format. It returns the elements of each invocation, for that many matrices.
func ask(d *vk.Device, name string, t dtype.DType, shape vk.CoopMatShape, formats []dtype.DType, matrices int) (lists [][][]int, ran vk.ModuleInfo, err error) {
	module, err := shaders.Get(name, t.Short())
	if err != nil {
		return nil, ran, err
	}
	ran = vk.ModuleInfo{Name: module.Name, SPIRV: module.SPIRV}
	lanes, n := int(d.Caps().SubgroupSize), int(max(shape.M*shape.N, shape.M*shape.K, shape.K*shape.N))
	kernel, err := vk.CachedKernel[struct{}](d, module.Name, module.SPIRV,
		layoutSpec{WorkgroupSize: uint32(lanes), MatM: shape.M, MatN: shape.N, MaxLength: uint32(n), MatK: shape.K}, MatrixOptions(d.Caps()))
	if err != nil {
		return nil, ran, err
	}
	if d.CompileOnly() {
		lists, err = knownElements(d.Caps(), name, shape)
		return lists, ran, err
	}
	ctx := context.Background()
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i) // at most 255: exact in every format
	}
	tensors := make([]vk.Tensor, len(formats)+matrices)
	for i := range tensors {
		format, data := dtype.Float32, make([]float32, lanes*(1+n))
		if i < len(formats) {
			format, data = formats[i], numbers
		}
		if tensors[i], err = d.NewTensor(name, format, len(data)); err != nil {
			return nil, ran, err
		}
		defer tensors[i].Close()
		if err := tensors[i].Upload(ctx, data); err != nil {
			return nil, ran, err
		}
	}
	err = d.Run(ctx, name, func(c *vk.Cmd) error {
		kernel.Dispatch(c, vk.Groups{}, struct{}{}, tensors...)
		return nil
	})
	if err != nil {
		return nil, ran, err
	}
	for _, x := range tensors[len(formats):] {
		data := make([]float32, lanes*(1+n))
		if err := x.Download(ctx, data); err != nil {
			return nil, ran, err
		}
		lists = append(lists, perLane(data, lanes))
	}
	return lists, ran, nil
}

// knownElements returns what ask would find on a GPU that is not there: on RDNA3, as the chapter on
// WMMA of AMD's "RDNA3 Instruction Set Architecture" has it, and Mesa's RADV. Invocation l has row l%16 of
// left matrices, column l%16 of right ones, and of accumulators rows l/16, l/16 + lanes/16, … of
// column l%16.
func knownElements(caps *vk.Caps, name string, shape vk.CoopMatShape) ([][][]int, error) {
	if Family(caps) != "rdna3" || shape.M != 16 || shape.N != 16 || shape.K != 16 {
		return nil, fmt.Errorf("chips: the layout of matrices of %dx%dx%d of %q is not known without running a kernel: %w",
			shape.M, shape.N, shape.K, caps.Name, vk.ErrUnsupported)
	}
	const side = 16
	lanes := int(caps.SubgroupSize)
	left, right, acc := make([][]int, lanes), make([][]int, lanes), make([][]int, lanes)
	for l := range lanes {
		for i := range side {
			left[l] = append(left[l], l%side*side+i)
			right[l] = append(right[l], i*side+l%side)
		}
		for row := l / side; row < side; row += lanes / side {
			acc[l] = append(acc[l], row*side+l%side)
		}
	}
	if name == "matrix_right" {
		return [][][]int{right}, nil
	}
	return [][][]int{left, acc}, nil
}

// perLane divides what these kernels write into the elements of each invocation.
func perLane(data []float32, lanes int) [][]int {
	list := make([][]int, lanes)
	for i := range list {
		row := data[i*len(data)/lanes : (i+1)*len(data)/lanes]
		for _, x := range row[1 : 1+min(int(row[0]), len(row)-1)] {
			list[i] = append(list[i], int(x))
		}
	}
	return list
}

// analyzeLayout finds the layout in the elements of each invocation, numbered row*n + column. A
// layout is irregular if invocations hold different numbers of elements, or rows are not spread
// over neighbours.
func analyzeLayout(left, acc [][]int, n int) MatrixLayout {
	l := MatrixLayout{Length: len(acc[0]), RowRun: 1, ColRun: len(acc[0]), SameAsAcc: true}
	for lane := range acc {
		if len(acc[lane]) != l.Length {
			return MatrixLayout{Length: l.Length, RowRun: 1, ColRun: l.Length}
		}
		l.SameAsAcc = l.SameAsAcc && slices.Equal(left[lane], acc[lane])
	}
	for run := l.Length; run >= 1; run-- {
		if l.Length%run != 0 || n%run != 0 || !rowsOf(acc, run, n/run, n) {
			continue
		}
		lanes, w := n/run, min(run, 2)
		l.RowRun, l.RowLanes = run, lanes
		l.Pairs = every(acc, func(lane, i, x int) bool {
			e := i % run
			return x%n == e/w*w*lanes+lane%lanes*w+e%w
		})
		l.Spread = every(acc, func(lane, i, x int) bool { return x/n == lane/lanes+i/run*len(acc)/lanes })
		break
	}
	for run := 1; run < l.Length; run++ {
		if l.Length%run == 0 && every(acc, func(lane, i, x int) bool { return x%n == acc[lane][i%run]%n }) {
			l.ColRun = run
			break
		}
	}
	return l
}

// every reports whether a rule is true of element i of each lane, x.
func every(acc [][]int, rule func(lane, i, x int) bool) bool {
	for lane := range acc {
		for i, x := range acc[lane] {
			if !rule(lane, i, x) {
				return false
			}
		}
	}
	return true
}

// rowsOf reports whether elements i*run..(i+1)*run-1 of every aligned group of
// lanes are one row of n elements, each once.
func rowsOf(acc [][]int, run, lanes, n int) bool {
	if lanes&(lanes-1) != 0 || len(acc)%lanes != 0 {
		return false
	}
	for first := 0; first < len(acc); first += lanes {
		for i := 0; i < len(acc[first]); i += run {
			seen := make(map[int]bool, n)
			for _, lane := range acc[first : first+lanes] {
				for _, x := range lane[i : i+run] {
					if x/n != acc[first][i]/n {
						return false
					}
					seen[x] = true
				}
			}
			if len(seen) != n {
				return false
			}
		}
	}
	return true
}

// Kernel returns the kernel of a module of a format, "" for one of all, to record in c. Kernel keeps an error in c, as
// recording calls do; c records nothing then, not even a kernel that is nil.
func Kernel[P any](c *vk.Cmd, name, format string, spec any, o vk.KernelOptions) (k *vk.Kernel[P]) {
	module, err := shaders.Get(name, format)
	if err == nil && c.Err() == nil {
		k, err = vk.CachedKernel[P](c.Device(), module.Name, module.SPIRV, spec, o)
	}
	c.Keep(&err)
	return k
}

// Groups returns the workgroups for a number of items, some for each: at most what the device takes.
func Groups(caps *vk.Caps, items, each int) vk.Groups {
	return vk.Groups{X: uint32(min((items+each-1)/each, int(caps.MaxWorkgroupCount[0])))}
}

// Format returns the number of a format of floats in lib/formats.glsl.
func Format(t dtype.DType) uint32 {
	return [...]uint32{dtype.Float32: 0, dtype.Float16: 1, dtype.BFloat16: 2}[t]
}
