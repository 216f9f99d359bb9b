// Package attention computes softmax attention on a Vulkan device.
//
//	S   = Scale * Q * Kᵀ
//	P   = softmax(S) over the keys that a row sees
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row
//
// [Forward] picks the fastest path that the device and the problem allow; Options.Impl forces one:
//
//	path      needs                                        scores live in   file
//	coopmat2  VK_NV_cooperative_matrix2 at subgroup scope  registers        fwd.go
//	coopmat   VK_KHR_cooperative_matrix                    registers        fwd.go
//	scalar    Vulkan 1.2 compute                           registers        fwd.go
//	unfused   Vulkan 1.2 compute, memory for S             device memory    unfused.go
//
// Every path computes every feature of a [Problem]. A problem without features runs kernels without
// code for them (features.go). Tile sizes come from the tables of fwd_table.go, bwd_table.go and
// decode_table.go, or from Options.Tuning; docs/tuning.md explains them.
//
// Few rows and many keys occur when a model decodes token after token. Forward then takes the
// kernels of [Decode] where they are faster (fwd_decode.go). Otherwise it spreads the problem over
// the device: the heads of a group become rows of one matrix (fwd.go), and several workgroups
// divide the keys of a block of rows (combine.go).
//
// [Backward] computes the gradients from the results of Forward, in one of four ways:
//
//	two kernels  each recomputes the weights; one sums dK and dV, the other dQ           bwd_matrix.go
//	stored       the kernel of dQ stores the weights in 16 bits; dK and dV are products  bwd_stored.go
//	fused        one kernel sums all three                                               bwd_fused.go
//	unfused      weights and score gradients are in memory                               bwd_unfused.go
//
// In float16 score gradients on matrices have the range of float16, so large ones need a loss scale: see
// Backward.
//
// The gradients of the bias and the sinks have their own kernels (bwd_features.go, bwd_stored.go).
//
// [Append] and [Decode] are for sequences that grow. They work on a cache of keys and values,
// contiguous or paged, in the format of the queries or in 8 bits ([CacheFormat]), with its lengths
// on the device. [KVCache] is the memory of a cache and its host side.
//
// [ForwardHost] is Forward on slices of the host. [Supports] says whether a device computes a pass
// of a problem, and if not, why; [Choose] says what would run.
//
// Tensors are views of device buffers. They have any strides and a contiguous last axis; the axes
// are
//
//	Q, O  (batch, num_heads, seq_q, head_dim)
//	K, V  (batch, num_kv_heads, seq_kv, head_dim)
//	LSE   (batch, num_heads, seq_q), float32, natural logarithm
//
// All paths are deterministic: the same call on the same device gives the same bits.
//
// Several goroutines may call the functions; a vk.Cmd belongs to one goroutine.
package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An Impl is a path: one implementation of attention.
type Impl uint8

// The paths. Auto takes the first of CoopMat2, CoopMat and Scalar that supports the problem, on a
// CPU device Scalar. For a few queries with many keys it takes the kernels of Decode.
const (
	Auto Impl = iota
	CoopMat2
	CoopMat
	Scalar
	Unfused
)

// Impls lists the paths in the order in which Auto tries them. Auto never takes Unfused, which is
// last.
func Impls() []Impl { return []Impl{CoopMat2, CoopMat, Scalar, Unfused} }

var implNames = enum.Names[Impl]{Auto: "auto", CoopMat2: "coopmat2", CoopMat: "coopmat", Scalar: "scalar", Unfused: "unfused"}

// String returns the name used by --impl.
func (i Impl) String() string { return implNames.Of(i) }

// kernel returns the name of a kernel on a path, as in attention_bwd_dq_coopmat2. On matrices float32 tensors have
// kernels of their own.
func (i Impl) kernel(name string, t dtype.DType) string {
	if t == dtype.Float32 && onMatrices(i) {
		name += "_f32x2"
	}
	return name + "_" + i.String()
}

// ParseImpl accepts the names that String returns.
func ParseImpl(name string) (Impl, error) { return implNames.Parse("attention: impl", name) }

// MarshalText returns the name.
func (i Impl) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText parses the name.
func (i *Impl) UnmarshalText(text []byte) (err error) {
	*i, err = ParseImpl(string(text))
	return err
}

// Options say how a problem is computed, never what. The zero value is the default.
type Options struct {
	// Impl forces a path.
	Impl Impl
	// Config forces a configuration of Impl instead of the tuning table's. It must be feasible. It
	// is for tuning and tests.
	Config *Config
	// BackwardConfig is Config for Backward.
	BackwardConfig *BackwardConfig
	// DecodeConfig is Config for Decode. It also forces Forward to take the kernels of Decode.
	DecodeConfig *DecodeConfig
	// Workspace is memory for Backward or Decode, of the size that the function Workspace returns;
	// its content is lost. Stored weights (BackwardConfig.Stored) make do with less. Calls that
	// share it run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
	// Tuning has rows measured on the device; these rows come before the rows of the built-in
	// table. kit.LoadTuningFile reads a Tuning. Nil is none.
	Tuning *kit.Tuning
}
