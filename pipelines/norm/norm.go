// Package norm normalizes the rows of a matrix by mean and deviation (LayerNorm) or by
// the root mean square (RMSNorm), with a weight and an optional bias, and computes the gradients.
//
//	s       = round(x + residual)                    to the format of x, if there is a residual; else x
//	mean[r] = mean(s[r,:])                           0 for RMSNorm
//	rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])²) + eps)
//	y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c] + b[c]    without b unless Problem.Bias
//
//	tensor                                       shape         format
//	X, Residual, Sum, Y, DY, DSum, DX, DResidual  (rows, cols)  Problem.DType, any row stride
//	W, B, DW, DB                                  (cols)        Problem.WeightDType, contiguous
//	Mean, RStd                                   (rows)        float32, contiguous
//
// [Forward] and [Backward] record kernels. [Choose] decides how many invocations share a
// row (Config):
//
//	row of up to 4 vectors of 16 bytes for each invocation of a subgroup   a subgroup
//	longer                                                                 a workgroup
//	longer than the registers of a workgroup                               a workgroup, from memory
//
// The same call on the same device gives the same bits.
//
// Several goroutines may call the functions; a vk.Cmd belongs to one of them.
package norm

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes. Backward reads them again, but for Residual, B and Y.
type Tensors struct {
	X        vk.Tensor
	Residual vk.Tensor // exactly if Problem.Residual
	W        vk.Tensor
	B        vk.Tensor // exactly if Problem.Bias
	Y        vk.Tensor // written
	Sum      vk.Tensor // written; exactly if Problem.Residual
	Mean     vk.Tensor // written; not of RMSNorm
	RStd     vk.Tensor // written; Forward may leave out Mean and RStd, Backward needs them
}

// Gradients are what Backward reads and writes: DY and DSum, the gradients of a loss by Y and
// Sum, are read.
type Gradients struct {
	DY   vk.Tensor
	DSum vk.Tensor // exactly if Problem.Residual

	DX        vk.Tensor
	DResidual vk.Tensor // a copy of DX; may be left out
	DW        vk.Tensor // may be left out
	DB        vk.Tensor // only if Problem.Bias; may be left out
}

func unsupported(format string, args ...any) error {
	return argument.Unsupported("norm", format, args...)
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Config forces how invocations share rows. It must be feasible, and is for tuning and tests.
	Config *Config
	// Tuning has rows measured on the device; these rows come before the package's own rule. Nil is
	// none. kit.LoadTuningFile reads one.
	Tuning *kit.Tuning
	// Workspace is memory for Backward, at least as many bytes as the function Workspace says.
	// Its content is lost. Calls that share it run one after the other. Nil takes memory of the
	// Cmd.
	Workspace *vk.Buffer
}

// A Config says how the invocations of a workgroup share rows.
type Config struct {
	Threads      int  `word:"wg%d"`                       // of a workgroup
	SubgroupTeam bool `word:"subgroup"`                   // a subgroup has a row; else the workgroup has
	Loads        int  `word:"loads%d"`                    // vectors of 16 bytes of each tensor that an invocation keeps in registers; 0: the row is read again
	Rows         int  `word:"rows%d"`                     // forward: rows that a team has at a time, 1, 2 or 4
	Groups       int  `word:"groups%d" vary:"1 2 4 8 16"` // backward: workgroups for each compute unit
	Ahead        bool `word:"ahead" vary:"0 1"`           // backward: the next row is loaded while a row is computed
	Reload       bool `word:"reload" vary:"0 1"`          // the weights are loaded for each row, not kept in registers
}

// String names the choices in a few words, which ParseConfig reads.
func (c Config) String() string { return table.Text(c) }

// ParseConfig reads what Config.String writes, as in "wg256 subgroup loads2 rows1 groups4".
func ParseConfig(text string) (Config, error) { return table.Parse[Config]("norm", text) }

const (
	// maxLoads is how many vectors of a row an invocation keeps at most, MAX_LOADS of
	// shaders/lib/norm.glsl. Each tensor takes 16 registers of 4 bytes then. With the weights,
	// the widened elements of a vector and, in the backward pass, a sum for each column, an
	// invocation has fewer than 128 registers.
	maxLoads = 4
	// threads are the invocations of a workgroup where a subgroup has a row.
	threads = 256
	// leastThreads are the invocations of a workgroup that has a row, if they suffice: few
	// invocations wait less for each other.
	leastThreads = 64
)

// vecBytes is the size of a vector of shaders/lib/vec16.glsl.
const vecBytes = 16

