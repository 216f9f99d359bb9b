package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A few queries with many keys are what Decode is made for, and Forward takes its kernels where
// they are faster. For them K and V are a cache that is full: SeqLens is 0, and all keys are new.

// asDecode returns p as a problem of Decode, with an error if it is none.
func (p *Problem) asDecode() (DecodeProblem, error) {
	d := DecodeProblem{Problem: *p, NewKeys: p.SeqKV}
	if p.SeqQ == 1 && p.CausalAlign == BottomRight { // no key comes after the last position
		d.Causal = false
		if d.Window.On {
			d.Window.Right = Unlimited
		}
	}
	return d, d.Validate()
}

// forwardAsDecode returns how Forward runs p on the kernels of Decode; false if it takes its own.
func forwardAsDecode(caps *vk.Caps, p *Problem, opt *Options) (c DecodeConfig, origin kit.Origin, ok bool, err error) {
	forced := opt.DecodeConfig != nil
	few := opt.Impl == Auto && opt.Config == nil && p.SeqQ <= decodeMostQueries && p.SeqKV >= decodeFewestKeys
	if !forced && !few || p.Validate() != nil {
		return c, origin, false, nil
	}
	d, err := p.asDecode()
	if err == nil {
		c, origin, err = chooseDecode(caps, d, *opt)
	}
	if forced {
		if err != nil {
			err = unsupported("decode_config: %v", err)
		}
		return c, origin, err == nil, err
	}
	return c, origin, err == nil && d.groupRows() <= decodeMostRows(caps, c.Impl), nil
}

// From fewer keys, or for more queries of a sequence or rows of a group, Forward's own kernels are
// faster, or as fast: TUNING.md has the runs.
const (
	decodeFewestKeys  = 256
	decodeMostQueries = 16
)

// decodeMostRows returns how many rows of a key head the kernels of Decode are faster for. Scalar ones
// read keys again for every 4 rows, and compete with matrices but on a CPU device.
func decodeMostRows(caps *vk.Caps, impl Impl) int {
	if impl == Scalar && caps.Type != vk.CPU {
		return 2 * decodeRows
	}
	return 64
}

// forwardDecode records the kernel of Decode for p, in memory that c owns.
func forwardDecode(c *vk.Cmd, t *Tensors, p *Problem, config DecodeConfig) error {
	d, err := p.asDecode()
	if err != nil {
		return err
	}
	// State is zeros between calls, and so are the lengths.
	states, lengths := d.StateShape()[0], d.SeqLensShape()[0]
	zeros := c.Zeros("attention.state", 4*int64(states+lengths))
	if err := c.Err(); err != nil {
		return err
	}
	all := vk.View(zeros, dtype.Int32, states+lengths)
	return recordDecode(c, &DecodeTensors{
		Q: t.Q, K: t.K, V: t.V, O: t.O, LSE: t.LSE, Bias: t.Bias, ALiBiSlopes: t.ALiBiSlopes, Sinks: t.Sinks,
		State: all.Slice(0, 0, states), SeqLens: all.Slice(0, states, states+lengths),
	}, &d, config, nil)
}

// kernels lists the modules.
func (c *DecodeConfig) kernels(p *Problem) []string {
	return []string{c.kernel() + "." + p.DType.Short()}
}
