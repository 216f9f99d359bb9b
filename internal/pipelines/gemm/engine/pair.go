package engine

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/steps"
)

// A PairProblem holds the sizes and formats of two products, one after the other.
type PairProblem struct {
	M, In, Hidden, N int
	DType            dtype.DType // of x, w1 and w2
	Out              dtype.DType // of y
}

// Validate returns an error that names the first value that breaks a rule.
func (p PairProblem) Validate() error {
	if err := (Problem{M: p.M, N: p.Hidden, K: p.In, DType: p.DType, Out: p.DType}).Validate(); err != nil {
		return err
	}
	return Problem{M: p.M, N: p.N, K: p.Hidden, DType: p.DType, Out: p.Out}.Validate()
}

// String describes the problem in a few words.
func (p PairProblem) String() string {
	return fmt.Sprintf("%dx%dx%dx%d %v to %v", p.M, p.In, p.Hidden, p.N, p.DType, p.Out)
}

// A PairConfig holds the tile sizes of gemm_pair.comp.
type PairConfig struct {
	Subgroups        int  // of a workgroup, side by side along the columns of y
	TilesM, TilesN   int  // accumulators of a subgroup, for y
	HiddenM, HiddenN int  // and for a chunk of hidden units
	Shared           int  // columns of matrices of x that are in shared memory, if there are so many
	Ahead            int  // matrices of the weights that a subgroup has on their way
	Fence            int  // left matrices are loaded at most so many steps ahead; 0: the compiler's choice
	Double           bool // a second chunk of hidden units in shared memory: one barrier less for each

	Splits int // workgroups that share rows of y, with a part of the hidden units each: 0 leaves it to ChoosePair, 1 is none
	Rows   int // with Splits: rows of y from the first on that are not shared
}

// String names every choice, for tables; ParsePairConfig reads it.
func (c PairConfig) String() string {
	s := fmt.Sprintf("pair s%d t%dx%d h%dx%d x%d ahead%d", c.Subgroups, c.TilesM, c.TilesN, c.HiddenM, c.HiddenN, c.Shared, c.Ahead)
	if c.Fence > 0 {
		s += fmt.Sprintf(" fence%d", c.Fence)
	}
	if c.Double {
		s += " double"
	}
	if c.Splits > 1 {
		s += fmt.Sprintf(" splits%d", c.Splits)
	}
	if c.Splits > 1 && c.Rows > 0 {
		s += fmt.Sprintf(" rows%d", c.Rows)
	}
	return s
}

// ParsePairConfig reads what String returns.
func ParsePairConfig(text string) (c PairConfig, err error) {
	words := strings.Fields(text)
	if len(words) == 0 || words[0] != "pair" {
		return c, fmt.Errorf("gemm: configuration %q does not begin with pair", text)
	}
	for _, w := range words[1:] {
		switch {
		case w == "double":
			c.Double = true
		case scan(w, "s%d", &c.Subgroups), scan(w, "t%dx%d", &c.TilesM, &c.TilesN), scan(w, "h%dx%d", &c.HiddenM, &c.HiddenN),
			scan(w, "x%d", &c.Shared), scan(w, "ahead%d", &c.Ahead), scan(w, "fence%d", &c.Fence),
			scan(w, "splits%d", &c.Splits), scan(w, "rows%d", &c.Rows):
		default:
			return c, fmt.Errorf("gemm: configuration %q: %q is not a choice of pair", text, w)
		}
	}
	return c, nil
}

// A pairRow is one row of the table of Pair.
type pairRow struct {
	family string // "" matches any; several are separated by spaces
	pays   bool   // measured: faster than two products
	PairConfig
}

