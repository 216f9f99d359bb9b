package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A stepCase is a call of Step, perhaps with lengths and tables that are wrong.
type stepCase struct {
	*call.Step
	damage string // a table with an entry that is none of the cache; O and LSE are invalid then
	odd    bool   // new_k begins one element late
}

// run runs Step on tensors of its own and returns the tensors that Step wrote.
func (c stepCase) run(t *testing.T, dev *vk.Device, appends bool) (written map[string][]byte, state uint32) {
	c.Config.Append = appends
	x := call.Inputs(c.Step)
	if c.damage != "" {
		x[c.damage][0] = math.MaxInt32
	}
	on := uploaded(t, dev, c.Step, x)
	if newK := on["new_k"]; c.odd {
		late := vktest.Tensor(t, dev, c.DType, newK.NumElements()+1)
		require.NoError(t, late.Upload(t.Context(), append([]float32{0}, elements(t, newK)...)))
		newK.Buffer, newK.Offset = late.Buffer, 1
		on["new_k"] = newK
	}
	submit(t, dev, c.Step, on)
	written = map[string][]byte{}
	for _, name := range []string{"q", "k", "v", "o", "lse", "state"} {
		y := on[name]
		if y.IsZero() || c.damage != "" && (name == "o" || name == "lse") {
			continue
		}
		written[name] = make([]byte, y.NumElements()*y.DType.Size())
		require.NoError(t, y.DownloadRaw(t.Context(), written[name]))
	}
	return written, uint32(written["state"][0])
}

// TestStep wants the bits of Append and Decode of the kernel that does both: in O and LSE, in the cache,
// in Q, and in the state.
func TestStep(t *testing.T) {
	dev := vktest.Open(t)
	ran, n, all := 0, 0, call.All()
	draw := all[slices.IndexFunc(all, func(k call.Kernel) bool { return k.Name == "step" })].Draw
	space, most := call.Space{Soft: software(dev), Thorough: vktest.Thorough(dev), Work: 2e6}, 200
	if space.Soft {
		most = 24
	}
	if !vktest.Thorough(dev) {
		most = 8
	}
	for ; n < 1000 && ran < most; n++ {
		c := stepCase{Step: draw(rand.New(rand.NewPCG(7, uint64(n/2))), rand.New(rand.NewPCG(8, uint64(n))), space).(*call.Step), odd: n%5 == 0}
		if c.Config == nil {
			continue
		}
		c.Config.Append = true
		if _, err := c.Host().Choose(dev.Caps(), kit.Forward); err != nil {
			continue
		}
		ran++
		switch {
		case ran%3 > 0 || c.LeftPad: // which may hide the keys of the first page
		case c.PageSize > 0:
			c.damage = "block_table"
		case c.CacheRows > 0:
			c.damage = "cache_batch_idx"
		}
		t.Run(strings.ReplaceAll(fmt.Sprintf("%d %v %v %v", n, c.Config, c.RoPE, c.DecodeProblem), "/", " "), func(t *testing.T) {
			want, state := c.run(t, dev, false)
			got, _ := c.run(t, dev, true)
			require.True(t, c.damage == "" || state != 0)
			for name := range want {
				require.True(t, slices.Equal(want[name], got[name]), name)
			}
		})
	}
	require.Equal(t, most, ran)
}
