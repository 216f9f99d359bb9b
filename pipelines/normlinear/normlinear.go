// Package normlinear multiplies few normalized rows by a weight, in one kernel: what a layer of a language model does with
// the residual stream of a new token, before attention, before its perceptron, and before the logits.
//
//	s       = round(x + residual)                    to the format of x, if there is a residual; else x
//	rstd[r] = 1 / sqrt(mean(s[r,:]²) + eps)
//	v[r,j]  = rstd[r] * sum over i of s[r,i] * normW[i] * w[j,i] + bias[j]
//	y       = v                                      (rows, out)
//	y[r,j]  = a(v[r,j]) * v[r,out+j]                 with GLU: the activation a of package glu
//
//	tensor            shape                              format
//	X, Residual, Sum  (rows, in)                         Problem.DType, any row stride; Sum is s
//	NormW             (in)                               float32, contiguous
//	W                 (out, in), with GLU (2 * out, in)  Problem.DType, any row stride
//	Bias              (out), with GLU (2 * out)          float32, contiguous
//	Y                 (rows, out)                        Problem.YDType(), any row stride
//
// It is norm.Forward with RMS, gemm.Forward with TransB, and glu.Forward; normalized rows and gates are not rounded between
// them. W is read once, at the speed of memory. Each workgroup reads the rows again, so they are few: MaxRows.
//
// Sums are float32, and s * normW * w is not divided by the root of the mean before it is added: sums and squares of s
// must be within float32. There is no backward pass.
//
// The same call on the same device gives the same bits. Several goroutines may call the functions; a vk.Cmd belongs to one
// of them.
package normlinear

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// MaxRows is the most rows of a call.
const MaxRows = 8

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	Rows, In   int
	Out        int            // columns of y
	GLU        bool           // W has gates in its first half of rows
	Activation glu.Activation // of GLU
	Residual   bool           // a second tensor is added to x first
	Bias       bool
	Eps        float64      // added to the mean of squares; not negative
	DType      dtype.DType  // of x, residual, sum and w
	OutDType   dtype.Option // of y; the zero value is DType
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Rows <= 0 || p.Rows > MaxRows:
		return fmt.Errorf("normlinear: rows=%d is not from 1 to %d", p.Rows, MaxRows)
	case p.In <= 0:
		return fmt.Errorf("normlinear: in=%d is not positive", p.In)
	case p.Out <= 0:
		return fmt.Errorf("normlinear: out=%d is not positive", p.Out)
	case max(p.weights(), float64(MaxRows*p.Out), float64(MaxRows*p.In)) > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("normlinear: out=%d by in=%d are more than %d weights", p.Out, p.In, uint32(math.MaxUint32))
	case !p.GLU && p.Activation != 0:
		return fmt.Errorf("normlinear: activation=%v without glu", p.Activation)
	case p.Activation > glu.GELUTanh:
		return fmt.Errorf("normlinear: activation=%v is not one of silu, gelu, gelu-tanh", p.Activation)
	case math.IsNaN(p.Eps) || p.Eps < 0 || math.IsInf(float64(float32(p.Eps)), 0):
		return fmt.Errorf("normlinear: eps=%g is not a finite number from 0 on", p.Eps)
	case !p.DType.Valid() || !p.DType.Float():
		return fmt.Errorf("normlinear: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case !p.YDType().Valid() || !p.YDType().Float():
		return fmt.Errorf("normlinear: out dtype=%v is not one of float32, float16, bfloat16", p.YDType())
	}
	return nil
}

// YDType returns the format of Y.
func (p Problem) YDType() dtype.DType { return p.OutDType.Or(p.DType) }

// WRows returns the rows of W.
func (p Problem) WRows() int {
	if p.GLU {
		return 2 * p.Out
	}
	return p.Out
}

func (p *Problem) weights() float64 { return float64(p.WRows()) * float64(p.In) }

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%v, %d rows of %d, out %d", p.DType, p.Rows, p.In, p.Out)
	if p.GLU {
		s += fmt.Sprintf(", %v", p.Activation)
	}
	return s
}

// FLOPs returns the operations of the product, two for each weight and row.
func (p Problem) FLOPs() float64 { return 2 * float64(p.Rows) * p.weights() }

// Bytes returns the least memory traffic: w, x, residual, normW and bias are read, y and sum written.
func (p Problem) Bytes() float64 {
	rows, columns := 1.0, float64(p.In)
	if p.Residual {
		rows = 3
	}
	if p.Bias {
		columns += float64(p.WRows())
	}
	size := float64(p.DType.Size())
	return size*(p.weights()+rows*float64(p.Rows*p.In)) + 4*columns + float64(p.Rows*p.Out*p.YDType().Size())
}

// Tensors are what Forward reads and writes.
type Tensors struct {
	X        vk.Tensor
	Residual vk.Tensor // exactly if Problem.Residual
	NormW    vk.Tensor
	W        vk.Tensor
	Bias     vk.Tensor // exactly if Problem.Bias
	Y        vk.Tensor // written
	Sum      vk.Tensor // written; exactly if Problem.Residual
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Config forces tile sizes. It must be feasible, and is for tuning and tests.
	Config *Config
	// Tuning has rows measured on the device; these rows come before the built-in ones. Nil is none.
	// kit.LoadTuningFile reads one.
	Tuning    *kit.Tuning
	Workspace *vk.Buffer // for the contract of package kit; no call needs one
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	Config
	Origin kit.Origin // of Config
}

// Workspace is 0.
func (Plan) Workspace() int64 { return 0 }

