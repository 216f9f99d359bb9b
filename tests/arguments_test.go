package tests

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// refusing are calls whose arguments TestArguments damages: together they have every tensor.
func refusing() map[string]call.Call {
	plain := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 32, HeadDim: 32, DType: dtype.Float16}
	scores := plain
	scores.Bias, scores.Sinks, scores.ALiBi = attention.Bias{On: true, DType: dtype.Float16}, true, attention.ALiBiPerHead
	decode := attention.DecodeProblem{Problem: scores, NewKeys: 1, CacheRows: 1, LeftPad: true, Cache: attention.CacheQ8_0}
	paged := attention.DecodeProblem{Problem: scores, NewKeys: 1, PageSize: 8, Pages: 4, LeftPad: true, Cache: attention.CacheE4M3}
	tree := attention.DecodeProblem{Problem: plain, NewKeys: 1, Tree: true}
	rope := attention.RoPE{Dims: 32}
	lens := []int{3}
	back := call.Direction{Backward: true}
	one := mlp.Problem{Tokens: 2, In: 3, Hidden: 4, Out: 5, Keep: mlp.KeepHidden}
	heads := mlp.Problem{Tokens: 2, Heads: 6, In: 3, Hidden: 4, Out: 5, Keep: mlp.KeepPre}
	mix := mixture.Problem{Tokens: 2, Heads: 6, In: 5, Hidden: 4}
	layer, rms := norm.Problem{Rows: 3, Cols: 8, DType: dtype.Float16}, norm.Problem{Rows: 3, Cols: 8, RMS: true, Residual: true}
	mixtures := gmm.Problem{Tokens: 4, Components: 2}
	product := problem.Problem{M: 3, N: 4, K: 5, Beta: 1, Activation: problem.TimesDSiLUKeep, Residual: true}
	return map[string]call.Call{
		"mlp":                  &call.MLP{Problem: one},
		"mlp, backward":        &call.MLP{Problem: one, Direction: back},
		"heads":                &call.MLP{Problem: heads},
		"heads, backward":      &call.MLP{Problem: heads, Direction: back},
		"mixture":              &call.Mixture{Problem: mix, LogP: true, Loss: true},
		"mixture, backward":    &call.Mixture{Problem: mix, LogP: true, Loss: true, Direction: back, DLoss: 1},
		"norm":                 &call.Norm{Problem: layer, Save: true},
		"norm, backward":       &call.Norm{Problem: layer, Direction: back},
		"rms":                  &call.Norm{Problem: rms, Save: true},
		"rms, backward":        &call.Norm{Problem: rms, Direction: back, DResidual: true},
		"gmm":                  &call.GMM{Problem: mixtures, LogP: true, Loss: true},
		"gmm, backward":        &call.GMM{Problem: mixtures, Call: call.GMMBackward, LogP: true, DLoss: 1},
		"gmm, one tensor":      &call.GMM{Problem: mixtures, Call: call.GMMBackward, Interleaved: true, Loss: true},
		"gemm":                 &call.Gemm{Problem: product},
		"decode":               &call.Decode{DecodeProblem: decode, Lens: lens},
		"append":               &call.Append{AppendProblem: attention.AppendProblem{DecodeProblem: decode, RoPE: rope}, Lens: lens},
		"append, pages":        &call.Append{AppendProblem: attention.AppendProblem{DecodeProblem: paged}, NoQ: true, Lens: lens},
		"step":                 &call.Step{Decode: call.Decode{DecodeProblem: decode, Lens: lens}, RoPE: rope},
		"step, pages":          &call.Step{Decode: call.Decode{DecodeProblem: paged, Lens: lens}},
		"step, one's own tree": &call.Step{Decode: call.Decode{DecodeProblem: tree, Lens: lens}},
	}
}

// optional are tensors that a call may leave out.
var optional = []string{"lse", "dlse", "dbias", "dsinks", "k_scale", "v_scale", "q"}

// TestArguments refuses a tensor that is missing, that the problem has not, that has another format or
// shape, and one that the call writes in the memory of another.
func TestArguments(t *testing.T) {
	dev := vktest.Open(t)
	for name, c := range refusing() {
		t.Run(name, func(t *testing.T) {
			pass := c.Pass()
			plan, err := c.Choose(dev.Caps(), pass)
			require.NoError(t, err)
			memory := vktest.Tensor(t, dev, dtype.Float32, 1<<18).Buffer
			workspace := vktest.Tensor(t, dev, dtype.Float32, 1<<12+int(plan.Workspace()/4)).Buffer
			on := map[string]vk.Tensor{}
			place := func(x call.Tensor, b *vk.Buffer, slot int) {
				y := vk.View(b, x.DType, x.Shape...)
				y.Offset = slot << 14 / x.DType.Size()
				on[x.Name] = y
			}
			takes := func(x call.Tensor) bool { return !x.Off && (x.Role <= call.Output || pass == kit.Backward) }
			for i, x := range c.Tensors() {
				if takes(x) {
					place(x, memory, i)
				}
			}
			record := func() error {
				cmd, err := dev.NewCmd("arguments")
				require.NoError(t, err)
				defer cmd.Close()
				if err = c.Record(cmd, on, workspace, pass); err != nil {
					require.Equal(t, err, cmd.Submit(t.Context()))
				}
				return err
			}
			refused := func(want string) { require.Regexp(t, "^[a-z]+: .*("+want+")", record()) }
			require.NoError(t, record())
			for i, x := range c.Tensors() {
				right := on[x.Name]
				switch scale := strings.HasSuffix(x.Name, "_scale"); { // those of e4m3 may be given
				case !takes(x) && x.Role <= call.Output && !scale:
					on[x.Name] = vk.View(memory, x.DType, 1)
					refused("given")
					delete(on, x.Name)
					continue
				case !takes(x):
					continue
				case !slices.Contains(optional, x.Name):
					on[x.Name] = vk.Tensor{}
					refused(x.Name + " has (no buffer|shape \\[\\])")
				}
				wrong := right
				if wrong.DType = dtype.BFloat16; x.DType == dtype.BFloat16 {
					wrong.DType = dtype.Float16
				}
				on[x.Name] = wrong
				refused(x.Name + " is b?float16, want")
				on[x.Name] = vk.View(memory, x.DType, append([]int{1}, x.Shape...)...)
				refused(x.Name + " has shape " + regexp.QuoteMeta("[1 "))
				if place(x, workspace, 0); plan.Workspace() > 0 {
					refused(x.Name + " overlaps workspace|workspace overlaps " + x.Name)
				}
				written := x.Role == call.Gradient || pass == kit.Forward && (x.Role == call.Output || x.Role == call.Update)
				if rope := call.Field(c, "rope"); x.Name == "q" && rope.IsValid() && rope.IsZero() {
					written = false
				}
				for j, other := range c.Tensors() {
					if written && takes(other) && i != j {
						place(x, memory, j)
						refused("(" + x.Name + " overlaps " + other.Name + "|" + other.Name + " overlaps " + x.Name + "): outputs need memory of their own")
					}
				}
				on[x.Name] = right
			}
			require.NoError(t, record())
		})
	}
}
