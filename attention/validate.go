package attention

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	if !p.DType.Float() {
		return fmt.Errorf("attention: dtype=%v is not a known floating-point format", p.DType)
	}
	for _, check := range []func() error{p.checkMask, p.checkScores, p.checkSizes, p.checkDims, p.checkVarlen, p.checkDropout, p.checkQuant, p.checkElements} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkMask checks Causal, CausalAlign and Window.
func (p Problem) checkMask() error {
	if p.CausalAlign > TopLeft {
		return fmt.Errorf("attention: causal_align=%v is not a known alignment", p.CausalAlign)
	}
	if p.CausalAlign != BottomRight && !p.Causal && !p.Window.On && p.ALiBi == ALiBiOff {
		return fmt.Errorf("attention: causal_align=%v without causal, window or alibi, which it aligns", p.CausalAlign)
	}
	w := p.Window
	if !w.On && w != (Window{}) {
		return fmt.Errorf("attention: window left=%d, right=%d is set but not on", w.Left, w.Right)
	}
	for _, side := range []struct {
		name string
		keys int
	}{{"left", w.Left}, {"right", w.Right}} {
		if side.keys < Unlimited {
			return fmt.Errorf("attention: window %s=%d excludes a row's own position: it must be a number of keys, or -1 for unlimited", side.name, side.keys)
		}
		if side.keys > math.MaxInt32 {
			return fmt.Errorf("attention: window %s=%d is larger than %d", side.name, side.keys, math.MaxInt32)
		}
	}
	return nil
}

// minNormal is the smallest float32 that every device multiplies by exactly.
const minNormal = 0x1p-126

// normal reports whether x is a normal number in float32. A subnormal one may
// be flushed to zero, and 0 * -Inf is NaN.
func normal(x float64) bool {
	f := float32(math.Abs(x))
	return f >= minNormal && f <= math.MaxFloat32
}

// checkScores checks Scale, Softcap, ALiBi and Bias.
func (p Problem) checkScores() error {
	if p.Scale != 0 && !normal(p.Scale*math.Log2E) {
		return fmt.Errorf("attention: scale=%v times log2(e) is not a normal float32", p.Scale)
	}
	if p.Softcap != 0 && !(p.Softcap > 0 && normal(p.Softcap*math.Log2E) && normal(1/p.Softcap)) {
		return fmt.Errorf("attention: softcap=%v is not a positive, normal float32", p.Softcap)
	}
	if p.ALiBi > ALiBiPerBatchHead {
		return fmt.Errorf("attention: alibi=%v is not a known shape of slopes", p.ALiBi)
	}
	if !p.Bias.On && p.Bias != (Bias{}) {
		return fmt.Errorf("attention: bias is set but not on")
	}
	if p.Bias.DType != dtype.Float32 && p.Bias.DType != p.DType {
		return fmt.Errorf("attention: bias is %v, want float32 or the %v of q", p.Bias.DType, p.DType)
	}
	return nil
}

const (
	// MaxHeadDim is the largest head_dim.
	MaxHeadDim = 256
	// HeadDimMultiple divides every head_dim.
	HeadDimMultiple = 8
)

func (p Problem) checkSizes() error {
	for _, s := range []struct {
		name string
		n    int
	}{
		{"batch", p.Batch}, {"num_heads", p.NumHeads}, {"num_kv_heads", p.NumKVHeads},
		{"seq_q", p.SeqQ}, {"seq_kv", p.SeqKV}, {"head_dim", p.HeadDim}, {"value_dim", p.ValueHeadDim()},
	} {
		if s.n < 1 {
			return fmt.Errorf("attention: %s=%d is not positive", s.name, s.n)
		}
		if s.n > math.MaxInt32 {
			return fmt.Errorf("attention: %s=%d is larger than %d", s.name, s.n, math.MaxInt32)
		}
	}
	if p.NumHeads%p.NumKVHeads != 0 {
		return fmt.Errorf("attention: num_heads=%d is not a multiple of num_kv_heads=%d", p.NumHeads, p.NumKVHeads)
	}
	return nil
}