// Kernels lists the module that runs.
func (Plan) Kernels() []string { return []string{"normlinear"} }

// Choose returns how p would run on a device. Errors about p are as in Forward. There is no backward pass.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (plan Plan, err error) {
	if err := cmp.Or(p.Validate(), argument.Pass("normlinear", pass)); err != nil {
		return plan, err
	}
	if pass == kit.Backward {
		return plan, argument.Unsupported("normlinear", "there is no backward pass")
	}
	if o.Config != nil {
		return Plan{Config: *o.Config}, o.Config.Feasible(caps, p)
	}
	plan.Config, plan.Origin, err = configs.Choose(caps, &p, query(o.Tuning))
	return plan, err
}

// Supports returns nil if the device can compute p, and otherwise an error: one of
// Problem.Validate, or one that wraps vk.ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns 0: no call needs memory. Errors are as in Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	return 0, Supports(caps, p, pass, o)
}

// Forward computes the product of normalized rows, in one dispatch; the package documentation has the formulas.
//
// Offsets and strides of X, Residual, W and Sum that are multiples of 16 bytes, as is the length of a row, and an offset of
// NormW that is one, are fastest. An element that the format of Y cannot hold is the infinity that it rounds to.
//
// Forward records into c and returns; Y and Sum are valid once c has completed, and have memory of their own. It returns an
// error that wraps vk.ErrUnsupported if the device cannot do it, and an error naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	caps := c.Device().Caps()
	plan, err := Choose(caps, p, kit.Forward, o)
	if err != nil {
		return err
	}
	rows := []int{p.Rows, p.In}
	if err := argument.Check("normlinear", []argument.Argument{
		argument.New("x", t.X, true, p.DType, rows),
		argument.New("residual", t.Residual, p.Residual, p.DType, rows),
		argument.New("norm_w", t.NormW, true, dtype.Float32, []int{p.In}),
		argument.New("w", t.W, true, p.DType, []int{p.WRows(), p.In}),
		argument.New("bias", t.Bias, p.Bias, dtype.Float32, []int{p.WRows()}),
	}, []argument.Argument{
		argument.New("y", t.Y, true, p.YDType(), []int{p.Rows, p.Out}),
		argument.New("sum", t.Sum, p.Residual, p.DType, rows),
	}); err != nil {
		return err
	}
	vk.Narrow(&t.X, &t.Residual, &t.NormW, &t.W, &t.Bias, &t.Y, &t.Sum)
	residual, bias, sum := t.X, t.NormW, t.Y // which the kernel does not touch as such
	args := params{
		In: uint32(p.In), Out: uint32(p.Out), Eps: float32(p.Eps), X: argument.RowsOf(t.X), W: argument.RowsOf(t.W), Y: argument.RowsOf(t.Y), NormWOffset: uint32(t.NormW.Offset),
	}
	if p.Residual {
		residual, sum, args.Residual, args.Sum = t.Residual, t.Sum, argument.RowsOf(t.Residual), argument.RowsOf(t.Sum)
	}
	if p.Bias {
		bias, args.BiasOffset = t.Bias, uint32(t.Bias.Offset)
	}
	k := chips.Kernel[params](c, "normlinear", p.DType.Short(), newSpec(&t, &p, plan.Config), vk.KernelOptions{})
	c.Note(func() vk.Note { return vk.Note{Text: p.String(), FLOPs: p.FLOPs(), Bytes: p.Bytes()} })
	k.Dispatch(c, chips.Groups(caps, plan.blocks(&p), 1), args, t.X, residual, t.NormW, t.W, bias, t.Y, sum)
	return c.Err()
}

// params is the push-constant block of normlinear.comp.
type params struct {
	In          uint32        `glsl:"k"`
	Out         uint32        `glsl:"n"`
	Eps         float32       `glsl:"eps"`
	X           argument.Rows `glsl:"x"`
	Residual    argument.Rows `glsl:"residual"`
	W           argument.Rows `glsl:"w"`
	Y           argument.Rows `glsl:"y"`
	Sum         argument.Rows `glsl:"sum"`
	NormWOffset uint32        `glsl:"norm_w_offset"`
	BiasOffset  uint32        `glsl:"bias_offset"`
}

// spec is the specialization of normlinear.comp. Activations have their numbers there.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Team          uint32 `glsl:"TEAM"`
	Rows          uint32 `glsl:"ROWS"`
	Loads         uint32 `glsl:"LOADS"`
	Steps         uint32 `glsl:"STEPS"`
	Together      uint32 `glsl:"TOGETHER"`
	GLU           bool   `glsl:"GLU"`
	Activation    uint32 `glsl:"ACTIVATION"`
	Residual      bool   `glsl:"RESIDUAL"`
	Bias          bool   `glsl:"BIAS"`
	Format        uint32 `glsl:"FORMAT"`
	Aligned       bool   `glsl:"ALIGNED"`
	Whole         bool   `glsl:"WHOLE"`
}

func newSpec(t *Tensors, p *Problem, c Config) spec {
	vec := vecBytes / p.DType.Size()
	return spec{
		WorkgroupSize: uint32(c.Threads), Team: uint32(c.Team), Rows: uint32(p.Rows), Loads: uint32(c.Loads), Steps: uint32(c.Steps), Together: uint32(c.together()),
		GLU: p.GLU, Activation: uint32(p.Activation), Residual: p.Residual, Bias: p.Bias, Format: chips.Format(p.YDType()),
		Aligned: t.NormW.Offset%4 == 0 && argument.Aligned(vec, t.X, t.Residual, t.W, t.Sum), Whole: p.In%vec == 0,
	}
}
