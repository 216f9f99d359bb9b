package trial

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

// A Fixed is a problem that flashvk selftest always checks. Attention has its suite instead.
type Fixed struct {
	Name  string
	DType dtype.DType
	Cost  float64 // of the reference, in operations
	Problem
}

// OnDevice returns a Runner for one problem, which leaves no poison.
func OnDevice(d *vk.Device, use Use) *Runner { return (&Runner{d: d}).problem(use) }

// FixedDecode returns problems of Decode for a path: numbers of queries, heads and dimensions, caches
// of all kinds, each feature alone and all together, lengths that differ and are 0.
func FixedDecode(impl attention.Impl) (list []Fixed) {
	add := func(name string, change func(p *call.Decode)) {
		for _, format := range dtype.All() {
			p := &call.Decode{Impl: impl, Lens: []int{1, 300, 33}, Data: call.Data{Seed: 1, Kind: call.NormalKind, Layout: "a"}}
			p.Problem = attention.Problem{Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, HeadDim: 64, DType: format, Causal: true}
			change(p)
			p.Batch = len(p.Lens)
			p.Tidy()
			lens := make([]int32, p.Batch)
			for b, n := range p.Lens {
				lens[b] = int32(n)
			}
			list = append(list, Fixed{"decode/" + name + "/" + format.String(), format, p.FLOPsOf(lens), &called{p}})
		}
	}
	add("plain", func(*call.Decode) {})
	for _, n := range []int{2, 5, 17, attention.MaxDecodeQueries} {
		add(fmt.Sprintf("queries/%d", n), func(p *call.Decode) { p.SeqQ = n })
	}
	for _, n := range []int{8, 40, 96, 128, 192, 256} {
		add(fmt.Sprintf("head-dim/%d", n), func(p *call.Decode) { p.HeadDim = n })
	}
	add("value-dim/larger", func(p *call.Decode) { p.ValueDim = 200 })
	add("value-dim/smaller", func(p *call.Decode) { p.HeadDim, p.ValueDim = 128, 24 })
	for _, n := range []int{1, 3, 16} {
		add(fmt.Sprintf("group/%d", n), func(p *call.Decode) { p.NumHeads = 2 * n })
	}
	for _, n := range []int{attention.MinPageSize, 16, 256} {
		add(fmt.Sprintf("page-size/%d", n), func(p *call.Decode) { p.PageSize, p.KeysFirst = n, n == 16 })
	}
	add("rows", func(p *call.Decode) { p.CacheRows, p.KeysFirst = 5, true })
	add("new-keys", func(p *call.Decode) { p.SeqQ, p.NewKeys = 3, 3 })
	add("left-pad", func(p *call.Decode) { p.LeftPad = true })
	add("tree", func(p *call.Decode) { p.SeqQ, p.Tree, p.Causal = 40, true, false })
	add("not-causal", func(p *call.Decode) { p.SeqQ, p.Causal = 3, false })
	// The windows of the longest sequence begin at keys 214 to 229. Tiles of 16 or 32 keys begin at 224,
	// which the queries from 11 on do not see, in a unit of 8, 16 or 32 rows with queries that do.
	add("window", func(p *call.Decode) { p.SeqQ, p.Window = 16, attention.Window{On: true, Left: 70} })
	add("softcap", func(p *call.Decode) { p.Softcap = 3 })
	add("alibi", func(p *call.Decode) { p.SeqQ, p.ALiBi = 2, attention.ALiBiPerBatchHead })
	add("bias", func(p *call.Decode) {
		p.SeqQ, p.Hiding, p.Bias = 2, true, attention.Bias{On: true, Batch: true, Heads: true, Rows: true}
	})
	add("sinks", func(p *call.Decode) { p.Sinks = true })
	add("scale", func(p *call.Decode) { p.Scale = -0.2 })
	add("several", func(p *call.Decode) {
		p.SeqQ, p.NewKeys, p.PageSize, p.LeftPad, p.Window, p.Softcap = 4, 4, 16, true, attention.Window{On: true, Left: 90}, 20
		p.ALiBi, p.Sinks, p.ValueDim, p.NoLSE, p.Bias = attention.ALiBiPerHead, true, 40, true, attention.Bias{On: true, DType: p.DType}
	})
	add("lengths/none", func(p *call.Decode) { p.Lens = []int{0, 5, 0} })
	add("lengths/many", func(p *call.Decode) {
		p.Lens = nil
		for b := range 70 {
			p.Lens = append(p.Lens, b*b%97)
		}
	})
	add("lengths/long", func(p *call.Decode) { p.Lens = []int{3000} })
	add("outliers", func(p *call.Decode) { p.Kind, p.Scale = call.OutlierKind, 1e-4 })
	add("odd", func(p *call.Decode) { p.Layout = "o" })
	return list
}

