package attention_test

import (
	"strings"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestStripes runs problems whose keys go straight from memory to products: subgroups with rows of
// their own and subgroups that share keys, more of them than tiles that a row sees, sums that pass
// through shared memory at once and in parts.
func TestStripes(t *testing.T) {
	d := vktest.Open(t)
	cases := suite(d).Where(func(c *attntest.Case) bool {
		return c.Problem.FLOPs() < 1e7 && (c.Problem.HeadDim <= setOf(d).HeadDims().Odd || vktest.Thorough(d))
	})
	for _, config := range []attention.Config{
		{Subgroups: 2, RowTiles: 1, BlockN: 16, Stripes: 1},
		{Subgroups: 2, RowTiles: 2, BlockN: 16, Stripes: 2},
		{Subgroups: 4, RowTiles: 1, BlockN: 32, Stripes: 2},
		{Subgroups: 4, RowTiles: 1, BlockN: 16, Stripes: 4},
		{Subgroups: 8, RowTiles: 1, BlockN: 32, Stripes: 8},
		{Subgroups: 8, RowTiles: 2, BlockN: 16, Stripes: 4},
		{Subgroups: 1, RowTiles: 1, BlockN: 64, Stripes: 1},
	} {
		config.Impl = attention.CoopMat2
		for _, config.Detour = range []bool{false, true} {
			t.Run(config.String(), func(t *testing.T) {
				if d.Caps().Type == vk.CPU && (config.Subgroups > 2 || config.BlockN > 32) {
					t.Skip("a software driver compiles it for minutes; conformance runs four subgroups there")
				}
				if !config.Detour && !chips.Quads(d.Caps()) {
					t.Skip("the driver does not keep matrices as NVIDIA's does")
				}
				vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
				f := onDevice{d, attention.Options{Config: &config}}
				attntest.TestForward(t, standIns(d, cases.Where(func(c *attntest.Case) bool {
					return c.Problem.Plain() && !strings.HasPrefix(c.Name, "decode") && lightOnSoftware(d, c)
				}), f.Supports), f)
			})
		}
	}
}