// vecs returns how many vectors a row has.
func vecs(p *Problem) int {
	vec := vecBytes / p.DType.Size()
	return (p.Cols + vec - 1) / vec
}

// team returns how many invocations share a row.
func (c *Config) team(caps *vk.Caps) int {
	if c.SubgroupTeam {
		return int(caps.SubgroupSize)
	}
	return c.Threads
}

// Feasible returns nil if the device can run c for p, and otherwise an error that
// wraps vk.ErrUnsupported.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	limit := int(min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0]))
	if err := argument.Storage("norm", caps, p.DType); err != nil {
		return err
	}
	switch {
	case !caps.SubgroupOps.Has(vk.SubgroupBasic | vk.SubgroupArithmetic):
		return unsupported("the device has no subgroup arithmetic")
	case c.Threads <= 0 || c.Threads&(c.Threads-1) != 0 || c.Threads > limit:
		return unsupported("workgroup of %d invocations is not a power of two up to %d", c.Threads, limit)
	case c.SubgroupTeam && !fullSubgroups(caps):
		return unsupported("the device promises no full subgroups of one size")
	case c.SubgroupTeam && c.Threads < int(caps.SubgroupSize):
		return unsupported("workgroup of %d invocations is less than a subgroup of %d", c.Threads, caps.SubgroupSize)
	case c.SubgroupTeam && caps.MaxWorkgroupSubgroups != 0 && c.Threads > int(caps.SubgroupSize*caps.MaxWorkgroupSubgroups):
		return unsupported("workgroup of %d invocations is more than %d subgroups of %d", c.Threads, caps.MaxWorkgroupSubgroups, caps.SubgroupSize)
	case c.SubgroupTeam && c.Loads == 0:
		return unsupported("a subgroup keeps its rows in registers")
	case c.Loads < 0 || c.Loads > maxLoads:
		return unsupported("loads=%d is not in 0..%d", c.Loads, maxLoads)
	case c.Rows != 1 && (c.Rows != 2 && c.Rows != 4 || !c.SubgroupTeam):
		return unsupported("rows=%d is not 1 or, of a subgroup, 2 or 4", c.Rows)
	case c.Groups <= 0:
		return unsupported("groups=%d is not positive", c.Groups)
	case c.Loads > 0 && c.Loads*c.team(caps) < vecs(&p):
		return unsupported("loads=%d of %d invocations are less than the %d vectors of a row", c.Loads, c.team(caps), vecs(&p))
	case sharedBytes*c.Threads > int(caps.MaxSharedMemoryBytes):
		return unsupported("workgroup of %d invocations needs %d bytes of shared memory, the device has %d", c.Threads, sharedBytes*c.Threads, caps.MaxSharedMemoryBytes)
	}
	return nil
}

// sharedBytes is the shared memory of norm_bwd for each invocation: a vec3, which is padded to a
// vec4, and a vec4.
const sharedBytes = 32

// fullSubgroups reports whether the device can guarantee full subgroups of caps.SubgroupSize
// invocations.
func fullSubgroups(caps *vk.Caps) bool {
	one := caps.MinSubgroupSize == caps.MaxSubgroupSize && caps.MinSubgroupSize == caps.SubgroupSize
	return caps.ComputeFullSubgroups && (caps.SubgroupSizeControl || one)
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	Config
	Origin  kit.Origin // of Config
	kernels []string
	bytes   int64
}

// Workspace is how many bytes of memory a call needs: for Backward 4 for each column and
// workgroup, with a bias twice as many, else 0.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how p would run on a device. Errors about p and o are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (Plan, error) {
	config, origin, err := choose(caps, p, pass, o)
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{Config: config, Origin: origin, kernels: []string{p.kernel(pass)}}
	if pass == kit.Backward {
		_, rows := config.parts(caps, &p)
		plan.kernels, plan.bytes = append(plan.kernels, "sum_rows"), sumrows.Bytes(rows, p.Cols)
	}
	return plan, nil
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

