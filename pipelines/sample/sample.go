// Package sample chooses the next token of each sequence on the device: the most probable one, or one that
// is drawn.
//
//	x[v]     = logits[v] / RepetitionPenalty, times it if negative     where v was seen, else logits[v]
//	w[v]     = exp((x[v] - max x) / Temperature)
//	top-k    keeps v with x[v] >= the TopK-th largest x
//	top-p    keeps of these v with (sum of w over larger x) < TopP * (sum of w)
//	min-p    keeps of these v with w[v] >= MinP
//	token    = v with probability w[v] / (sum of w over what is kept)
//
//	tensor  shape                          format
//	Logits  (rows, vocabulary)             Problem.DType, any row stride
//	Seen    (rows, Problem.SeenWords())    int32, any row stride; with a RepetitionPenalty
//	State   (rows, 4)                      int32, any row stride; with a Temperature
//	Tokens  (rows)                         int32, contiguous
//
// Order and formulas follow the logits processors of Hugging Face's Transformers, with these differences:
//
//   - Temperature 0 is the token of the largest x, which Transformers calls do_sample=False.
//   - top-p keeps all or none of equal logits, where a sort there keeps the last of them. There is no least number
//     of kept tokens but 1.
//   - top-k compares logits before they are divided by the temperature, which may round two to one number.
//   - A zero is no filter: TopK 0, TopP 0 or 1, MinP 0, RepetitionPenalty 0 or 1. So is a TopK of the vocabulary
//     or more.
//
// Of equals the lowest token is first. NaN and -Inf are never chosen; a row of nothing else has the token -1. If
// logits are +Inf, the token is one of these.
//
// Seen has a bit for each token of a row: token v is bit v%32 of word v/32. Forward sets the bit of the token
// that it chooses; the caller sets the bits of a prompt ([Mark]).
//
// State has the two words of a seed, the number of a stream, and how many tokens were drawn, which Forward
// counts ([States]). A draw depends on the four and on the logits of its row alone, so not on other rows. Token v
// wins with the largest w[v]/e[v], where e[v] = -log(1 - (word + 1/2) / 2^32) has the exponential distribution,
// and word is word v%4 of Philox-4x32-10 with the counter (v/4, stream, drawn, 0) under the seed. Tokens less likely
// than about 2^-32 are then drawn by less than their share.
//
// Numbers are float32. The same call on the same device gives the same bits. Several goroutines may call the
// functions; a vk.Cmd belongs to one of them.
//
// Sources: Keskar et al., CTRL, 2019 (repetition penalty); Holtzman et al., 2020 (top-p); Nguyen et al., 2024 (min-p);
// Efraimidis and Spirakis, 2006 (the draw).
package sample

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Filters say which tokens may be chosen, and how likely. The zero value chooses the most probable one.
// Without Temperature, TopK, TopP and MinP change nothing.
type Filters struct {
	Temperature       float64 // 0: the most probable token; else from 1e-6 to 1e6
	TopK              int     // how many of the most probable tokens are kept; 0: all
	TopP              float64 // how much probability the kept tokens have at least, from 0 to 1; 0: 1, all
	MinP              float64 // how likely a kept token is at least, by the most probable, from 0 to 1
	RepetitionPenalty float64 // of tokens that were seen, from 1e-6 to 1e6; 0: 1, none
}

// Draws reports whether tokens are drawn.
func (f Filters) Draws() bool { return f.Temperature != 0 }

// Penalizes reports whether it matters which tokens were seen.
func (f Filters) Penalizes() bool { return f.RepetitionPenalty != 0 && f.RepetitionPenalty != 1 }

// Validate returns an error that names the first field that is out of its range.
func (f Filters) Validate() error {
	const least, most = 1e-6, 1e6
	switch {
	case f.Temperature != 0 && !(f.Temperature >= least && f.Temperature <= most):
		return fmt.Errorf("sample: temperature=%g is neither 0 nor from %g to %g", f.Temperature, least, most)
	case f.TopK < 0:
		return fmt.Errorf("sample: top_k=%d is negative", f.TopK)
	case !(f.TopP >= 0 && f.TopP <= 1):
		return fmt.Errorf("sample: top_p=%g is not from 0 to 1", f.TopP)
	case !(f.MinP >= 0 && f.MinP <= 1):
		return fmt.Errorf("sample: min_p=%g is not from 0 to 1", f.MinP)
	case f.RepetitionPenalty != 0 && !(f.RepetitionPenalty >= least && f.RepetitionPenalty <= most):
		return fmt.Errorf("sample: repetition_penalty=%g is neither 0 nor from %g to %g", f.RepetitionPenalty, least, most)
	}
	return nil
}

