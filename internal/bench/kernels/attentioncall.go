package kernels

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An attending is a call of attention, with what only flags and files have. Inputs are normal, with
// the slopes of the ALiBi paper, a key mask that hides one key in eight, and sequences of bench's own
// lengths.
type attending struct {
	call.Attention
	Order  string // of the axes of files
	Packed bool
	Chosen any // the configuration of --config, of either pass
	file   bool
}

// Attention returns a problem of attention as it is measured.
func Attention(p attention.Problem) (bench.Op, error) {
	return attentionCalls().valid(newProblem(p), pflag.NewFlagSet("", pflag.PanicOnError), true)
}

func newProblem(p attention.Problem) *attending {
	a := &attending{Packed: p.Varlen.On}
	a.Problem = p
	return a
}

// prepare sets what follows from the flags. The lengths of sequences are all of the longest, three
// quarters, a half, a quarter, and again.
func (a *attending) prepare() error {
	switch c := a.Chosen.(type) {
	case attention.Config:
		a.Config = &c
	case attention.BackwardConfig:
		a.BackwardConfig = &c
	}
	if a.file {
		return nil
	}
	a.NoDBias = true
	if !a.Packed {
		return nil
	}
	whole := a.Problem
	whole.Varlen = attention.Varlen{}
	if err := whole.Validate(); err != nil {
		return err
	}
	for b := range a.Batch {
		length := func(most int) int { return (most*(4-b%4) + 3) / 4 }
		a.Lengths = append(a.Lengths, [2]int{length(a.SeqQ), length(a.SeqKV)})
	}
	a.Varlen.On = true
	a.Pack()
	return nil
}

// on sets the path of a pass.
func (a *attending) on(impl string, p bench.Pass) (err error) {
	if a.Impl, err = attention.ParseImpl(impl); err != nil || a.Impl == attention.Auto {
		return err
	}
	if c := a.Config; p == bench.Forward && c != nil && c.Impl != a.Impl {
		return fmt.Errorf("attention: the configuration %q is not of path %v", c, impl)
	}
	if c := a.BackwardConfig; p != bench.Forward && c != nil && c.Impl != a.Impl {
		return fmt.Errorf("attention: the configuration %q is not of path %v", c, impl)
	}
	return nil
}

// Takes returns an error if a run of pass p leaves unused what --config said. A run of the backward
// pass makes its inputs by the forward pass.
func (a *attending) Takes(p bench.Pass) error {
	switch {
	case p == bench.Forward && a.BackwardConfig != nil:
		return fmt.Errorf("attention: the configuration %q is of the backward pass", a.BackwardConfig)
	case p == bench.Backward && a.Config != nil && a.BackwardConfig == nil:
		return fmt.Errorf("attention: the configuration %q is of the forward pass", a.Config)
	}
	return nil
}

// Want implements call.Call. Gradients take three times as long as the forward pass.
func (a *attending) Want(x call.Values, pass kit.Pass) call.Outputs {
	of := a.Attention
	if of.Backward = pass == kit.Backward; of.Backward {
		of.Sample /= 2
	}
	return of.Want(x, pass)
}

func (a *attending) Host() call.Host {
	return call.Host{Choose: a.Attention.Host().Choose, Bind: a.bind}
}

// bind is Bind. Rows and keys in no sequence are filled as a file should have them: kernels write
// sequences only.
func (a *attending) bind(t map[string]vk.Tensor, workspace *vk.Buffer, pass kit.Pass) call.Recording {
	var list steps.List
	for _, x := range a.Tensors() {
		value := uint32(0)
		if x.Name == "lse" {
			value = math.Float32bits(float32(math.Inf(-1)))
		}
		if !x.Off && x.Role.Writes(pass) && a.Varlen.On && a.file {
			b := t[x.Name].Buffer
			list = append(list, func(c *vk.Cmd) error {
				c.Fill(b, 0, b.Bytes(), value)
				return nil
			})
		}
	}
	return append(list, a.Attention.Host().Bind(t, workspace, pass)).Record
}

// MaxCalls limits a batch of the unfused path: each call in a command buffer has its own memory for
// S, in a backward pass twice that.
func (a *attending) MaxCalls(impl string, pass bench.Pass) int {
	if impl != attention.Unfused.String() {
		return 0
	}
	const limit = 2 << 30
	bytes := 4 * float64(a.Batch) * float64(a.NumHeads) * float64(a.SeqQ) * float64(a.SeqKV)
	bytes *= [...]float64{bench.Forward: 1, bench.Backward: 2, bench.Both: 3}[pass]
	return int(max(limit/bytes, 1))
}

// Params returns the keys of benchmarks, which leave out features that are off.
func (a *attending) Params() string { return a.Problem.String() }

