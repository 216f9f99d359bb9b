package attention_test

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// A stepCase is a call of Step with a configuration without Append.
type stepCase struct {
	call.Step
	damage func(x call.Values) // of lengths and tables; O and LSE are invalid then
	odd    bool                // new_k begins one element late
}

// stepCases are those of decodeCases that one kernel can compute and some with a single sequence, with
// rotations and work divided in several ways, and sequences and tables that are wrong. Software has those
// with features of scores alone if there is time.
func stepCases(dev *vk.Device) (list []stepCase) {
	alone := func(seqQ, newKeys, length int, change func(p *attention.DecodeProblem)) call.Decode {
		c := call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: seqQ, SeqKV: 512, HeadDim: 64, DType: dtype.Float16, Causal: true,
		}, NewKeys: newKeys}, Lens: []int{length}, Data: call.Data{Magnitude: 2}}
		if change != nil {
			change(&c.DecodeProblem)
		}
		return c
	}
	type P = attention.DecodeProblem
	cases := append(decodeCases(),
		alone(1, 1, 0, nil), alone(3, 3, 15, nil), alone(2, 2, 511-1, nil), alone(1, 40, 300, nil), alone(4, 1, 0, nil),
		alone(1, 40, 300, func(p *P) { p.Window = attention.Window{On: true, Left: 5} }),
		alone(2, 2, 100, func(p *P) { p.LeftPad = true }),
		alone(3, 3, 333, func(p *P) { p.PageSize, p.Pages = 8, 64 }))
	coopmat := attention.CoopMat
	if _, err := attention.ChooseDecode(dev.Caps(), cases[0].DecodeProblem, attention.Options{Impl: coopmat}); err != nil {
		coopmat = attention.Auto // there is none
	}
	for i, d := range cases {
		rows := d.NumHeads / d.NumKVHeads * d.SeqQ
		if d.NewKeys == 0 || rows > 16 {
			continue
		}
		scores := d.Softcap != 0 || d.ALiBi != attention.ALiBiOff || d.Bias.On || d.Sinks || d.Tree
		if scores && !d.Window.On && !vktest.Thorough(dev) {
			continue // scores do not know who wrote a key; one case has these features together
		}
		dims := []int{d.HeadDim / 16 * 16, 16, 0}[i%3]
		c := stepCase{Step: call.Step{Decode: d, RoPE: attention.RoPE{Dims: dims, Interleaved: dims > 0 && i%2 == 0}}, odd: i%5 == 0}
		c.Config = &attention.DecodeConfig{Impl: attention.Scalar, Rows: 1 << bits.Len(uint(rows-1)), Subgroups: 1 + i%3, Groups: []int{7, 16, 40}[i%3]}
		list = append(list, c)
		for n := 0; coopmat == attention.CoopMat && d.DType != dtype.Float32 && n < 3; n++ {
			c.Config = &attention.DecodeConfig{Impl: coopmat, Rows: []int{16, 16, 32}[n], Subgroups: []int{4, 8, 2}[n], Groups: []int{7, 132, 40}[n]}
			if rows <= 8 && n == 0 {
				c.Config.Rows, c.Config.Subgroups = 8, 12
			}
			list = append(list, c)
		}
	}
	for _, c := range slices.Clone(list) {
		switch {
		case c.PageSize == 16:
			c.damage = func(x call.Values) { x["block_table"][254/16] = 64 }
		case c.CacheRows > 0:
			c.damage = func(x call.Values) { x["cache_batch_idx"][1] = -1 }
		case c.HeadDim == 96:
			c.damage = func(x call.Values) { copy(x["seq_lens"], []float64{100, 197, -1}) }
		default:
			continue
		}
		list = append(list, c)
	}
	return list
}

// run runs Step on tensors of its own and returns what it wrote.
func (c stepCase) run(t *testing.T, dev *vk.Device, appends bool) (written map[string][]byte, state uint32) {
	config := *c.Config
	config.Append = appends
	c.Config = &config
	x := call.Inputs(&c.Step)
	if dims := c.RoPE.Dims; dims > 0 {
		cos, sin := attention.RoPETable(c.SeqKV, dims, 100)
		for i := range cos {
			x["cos"][i], x["sin"][i] = float64(cos[i]), float64(sin[i])
		}
	}
	if c.damage != nil {
		c.damage(x)
	}
	on := uploaded(t, dev, &c.Step, x)
	if newK := on["new_k"]; c.odd {
		late := vktest.Tensor(t, dev, c.DType, newK.NumElements()+1)
		require.NoError(t, late.Upload(t.Context(), append([]float32{0}, elements(t, newK)...)))
		newK.Buffer, newK.Offset = late.Buffer, 1
		on["new_k"] = newK
	}
	submit(t, dev, &c.Step, on)
	written = map[string][]byte{}
	for _, name := range []string{"q", "k", "v", "o", "lse", "state"} {
		if c.damage != nil && (name == "o" || name == "lse") {
			continue
		}
		y := on[name]
		written[name] = make([]byte, y.NumElements()*y.DType.Size())
		require.NoError(t, y.DownloadRaw(t.Context(), written[name]))
	}
	return written, uint32(written["state"][0])
}

// TestStep wants the bits of Append and Decode of the kernel that does both: in O and LSE, in the cache,
// in Q, and in the state.
func TestStep(t *testing.T) {
	dev := vktest.Open(t)
	cases := stepCases(dev)
	require.Greater(t, len(cases), 20)
	for i, c := range cases {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%d %v %v %v", i, c.Config, c.RoPE, c.DecodeProblem), "/", " "), func(t *testing.T) {
			want, state := c.run(t, dev, false)
			got, _ := c.run(t, dev, true)
			require.Equal(t, c.damage != nil, state != 0)
			for name := range want {
				require.True(t, slices.Equal(want[name], got[name]), name)
			}
		})
	}
}
