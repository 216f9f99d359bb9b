// Package gemm multiplies matrices on a Vulkan device, with an epilogue.
//
//	v = Alpha * op(A) * op(B) + Beta * C + Bias
//	X = v                    SiLUKeep
//	v = silu(v)              SiLU and SiLUKeep
//	v = v * silu'(X)         TimesDSiLU and TimesDSiLUKeep
//	S = silu(X)              TimesDSiLUKeep
//	C = v + Residual         Residual
//
// and the same with both forms of gelu.
//
//	tensor               shape          format
//	op(A)                (batch, m, k)  DType    A itself is (batch, k, m) with TransA
//	op(B)                (batch, k, n)  DType    B itself is (batch, n, k) with TransB
//	C, Residual, X, S    (batch, m, n)  Out
//	Bias                 (batch, n)     Out or float32
//
// Sums are float32 in all formats. [Forward] takes the fastest path that the device and the
// problem allow. Options.Impl forces one:
//
//	path     needs                                operands in
//	coopmat  VK_KHR_cooperative_matrix            shared memory
//	scalar   Vulkan 1.2 compute                   shared memory
//	gemv     the same, and TransA is not set      registers
//
// Path gemv is for few rows, as a step of a language model has: it loads op(B) at the speed of
// memory. Forward takes it for up to 16 rows with TransB, for up to 8 without. For 16-bit formats and TransB its
// products may be on the device's matrices (Config.Matrix).
//
// A small C has too few blocks to fill the device. Where k is long, several workgroups then share
// a block, each with a part of k (split-K), and a second kernel adds up their partial sums in a
// fixed order. Where C has several waves of workgroups, only the blocks of the last are divided.
// Operands whose rows are not aligned are copied where that pays. An op(B) that meets many rows
// of op(A) is packed: copied into the order in which invocations hold its elements.
//
// Path coopmat computes float32 products on float16 matrices. Each operand is the sum of a high
// and a low float16, scaled row by row of op(A) and column by column of op(B), and three products
// make one. The errors are as small as in float32: a term a*b is off by 2^-21 of its size at most
// and by 2^-24 on average, and long sums are closer than in a plain float32 program. Three things
// differ from plain arithmetic. An element below 2^-27 of the largest of its row or column has an
// error of 2^-50 of that largest. The error shows where the largest meets a zero. A row or column
// with an Inf or a NaN gives NaN. Subnormal numbers may count as 0. Path scalar is plain
// arithmetic. Auto takes path scalar for small float32 products, and for products whose high and
// low parts do not fit into a buffer.
//
// [ForwardGroup] computes products of different sizes in one launch.
//
// There is no Backward, because gradients are products, too. With dV the gradient by v, and Alpha
// the Alpha of the product,
//
//	dV = dC                                      Identity
//	dV = dC ∘ silu'(X)                           SiLUKeep: TimesDSiLU in the product that makes dC; so with gelu
//	dA = Alpha * dV * op(B)ᵀ                     M, N, K are m, k, n: A is dV, B is B; TransB is the opposite
//	dA = Alpha * op(B) * dVᵀ                     TransA: they are k, m, n: A is B, with TransA as TransB was; B is dV, TransB
//	dB = Alpha * op(A)ᵀ * dV                     M, N, K are k, n, m: A is A, TransA is the opposite; B is dV
//	dB = Alpha * dVᵀ * op(A)                     TransB: they are n, k, m: A is dV, TransA; B is A, with TransB as TransA was
//	dC = Beta * dV, dResidual = dC               by what C held before, and by Residual
//	dBias = sum of the rows of dV                Ones: M, N, K are 1, n, m: B is dV
//
// Package mlp has two products in a row, with their gradients.
//
// Tensors are views of device buffers: (batch, rows, columns) or, without batch, (rows, columns).
// The last axis is contiguous. All paths are deterministic: the same call on the same device
// gives the same bits.
//
// Several goroutines may call the functions. A vk.Cmd belongs to one of them.
package gemm

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes.
type Tensors struct {
	A, B     vk.Tensor // A exactly without Problem.Ones
	C        vk.Tensor // written; read with Problem.Beta
	Bias     vk.Tensor // exactly if Problem.Bias
	Residual vk.Tensor // exactly if Problem.Residual
	X        vk.Tensor // exactly with SiLUKeep, which writes it, TimesDSiLU and TimesDSiLUKeep
	S        vk.Tensor // written; exactly with TimesDSiLUKeep
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration instead of the tuning table's. It must be feasible, and is
	// for tuning and tests. ForwardGroup takes none that copies operands or divides k.
	Config *Config
	// Tuning has rows measured on the device; these rows come before the rows of the built-in
	// table. kit.LoadTuningFile reads a Tuning. Nil is none. ForwardGroup ignores Tuning: no row is
	// for a list.
	Tuning *kit.Tuning
	// Workspace is memory for the call, at least as many bytes as the function Workspace says.
	// Its content is lost. Calls that share it run one after the other. Nil takes memory of the
	// Cmd.
	Workspace *vk.Buffer
}

