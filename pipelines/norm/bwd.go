package norm

import (
	"cmp"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Backward computes the gradients of Forward. DY is the gradient of a loss by Y, and DSum that by
// Sum. With s the rows that were normalized (X, or Sum if there is a residual), for each row
//
//	z  = (s - mean) * rstd
//	g  = dy * w
//	dx = rstd * (g - mean(g) - z * mean(g * z)) + dsum    mean(g) is left out for RMSNorm
//	dw = sum over rows of dy * z
//	db = sum over rows of dy
//
// DX is the gradient of X and of Residual. Backward writes it to DResidual, too, if that is
// given. DW and DB may be left out; a kernel less runs without each.
//
// X or Sum, DY, DSum, DX and DResidual are (rows, cols) of p.DType with any row stride and a
// contiguous last axis. W, DW and DB are (cols) of p.WeightDType. Mean and RStd are (rows), float32,
// as Forward wrote them. These five tensors are contiguous. Sums are float32. B is not read.
//
// The mean that Forward wrote is rounded to float32. In float32 rows this does not show: the mean
// of z must be 0, so its actual value is taken off z. The numbers of 16-bit rows are at least
// 2^13 times as far apart. Their z is off by at most 2^-14 of the distance of two such numbers,
// times rstd.
//
// Each workgroup adds up dw and db of its rows, and a second kernel adds these sums in order: the same
// call on the same device gives the same bits. The sums need Workspace bytes of memory:
// o.Workspace, or memory of c (vk.Cmd.Scratch).
//
// Backward records into c and returns; gradients are valid once c has completed, and have memory
// of their own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and
// an error naming the tensor if one does not fit p.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	config, _, err := choose(d.Caps(), p, kit.Backward, o)
	if err != nil {
		return err
	}
	normalized, s := "x", t.X
	if p.Residual {
		normalized, s = "sum", t.Sum
	}
	w, mean, rstd := t.W, t.Mean, t.RStd
	dy, dsum, dx, dresidual, dw, db := g.DY, g.DSum, g.DX, g.DResidual, g.DW, g.DB
	rows, row := []int{p.Rows, p.Cols}, []int{p.Rows}
	inputs := [...]argument.Argument{
		argument.New(normalized, s, true, p.DType, rows),
		argument.New("dy", dy, true, p.DType, rows),
		argument.New("dsum", dsum, p.Residual, p.DType, rows),
		argument.New("w", w, true, p.WeightDType, []int{p.Cols}),
		argument.New("mean", mean, !p.RMS, dtype.Float32, row),
		argument.New("rstd", rstd, true, dtype.Float32, row),
	}
	outputs := [...]argument.Argument{
		argument.New("dx", dx, true, p.DType, rows),
		argument.New("dresidual", dresidual, p.Residual && !dresidual.IsZero(), p.DType, rows),
		argument.New("dw", dw, !dw.IsZero(), p.WeightDType, []int{p.Cols}),
		argument.New("db", db, p.Bias && !db.IsZero(), p.WeightDType, []int{p.Cols}),
	}
	groups, count := config.parts(d.Caps(), &p)
	parts, err := sumrows.Open(c, "norm", o.Workspace, count, p.Cols, inputs[:], outputs[:])
	if err != nil {
		return err
	}
	vk.Narrow(&s, &dy, &dsum, &w, &mean, &rstd, &dx, &dresidual, &dw, &db)
	spec := bwdSpec{
		shared:         newSharedSpec(d.Caps(), &p, config, w, s, dy, dsum, dx, dresidual),
		WriteDResidual: !dresidual.IsZero(),
		Ahead:          config.Ahead && config.Loads > 0,
	}
	params := bwdParams{
		Rows: uint32(p.Rows), Cols: uint32(p.Cols),
		SOffset: uint32(s.Offset), SStride: stride(s),
		DYOffset: uint32(dy.Offset), DYStride: stride(dy),
		DXOffset: uint32(dx.Offset), DXStride: stride(dx),
		WOffset: uint32(w.Offset), MeanOffset: uint32(mean.Offset), RstdOffset: uint32(rstd.Offset),
	}
	if p.Residual {
		params.DSumOffset, params.DSumStride = uint32(dsum.Offset), stride(dsum)
	}
	if !dresidual.IsZero() {
		params.DResidualOffset, params.DResidualStride = uint32(dresidual.Offset), stride(dresidual)
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%dx%d", p.Rows, p.Cols), FLOPs: p.BackwardFLOPs(), Bytes: vk.Traffic(s, dy, dsum, w, mean, rstd, dx, dresidual, parts)}
	})
	tensors := []vk.Tensor{s, dy, or(dsum, s), w, or(mean, rstd), rstd, dx, or(dresidual, dx), parts}
	if err := dispatch(c, p.kernel(kit.Backward), &p, config, vk.Groups{X: uint32(groups)}, spec, params, tensors...); err != nil {
		return err
	}
	if !p.Bias && !dw.IsZero() {
		return sumrows.Record(c, dw, parts)
	}
	for i, sums := range []vk.Tensor{dw, db} {
		if sums.IsZero() {
			continue
		}
		b, err := parts.Buffer.Slice(sumrows.Bytes(i*(count-groups), p.Cols), sumrows.Bytes(groups, p.Cols))
		if err != nil {
			return err
		}
		if err := sumrows.Record(c, sums, vk.View(b, dtype.Float32, groups, parts.Shape[1])); err != nil {
			return err
		}
	}
	return nil
}