// FixedStep returns problems of Step in one kernel for a path: rotations, caches of all kinds, new keys in
// several tiles, of a single sequence and of several.
func FixedStep(impl attention.Impl) (list []Fixed) {
	add := func(name string, change func(p *call.Step)) {
		for _, format := range dtype.All() {
			p := &call.Step{Decode: call.Decode{Impl: impl, Lens: []int{1, 300, 33}, Data: call.Data{Seed: 1, Kind: call.NormalKind, Layout: "a"}}, RoPE: attention.RoPE{Dims: 64}}
			p.Problem = attention.Problem{Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, HeadDim: 64, DType: format, Causal: true}
			p.NewKeys, p.Config = 1, &attention.DecodeConfig{Impl: impl, Rows: 8, Subgroups: 4, Groups: 12, Append: true}
			change(p)
			p.Batch = len(p.Lens)
			p.Decode.Tidy()
			list = append(list, Fixed{"step/" + name + "/" + format.String(), format, float64(call.Product(p.KShape())), &called{p}})
		}
	}
	add("halves", func(*call.Step) {})
	add("interleaved", func(p *call.Step) { p.RoPE.Interleaved = true })
	add("no-rotation", func(p *call.Step) { p.RoPE.Dims = 0 })
	add("dims/32", func(p *call.Step) { p.RoPE.Dims = 32 })
	add("rows/16", func(p *call.Step) { p.Config.Rows, p.SeqQ, p.NewKeys = 16, 8, 8 })
	for _, n := range []int{40, 128, 256} {
		add(fmt.Sprintf("head-dim/%d", n), func(p *call.Step) { p.HeadDim, p.RoPE.Dims = n, 32 })
	}
	add("value-dim", func(p *call.Step) { p.ValueDim = 200 })
	for _, n := range []int{attention.MinPageSize, 16} {
		add(fmt.Sprintf("page-size/%d", n), func(p *call.Step) { p.PageSize, p.KeysFirst, p.NewKeys = n, n == 16, 20 })
	}
	add("rows-of-cache", func(p *call.Step) { p.CacheRows, p.KeysFirst = 5, true })
	add("window", func(p *call.Step) { p.NewKeys, p.Window = 40, attention.Window{On: true, Left: 7} })
	add("alone", func(p *call.Step) { p.Lens, p.SeqQ, p.NewKeys = []int{600}, 2, 2 })
	add("alone-short", func(p *call.Step) { p.Lens, p.SeqQ, p.NewKeys = []int{15}, 4, 4 })
	add("alone-left-pad", func(p *call.Step) { p.Lens, p.LeftPad, p.NewKeys = []int{40}, true, 3 })
	add("odd", func(p *call.Step) { p.Layout = "o" })
	return list
}

// FixedAppend returns problems of Append and Advance.
func FixedAppend() (list []Fixed) {
	add := func(name string, change func(p *call.Append)) {
		for _, format := range dtype.All() {
			p := &call.Append{Lens: []int{0, 200, 33}, Data: call.Data{Seed: 1, Kind: call.NormalKind, Layout: "a"}}
			p.Problem = attention.Problem{Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 2, SeqKV: 256, HeadDim: 64, DType: format}
			p.NewKeys, p.RoPE.Dims = 2, 64
			change(p)
			if p.PageSize > 0 {
				p.Pages = 3 * p.SeqKV / p.PageSize
			}
			cost := float64(call.Product(p.KShape()))
			if p.Advance != 0 {
				cost = float64(p.Batch)
			}
			list = append(list, Fixed{"append/" + name + "/" + format.String(), format, cost, &called{p}})
		}
	}
	add("halves", func(*call.Append) {})
	add("interleaved", func(p *call.Append) { p.RoPE.Interleaved = true })
	add("no-rotation", func(p *call.Append) { p.RoPE.Dims, p.NoQ = 0, true })
	add("keys-only", func(p *call.Append) { p.NoQ = true })
	for _, n := range []int{2, 10, 48} {
		add(fmt.Sprintf("dims/%d", n), func(p *call.Append) { p.RoPE.Dims = n })
		add(fmt.Sprintf("dims/%d-interleaved", n), func(p *call.Append) { p.RoPE.Dims, p.RoPE.Interleaved = n, true })
	}
	add("value-dim", func(p *call.Append) { p.ValueDim = 128 })
	for _, n := range []int{attention.MinPageSize, 64} {
		add(fmt.Sprintf("page-size/%d", n), func(p *call.Append) { p.PageSize, p.KeysFirst = n, n == 64 })
	}
	add("rows", func(p *call.Append) { p.CacheRows, p.KeysFirst = 5, true })
	add("many-keys", func(p *call.Append) { p.NewKeys, p.SeqQ = 50, 50 })
	add("no-room", func(p *call.Append) { p.Lens = []int{0, 255, 256} })
	add("odd", func(p *call.Append) { p.Layout = "o" })
	add("advance", func(p *call.Append) { p.Advance = 3 })
	return list
}
