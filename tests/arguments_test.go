package tests

import (
	"fmt"
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
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/pipelines/quantize"
	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/pipelines/xent"
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
	rotary := attention.RoPE{Dims: 32}
	lens := []int{3}
	back := call.Direction{Backward: true}
	one := mlp.Problem{Tokens: 2, In: 3, Hidden: 4, Out: 5, Keep: mlp.KeepHidden}
	heads := mlp.Problem{Tokens: 2, Heads: 6, In: 3, Hidden: 4, Out: 5, Keep: mlp.KeepPre}
	mix := mixture.Problem{Tokens: 2, Heads: 6, In: 5, Hidden: 4}
	gates := glu.Problem{Rows: 3, Cols: 8}
	mixtures := gmm.Problem{Tokens: 4, Components: 2}
	layer, rms := norm.Problem{Rows: 3, Cols: 8, DType: dtype.Float16}, norm.Problem{Rows: 3, Cols: 8, RMS: true, Residual: true}
	words := xent.Problem{Tokens: 3, Vocabulary: 8, Dim: 8}
	table := embed.Problem{Tokens: 4, Vocabulary: 3, Dim: 8, DType: dtype.Float16}
	turned := rope.Problem{Batch: 1, Seq: 3, Heads: 2, KVHeads: 1, HeadDim: 8, Frequencies: attention.Frequencies{Dims: 8}, DType: dtype.Float16}
	product := problem.Problem{M: 3, N: 4, K: 5, Beta: 1}
	full := scores
	full.SeqQ, full.KeyMask = 9, true
	packed := full
	packed.Varlen, packed.Batch = attention.Varlen{On: true, TotalQ: 9, TotalKV: 32}, 1
	lengths := [][2]int{{9, 32}}
	return map[string]call.Call{
		"forward":           &call.Attention{Problem: full},
		"forward, packed":   &call.Attention{Problem: packed, Lengths: lengths},
		"backward":          &call.Attention{Problem: full, Direction: back, DLSE: true},
		"backward, packed":  &call.Attention{Problem: packed, Direction: back, Lengths: lengths},
		"mlp":               &call.MLP{Problem: one},
		"mlp, backward":     &call.MLP{Problem: one, Direction: back},
		"heads":             &call.MLP{Problem: heads},
		"heads, backward":   &call.MLP{Problem: heads, Direction: back},
		"mixture":           &call.Mixture{Problem: mix, LogP: true, Loss: true},
		"mixture, backward": &call.Mixture{Problem: mix, LogP: true, Loss: true, Direction: back, DLoss: 1},
		"gmm":               &call.GMM{Problem: mixtures, LogP: true, Loss: true},
		"gmm, backward":     &call.GMM{Problem: mixtures, Call: call.GMMBackward, DLoss: 1},
		"glu":               &call.GLU{Problem: gates},
		"glu, backward":     &call.GLU{Problem: gates, Direction: back},
		"norm":              &call.Norm{Problem: layer, Save: true},
		"norm, backward":    &call.Norm{Problem: layer, Direction: back},
		"rms":               &call.Norm{Problem: rms, Save: true},
		"rms, backward":     &call.Norm{Problem: rms, Direction: back, DResidual: true},
		"embed":             &call.Embed{Problem: table},
		"embed, backward":   &call.Embed{Problem: table, Direction: back},
		"xent":              &call.Xent{Problem: words, Losses: true, LSE: true, Loss: true},
		"xent, backward":    &call.Xent{Problem: words, Direction: back, Losses: true, LSE: true, Loss: true, DLoss: 1},
		"gemm":              &call.Gemm{Problem: product},
		"rope":              &call.Rope{Problem: turned},
		"rope, backward":    &call.Rope{Problem: turned, Direction: back},
		"sample":            &call.Sample{Problem: sample.Problem{Rows: 3, Vocabulary: 40, Filters: sample.Filters{Temperature: 1, RepetitionPenalty: 2}}},
		"normlinear":        &call.NormLinear{Problem: normlinear.Problem{Rows: 3, In: 40, Out: 8, Residual: true, Bias: true}},
		"decoder": &call.Decoder{Problem: decoder.Problem{
			Width: 16, Hidden: 24, Heads: 2, KVHeads: 1, HeadDim: 64, Keys: 9, Bias: true, DType: dtype.Float16,
		}},
		"dropout":              &call.Dropout{Problem: dropout.Problem{Rows: 3, Cols: 8, P: 0.5}},
		"quantize":             &call.Quantize{Problem: quantize.Problem{Batch: 1, Heads: 1, Rows: 8, Cols: 24, Quant: dtype.QuantE4M3, Block: 3}},
		"decode":               &call.Decode{DecodeProblem: decode, Lens: lens},
		"append":               &call.Append{Step: call.Step{Decode: call.Decode{DecodeProblem: decode, Lens: lens}, RoPE: rotary}},
		"append, pages":        &call.Append{Step: call.Step{Decode: call.Decode{DecodeProblem: paged, Lens: lens}}, NoQ: true},
		"step":                 &call.Step{Decode: call.Decode{DecodeProblem: decode, Lens: lens}, RoPE: rotary},
		"step, pages":          &call.Step{Decode: call.Decode{DecodeProblem: paged, Lens: lens}},
		"step, one's own tree": &call.Step{Decode: call.Decode{DecodeProblem: tree, Lens: lens}},
	}
}

