package gemm

import (
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An Impl is a path: one of the constants. Packages mlp and mixture have the same paths. Its String
// is the name that ParseImpl reads.
type Impl = engine.Impl

// The paths. Auto takes the first of the others that supports the problem. On a CPU device Scalar
// comes before CoopMat.
const (
	Auto    Impl = engine.Auto
	CoopMat Impl = engine.CoopMat
	Scalar  Impl = engine.Scalar
)

// ParseImpl accepts auto, coopmat and scalar.
func ParseImpl(name string) (Impl, error) { return engine.ParseImpl(name) }

// A Config is a path with its tile sizes. They become specialization constants.
type Config struct {
	Impl Impl

	// Path coopmat. A workgroup is a grid of SubgroupsM x SubgroupsN subgroups with
	// TilesM x TilesN accumulators each, of the device's matrix shape.
	SubgroupsM, SubgroupsN int
	TilesM, TilesN         int

	// Path scalar: Threads invocations, ThreadsX in a row, compute BlockM x BlockN
	// elements.
	BlockM, BlockN    int
	Threads, ThreadsX int

	BlockK int // depth of a k-tile

	// Path coopmat.
	LoadAhead int  // the most matrices of a k-tile that operands are loaded ahead; 0: the compiler's choice
	AlignRows bool // operands whose rows are not aligned are copied first
	PackB     bool // op(B) is copied into the order in which invocations hold its elements

	// Both paths.
	GroupM int // rows of blocks that are computed together, column by column
	Splits int // split-K: workgroups that share a block, with a part of k each; 0 and 1: none
	Rows   int // with Splits: the first rows of C whose blocks are not shared; of a batch, whole products
}

// String names every choice, for tables; ParseConfig reads it.
func (c Config) String() string { return engine.Config(c).String() }

// ParseConfig reads what String returns, as in "coopmat s2x2 t4x4 k32 g8".
func ParseConfig(text string) (Config, error) {
	c, err := engine.ParseConfig(text)
	return Config(c), err
}

// Feasible returns nil if c can compute p on a device, and otherwise the reason, which wraps
// vk.ErrUnsupported.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	return engine.Config(c).Feasible(caps, p.internal())
}

// A Plan says how a problem, or a list of them, runs on a device. It is a kit.Plan.
type Plan struct {
	Config
	Origin  kit.Origin // of Config
	kernels []string
	bytes   int64
}

// Workspace is how many bytes of memory a call needs for partial sums, for copies of operands,
// for the high and low parts of float32 operands, or for the table of a list.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order, without gemm_pack: whether an operand is copied
// depends on the alignment of its rows, which only the tensors tell.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how p would run on a device. Its errors are those of Forward about p and o. Pass
// is kit.Forward: gradients are products of their own, see the package documentation.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (Plan, error) {
	if err := argument.Pass("gemm", pass); err != nil {
		return Plan{}, err
	}
	if pass != kit.Forward {
		return Plan{}, argument.Unsupported("gemm", "pass %v: the gradients of a product are products, each a Problem of its own", pass)
	}
	opt := o.engine()
	config, origin, err := engine.ChooseOrigin(caps, p.internal(), opt)
	if err != nil {
		return Plan{}, err
	}
	opt.Config = &config
	bytes, err := engine.Workspace(caps, p.internal(), opt)
	return Plan{Config(config), kit.Origin(origin), config.Kernels(p.internal()), bytes}, err
}

// Supports returns nil if the device can compute p, and otherwise why not: an error that
// wraps vk.ErrUnsupported, or one about p or o.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have. Its errors are those of
// Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}