// A Problem holds the sizes, the format and the filters of a call.
type Problem struct {
	Rows, Vocabulary int
	Filters
	DType dtype.DType // of the logits
}

// maxVocabulary is how far a kernel counts in float32.
const maxVocabulary = 1 << 24

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Rows <= 0:
		return fmt.Errorf("sample: rows=%d is not positive", p.Rows)
	case p.Vocabulary <= 0 || p.Vocabulary > maxVocabulary:
		return fmt.Errorf("sample: vocabulary=%d is not from 1 to %d", p.Vocabulary, maxVocabulary)
	case p.logits() > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("sample: rows=%d by vocabulary=%d are more than %d logits", p.Rows, p.Vocabulary, uint32(math.MaxUint32))
	case !p.DType.Float():
		return fmt.Errorf("sample: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	}
	return p.Filters.Validate()
}

// SeenWords returns the words of a row of Seen.
func (p Problem) SeenWords() int { return (p.Vocabulary + 31) / 32 }

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%v, %d rows of %d", p.DType, p.Rows, p.Vocabulary)
	for _, f := range []struct {
		name  string
		value float64
	}{{"temperature", p.Temperature}, {"top_k", float64(p.TopK)}, {"top_p", p.TopP}, {"min_p", p.MinP}, {"repetition_penalty", p.RepetitionPenalty}} {
		if f.value != 0 {
			s += fmt.Sprintf(", %s %g", f.name, f.value)
		}
	}
	return s
}

func (p *Problem) logits() float64 { return float64(p.Rows) * float64(p.Vocabulary) }

// FLOPs returns the operations: a comparison of each logit, and 3 for its weight.
func (p Problem) FLOPs() float64 {
	if p.Draws() {
		return 4 * p.logits()
	}
	return p.logits()
}

// Bytes returns the least memory traffic: the logits are read, tokens written.
func (p Problem) Bytes() float64 { return p.logits()*float64(p.DType.Size()) + 4*float64(p.Rows) }

// Tensors are what Forward reads and writes.
type Tensors struct {
	Logits vk.Tensor
	Seen   vk.Tensor // read and written, with a RepetitionPenalty
	State  vk.Tensor // read and written, with a Temperature
	Tokens vk.Tensor // written
}

// States returns what Tensors.State holds before the first draw: of row i stream i of a seed.
func States(seed uint64, rows int) (words []int32) {
	for i := range rows {
		words = append(words, int32(uint32(seed)), int32(seed>>32), int32(i), 0)
	}
	return words
}

// Mark sets the bits of tokens in a row of Seen.
func Mark(row []int32, tokens ...int32) {
	for _, v := range tokens {
		row[v/32] |= 1 << (v % 32)
	}
}

// Options modify a call. The zero value is the default.
type Options struct {
	Workspace *vk.Buffer // for the contract of package kit; no call needs one
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct{ threads int }

// String names the choices in a few words.
func (p Plan) String() string { return fmt.Sprintf("wg%d", p.threads) }

// Workspace is 0.
func (Plan) Workspace() int64 { return 0 }

// Kernels lists the module that runs.
func (Plan) Kernels() []string { return []string{"sample"} }

const (
	// leastThreads and mostThreads are the invocations of the workgroup of a row.
	leastThreads, mostThreads = 128, 1024
	vectors                   = 4 // of 16 bytes that an invocation has at least, unless threads are few
	// sharedBytes of an invocation: a vec3 of lib/reduce.glsl and a uvec2.
	sharedBytes = 24
)

// Choose returns how p would run on a device. Errors about p are as in Forward. There is no backward
// pass.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	if err := cmp.Or(p.Validate(), argument.Pass("sample", pass), argument.Storage("sample", caps, p.DType)); err != nil {
		return Plan{}, err
	}
	limit := int(min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0], caps.MaxSharedMemoryBytes/sharedBytes, mostThreads))
	switch {
	case pass == kit.Backward:
		return Plan{}, argument.Unsupported("sample", "there is no backward pass")
	case !caps.SubgroupOps.Has(vk.SubgroupBasic | vk.SubgroupArithmetic):
		return Plan{}, argument.Unsupported("sample", "subgroups lack arithmetic")
	case limit < leastThreads:
		return Plan{}, argument.Unsupported("sample", "the device has workgroups of %d invocations, want %d", limit, leastThreads)
	}
	plan := Plan{leastThreads}
	for plan.threads*vec(&p)*vectors < p.Vocabulary && 2*plan.threads <= limit {
		plan.threads *= 2
	}
	return plan, nil
}

