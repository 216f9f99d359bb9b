package attention

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
)

// An Align is the corner of the (seq_q, seq_kv) matrix of scores to which a causal mask is aligned.
type Align uint8

const (
	// BottomRight lets row i see keys j <= i + seq_kv - seq_q, as
	// FlashAttention does: the last query sees every key.
	BottomRight Align = iota
	// TopLeft lets row i see keys j <= i, as PyTorch's is_causal does: the
	// first query sees one key.
	TopLeft
)

var alignNames = enum.Names[Align]{BottomRight: "bottom-right", TopLeft: "top-left"}

// String returns the name used by --causal-align.
func (a Align) String() string { return alignNames.Of(a) }

// ParseAlign accepts bottom-right and top-left.
func ParseAlign(name string) (Align, error) { return alignNames.Parse("attention: causal-align", name) }

// A Problem is one attention call,
//
//	S = Scale * Q * Kᵀ,  P = softmax(S) over the visible keys,  O = P * V
//
// with Q (Batch, NumHeads, SeqQ, HeadDim), K (Batch, NumKVHeads, SeqKV, HeadDim), V (Batch,
// NumKVHeads, SeqKV, ValueDim) and O (Batch, NumHeads, SeqQ, ValueDim). Query head h reads key head
// h / (NumHeads/NumKVHeads). With all features the score of row i and a key j that it sees is
//
//	x = Scale * dot(Q[i], K[j])
//	x = Softcap * tanh(x / Softcap)
//	x = x + Bias[i,j] - slope*|i + shift - j|
//
// The softmax of a row is over its scores and the sink of its head. Dropout then keeps some of the
// weights, and these multiply V. The zero value of each feature is "off".
//
// A Problem is a value: problems that are == are the same call.
type Problem struct {
	Batch      int
	NumHeads   int
	NumKVHeads int
	SeqQ       int
	SeqKV      int
	HeadDim    int

	// ValueDim is the head_dim of V and O; 0 stands for HeadDim.
	ValueDim int

	// DType is the storage format of Q, K, V and O. Sums are always float32.
	DType dtype.DType

	// Causal hides the keys after a row's own position. For SeqQ = 2 and SeqKV = 5 the keys seen
	// are
	//
	//	BottomRight  1 1 1 1 0    TopLeft  1 0 0 0 0
	//	             1 1 1 1 1             1 1 0 0 0
	//
	// and for SeqQ = 5 and SeqKV = 2
	//
	//	BottomRight  0 0          TopLeft  1 0
	//	             0 0                   1 1
	//	             0 0                   1 1
	//	             1 0                   1 1
	//	             1 1                   1 1
	//
	// A row that sees no key has O = 0 and LSE = -Inf, or with Sinks LSE = the sink of its head.
	//
	// CausalAlign also places the positions of Window and ALiBi: row i is at key i + shift, with
	// shift = SeqKV - SeqQ for BottomRight and 0 for TopLeft.
	Causal      bool
	CausalAlign Align

	// Window hides the keys that are far from a row's own position.
	Window Window

	// Scale multiplies the scores; 0 stands for the default, 1/√HeadDim. It may be negative. The
	// kernels multiply by Scale*log2(e), whose magnitude must be a normal float32: |Scale| is about
	// 8.15e-39 to 2.35e+38.
	Scale float64

	// Softcap > 0 keeps the scaled scores between -Softcap and Softcap: x becomes Softcap *
	// tanh(x/Softcap), with an error of some 2^-24 of Softcap. 0 is off. It is a normal float32.
	Softcap float64

	// ALiBi lowers the scores of distant keys. Bias adds a tensor to the scores.
	ALiBi ALiBi
	Bias  Bias

	// KeyMask hides keys from every row of a batch. Its tensor has booleans (Batch, SeqKV); true is
	// visible. For the key mask 1 1 0 1 of a batch, and Causal, the keys seen are
	//
	//	1 0 0 0
	//	1 1 0 0
	//	1 1 0 0
	//	1 1 0 1
	KeyMask bool

	// Sinks adds one more score to each row, the sink of its head: a tensor of float32 (NumHeads).
	// The sink counts in the sum of the softmax and in LSE, but has no value in V. It is neither
	// scaled nor capped. -Inf is no sink.
	Sinks bool

	// Varlen packs sequences of different lengths.
	Varlen Varlen

	// Dropout drops weights at random.
	Dropout Dropout

	// Quant is the format in which Q and K are multiplied, none or
	//
	//	int8  8-bit integers
	//	e4m3  8-bit floating-point numbers
	//
	// With the elements and scales of dtype.Quant,
	//
	//	mean   = the mean of K                   over the keys of a head that some row sees; 0 with Softcap
	//	up     = a power of two of a channel     of a key head
	//	H      = an orthogonal matrix            of n = 8, 16 or 32 columns
	//	Q̂[i]   = scale * element * Hᵀ * up       of Q[i] / up * H, one scale for each row
	//	K̂[j]   = mean + scale * element * Hᵀ / up  of (K[j] - mean) * up * H, one scale for the keys 64*m to 64*m+63
	//	S      = Scale * Q̂ * K̂ᵀ                  with dot(Q[i], mean) for dot(Q̂[i], mean)
	//
	// A wide channel of Q or K would leave few elements for the others; `up` divides what a channel has of the
	// product among Q and K, and H gives a wide channel's numbers to n columns. Let k be the width of a channel of
	// K, largest - least, or with Softcap the largest |K|, and q its largest |Q| of rows 0, m, 2m, ... of the heads
	// that read the key head, with m = ceil(SeqQ/16). Both are by the largest of all channels, at least 2^-8. Then
	// up = 2^trunc(5/8 * (log2(q) - log2(k))), where log2 of 2^a*(1+x) is a+x. H is a Hadamard matrix over its
	// root; with r = HeadDim/n, it mixes the columns 8*(a + r*b) to 8*(a + r*b) + 7 of all b for each a < r, where
	// n, at most 32, is the largest power of two that divides HeadDim.
	//
	// P * V is as without. Keys that masks hide from every row count nowhere. Q, and K where some row
	// sees it, have to be below 2^100 in magnitude. Forward alone has Quant, of float16 and bfloat16.
	//
	// docs/kernels.md says how near O is to attention.
	Quant dtype.Quant
}

// EffectiveScale returns the factor that the scores are multiplied by.
func (p Problem) EffectiveScale() float64 {
	if p.Scale != 0 {
		return p.Scale
	}
	return 1 / math.Sqrt(float64(p.HeadDim))
}

// ValueHeadDim returns the head_dim of V and O.
func (p Problem) ValueHeadDim() int {
	if p.ValueDim != 0 {
		return p.ValueDim
	}
	return p.HeadDim
}