// choose returns how rows are shared.
func choose(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) (c Config, origin table.Origin, err error) {
	if err := cmp.Or(p.Validate(), argument.Pass("norm", pass)); err != nil {
		return c, origin, err
	}
	if opt.Config != nil {
		return *opt.Config, origin, opt.Config.Feasible(caps, p)
	}
	configs := fwdTable
	if pass == kit.Backward {
		configs = bwdTable
	}
	return configs.Choose(caps, &p, table.Query[Config]{Path: onlyPath, Tuning: opt.Tuning})
}

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	Rows, Cols int
	// RMS leaves out the mean: RMSNorm, not LayerNorm.
	RMS bool
	// Eps is added to the variance of a row; it is not negative. In LayerNorm a row of equal
	// elements is 0 if Eps is positive, and NaN if it is 0.
	Eps float64
	// DType is the format of all tensors but the weight and the statistics.
	DType dtype.DType
	// WeightDType is the format of weight and bias and of their gradients: Float32 or DType.
	WeightDType dtype.DType
	// Residual adds a second tensor to x before the normalization.
	Residual bool
	// Bias adds a row to each row of y, as GPT-2's LayerNorm does.
	Bias bool
}

// kernel returns the name of the module of a pass.
func (p *Problem) kernel(pass kit.Pass) string {
	name := map[kit.Pass]string{kit.Forward: "norm_fwd", kit.Backward: "norm_bwd"}[pass]
	if p.Bias {
		name += "_bias"
	}
	return name
}

// maxElements bounds the elements of a tensor: kernels count them in 32 bits.
const maxElements = math.MaxUint32

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Rows <= 0:
		return fmt.Errorf("norm: rows=%d is not positive", p.Rows)
	case p.Cols <= 0:
		return fmt.Errorf("norm: cols=%d is not positive", p.Cols)
	case float64(p.Rows)*float64(p.Cols) > maxElements:
		return fmt.Errorf("norm: rows=%d by cols=%d are more than %d elements", p.Rows, p.Cols, uint32(maxElements))
	case math.IsNaN(p.Eps) || p.Eps < 0 || math.IsInf(float64(float32(p.Eps)), 0):
		return fmt.Errorf("norm: eps=%g is not a finite number from 0 on", p.Eps)
	case !p.DType.Valid() || !p.DType.Float():
		return fmt.Errorf("norm: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case p.WeightDType != p.DType && p.WeightDType != dtype.Float32:
		return fmt.Errorf("norm: weight dtype=%v is neither float32 nor %v, the dtype of the rows", p.WeightDType, p.DType)
	}
	return nil
}

// String names the problem as benchmarks do.
func (p Problem) String() string {
	kind := "layer"
	if p.RMS {
		kind = "rms"
	}
	s := fmt.Sprintf("kind=%s/dtype=%v/weight=%v/rows=%d/cols=%d/residual=%v", kind, p.DType, p.WeightDType, p.Rows, p.Cols, p.Residual)
	if p.Bias {
		s += "/bias=true"
	}
	return s
}

// Bytes returns the least traffic of the forward pass: x, residual, weight and bias read, y,
// sum and the statistics written.
func (p Problem) Bytes() float64 {
	n := float64(p.Rows) * float64(p.Cols) * float64(p.DType.Size())
	tensors := 2.0
	if p.Residual {
		tensors = 4
	}
	return tensors*n + p.columns()*float64(p.Cols*p.WeightDType.Size()) + p.statBytes()
}

// BackwardBytes returns the memory traffic of the backward pass: dy, the normalized rows, weight and statistics
// are read, dx and the gradients of weight and bias written. With a residual, dsum is read, too.
func (p Problem) BackwardBytes() float64 {
	n := float64(p.Rows) * float64(p.Cols) * float64(p.DType.Size())
	tensors := 3.0
	if p.Residual {
		tensors = 4
	}
	return tensors*n + (1+p.columns())*float64(p.Cols*p.WeightDType.Size()) + p.statBytes()
}

// columns returns how many rows of p.Cols weights and biases there are.
func (p Problem) columns() float64 {
	if p.Bias {
		return 2
	}
	return 1
}

func (p Problem) statBytes() float64 {
	if p.RMS {
		return 4 * float64(p.Rows)
	}
	return 8 * float64(p.Rows)
}

// FLOPs returns the operations of the forward pass, counted as the formulas are
// written: 7 for each element (sum, difference, square, sum, difference, two products),
// 4 without the mean, and 1 more each for a residual and a bias.
func (p Problem) FLOPs() float64 {
	per := 7.0
	if p.RMS {
		per = 4
	}
	if p.Residual {
		per++
	}
	return (per + p.columns() - 1) * float64(p.Rows) * float64(p.Cols)
}

// BackwardFLOPs returns the operations of the backward pass: 13 for each element, 9 without
// the mean, and 1 more each for a residual and a bias.
func (p Problem) BackwardFLOPs() float64 {
	per := 13.0
	if p.RMS {
		per = 9
	}
	if p.Residual {
		per++
	}
	return (per + p.columns() - 1) * float64(p.Rows) * float64(p.Cols)
}