// vec returns the logits in 16 bytes.
func vec(p *Problem) int { return 16 / p.DType.Size() }

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

// Forward chooses a token of each row, in one dispatch; the package documentation has the formulas.
//
// Forward records into c and returns; Tokens, Seen and State are valid once c has completed, and have memory of
// their own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an error
// naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	caps := c.Device().Caps()
	plan, err := Choose(caps, p, kit.Forward, o)
	if err != nil {
		return err
	}
	logits := argument.New("logits", t.Logits, true, p.DType, []int{p.Rows, p.Vocabulary})
	if err := argument.Check("sample", []argument.Argument{logits}, []argument.Argument{
		argument.New("seen", t.Seen, p.Penalizes(), dtype.Int32, []int{p.Rows, p.SeenWords()}),
		argument.New("state", t.State, p.Draws(), dtype.Int32, []int{p.Rows, 4}),
		argument.New("tokens", t.Tokens, true, dtype.Int32, []int{p.Rows}),
	}); err != nil {
		return err
	}
	vk.Narrow(&t.Logits, &t.Seen, &t.State, &t.Tokens)
	s := spec{
		WorkgroupSize: uint32(plan.threads), Vec: uint32(vec(&p)), Aligned: t.Logits.Aligned(vec(&p)), Format: chips.Format(p.DType),
		Draw: p.Draws(), TopK: p.TopK > 0 && p.TopK < p.Vocabulary, TopP: p.TopP > 0 && p.TopP < 1, Seen: p.Penalizes(),
	}
	k := chips.Kernel[params](c, "sample", "", s, vk.KernelOptions{})
	args := params{
		Rows: uint32(p.Rows), Vocabulary: uint32(p.Vocabulary), TopK: float32(p.TopK), TopP: float32(p.TopP), Least: -math.MaxFloat32 / 2,
		LogitsOffset: uint32(t.Logits.Offset), LogitsStride: uint32(t.Logits.Strides[0]), TokensOffset: uint32(t.Tokens.Offset),
	}
	seen, state := t.Tokens, t.Tokens // which the kernel does not touch as such
	if s.Draw {
		state, args.StateOffset, args.StateStride = t.State, uint32(t.State.Offset), uint32(t.State.Strides[0])
		args.InverseTemperature = float32(1 / p.Temperature)
		args.Least = max(args.Least, float32(p.Temperature*math.Log(p.MinP)))
	}
	if s.Seen {
		seen, args.SeenOffset, args.SeenStride = t.Seen, uint32(t.Seen.Offset), uint32(t.Seen.Strides[0])
		args.Penalty, args.InversePenalty = float32(p.RepetitionPenalty), float32(1/p.RepetitionPenalty)
	}
	c.Note(func() vk.Note { return vk.Note{Text: p.String(), FLOPs: p.FLOPs(), Bytes: p.Bytes()} })
	k.Dispatch(c, chips.Groups(caps, p.Rows, 1), args, t.Logits, seen, state, t.Tokens)
	return c.Err()
}

// params is the push-constant block of sample.comp.
type params struct {
	Rows               uint32  `glsl:"rows"`
	Vocabulary         uint32  `glsl:"vocabulary"`
	InverseTemperature float32 `glsl:"inverse_temperature"`
	TopK               float32 `glsl:"top_k"`
	TopP               float32 `glsl:"top_p"`
	Least              float32 `glsl:"least"`
	Penalty            float32 `glsl:"penalty"`
	InversePenalty     float32 `glsl:"inverse_penalty"`
	LogitsOffset       uint32  `glsl:"logits_offset"` // elements, like all that follow
	LogitsStride       uint32  `glsl:"logits_stride"`
	SeenOffset         uint32  `glsl:"seen_offset"`
	SeenStride         uint32  `glsl:"seen_stride"`
	StateOffset        uint32  `glsl:"state_offset"`
	StateStride        uint32  `glsl:"state_stride"`
	TokensOffset       uint32  `glsl:"tokens_offset"`
}

// spec is the specialization of sample.comp.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Vec           uint32 `glsl:"VEC"`
	Aligned       bool   `glsl:"ALIGNED"`
	Format        uint32 `glsl:"FORMAT"`
	Draw          bool   `glsl:"DRAW"`
	TopK          bool   `glsl:"TOP_K"`
	TopP          bool   `glsl:"TOP_P"`
	Seen          bool   `glsl:"SEEN"`
}