// engine returns the options as the engine wants them.
func (o Options) engine() engine.Options {
	return engine.Options{Impl: o.Impl, Config: (*engine.Config)(o.Config), Tuning: o.Tuning, Workspace: o.Workspace}
}

// Forward computes
//
//	v = Alpha * op(A) * op(B) + Beta * C
//	C = epilogue(v)
//
// for every product of the batch. The package documentation has the epilogue.
//
// C, Residual, X and S are (batch, m, n) of p.OutDType(). A is (batch, m, k), with p.TransA
// (batch, k, m). B is (batch, k, n), with p.TransB (batch, n, k). Both are of p.DType. A batch of
// 1 may lack that axis. Bias is (batch, n) of p.OutDType() or float32. All tensors may have any
// strides with a contiguous last axis; the batch stride of A, B, Bias and Residual may be 0. Strides and offsets are fastest as multiples of 8
// elements for A and B and of 4 for the rest.
//
// The outputs are C, S, and X with SiLUKeep. Each has memory of its own, with two exceptions
// where the elements coincide: C may be Residual or an X that is read, and S may be such an X.
//
// Forward records into c and returns; the outputs are valid once c has completed.
//
// It returns an error that wraps vk.ErrUnsupported if no path on the device handles p, and an
// error naming the argument if a tensor does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) error {
	return engine.Multiply(c, engine.Tensors(t), p.internal(), o.engine())
}

// A Problem is a batch of matrix products of one shape, with an epilogue; the package
// documentation has the formula. The zero value of an option leaves it out. Problems are
// comparable.
type Problem struct {
	Batch          int // 0 is 1
	M, N, K        int
	TransA, TransB bool
	Ones           bool    // op(A) is ones, and there is no A: a row of C is the sum of the rows of op(B)
	Alpha          float64 // 0 is 1
	Beta           float64 // 0: C is not read
	Activation     Activation
	Bias           bool // not with TimesDSiLU and the like
	Residual       bool
	DType          dtype.DType  // of A and B
	Out            dtype.Option // of C, Residual, X and S; the zero value is DType
}

// An Activation is what the epilogue does to the sum: one of the constants. Its String is the name that
// the program has for it: silu-keep.
type Activation = problem.Activation

// The activations, with
//
//	silu(v) = v / (1 + exp(-v))
//	gelu(v) = v/2 * (1 + erf(v/√2))                              GELU
//	gelu(v) = v/2 * (1 + tanh(√(2/π) * (v + 0.044715 * v³)))     GELUTanh
//
// Each form of silu also exists for both gelu.
const (
	Identity       = problem.Identity       // C = v
	SiLU           = problem.SiLU           // C = silu(v)
	SiLUKeep       = problem.SiLUKeep       // X = v, C = silu(v): the gradient needs X
	TimesDSiLU     = problem.TimesDSiLU     // C = v * silu'(X): the gradient of silu at X
	TimesDSiLUKeep = problem.TimesDSiLUKeep // the same, and S = silu(X): the gradient of the next product needs S

	GELU               = problem.GELU
	GELUKeep           = problem.GELUKeep
	TimesDGELU         = problem.TimesDGELU
	TimesDGELUKeep     = problem.TimesDGELUKeep
	GELUTanh           = problem.GELUTanh
	GELUTanhKeep       = problem.GELUTanhKeep
	TimesDGELUTanh     = problem.TimesDGELUTanh
	TimesDGELUTanhKeep = problem.TimesDGELUTanhKeep
)

// OutDType returns the format of C, Residual, X and S.
func (p Problem) OutDType() dtype.DType { return p.Out.Or(p.DType) }

// internal returns the problem as the engine has it.
func (p Problem) internal() problem.Problem {
	return problem.Problem{
		Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, Ones: p.Ones, Alpha: p.Alpha, Beta: p.Beta,
		Activation: p.Activation, Bias: p.Bias, Residual: p.Residual, DType: p.DType, Out: p.OutDType(),
	}
}

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error { return p.internal().Validate() }

// String describes the problem in a few words: sizes, transposes as BLAS writes them (nn, nt, tn,
// tt), formats, and the epilogue.
func (p Problem) String() string { return p.internal().String() }

// FLOPs returns the operations of the products, 2*m*n*k for each.
func (p Problem) FLOPs() float64 { return p.internal().FLOPs() }

// Bytes returns the least memory traffic: each tensor once, C twice if it is read.
func (p Problem) Bytes() float64 { return p.internal().Bytes() }

// AShape, BShape and CShape are the shapes of tensors in memory. Residual, X and S have the shape
// of C, and BiasShape is that of Bias.
func (p Problem) AShape() []int    { return p.internal().AShape() }
func (p Problem) BShape() []int    { return p.internal().BShape() }
func (p Problem) CShape() []int    { return p.internal().CShape() }
func (p Problem) BiasShape() []int { return p.internal().BiasShape() }

