package kernels

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{Backward: true}, &calls[*call.Rope]{
	name:   "rope",
	values: map[string]value{"scaling": parsed(attention.ParseScaling, "NAME")},
	check: func(r *call.Rope, _ *pflag.FlagSet) error {
		if r.Dims == 0 {
			r.Dims = r.HeadDim
		}
		return nil
	},
	file: func(s *Source, r *call.Rope) error {
		err := s.into(r, "q", "dtype", "batch", "heads", "seq", "headdim")
		if s.has("k") {
			err = cmp.Or(err, s.into(r, "k", "", "batch", "kv_heads", "seq", "headdim"))
		}
		x, ok := s.Tensor("positions")
		if r.Shared = ok && len(x.Shape) == 1; !ok && err == nil {
			err = fmt.Errorf("tensor %q is missing", "positions")
		}
		return err
	},
	shrink: func(r *call.Rope, _ [3]int) { r.Seq = max(1, r.Seq/16) },
	sample: func(*call.Rope) int { return 1024 },
})
