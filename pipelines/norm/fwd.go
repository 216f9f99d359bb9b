package norm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Forward normalizes rows:
//
//	s       = round(x + residual)                    to the format of x, if there is a residual; else x
//	mean[r] = mean(s[r,:])                           0 for RMSNorm
//	rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])²) + eps)
//	y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c] + b[c]    without b unless p.Bias
//
// X, Residual, Sum and Y are (rows, cols) of p.DType with any row stride and a contiguous last
// axis. Offsets and strides that are multiples of 16 bytes are fastest. W and B are (cols) of
// p.WeightDType. Mean and RStd are (rows), float32. These four tensors are contiguous.
//
// Sums are float32. The mean is computed from differences from the row's first element, the
// variance from differences from the mean. So y and rstd are exact to some roundoffs of float32,
// relative to the largest (y-b)/w of the row, even where the mean is large against the deviation.
// Mean is rounded to float32; in such rows it may be off by up to a deviation. In float32 rows y
// is computed from a more exact mean. In 16-bit rows it is computed from Mean, which is enough:
// their numbers are at least 2^13 times as far apart.
//
// With p.Residual, Sum is s, the residual stream. It is the Residual of the next call.
//
// In LayerNorm a row of equal elements is exactly 0, or b, if eps is 2^-126 or more; a device may take a
// smaller eps for 0. A row with an infinity or a NaN is NaN.
//
// Forward records into c and returns; outputs are valid once c has completed, and have memory of
// their own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an
// error naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	d := c.Device()
	config, _, err := choose(d.Caps(), p, kit.Forward, o)
	if err != nil {
		return err
	}
	x, residual, w, b, y, sum, mean, rstd := t.X, t.Residual, t.W, t.B, t.Y, t.Sum, t.Mean, t.RStd
	save := !rstd.IsZero()
	rows, row := []int{p.Rows, p.Cols}, []int{p.Rows}
	inputs := [...]argument.Argument{
		argument.New("x", x, true, p.DType, rows),
		argument.New("residual", residual, p.Residual, p.DType, rows),
		argument.New("w", w, true, p.WeightDType, []int{p.Cols}),
		argument.New("b", b, p.Bias, p.WeightDType, []int{p.Cols}),
	}
	outputs := [...]argument.Argument{
		argument.New("y", y, true, p.DType, rows),
		argument.New("sum", sum, p.Residual, p.DType, rows),
		argument.New("mean", mean, save && !p.RMS, dtype.Float32, row),
		argument.New("rstd", rstd, save, dtype.Float32, row),
	}
	if err := argument.Check("norm", inputs[:], outputs[:]); err != nil {
		return err
	}
	vk.Narrow(&x, &residual, &w, &b, &y, &sum, &mean, &rstd)
	spec := fwdSpec{
		shared: newSharedSpec(d.Caps(), &p, config, w, x, residual, y, sum),
		Save:   save,
		Rows:   uint32(config.Rows),
	}
	spec.shared.WeightAligned = spec.shared.WeightAligned && b.Offset%4 == 0
	params := fwdParams{
		Rows: uint32(p.Rows), Cols: uint32(p.Cols), Eps: float32(p.Eps),
		XOffset: uint32(x.Offset), XStride: stride(x),
		YOffset: uint32(y.Offset), YStride: stride(y),
		WOffset:    uint32(w.Offset),
		MeanOffset: uint32(mean.Offset), RstdOffset: uint32(rstd.Offset),
	}
	if p.Residual {
		params.ResidualOffset, params.ResidualStride = uint32(residual.Offset), stride(residual)
		params.SumOffset, params.SumStride = uint32(sum.Offset), stride(sum)
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%dx%d", p.Rows, p.Cols), FLOPs: p.FLOPs(), Bytes: vk.Traffic(x, residual, w, b, y, sum, mean, rstd)}
	})
	groups := config.groups(d.Caps(), &p)
	tensors := []vk.Tensor{x, or(residual, x), w, y, or(sum, y), or(mean, y), or(rstd, y)}
	if p.Bias {
		return dispatch(c, "norm_fwd_bias", &p, config, groups, spec, fwdBiasParams{params, uint32(b.Offset)}, append(tensors, b)...)
	}
	return dispatch(c, "norm_fwd", &p, config, groups, spec, params, tensors...)
}