// pairTable is searched in order; the first feasible match wins.
var pairTable = []pairRow{
	// Hopper, measured on an H200: 96 registers of an invocation for y, and all the shared
	// memory of a multiprocessor, which runs one such workgroup.
	{family: "hopper", PairConfig: PairConfig{Subgroups: 8, TilesM: 3, TilesN: 4, HiddenM: 3, HiddenN: 1, Shared: 24, Ahead: 8}},

	// Small tiles: what lavapipe compiles grows with them, and takes seconds.
	{family: "lavapipe", PairConfig: PairConfig{Subgroups: 2, TilesM: 2, TilesN: 2, HiddenM: 1, HiddenN: 1, Shared: 4, Ahead: 2}},

	// Any device: half of Hopper's rows.
	{PairConfig: PairConfig{Subgroups: 8, TilesM: 2, TilesN: 4, HiddenM: 1, HiddenN: 1, Ahead: 4}},
}

// PairOptions modify a call of Pair. The zero value is the default.
type PairOptions struct {
	// Config forces a configuration instead of the table's; it must be feasible. It is for
	// tuning and tests.
	Config *PairConfig
	// Workspace is memory for copies of the operands and partial sums, PairWorkspace bytes
	// of it, that nothing else uses until the commands have completed. Nil takes memory of
	// the Cmd.
	Workspace *vk.Buffer
	// WorkspaceOffset is where that memory begins, in bytes: a multiple of 16.
	WorkspaceOffset int64
}

// PairPays reports whether Pair was measured to be faster than two products on a device.
func PairPays(caps *vk.Caps, p PairProblem) bool {
	row, err := searchPair(caps, p)
	return err == nil && row.pays
}

// ChoosePair returns the configuration that Pair takes for p on a device. Its error wraps
// ErrUnsupported if there is none.
func ChoosePair(caps *vk.Caps, p PairProblem, opt PairOptions) (PairConfig, error) {
	plan, err := newPairPlan(caps, p, &opt)
	return plan.pair, err
}

// searchPair returns the first row that matches and is feasible, or the reason why the last
// one that matches is not.
func searchPair(caps *vk.Caps, p PairProblem) (row pairRow, err error) {
	family := chips.Family(caps)
	for _, row = range pairTable {
		if names(row.family, family) {
			if err = row.Feasible(caps, p); err == nil {
				return row, nil
			}
		}
	}
	return pairRow{}, err
}

// Feasible returns nil if c can compute p on a device, and otherwise the reason, wrapping
// ErrUnsupported. That left matrices keep their elements where accumulators do is the
// device's affair, and what Pair asks it.
func (c PairConfig) Feasible(caps *vk.Caps, p PairProblem) error {
	if p.DType == dtype.Float32 {
		return unsupported("pair: float32 matrices have no kernel")
	}
	shape, lack := chips.MatrixShape(caps, p.DType)
	m := int(shape.M)
	switch {
	case lack != "":
		return unsupported("pair: %s", lack)
	case !caps.Storage16 || !caps.ScalarBlockLayout:
		return unsupported("pair: the device has no 16-bit storage or no scalar block layout")
	case shape.M != shape.N || m*m != 8*int(caps.SubgroupSize):
		return unsupported("pair: matrices of %dx%d are not eight elements for each of %d invocations", shape.M, shape.N, caps.SubgroupSize)
	case c.Subgroups < 1 || c.TilesM < 1 || c.TilesN < 1 || c.HiddenM < 1 || c.HiddenN < 1 || c.Ahead < 1 || c.Shared < 0 || c.Fence < 0:
		return unsupported("pair: a tile size of %v is not positive", c)
	case c.TilesM%c.HiddenM != 0 || c.Subgroups%(c.TilesM/c.HiddenM) != 0:
		return unsupported("pair: %d subgroups with %d rows of matrices are no grid of %d rows each", c.Subgroups, c.TilesM, c.HiddenM)
	case c.Ahead%c.TilesN != 0 || c.Ahead%c.HiddenN != 0:
		return unsupported("pair: ahead%d is not a multiple of %d and %d columns of matrices", c.Ahead, c.TilesN, c.HiddenN)
	case c.chunkSteps()%(c.Ahead/c.TilesN) != 0:
		return unsupported("pair: a chunk of %d steps is not a multiple of the %d that ahead%d is for", c.chunkSteps(), c.Ahead/c.TilesN, c.Ahead)
	case c.Shared%c.inSteps() != 0:
		return unsupported("pair: x%d is not a multiple of the %d steps that ahead%d is for", c.Shared, c.inSteps(), c.Ahead)
	case c.Splits < 0 || c.Splits > maxSplits:
		return unsupported("pair: splits%d is not from 0 to %d", c.Splits, maxSplits)
	case c.Rows < 0 || c.Rows%(c.TilesM*m) != 0:
		return unsupported("pair: rows%d is not a multiple of the %d of a block", c.Rows, c.TilesM*m)
	case p.N > c.Subgroups*c.TilesN*m:
		return unsupported("pair: n=%d is more than the %d columns of a workgroup", p.N, c.Subgroups*c.TilesN*m)
	}
	if err := fitsWorkgroup(caps, CoopMat, c.Subgroups*int(caps.SubgroupSize)); err != nil {
		return err
	}
	return fitsShared(caps, CoopMat, c.tileBytes(m, p))
}