// optional are tensors that a call may leave out, some of them of one kernel alone.
var optional = []string{"lse", "dlse", "dbias", "dsinks", "k_scale", "v_scale", "q", "log_p", "loss", "losses", "dloss", "mean", "rstd", "dresidual",
	"norm dw", "norm db", "rms dw"}

// composed are tensors of a description that the package has not.
var composed = []string{"states", "outputs", "pre", "p", "gu"}

// TestArguments refuses a tensor that is missing, that the problem has not, that has another format or
// shape, and one that the call writes in the memory of another.
func TestArguments(t *testing.T) {
	dev := vktest.Open(t)
	for name, c := range refusing() {
		t.Run(name, func(t *testing.T) {
			kernel, _, _ := strings.Cut(name, ",")
			pass := c.Pass()
			plan, err := c.Host().Choose(dev.Caps(), pass)
			require.NoError(t, err)
			memory, on := vktest.Tensor(t, dev, dtype.Float32, 1<<18).Buffer, map[string]vk.Tensor{}
			workspace := vktest.Tensor(t, dev, dtype.Float32, 1<<12+int(plan.Workspace()/4)).Buffer
			place := func(x call.Tensor, b *vk.Buffer, slot int) {
				y := vk.View(b, x.DType, x.Shape...)
				y.Offset = (slot<<14 + slot*slot<<6) / x.DType.Size() // distances differ, so that none are interleaved
				on[x.Name] = y
			}
			takes := func(x call.Tensor) bool {
				return !x.Off && !(pass == kit.Backward && x.Once) && (x.Role <= call.Output || pass == kit.Backward)
			}
			for i, x := range c.Tensors() {
				if takes(x) {
					place(x, memory, i)
				}
			}
			record := func() error {
				cmd, err := dev.NewCmd("arguments")
				require.NoError(t, err)
				defer cmd.Close()
				if err = c.Host().Bind(on, workspace, pass)(cmd); err != nil {
					require.Error(t, cmd.Submit(t.Context()))
				}
				return err
			}
			refused := func(want string) { require.Regexp(t, "^[a-z]+: .*("+want+")", record()) }
			require.NoError(t, record())
			if bytes := plan.Workspace(); bytes > 4 {
				whole := workspace
				workspace = vktest.Tensor(t, dev, dtype.Float32, int(bytes-1)/4).Buffer
				refused(fmt.Sprintf("workspace has %d bytes( from 0 on)?, want %d", workspace.Bytes(), bytes))
				workspace = whole
			}
			for i, x := range c.Tensors() {
				right := on[x.Name]
				switch scale := strings.HasSuffix(x.Name, "_scale"); { // scales of e4m3 may be given
				case x.Off && x.Role <= call.Output && !scale && pass == kit.Forward && !slices.Contains(composed, x.Name):
					on[x.Name] = vk.View(memory, x.DType, 1)
					refused("given")
					delete(on, x.Name)
					continue
				case !takes(x):
					continue
				case !slices.Contains(optional, x.Name) && !slices.Contains(optional, kernel+" "+x.Name):
					on[x.Name] = vk.Tensor{}
					refused(x.Name + " has (no buffer|shape \\[\\])")
				}
				wrong := right
				wrong.DType = map[bool]dtype.DType{false: dtype.BFloat16, true: dtype.Float16}[x.DType == dtype.BFloat16]
				on[x.Name] = wrong
				refused(x.Name + " is b?float16, want")
				if wrong = right; x.Align > 1 {
					wrong.Offset++
					on[x.Name] = wrong
					refused(x.Name + " has offset [0-9]+ and strides")
				}
				on[x.Name] = vk.View(memory, x.DType, append([]int{2}, x.Shape...)...)
				refused(x.Name + " has shape " + regexp.QuoteMeta("[2 "))
				if place(x, workspace, 0); plan.Workspace() > 0 {
					refused(x.Name + " overlaps workspace|workspace overlaps " + x.Name)
				}
				for j, other := range c.Tensors() {
					if written(c, x) && takes(other) && i != j {
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

// TestFormats refuses a problem of integers.
func TestFormats(t *testing.T) {
	for name, c := range refusing() {
		for format, integer := range map[string]uint64{"dtype": uint64(dtype.Int32), "grad": uint64(dtype.Some(dtype.Int32))} {
			if f := call.Field(c, format); f.IsValid() {
				before := f.Uint()
				f.SetUint(integer)
				require.ErrorContains(t, c.Validate(), format+"=int32 is not ", name)
				f.SetUint(before)
			}
		}
	}
}

// written reports whether a call writes a tensor. Append writes q where it rotates it.
func written(c call.Call, x call.Tensor) bool {
	if rotary := call.Field(c, "rope"); x.Name == "q" && rotary.IsValid() && rotary.IsZero() {
		return false
	}
	return x.Role == call.Gradient || c.Pass() == kit.Forward && (x.Role == call.Output || x.Role == call.Update)
}