// attentionTensors completes what is measured.
func attentionTensors(a *attending, list []call.Tensor) {
	for i := range list {
		switch t := &list[i]; t.Name {
		case "alibi_slopes":
			t.Values = func() []float32 { return alibiSlopes(a.Problem) }
		case "key_mask":
			t.Draw = visible
		case "cu_seqlens_q":
			t.Most = a.Varlen.TotalQ
			t.Ints, _ = a.CuSeqlens()
		case "cu_seqlens_kv":
			t.Most = a.Varlen.TotalKV
			_, t.Ints = a.CuSeqlens()
		}
	}
}

// alibiSlopes returns the slopes of the ALiBi paper, in the shape that p has.
func alibiSlopes(p attention.Problem) []float32 {
	x := make([]float32, call.Product(p.SlopesShape()))
	for i := range x {
		x[i] = float32(math.Exp2(-8 * float64(i%p.NumHeads+1) / float64(p.NumHeads)))
	}
	return x
}

// visible returns 0 for one normal number in eight, and 1 for the others.
func visible(x float64) float64 {
	const eighth = -1.1503493803760079 // of a standard normal distribution are below this
	if x < eighth {
		return 0
	}
	return 1
}

// DescribeAttention returns a problem of attention in words.
func DescribeAttention(p attention.Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: batch %d, heads %d, kv-heads %d, seqlen %d", p.DType, p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ)
	if p.SeqKV != p.SeqQ {
		fmt.Fprintf(&b, ", seqlen-kv %d", p.SeqKV)
	}
	fmt.Fprintf(&b, ", headdim %d", p.HeadDim)
	if p.Causal {
		fmt.Fprintf(&b, ", causal (%v)", p.CausalAlign)
	}
	if p.Scale != 0 {
		fmt.Fprintf(&b, ", scale %g", p.Scale)
	}
	for _, f := range p.FeatureKeys() {
		fmt.Fprintf(&b, ", %s", f)
	}
	return b.String()
}

// derived returns the values of keys that are not fields.
func (a *attending) derived() map[string]any {
	to := map[string]any{
		"scale": a.EffectiveScale(), "value_dim": a.ValueHeadDim(), "varlen": a.Varlen, "dropout": a.Dropout.P, "causal_align": "",
	}
	if a.Causal || a.Window.On || a.ALiBi != attention.ALiBiOff {
		to["causal_align"] = a.CausalAlign
	}
	return to
}

// Note says what the dispatches of a call do. Several dispatches of a kernel share its work.
func (a *attending) Note(plan kit.Plan, list []bench.DispatchProfile) {
	chosen := plan.(attention.Plan)
	path := cmp.Or(chosen.Backward.Impl, chosen.Config.Impl, chosen.Decode.Impl)
	of := map[string]float64{}
	for _, x := range list {
		of[x.Kernel]++
	}
	for i := range list {
		x := &list[i]
		flops, bytes := a.work(x.Kernel, chosen.Config)
		x.Note.FLOPs, x.Note.Bytes = flops/of[x.Kernel], bytes/of[x.Kernel]
		x.Note.Matrices, x.Note.DType = path == attention.CoopMat2 || path == attention.CoopMat, a.DType
	}
}

// work returns the operations and bytes of a kernel of a forward pass, by the conventions of
// attention.Problem.FLOPs and Bytes: unmasked entries count, each tensor is read or written once.
// The conventions do not say how kernels of the backward pass share its work.
func (a *attending) work(kernel string, c attention.Config) (flops, bytes float64) {
	p, size := &a.Problem, float64(a.DType.Size())
	n := func(shape []int) float64 { return float64(call.Product(shape)) }
	q, k, v, o, lse := n(p.QShape()), n(p.KShape()), n(p.VShape()), n(p.OShape()), 4*n(p.LSEShape())
	scores := 4 * float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) * float64(p.SeqKV)
	dims := float64(p.HeadDim + p.ValueHeadDim())
	partial := float64(c.Splits) * (4*o + 2*lse)
	is := func(name string) bool { return strings.HasPrefix(kernel, "attention_"+name) }
	switch {
	case is("quantize"):
		return 0, (size + 1) * (q + k) / 3 // three dispatches
	case is("fwd_") && c.Splits > 1:
		return a.FLOPs(), size*(q+k+v) + partial
	case is("fwd_"), is("decode"):
		return a.FLOPs(), p.Bytes()
	case is("combine"):
		return 0, partial + size*o + lse
	case is("unfused_scores"):
		return a.FLOPs() * float64(p.HeadDim) / dims, size*(q+k) + scores
	case is("unfused_softmax"):
		return 0, 2*scores + lse
	case is("unfused_values"):
		return a.FLOPs() * float64(p.ValueHeadDim()) / dims, size*(v+o) + scores
	}
	return 0, 0
}
