package call

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Norm is a call of norm.Forward or norm.Backward.
type Norm struct {
	norm.Problem
	Direction
	Save      bool // forward: mean and rstd are written
	DResidual bool // backward: the gradient of the residual is written, too
	Config    *norm.Config
	Data
}

// Tidy gives LayerNorm an eps, without which rows of equal elements are NaN.
func (n *Norm) Tidy() {
	if n.Eps == 0 && !n.RMS {
		n.Eps = 1e-5
	}
}

// Tensors implements Call. Gradients by x are about dy * w / deviation.
func (n *Norm) Tensors() []Tensor {
	t, w, rows, row, cols := n.DType, n.WeightDType, []int{n.Rows, n.Cols}, []int{n.Rows}, []int{n.Cols}
	upstream, saved := 1.0, n.Save || n.Backward
	if t == dtype.Float16 {
		upstream = min(1, OrOne(n.Magnitude)/OrOne(n.Second))
	}
	return []Tensor{
		{Name: "x", DType: t, Shape: rows, Scale: n.Magnitude, Main: true, Rows: true, Once: n.Residual},
		{Name: "w", DType: w, Shape: cols, Scale: n.Second},
		{Name: "dy", DType: t, Shape: rows, Scale: upstream, Role: Upstream},
		{Name: "residual", DType: t, Shape: rows, Scale: n.Magnitude, Rows: true, Once: true, Off: !n.Residual},
		{Name: "dsum", DType: t, Shape: rows, Role: Upstream, Off: !n.Residual},
		{Name: "y", DType: t, Shape: rows, Role: Output, Once: true},
		{Name: "sum", DType: t, Shape: rows, Role: Output, Off: !n.Residual},
		{Name: "mean", Shape: row, Role: Output, Off: n.RMS || !saved},
		{Name: "rstd", Shape: row, Role: Output, Off: !saved},
		{Name: "dx", DType: t, Shape: rows, Role: Gradient},
		{Name: "dresidual", DType: t, Shape: rows, Role: Gradient, Off: !n.DResidual || !n.Residual},
		{Name: "dw", DType: w, Shape: cols, Role: Gradient},
	}
}

// Want implements Call.
func (n *Norm) Want(x Values, pass kit.Pass) Outputs {
	p, in, up := n.Problem, ref.Inputs{}, ref.Upstream{}
	Bind(x, &in, &up)
	out := ref.Forward(in, p)
	if pass == kit.Forward {
		return Pair(out, ref.Bounds(out, ref.PlainForward(in, p), p))
	}
	want, plain := ref.Backward(out.Sum, in.W, up, p), ref.PlainBackward(out.Sum, in.W, up, p)
	list := Pair(want, ref.BackwardBounds(want, plain, out.Sum, in.W, up, p))
	list["dresidual"] = list["dx"]
	return list.With(Pair(out, nil))
}

// Choose implements Call.
func (n *Norm) Choose(caps *vk.Caps, pass kit.Pass) (kit.Plan, error) {
	return norm.Choose(caps, n.Problem, pass, n.options(nil))
}

// Record implements Call.
func (n *Norm) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, pass kit.Pass) error {
	return record(c, t, n.Problem, n.options(workspace), pass, norm.Forward, norm.Backward)
}

func (n *Norm) options(workspace *vk.Buffer) norm.Options {
	return norm.Options{Config: n.Config, Tuning: n.Tuning, Workspace: workspace}
}
