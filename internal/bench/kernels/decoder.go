package kernels

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/decoder"
)

var _ = row(Kernel{}, &calls[*call.Decoder]{
	name:   "decoder",
	values: map[string]value{"config": parsed(pointer(decoder.ParseConfig), "CONFIG")},
	check: func(d *call.Decoder, f *pflag.FlagSet) error {
		switch {
		case d.Layers < 0:
			return fmt.Errorf("decoder: layers=%d is negative", d.Layers)
		case f.Changed("length") && (d.Length < 0 || d.Length >= d.Keys):
			return fmt.Errorf("decoder: length=%d is not from 0 to keys-1=%d", d.Length, d.Keys-1)
		case f.Lookup("length") != nil && !f.Changed("length"):
			d.Length = d.Keys - 1
		}
		return nil
	},
	file: func(s *Source, d *call.Decoder) error {
		d.Bias = s.has("bias")
		err := cmp.Or(s.into(d, "x", "dtype", "", "width"), s.into(d, "down", "", "", "hidden"), s.into(d, "k", "", "kv_heads", "keys", "headdim"))
		lens, bad := s.ints("seq_lens", "one")
		if err = cmp.Or(err, bad); len(lens) == 1 {
			d.Length = int(lens[0])
		}
		d.KVHeads /= max(d.Layers, 1)
		if out, ok := s.Tensor("out"); ok && err == nil && len(out.Shape) == 2 {
			d.Heads = out.Shape[1] / max(d.HeadDim, 1)
		}
		return err
	},
	shrink: func(d *call.Decoder, _ [3]int) { d.Layers = 1 },
})
