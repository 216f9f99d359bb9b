package attntest

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
)

// features fills the tensors of the problem's features.
//
//	bias           standard normal; with HidingBias, one in 8 is -Inf
//	alibi_slopes   2^(-8*(h+1)/heads), as the paper has them, times 1 + batch/2
//	sinks          one that counts, one that outweighs all keys, two that count, one that is none, ...
//	key_mask       three keys in four, at random, and none in the third batch; or as Mask says
//	cu_seqlens     from the case's Lengths
func (g generator) features(in *ref.Inputs[float64], c *Case) {
	p := g.p
	if p.Bias.On {
		in.Bias = g.normal(p.BiasShape())
		round(in.Bias, p.Bias.DType)
		g.resize(in.Bias, c.Sizes.Bias, false, p.Bias.DType)
		for i := range in.Bias {
			if c.HidingBias && c.Mask == RandomMask && g.IntN(8) == 0 {
				in.Bias[i] = math.Inf(-1)
			}
		}
		if c.HidingBias && c.Mask != RandomMask {
			g.rows(in.Bias, p.SeqKV, func(_ int, row []float64) {
				for j, visible := range g.visible(c.Mask, p.SeqKV) {
					if !visible {
						row[j] = math.Inf(-1)
					}
				}
			})
		}
	}
	if p.ALiBi != attention.ALiBiOff {
		in.ALiBiSlopes = make([]float64, product(p.SlopesShape()))
		for i := range in.ALiBiSlopes {
			b, h := i/p.NumHeads, i%p.NumHeads
			in.ALiBiSlopes[i] = math.Exp2(-8*float64(h+1)/float64(p.NumHeads)) * (1 + float64(b)/2)
		}
		round(in.ALiBiSlopes, dtype.Float32)
	}
	if p.Sinks {
		in.Sinks = g.normal(p.SinksShape())
		round(in.Sinks, dtype.Float32)
		for h := range in.Sinks {
			switch h % 5 {
			case 1:
				in.Sinks[h] = 20
			case 4:
				in.Sinks[h] = math.Inf(-1)
			}
		}
	}
	if p.KeyMask {
		in.KeyMask = make([]bool, product(p.KeyMaskShape()))
		for i := range in.KeyMask {
			in.KeyMask[i] = c.Mask == RandomMask && i/p.SeqKV != 2 && g.IntN(4) > 0
		}
		for b := range p.Batch {
			if c.Mask != RandomMask {
				copy(in.KeyMask[b*p.SeqKV:], g.visible(c.Mask, p.SeqKV))
			}
		}
	}
	if p.Varlen.On {
		in.CuSeqlensQ, in.CuSeqlensKV = c.cuSeqlens()
	}
}

// packed sets the tensors that follow from the Lengths of the case.
func (c *Case) packed() {
	p := &c.Problem
	p.Batch, p.SeqQ, p.SeqKV = len(c.Lengths), 1, 1
	p.Varlen = attention.Varlen{On: true, TotalQ: c.Slack, TotalKV: c.Slack}
	for _, n := range c.Lengths {
		p.SeqQ, p.SeqKV = max(p.SeqQ, n[0]), max(p.SeqKV, n[1])
		p.Varlen.TotalQ += n[0]
		p.Varlen.TotalKV += n[1]
	}
}

// FLOPs returns the operations of the case, for the lengths of its sequences.
func (c *Case) FLOPs() float64 {
	if !c.Problem.Varlen.On {
		return c.Problem.FLOPs()
	}
	return c.Problem.FLOPsOf(c.cuSeqlens())
}

// cuSeqlens returns what follows from Lengths.
func (c *Case) cuSeqlens() (q, kv []int32) {
	q, kv = []int32{0}, []int32{0}
	for b, n := range c.Lengths {
		q, kv = append(q, q[b]+int32(n[0])), append(kv, kv[b]+int32(n[1]))
	}
	return q, kv
}

// mask returns the mask of a sequence, with its lengths.
func (c *Case) mask(b int) attention.Mask {
	if c.Problem.Varlen.On {
		return c.Problem.MaskOf(c.Lengths[b][0], c.Lengths[b][1])
	}
	return c.Problem.Mask()
}

// hidden calls f for every key that masks hide from all rows, with the number of its row in K and V
// in logical order.
func (c *Case) hidden(in ref.Inputs[float64], f func(row int)) {
	p := c.Problem
	seen := make([]bool, product(p.KShape())/p.HeadDim)
	for b := range p.Batch {
		mask := c.mask(b)
		lo, hi := mask.KeyTiles(0, max(mask.SeqQ-1, 0), 1)
		for j := range mask.SeqKV {
			visible := mask.SeqQ > 0 && lo <= j && j < hi && (!p.KeyMask || in.KeyMask[b*p.SeqKV+j])
			for h := range p.NumKVHeads {
				visible := visible && !c.hiddenByBias(in, b, h, j)
				at := (b*p.NumKVHeads+h)*p.SeqKV + j
				if p.Varlen.On {
					at = (int(in.CuSeqlensKV[b])+j)*p.NumKVHeads + h
				}
				seen[at] = visible
			}
		}
	}
	for at, s := range seen {
		if !s {
			f(at)
		}
	}
}

// hiddenByBias reports whether a bias that all rows share is -Inf for a key, in all heads that read
// a key head. If rows do not share the bias the result is false: then kernels multiply V by weights
// of 0.
func (c *Case) hiddenByBias(in ref.Inputs[float64], b, kvHead, key int) bool {
	p := c.Problem
	if !p.Bias.On || p.Bias.Rows {
		return false
	}
	shape := p.BiasShape()
	group := p.NumHeads / p.NumKVHeads
	for h := kvHead * group; h < (kvHead+1)*group; h++ {
		at := min(b, shape[0]-1)*shape[1] + min(h, shape[1]-1)
		if !math.IsInf(in.Bias[at*p.SeqKV+key], -1) {
			return false
		}
	}
	return true
}

func product(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}