func (p Problem) checkDims() error {
	for _, d := range []struct {
		name string
		n    int
	}{{"head_dim", p.HeadDim}, {"value_dim", p.ValueHeadDim()}} {
		if d.n%HeadDimMultiple != 0 {
			return fmt.Errorf("attention: %s=%d is not a multiple of %d", d.name, d.n, HeadDimMultiple)
		}
		if d.n > MaxHeadDim {
			return fmt.Errorf("attention: %s=%d is larger than %d", d.name, d.n, MaxHeadDim)
		}
	}
	return nil
}

func (p Problem) checkVarlen() error {
	v := p.Varlen
	if !v.On {
		if v != (Varlen{}) {
			return fmt.Errorf("attention: total_q=%d, total_kv=%d are set but varlen is not on", v.TotalQ, v.TotalKV)
		}
		return nil
	}
	for _, s := range []struct {
		name        string
		total, most int
	}{{"q", v.TotalQ, p.SeqQ}, {"kv", v.TotalKV, p.SeqKV}} {
		if s.total < 1 {
			return fmt.Errorf("attention: total_%s=%d is not positive", s.name, s.total)
		}
		if s.total > math.MaxInt32 {
			return fmt.Errorf("attention: total_%s=%d is larger than %d", s.name, s.total, math.MaxInt32)
		}
		if s.most > s.total {
			return fmt.Errorf("attention: seq_%s=%d, the length of the longest sequence, is larger than total_%s=%d", s.name, s.most, s.name, s.total)
		}
	}
	return nil
}

func (p Problem) checkDropout() error {
	d := p.Dropout
	if !(d.P >= 0 && d.P < 1) {
		return fmt.Errorf("attention: dropout p=%v is not in [0, 1)", d.P)
	}
	if d.On() && !d.Seeded {
		return fmt.Errorf("attention: dropout p=%v without a seed, which tells what is dropped", d.P)
	}
	if !d.Seeded && (d.Seed != 0 || d.Offset != 0) {
		return fmt.Errorf("attention: dropout seed=%d, offset=%d are set but not seeded", d.Seed, d.Offset)
	}
	return nil
}

// checkElements returns an error if the element count of the largest tensor, with room for
// strides and bytes, is more than an int64 holds.
func (p Problem) checkElements() error {
	heads := float64(p.Batch) * float64(p.NumHeads)
	dim := max(p.HeadDim, p.ValueHeadDim())
	if n := heads * float64(max(p.SeqQ, p.SeqKV)) * float64(dim); n > 1<<52 {
		return fmt.Errorf("attention: batch*num_heads*seq*head_dim=%.3g elements is larger than 2^52", n)
	}
	if n := heads * float64(p.SeqQ) * float64(p.SeqKV); p.Bias.On && n > 1<<52 {
		return fmt.Errorf("attention: batch*num_heads*seq_q*seq_kv=%.3g elements of a bias is larger than 2^52", n)
	}
	return nil
}

// CheckCuSeqlens checks the cumulative lengths of a Varlen: each list starts at 0, does not
// decrease, ends within the tensor and steps by at most SeqQ or SeqKV. The error names the first
// entry that breaks a rule.
func (p Problem) CheckCuSeqlens(q, kv []int32) error {
	if err := p.checkCuSeqlens("q", q, p.SeqQ, p.Varlen.TotalQ); err != nil {
		return err
	}
	return p.checkCuSeqlens("kv", kv, p.SeqKV, p.Varlen.TotalKV)
}

func (p Problem) checkCuSeqlens(name string, cu []int32, most, total int) error {
	if len(cu) != p.Batch+1 {
		return fmt.Errorf("attention: cu_seqlens_%s has %d entries, want batch+1=%d", name, len(cu), p.Batch+1)
	}
	if cu[0] != 0 {
		return fmt.Errorf("attention: cu_seqlens_%s[0]=%d is not 0", name, cu[0])
	}
	for b := range p.Batch {
		from, to := int(cu[b]), int(cu[b+1])
		switch {
		case to < from:
			return fmt.Errorf("attention: cu_seqlens_%s[%d]=%d is less than %d before it", name, b+1, to, from)
		case to > total:
			return fmt.Errorf("attention: cu_seqlens_%s[%d]=%d is beyond the tensor, total_%s=%d", name, b+1, to, name, total)
		case to-from > most:
			return fmt.Errorf("attention: cu_seqlens_%s[%d]=%d is %d after %d, more than seq_%s=%d", name, b+1, to, to-from, from, name, most)
		}
	}
	return nil
}