// An Impl is a path: one of the constants. Packages mlp and mixture have the same paths. Its String
// is the name that ParseImpl reads. GEMV is a path of this package alone.
type Impl = engine.Impl

// The paths. Auto takes the first of the others that supports the problem. On a CPU device Scalar
// comes before CoopMat.
const (
	Auto    Impl = engine.Auto
	CoopMat Impl = engine.CoopMat
	Scalar  Impl = engine.Scalar
	GEMV    Impl = engine.GEMV // Auto tries it first, for up to 16 rows with TransB, 8 without
)

// ParseImpl accepts auto, coopmat, scalar and gemv.
func ParseImpl(name string) (Impl, error) { return engine.ParseImpl(name) }

// A Config is a path with its tile sizes. They become specialization constants.
type Config struct {
	Impl Impl

	// Path coopmat. A workgroup is a grid of SubgroupsM x SubgroupsN subgroups with
	// TilesM x TilesN accumulators each, of the device's matrix shape.
	SubgroupsM, SubgroupsN int
	TilesM, TilesN         int

	// Paths scalar and gemv: Threads invocations, ThreadsX in a row, compute BlockM x BlockN
	// elements. Of gemv a row divides k among its invocations, which have the same elements.
	BlockM, BlockN    int
	Threads, ThreadsX int

	BlockK int // depth of a k-tile

	Matrix bool // path gemv, for 16-bit formats and TransB: products on the device's matrices, with subgroups in place of invocations of a row

	// Path coopmat.
	LoadAhead int  // the most matrices of a k-tile that operands are loaded ahead; 0: the compiler's choice
	AlignRows bool // operands whose rows are not aligned are copied first
	PackB     bool // op(B) is copied into the order in which invocations hold its elements

	// All paths.
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

// Kernels lists the modules that run, in order, without gemm_align: whether an operand is copied
// depends on the alignment of its rows, which only the tensors tell.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how p would run on a device. Errors about p and o are as in Forward. Pass is
// kit.Forward: gradients are products of their own, see the package documentation.
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
	return Plan{Config(config), origin, config.Kernels(p.internal()), bytes}, err
}

// Supports returns nil if the device can compute p, and otherwise why not: an error that
// wraps vk.ErrUnsupported, or one about p or o.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have, with the errors of Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}

// ForwardGroup computes products of different sizes in one launch, whatever their number: t[i]
// and list[i] are the tensors and the problem of product i, with the epilogue of Forward.
//
//	products          blocks of C                  workgroups
//	0   3x2 blocks    0 1 2 3 4 5                  0 1 2 3 4 5
//	1   no rows
//	2   1x2 blocks    0 1                                      6 7
//	3   2x2 blocks    0 1 2 3                                      8 9 10 11
//
// A workgroup finds its product in a table of sizes and offsets. The products with the longest k
// come first: the workgroups that finish last are short.
//
// The problems differ in M, N, K, Alpha and Beta alone. They have no batch: tensors are matrices.
// Every A is a view of one buffer, as the rows of the experts are views of all tokens. The same
// holds for every B, every C and the others. Products may share A and B. Outputs have memory of
// their own, as in Forward; they may be columns of one matrix.
//
// A product with M = 0 or N = 0 does nothing, and its tensors may be zero. Such is an expert
// without a token. A list of nothing else, or an empty one, launches nothing. A product with K =
// 0 needs no A and B: C = epilogue(Beta * C), as in BLAS and torch._grouped_mm. So the gradient
// of the weights of an expert without a token is 0.
//
// Kernels load eight elements of A and B and four of the rest at a time if the offsets and
// strides of all products are multiples of that. One product with other strides makes all products
// slower. Nothing is copied, and k is not divided. Float32 operands take path scalar, since path
// coopmat needs copies of them.
//
// ForwardGroup records into c and returns, as Forward does. The table is a part of the recording:
// c may be submitted again and again, and the caller may change t and list. Unlike Forward,
// ForwardGroup records a transfer to the workspace. Errors are as in Forward, and name the product.
func ForwardGroup(c *vk.Cmd, t []Tensors, list []Problem, o Options) (err error) {
	defer c.Keep(&err)
	tensors := make([]engine.Tensors, len(t))
	for i := range t {
		tensors[i] = engine.Tensors(t[i])
	}
	return engine.MultiplyGroup(c, tensors, group(list), o.engine())
}

// ChooseGroup returns how ForwardGroup would run on a device. Plan.Workspace is how many bytes
// Options.Workspace must have. Errors are the errors of ForwardGroup about list and o.
func ChooseGroup(caps *vk.Caps, list []Problem, o Options) (Plan, error) {
	g := group(list)
	config, err := engine.ChooseGroup(caps, g, o.engine())
	if err != nil {
		return Plan{}, err
	}
	return Plan{Config(config), kit.Origin{}, config.GroupKernels(), engine.GroupWorkspace(g)}, nil
}

// group returns the products as the engine wants them.
func group(list []Problem) (problems []engine.Problem) {
	for _, p := range list {
		problems = append(problems, p.internal())
	}
	return problems
}