// chunkSteps returns the columns of matrices of a chunk of hidden units.
func (c *PairConfig) chunkSteps() int { return c.Subgroups / (c.TilesM / c.HiddenM) * c.HiddenN }

// inSteps returns the steps of the first product that the matrices on their way are for.
func (c *PairConfig) inSteps() int { return c.Ahead / c.HiddenN }

// steps returns the steps of the first product, and for how many of them x is in shared
// memory.
func (c *PairConfig) steps(m int, p PairProblem) (steps, shared int) {
	steps = roundUp((p.In+m-1)/m, c.inSteps())
	return steps, min(steps, c.Shared)
}

// tileBytes is the shared memory of gemm_pair.comp.
func (c *PairConfig) tileBytes(m int, p PairProblem) int {
	_, columns := c.steps(m, p)
	columns += c.chunkSteps()
	if c.Double {
		columns += c.chunkSteps()
	}
	strip := c.Subgroups * m * (m/4 + 1) * 16
	return max(columns*c.TilesM*m*m*2, strip)
}

// roundUp returns the least multiple of unit that is not less than n.
func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// A pairPlan is what Pair runs, and where it keeps what.
type pairPlan struct {
	pair     PairConfig
	operands [3]layOut // x, w1, w2
	in       int       // of the operands, filled with zeros
	second   Problem   // the second product, of which the first is the left operand
	config   Config    // of the second product
	partials int64
	bytes    int64
}

func newPairPlan(caps *vk.Caps, p PairProblem, opt *PairOptions) (plan pairPlan, err error) {
	if err := p.Validate(); err != nil {
		return plan, err
	}
	if opt.Config != nil {
		plan.pair, err = *opt.Config, opt.Config.Feasible(caps, p)
	} else {
		var row pairRow
		row, err = searchPair(caps, p)
		plan.pair = row.PairConfig
	}
	if err != nil {
		return plan, err
	}
	pair := &plan.pair
	shape, _ := chips.MatrixShape(caps, p.DType)
	m := int(shape.M)
	steps, _ := pair.steps(m, p)
	chunk := pair.chunkSteps()
	chunks := (p.Hidden + chunk*m - 1) / (chunk * m)
	blocks := (p.M + pair.TilesM*m - 1) / (pair.TilesM * m)
	plan.operands = [3]layOut{
		{width: pair.TilesM, panels: blocks, depth: steps, groups: 1},
		{width: pair.HiddenN, panels: chunks * chunk / pair.HiddenN, depth: steps, groups: 1},
		{width: pair.TilesN, panels: pair.Subgroups, depth: chunk, groups: chunks},
	}
	for i := range plan.operands {
		plan.operands[i].at = plan.bytes // w2 right behind w1: gemm_pair.comp
		plan.bytes += plan.operands[i].matrices() * int64(m*m*2)
	}
	plan.in = steps * m
	plan.second = Problem{M: p.M, N: p.N, K: chunks * chunk * m, DType: p.DType, Out: p.Out}
	plan.config = Config{
		Impl: CoopMat, SubgroupsM: 1, SubgroupsN: pair.Subgroups, TilesM: pair.TilesM, TilesN: pair.TilesN,
		BlockK: chunk * m, GroupM: 1, Splits: pair.Splits, Rows: pair.Rows,
	}
	if pair.Splits == 0 {
		// A compute unit runs one workgroup: those of large devices take all its registers.
		t := plan.config.costs(caps, &plan.second)
		t.slots, t.step = int(caps.ComputeUnits), 2*float64(pair.TilesM*m)*float64(p.In+p.N)/matrixFLOPs
		plan.config = plan.config.withSplits(caps, &plan.second, t)
	}
	plan.config = plan.config.fit(&plan.second)
	pair.Splits, pair.Rows = plan.config.Splits, plan.config.Rows
	plan.partials = (plan.bytes + 255) &^ 255
	plan.bytes = plan.partials + plan.config.partialBytes(plan.second)
	return plan, nil
}