// defaultUnits stands for the compute units of a device that does not say how many it has.
const defaultUnits = 32

// parts returns how many workgroups the backward pass has. The device at its fullest gives each
// some number of turns; groups is the fewest workgroups that need no more turns. Rows are those of
// their sums: with a bias the last groups rows are of db, from a multiple of 16 rows on, since
// tensors begin at multiples of 256 bytes.
func (c *Config) parts(caps *vk.Caps, p *Problem) (groups, rows int) {
	units := cmp.Or(int(caps.ComputeUnits), defaultUnits)
	most := min(max(units*c.Groups, 1), int(caps.MaxWorkgroupCount[0]))
	all := (p.Rows + c.rowsPerGroup(caps) - 1) / c.rowsPerGroup(caps) // turns of one workgroup
	turns := (all + most - 1) / most
	groups = (all + turns - 1) / turns
	if !p.Bias {
		return groups, groups
	}
	return groups, (groups+15)/16*16 + groups
}

// bwdParams is the push-constant block of norm_bwd.comp.
type bwdParams struct {
	Rows            uint32 `glsl:"rows"`
	Cols            uint32 `glsl:"cols"`
	SOffset         uint32 `glsl:"s_offset"` // elements, like all that follow
	SStride         uint32 `glsl:"s_stride"`
	DYOffset        uint32 `glsl:"dy_offset"`
	DYStride        uint32 `glsl:"dy_stride"`
	DSumOffset      uint32 `glsl:"dsum_offset"`
	DSumStride      uint32 `glsl:"dsum_stride"`
	DXOffset        uint32 `glsl:"dx_offset"`
	DXStride        uint32 `glsl:"dx_stride"`
	DResidualOffset uint32 `glsl:"dresidual_offset"`
	DResidualStride uint32 `glsl:"dresidual_stride"`
	WOffset         uint32 `glsl:"w_offset"`
	MeanOffset      uint32 `glsl:"mean_offset"`
	RstdOffset      uint32 `glsl:"rstd_offset"`
}

// bwdSpec is the specialization of norm_bwd.comp.
type bwdSpec struct {
	shared         sharedSpec
	WriteDResidual bool `glsl:"WRITE_DRESIDUAL"`
	Ahead          bool `glsl:"AHEAD"`
}
