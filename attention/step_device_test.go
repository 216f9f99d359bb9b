package attention_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// A stepCase is a problem of Step with a configuration without Append.
type stepCase struct {
	decodeCase
	rope    attention.RoPE
	config  attention.DecodeConfig
	damage  func(d *decodeData) // of tables
	invalid bool                // O and LSE are
	odd     bool                // new_k begins one element late
}

func (c *stepCase) problem() attention.AppendProblem {
	return attention.AppendProblem{DecodeProblem: c.DecodeProblem, RoPE: c.rope}
}

// stepCases are those of decodeCases that one kernel can compute and some with a single sequence, with
// rotations and work divided in several ways, and sequences and tables that are wrong. Software has those
// with features of scores alone if there is time.
func stepCases(dev *vk.Device) (list []stepCase) {
	alone := func(seqQ, newKeys, length int, change func(p *attention.DecodeProblem)) decodeCase {
		c := decodeCase{attention.DecodeProblem{Problem: attention.Problem{
			Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: seqQ, SeqKV: 512, HeadDim: 64, DType: dtype.Float16, Causal: true,
		}, NewKeys: newKeys}, []int{length}}
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
		c := stepCase{decodeCase: d, rope: attention.RoPE{Dims: dims, Interleaved: dims > 0 && i%2 == 0}, odd: i%5 == 0}
		c.config = attention.DecodeConfig{Impl: attention.Scalar, Rows: 1 << bits.Len(uint(rows-1)), Subgroups: 1 + i%3, Groups: []int{7, 16, 40}[i%3]}
		list = append(list, c)
		for n := 0; coopmat == attention.CoopMat && d.DType != dtype.Float32 && n < 3; n++ {
			c.config = attention.DecodeConfig{Impl: coopmat, Rows: []int{16, 16, 32}[n], Subgroups: []int{4, 8, 2}[n], Groups: []int{7, 132, 40}[n]}
			if rows <= 8 && n == 0 {
				c.config.Rows, c.config.Subgroups = 8, 12
			}
			list = append(list, c)
		}
	}
	wrong := func(c stepCase, damage func(c *stepCase)) {
		c.lens, c.invalid = slices.Clone(c.lens), true
		damage(&c)
		list = append(list, c)
	}
	for _, c := range slices.Clone(list) {
		switch {
		case c.PageSize == 16:
			wrong(c, func(c *stepCase) { c.damage = func(d *decodeData) { d.table[254/16] = 64 } })
		case c.CacheRows > 0:
			wrong(c, func(c *stepCase) { c.damage = func(d *decodeData) { d.rows[1] = -1 } })
		case c.HeadDim == 96:
			wrong(c, func(c *stepCase) { c.lens = []int{100, 197, -1} })
		}
	}
	return list
}

// run runs Step on tensors of its own and returns what it wrote.
func (c *stepCase) run(t *testing.T, dev *vk.Device, appends bool) (written map[string][]byte, state uint32) {
	r := rand.New(rand.NewPCG(3, uint64(c.SeqKV)))
	p := c.problem()
	sound := c.decodeCase
	sound.lens = slices.Clone(c.lens)
	for b, n := range sound.lens {
		sound.lens[b] = min(max(n, 0), p.SeqKV-p.NewKeys)
	}
	d := newDecodeData(r, &sound)
	if c.damage != nil {
		c.damage(d)
	}
	x := attention.StepTensors{DecodeTensors: newDecodeRun(t, dev, &c.decodeCase, d, nil).t}
	random := func(shape []int, offset int) vk.Tensor {
		whole := vktest.Tensor(t, dev, p.DType, offset+size(shape))
		data := make([]float32, offset+size(shape))
		for i := range data {
			data[i] = p.DType.Round(float32(r.NormFloat64()))
		}
		require.NoError(t, whole.Upload(t.Context(), data))
		v := vk.View(whole.Buffer, p.DType, shape...)
		v.Offset = offset
		return v
	}
	offset := 0
	if c.odd {
		offset = 1
	}
	x.NewK, x.NewV = random(p.NewKShape(), offset), random(p.NewVShape(), 0)
	if dims := p.RoPE.Dims; dims > 0 {
		cos, sin := attention.RoPETable(p.SeqKV, dims, 100)
		x.Cos, x.Sin = vktest.Tensor(t, dev, dtype.Float32, p.SeqKV, dims/2), vktest.Tensor(t, dev, dtype.Float32, p.SeqKV, dims/2)
		require.NoError(t, x.Cos.Upload(t.Context(), cos))
		require.NoError(t, x.Sin.Upload(t.Context(), sin))
	}
	config := c.config
	config.Append = appends
	cmd, err := dev.NewCmd("step")
	require.NoError(t, err)
	defer cmd.Close()
	require.NoError(t, attention.Step(cmd, x, p, attention.Options{DecodeConfig: &config}))
	require.NoError(t, cmd.Submit(t.Context()))
	written = map[string][]byte{}
	for name, y := range map[string]vk.Tensor{"q": x.Q, "k": x.K, "v": x.V, "o": x.O, "lse": x.LSE, "state": x.State} {
		if c.invalid && (name == "o" || name == "lse") {
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
	cases := stepCases(dev)
	require.Greater(t, len(cases), 20)
	for i, c := range cases {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%d %v %v %v", i, c.config, c.rope, c.DecodeProblem), "/", " "), func(t *testing.T) {
			want, state := c.run(t, dev, false)
			got, _ := c.run(t, dev, true)
			require.Equal(t, c.invalid, state != 0)
			for name := range want {
				require.True(t, slices.Equal(want[name], got[name]), name)
			}
		})
	}
}

// TestStepOverlap: what Append reads may not be what Decode writes, as one kernel does both.
func TestStepOverlap(t *testing.T) {
	dev := vktest.Open(t)
	p := attention.AppendProblem{DecodeProblem: attention.DecodeProblem{
		Problem: attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 8, HeadDim: 8, DType: dtype.Float32}, NewKeys: 1,
	}}
	tensor := func(f dtype.DType, shape []int) vk.Tensor { return vktest.Tensor(t, dev, f, shape...) }
	x := attention.StepTensors{
		DecodeTensors: attention.DecodeTensors{
			Q: tensor(p.DType, p.QShape()), K: tensor(p.DType, p.KShape()), V: tensor(p.DType, p.VShape()), O: tensor(p.DType, p.OShape()),
			SeqLens: tensor(dtype.Int32, p.SeqLensShape()), State: tensor(dtype.Int32, p.StateShape()),
		},
		NewK: tensor(p.DType, p.NewKShape()), NewV: tensor(p.DType, p.NewVShape()),
	}
	record := func() error {
		c, err := dev.NewCmd("overlap")
		require.NoError(t, err)
		defer c.Close()
		return attention.Step(c, x, p, attention.Options{})
	}
	require.NoError(t, record())
	x.O = x.NewV
	require.ErrorContains(t, record(), "attention: step: o overlaps new_v")
	x.O = x.Q
	require.ErrorContains(t, record(), "o overlaps q")
}