// PairWorkspace returns the bytes of device memory that Pair takes with the same options. Its
// error wraps ErrUnsupported if Pair does not handle p.
func PairWorkspace(caps *vk.Caps, p PairProblem, opt PairOptions) (int64, error) {
	plan, err := newPairPlan(caps, p, &opt)
	return plan.bytes, err
}

// pairSpec is the specialization of gemm_pair.comp.
type pairSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	SubgroupsN    uint32       `glsl:"SUBGROUPS_N"`
	MatM          uint32       `glsl:"MAT_M"`
	MatN          uint32       `glsl:"MAT_N"`
	TilesM        uint32       `glsl:"TILES_M"`
	TilesN        uint32       `glsl:"TILES_N"`
	HiddenM       uint32       `glsl:"HIDDEN_M"`
	HiddenN       uint32       `glsl:"HIDDEN_N"`
	SharedSteps   uint32       `glsl:"SHARED_STEPS"`
	Ahead         uint32       `glsl:"AHEAD"`
	Fence         uint32       `glsl:"FENCE"`
	Double        bool         `glsl:"DOUBLE"`
	Partial       bool         `glsl:"PARTIAL"`
	Epilogue      epilogueSpec `glsl:"epilogue"`
}

// Pair computes two products, one after the other, of which the first never reaches memory:
//
//	y = silu(x * w1) * w2
//
// A workgroup owns rows of y, whose sums stay in registers, and goes through the hidden units
// in chunks, of which shared memory holds one; silu(…) is rounded to p.DType there. A kernel
// before copies the operands into the order in which invocations hold the elements of
// matrices, so that any stride and size is as fast as another. Where blocks of rows do not
// fill the device, workgroups share rows, with a part of the hidden units each, as Multiply
// does with k.
//
// X is (m, in), w1 (in, hidden) and w2 (hidden, n), of p.DType, and y (m, n) of p.Out, with
// any distance between rows. Y has memory of its own.
//
// Pair records into c and returns, as Multiply does. It returns an error that wraps
// ErrUnsupported if the device has no matrices of p.DType with eight elements for each
// invocation, left matrices and accumulators in the same places, or n is larger than the
// columns of y that a workgroup has, and an error naming the argument if a tensor does not
// fit.
func Pair(c *vk.Cmd, y, x, w1, w2 vk.Tensor, p PairProblem, opt PairOptions) (err error) {
	defer c.Keep(&err)
	plan, err := newPairPlan(c.Device().Caps(), p, &opt)
	if err != nil {
		return err
	}
	inputs := []argument.Argument{
		argument.New("x", x, true, p.DType, []int{p.M, p.In}),
		argument.New("w1", w1, true, p.DType, []int{p.In, p.Hidden}),
		argument.New("w2", w2, true, p.DType, []int{p.Hidden, p.N}),
	}
	if err := argument.Check("gemm", inputs, []argument.Argument{argument.New("y", y, true, p.Out, []int{p.M, p.N})}); err != nil {
		return err
	}
	spec, err := newPairSpec(c.Device(), p, &plan)
	if err != nil {
		return err
	}
	args := arguments{c: vk.Tensor{Buffer: y.Buffer, DType: y.DType, Shape: []int{1, p.M, p.N}, Strides: []int{0, y.Strides[0], 1}, Offset: y.Offset}}
	used := memoryPlan{bytes: plan.bytes}
	memory, at, err := used.workspace(c, &Options{Workspace: opt.Workspace, WorkspaceOffset: opt.WorkspaceOffset}, &arguments{c: args.c, a: x, b: w1, r: w2})
	if err != nil {
		return err
	}
	copies, first := region(memory, at, plan.partials)
	for i := range plan.operands {
		plan.operands[i].at += first
	}
	args.k, args.more = p.Hidden, 2*float64(p.In)*float64(p.Hidden)
	args.a = plan.operand(copies, p.DType, 0, plan.operands[0].panels*int(spec.TilesM*spec.MatM), plan.in)
	args.b = plan.operand(copies, p.DType, 1, plan.in, plan.second.K)
	run := multiplier(func(c *vk.Cmd, args arguments, p Problem, config Config) error {
		return multiplyPair(c, args, p, config, spec)
	})
	list := steps.List{func(c *vk.Cmd) error { return fragments(c, copies, [3]vk.Tensor{x, w1, w2}, plan.operands) }}
	return append(list, run.steps(args, plan.second, plan.config, memory, at+plan.partials)...).Record(c)
}

