// Package attention computes softmax attention on a Vulkan device.
//
//	S   = Scale * Q * Kᵀ
//	P   = softmax(S) over the keys that a row sees
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row
//
// One call, [Forward], picks the fastest path that the device and the problem
// allow; Options.Impl forces one:
//
//	path      needs                                        scores live in   file
//	coopmat2  VK_NV_cooperative_matrix2 at subgroup scope  registers        fwd_matrix.go
//	coopmat   VK_KHR_cooperative_matrix                    registers        fwd_matrix.go
//	scalar    Vulkan 1.2 compute                           registers        fwd_scalar.go
//	unfused   Vulkan 1.2 compute, memory for S             device memory    unfused.go
//
// Every path computes every feature of a [Problem]. One without features runs kernels
// that know of none (features.go).
//
// Few rows and many keys, as when a model decodes token after token, are spread
// over the device: Forward takes the kernels of [Decode] where they are faster
// (fwd_decode.go). Else the heads of a group become rows of one matrix (pack.go), and
// several workgroups share the keys of a block of rows (combine.go).
//
// [Backward] computes the gradients from what Forward left, in one of four ways:
//
//	two kernels  each computes the weights again; one sums up dK and dV, the other dQ    bwd_matrix.go, bwd_scalar.go
//	stored       the kernel of dQ stores the weights in 16 bits; dK and dV are products  bwd_stored.go
//	fused        one kernel sums up all three                                            bwd_fused.go
//	unfused      weights and score gradients are in memory                               bwd_unfused.go
//
// The gradients of the bias and the sinks have kernels of their own (bwd_features.go).
//
// [Append] and [Decode] are for sequences that grow: a cache of keys and values, contiguous or
// with pages, whose lengths are on the device, in the format of the queries or in 8 bits
// ([CacheFormat]); [PageTable] makes tables of lists of pages, and [KVCache] is its memory and the
// host's side of it.
//
// [ForwardHost] is Forward on slices of the host. [Supports] says whether a
// device computes a pass of a problem, and why not; [Choose] says what would run.
//
// Tensors are views of device buffers with any strides whose last axis is
// contiguous; dimensions go by the names
//
//	Q, O  (batch, num_heads, seq_q, head_dim)
//	K, V  (batch, num_kv_heads, seq_kv, head_dim)
//	LSE   (batch, num_heads, seq_q), float32, natural logarithm
//
// All paths are deterministic: the same call on the same device gives the same
// bits.
//
// Several goroutines may call the functions; a vk.Cmd belongs to one of them.
package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// ErrUnsupported is wrapped by errors about calls that are valid, but that no
// kernel on the device handles.
var ErrUnsupported = vk.ErrUnsupported

// An Impl is a path: one implementation of attention.
type Impl uint8

// The paths. Auto takes the first of CoopMat2, CoopMat, Scalar that supports
// the problem, on a CPU device Scalar, and for a few queries with many keys the
// kernels of Decode.
const (
	Auto Impl = iota
	CoopMat2
	CoopMat
	Scalar
	Unfused
)

// Impls lists the paths in the order in which Auto tries them; Unfused, which
// it never takes, is last.
func Impls() []Impl { return []Impl{CoopMat2, CoopMat, Scalar, Unfused} }

// String returns the name used by --impl.
func (i Impl) String() string {
	switch i {
	case Auto:
		return "auto"
	case CoopMat2:
		return "coopmat2"
	case CoopMat:
		return "coopmat"
	case Scalar:
		return "scalar"
	case Unfused:
		return "unfused"
	}
	return fmt.Sprintf("Impl(%d)", uint8(i))
}

// ParseImpl accepts the names that String returns.
func ParseImpl(name string) (Impl, error) {
	for _, i := range append(Impls(), Auto) {
		if name == i.String() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("attention: impl %q is not one of auto, coopmat2, coopmat, scalar, unfused", name)
}

// MarshalText returns the name.
func (i Impl) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText parses the name.
func (i *Impl) UnmarshalText(text []byte) (err error) {
	*i, err = ParseImpl(string(text))
	return err
}

// Options say how, never what. The zero value is the default.
type Options struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration of Impl instead of the tuning table's;
	// it must be feasible. It is for tuning and tests.
	Config *Config
	// BackwardConfig forces a configuration of Backward, as Config does of Forward.
	BackwardConfig *BackwardConfig
	// DecodeConfig forces a configuration of Decode, likewise, and Forward to take its kernels.
	DecodeConfig *DecodeConfig
	// Workspace is memory for Backward or Decode, Workspace bytes of it, whose content is lost. Weights
	// that Backward stores (BackwardConfig.Stored) make do with less.
	// Calls that share it run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
	// Tuning is what was measured on the device; its rows come before those of
	// the built-in table. Nil is none. kit.LoadTuningFile reads one.
	Tuning *kit.Tuning
}