// fwdParams is the push-constant block of norm_fwd.comp.
type fwdParams struct {
	Rows           uint32  `glsl:"rows"`
	Cols           uint32  `glsl:"cols"`
	Eps            float32 `glsl:"eps"`
	XOffset        uint32  `glsl:"x_offset"` // elements, like all that follow
	XStride        uint32  `glsl:"x_stride"`
	ResidualOffset uint32  `glsl:"residual_offset"`
	ResidualStride uint32  `glsl:"residual_stride"`
	SumOffset      uint32  `glsl:"sum_offset"`
	SumStride      uint32  `glsl:"sum_stride"`
	YOffset        uint32  `glsl:"y_offset"`
	YStride        uint32  `glsl:"y_stride"`
	WOffset        uint32  `glsl:"w_offset"`
	MeanOffset     uint32  `glsl:"mean_offset"`
	RstdOffset     uint32  `glsl:"rstd_offset"`
}

// fwdBiasParams is the push-constant block of norm_fwd_bias.
type fwdBiasParams struct {
	fwdParams
	BOffset uint32 `glsl:"b_offset"`
}

// sharedSpec holds the specialization constants that norm_fwd.comp and norm_bwd.comp have in
// common.
type sharedSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Team          uint32 `glsl:"TEAM"`
	SubgroupTeam  bool   `glsl:"SUBGROUP_TEAM"`
	Loads         uint32 `glsl:"LOADS"`
	Centered      bool   `glsl:"CENTERED"`
	WeightF32     bool   `glsl:"WEIGHT_F32"`
	WeightAligned bool   `glsl:"WEIGHT_ALIGNED"`
	Aligned       bool   `glsl:"ALIGNED"`
	Exact         bool   `glsl:"EXACT"`
	Residual      bool   `glsl:"RESIDUAL"`
	HoldWeights   bool   `glsl:"HOLD_WEIGHTS"`
}

// fwdSpec is the specialization of norm_fwd.comp.
type fwdSpec struct {
	shared sharedSpec
	Save   bool   `glsl:"SAVE"`
	Rows   uint32 `glsl:"ROWS"`
}

// newSharedSpec returns the specialization for rows of these tensors; zero tensors are ignored.
func newSharedSpec(caps *vk.Caps, p *Problem, config Config, w vk.Tensor, rows ...vk.Tensor) sharedSpec {
	vec := vecBytes / p.DType.Size()
	return sharedSpec{
		WorkgroupSize: uint32(config.Threads),
		Team:          uint32(config.team(caps)),
		SubgroupTeam:  config.SubgroupTeam,
		Loads:         uint32(config.Loads),
		Centered:      !p.RMS,
		WeightF32:     p.WeightDType == dtype.Float32,
		WeightAligned: w.Offset%4 == 0,
		Aligned:       argument.Aligned(vec, rows...),
		Exact:         p.Cols == config.Loads*config.team(caps)*vec,
		Residual:      p.Residual,
		HoldWeights:   !config.Reload,
	}
}

// dispatch runs a kernel of this package.
func dispatch[P any](c *vk.Cmd, name string, p *Problem, config Config, groups vk.Groups, spec any, params P, t ...vk.Tensor) error {
	var o vk.KernelOptions
	if config.SubgroupTeam {
		o = vk.KernelOptions{SubgroupSize: c.Device().Caps().SubgroupSize, FullSubgroups: true}
	}
	k := chips.Kernel[P](c, name, p.DType.Short(), spec, o)
	k.Dispatch(c, groups, params, t...)
	return c.Err()
}

// rowsPerGroup returns how many rows a workgroup has at a time.
func (c *Config) rowsPerGroup(caps *vk.Caps) int { return c.Threads / c.team(caps) }

// groups returns the workgroups of the forward pass: enough for all rows in one turn, or as many
// as the device takes.
func (c *Config) groups(caps *vk.Caps, p *Problem) vk.Groups {
	return chips.Groups(caps, p.Rows, c.rowsPerGroup(caps)*c.Rows)
}

// or returns t, or instead if t is zero: a binding must hold something, but the kernel does not
// touch it.
func or(t, instead vk.Tensor) vk.Tensor {
	if t.IsZero() {
		return instead
	}
	return t
}

// stride returns the distance of rows in elements. The kernel ignores the distance of a single row.
func stride(t vk.Tensor) uint32 { return uint32(t.Strides[0]) }