// operand returns a copy of an operand as the matrix that it stands for.
func (plan *pairPlan) operand(memory *vk.Buffer, t dtype.DType, i, rows, cols int) vk.Tensor {
	return vk.Tensor{Buffer: memory, DType: t, Shape: []int{1, rows, cols}, Strides: []int{0, cols, 1}, Offset: int(plan.operands[i].at / 2)}
}

// newPairSpec returns the constants but for those of a part: whether it is partial, and its
// epilogue.
func newPairSpec(d *vk.Device, p PairProblem, plan *pairPlan) (spec pairSpec, err error) {
	shape, _ := chips.MatrixShape(d.Caps(), p.DType)
	layout, err := chips.LayoutOf(d, p.DType, shape)
	if err != nil {
		return spec, err
	}
	if layout.Length != 8 || !layout.SameAsAcc {
		return spec, unsupported("pair: left matrices do not have the %d elements of each invocation in the places of accumulators", layout.Length)
	}
	pair := &plan.pair
	_, shared := pair.steps(int(shape.M), p)
	return pairSpec{
		WorkgroupSize: uint32(pair.Subgroups) * d.Caps().SubgroupSize,
		SubgroupsN:    uint32(pair.Subgroups),
		MatM:          shape.M,
		MatN:          shape.N,
		TilesM:        uint32(pair.TilesM),
		TilesN:        uint32(pair.TilesN),
		HiddenM:       uint32(pair.HiddenM),
		HiddenN:       uint32(pair.HiddenN),
		SharedSteps:   uint32(shared),
		Ahead:         uint32(pair.Ahead),
		Fence:         uint32(pair.Fence),
		Double:        pair.Double,
	}, nil
}

// multiplyPair records gemm_pair for some rows and hidden units.
func multiplyPair(c *vk.Cmd, args arguments, p Problem, config Config, spec pairSpec) error {
	module, err := shaders.Get("gemm_pair", p.DType.Short())
	if err != nil {
		return err
	}
	spec.Partial, spec.Epilogue = config.Splits > 1, newEpilogueSpec(args, p)
	kernel, err := vk.CachedKernel[params](c.Device(), module.Name, module.SPIRV, spec, chips.MatrixOptions(c.Device().Caps()))
	if err != nil {
		return err
	}
	return dispatch(c, kernel, args, p, config)
}
