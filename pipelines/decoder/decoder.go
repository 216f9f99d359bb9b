// Package decoder runs a layer of a decoder, as Llama, Mistral and Qwen2 have them, for one new token: one kernel instead of
// five, which loads the weights of later phases while it waits for the numbers of earlier ones.
//
//	a      = rms(x) * normA                                  rms(v) = v / sqrt(mean(v²) + eps)
//	q,k,v  = qkv · a + bias
//	q,k    = both rotated by cos[n], sin[n] (halves)         n = seqLens[0]
//	K[:,n] = k, V[:,n] = v                                   rounded to the format
//	o      = softmax(q · Kᵀ / sqrt(head_dim)) · V            over keys 0 to n; heads of a group share a key head
//	x      = x + out · o
//	h      = silu(gate · b) * (up · b)                       b = rms(x) * normB; gate and up are the halves of gateUp
//	y      = x + down · round(h)                             the x of the next layer
//
//	tensor     shape                                         format
//	X, Y       (1, width)                                    Problem.DType
//	Cos, Sin   (keys, head_dim/2), contiguous                float32
//	SeqLens    (1)                                           int32: the keys in the cache
//	NormA,     (width), contiguous                           float32
//	NormB
//	QKV        ((heads+2*kv_heads)*head_dim, width)          Problem.DType
//	Bias       ((heads+2*kv_heads)*head_dim), contiguous     float32
//	K, V       (kv_heads, keys, head_dim), last axis         Problem.DType
//	           contiguous
//	Out        (width, heads*head_dim)                       Problem.DType
//	GateUp     (2*hidden, width)                             Problem.DType
//	Down       (width, hidden)                               Problem.DType
//
// Numbers between are float32, but for h. ForwardLayers rounds x to the format after the last layer alone.
//
// The kernel of a layer has at most one workgroup for each multiprocessor. Workgroups hand vectors to each other through memory
// while all run: a word of a vector holds a NaN of its own until the word is written, and who needs the word reads it again and
// again until then. Nothing in Vulkan promises that all workgroups run at once. A device is taken to run as many as it says it
// has multiprocessors (vk.Caps.ComputeUnits), a CPU device two, and one workgroup is the choice where nobody has measured. If a
// word does not come, for what reason ever, reading ends in each layer after about 50 ms on a GPU, and Y is NaN.
//
// The same call on the same device gives the same bits. Several goroutines may call the functions; a vk.Cmd belongs to one
// of them.
package decoder

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	Width, Hidden  int // of the residual stream, and of the perceptron
	Heads, KVHeads int
	HeadDim        int
	Keys           int // places of the cache
	Bias           bool
	Eps            float64 // added to means of squares; not negative
	DType          dtype.DType
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	for _, x := range []struct {
		name string
		n    int
	}{
		{"width", p.Width}, {"hidden", p.Hidden}, {"heads", p.Heads}, {"kv_heads", p.KVHeads}, {"head_dim", p.HeadDim}, {"keys", p.Keys},
	} {
		if x.n <= 0 {
			return fmt.Errorf("decoder: %s=%d is not positive", x.name, x.n)
		}
	}
	switch {
	case p.Heads%p.KVHeads != 0:
		return fmt.Errorf("decoder: heads=%d is not a multiple of kv_heads=%d", p.Heads, p.KVHeads)
	case p.HeadDim%2 != 0:
		return fmt.Errorf("decoder: head_dim=%d is not even", p.HeadDim)
	case max(p.matrices(), 2*p.cache()) > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("decoder: a layer has %.0f weights and %.0f elements in its cache, more than %d", p.matrices(), 2*p.cache(), uint32(math.MaxUint32))
	case math.IsNaN(p.Eps) || p.Eps < 0 || math.IsInf(float64(float32(p.Eps)), 0):
		return fmt.Errorf("decoder: eps=%g is not a finite number from 0 on", p.Eps)
	case !p.DType.Valid() || !p.DType.Float():
		return fmt.Errorf("decoder: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	}
	return nil
}

// String describes the problem in a few words.
func (p Problem) String() string {
	return fmt.Sprintf("%v, width %d, hidden %d, %d and %d heads of %d, %d keys", p.DType, p.Width, p.Hidden, p.Heads, p.KVHeads, p.HeadDim, p.Keys)
}

// qkv returns the rows of QKV, attended the columns of Out.
func (p *Problem) qkv() int      { return (p.Heads + 2*p.KVHeads) * p.HeadDim }
func (p *Problem) attended() int { return p.Heads * p.HeadDim }

// matrices returns the weights of a layer, cache the elements of its keys.
func (p *Problem) matrices() float64 {
	return float64(p.Width) * (float64(p.qkv()) + float64(p.attended()) + 3*float64(p.Hidden))
}
func (p *Problem) cache() float64 { return float64(p.KVHeads) * float64(p.Keys) * float64(p.HeadDim) }

// FLOPs returns the operations of a layer with a full cache: two for each weight, and four for each head and element of a key.
func (p Problem) FLOPs() float64 {
	return 2*p.matrices() + 4*float64(p.attended())*float64(p.Keys)
}

// Bytes returns the least memory traffic of a layer with a full cache: weights and cache are read.
func (p Problem) Bytes() float64 {
	return float64(p.DType.Size()) * (p.matrices() + 2*p.cache())
}

// Tensors are what Forward reads and writes.
type Tensors struct {
	X, Cos, Sin, SeqLens     vk.Tensor
	NormA, QKV               vk.Tensor
	Bias                     vk.Tensor // exactly if Problem.Bias
	Out, NormB, GateUp, Down vk.Tensor
	K, V                     vk.Tensor // read and written
	Y                        vk.Tensor // written
}

// Options modify a call. The zero value is the default.
type Options struct {
	Config *Config // forces a configuration, which must be feasible; for tuning and tests
	// Workspace is memory for the call: for each layer the bytes that the function Workspace returns. Its content is undefined
	// before and after. Nil takes memory from the Cmd.
	Workspace *vk.Buffer
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	Config
	// Fast says that the kernel, as the device's rule divides it, is taken to be faster than the kernels of other packages.
	// Hopper has it for layers of up to 2^28 weights and 4096 keys: measured on an H200 for SmolLM2-135M, Llama-3.2-1B and
	// Llama-3.1-8B in bfloat16 with 1024 keys, and argued for the rest.
	Fast  bool
	bytes int64
}

// Workspace is how many bytes of memory a layer needs: Config.Copies words for each number that workgroups hand to each other.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the module that runs.
func (Plan) Kernels() []string { return []string{"decoder"} }

// Choose returns how p would run on a device. Errors about p are as in Forward. There is no backward pass.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (plan Plan, err error) {
	if err := cmp.Or(p.Validate(), argument.Pass("decoder", pass)); err != nil {
		return plan, err
	}
	if pass == kit.Backward {
		return plan, argument.Unsupported("decoder", "there is no backward pass")
	}
	plan.Config, plan.Fast = choose(caps, &p)
	if o.Config != nil {
		plan.Config = *o.Config
	}
	plan.bytes = 4 * int64(plan.words(&p))
	return plan, plan.Feasible(caps, p)
}

// Supports returns nil if the device can compute p, and otherwise an error: one of
// Problem.Validate, or one that wraps vk.ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have for each layer, with the errors of Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}
