package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// Forward takes the kernels of Decode for few queries with many keys where they are faster. K and V
// are then a full cache: SeqLens is 0, and all keys are new.

// asDecode returns p as a problem of Decode, which is not valid if Decode cannot compute p.
func (p *Problem) asDecode() DecodeProblem {
	d := DecodeProblem{Problem: *p, NewKeys: p.SeqKV}
	if p.SeqQ == 1 && p.CausalAlign == BottomRight { // no key comes after the last position
		d.Causal = false
		if d.Window.On {
			d.Window.Right = Unlimited
		}
	}
	return d
}

// forwardAsDecode returns how Forward runs p on the kernels of Decode; false if it takes its own
// kernels.
func forwardAsDecode(caps *vk.Caps, p *Problem, opt *Options) (c DecodeConfig, origin table.Origin, ok bool, err error) {
	forced := opt.DecodeConfig != nil
	few := opt.Impl == Auto && opt.Config == nil && p.SeqQ <= MaxDecodeQueries && p.SeqKV >= decodeFewestKeys
	if !forced && !few {
		return c, origin, false, nil
	}
	if p.Bias.On { // values of a key that it hides may be NaN for Forward, and are multiplied by 0 there
		if forced {
			err = unsupported("decode_config: Forward with a bias has no kernels of Decode")
		}
		return c, origin, false, err
	}
	d := p.asDecode()
	c, origin, err = chooseDecode(caps, d, *opt)
	if forced {
		if err != nil {
			err = unsupported("decode_config: %v", err)
		}
		return c, origin, err == nil, err
	}
	return c, origin, err == nil && decodesFaster(caps, p, c.Impl), nil
}

// decodeFewestKeys is the smallest number of keys with which the kernels of Decode were measured.
const decodeFewestKeys = 128

// decodesFaster reports whether the kernels of a path of Decode are faster than Forward's own, by a
// rule that follows measurements on an H200, testdata/h200_few_queries.csv. The rule asks two
// things about Forward's kernels:
//
//	again    they read keys once for each head of a group, since they cannot pack it (fwd.go)
//	divided  they divide the keys of a head among workgroups (combine.go)
//
// With again and without divided they are up to 24 times slower. Otherwise two numbers decide: the
// keys that the device can start on, and the rows that multiply each key.
func decodesFaster(caps *vk.Caps, p *Problem, impl Impl) bool {
	rows := p.NumHeads / p.NumKVHeads * p.SeqQ
	keys, work := p.SeqKV, float64(p.Batch)*float64(p.NumKVHeads)*float64(p.SeqKV)
	heads, again := p.NumKVHeads, false
	if !packs(p) {
		heads, again = p.NumHeads, p.NumHeads > p.NumKVHeads
	}
	divided := p.Plain() && float64(p.Batch)*float64(heads) <= maxSplitFill*float64(caps.ComputeUnits)
	short := max(p.HeadDim, p.ValueHeadDim()) <= 64
	switch {
	case caps.Type == vk.CPU:
		return rows <= 128
	case impl == Scalar: // scalar arithmetic competes with matrices
		most := 4
		if p.DType == dtype.Float32 && !short {
			most = 16
		}
		return rows <= most && (keys >= 512 || work >= 1<<14)
	case again && !divided:
		return rows <= 64 || rows <= 128 && !short
	case p.HeadDim > 192:
		return rows <= 64
	case rows > 16:
		return again && rows <= 64 && work >= 1<<16
	case !short:
		return keys >= 512 || work >= 1<<15
	case again:
		return work >= 1<<17
	}
	return work >= 1<<18 && (keys >= 512 && rows <= 8 || keys >= 4096)
}

// forwardDecode records the kernel of Decode for p, with memory of c.
func forwardDecode(c *vk.Cmd, t *Tensors, p *Problem, config DecodeConfig) error {
	d := p.asDecode()
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
func (c *DecodeConfig) kernels(p *DecodeProblem) []string {
	return []string{c.kernel(p) + "." + p.DType.Short()}
}
