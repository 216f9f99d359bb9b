package trial

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
)

// A Fixed is a problem that flashvk selftest always checks.
type Fixed struct {
	Name  string
	DType dtype.DType
	Cost  float64 // about that of the reference, in operations
	Problem
}

// A fixedTable has the fixed problems of a kernel: what they have in common, and what each has instead,
// by name, as JSON without braces. $impl stands for the path.
type fixedTable struct {
	common string
	cases  [][2]string
}

// fixedData is what all fixed problems have in common.
const fixedData = `"Seed":1,"Kind":"normal","Layout":"a","NumHeads":4,"NumKVHeads":2,"HeadDim":64,"DType":$dtype`

// fixed has the tables.
var fixed = map[string]fixedTable{
	// Numbers of queries, heads and dimensions, caches of all kinds, each feature alone and all
	// together, lengths that differ and are 0. The windows of the longest sequence begin at keys 214 to
	// 229. Tiles of 16 or 32 keys begin at 224, which the queries from 11 on do not see, in a unit of 8,
	// 16 or 32 rows with queries that do.
	"decode": {`"Impl":"$impl","Lens":[1,300,33],"SeqQ":1,"Causal":true`, [][2]string{
		{"plain", ``}, {"queries/2", `"SeqQ":2`}, {"queries/5", `"SeqQ":5`}, {"queries/17", `"SeqQ":17`}, {"queries/64", `"SeqQ":64`},
		{"head-dim/8", `"HeadDim":8`}, {"head-dim/40", `"HeadDim":40`}, {"head-dim/96", `"HeadDim":96`}, {"head-dim/128", `"HeadDim":128`},
		{"head-dim/192", `"HeadDim":192`}, {"head-dim/256", `"HeadDim":256`}, {"value-dim/larger", `"ValueDim":200`}, {"value-dim/smaller", `"HeadDim":128,"ValueDim":24`},
		{"group/1", `"NumHeads":2`}, {"group/3", `"NumHeads":6`}, {"group/16", `"NumHeads":32`},
		{"page-size/8", `"PageSize":8`}, {"page-size/16", `"PageSize":16,"KeysFirst":true`}, {"page-size/256", `"PageSize":256`},
		{"rows", `"CacheRows":5,"KeysFirst":true`}, {"new-keys", `"SeqQ":3,"NewKeys":3`}, {"left-pad", `"LeftPad":true`},
		{"tree", `"SeqQ":40,"Tree":true,"Causal":false`}, {"not-causal", `"SeqQ":3,"Causal":false`}, {"window", `"SeqQ":16,"Window":{"On":true,"Left":70}`},
		{"softcap", `"Softcap":3`}, {"alibi", `"SeqQ":2,"ALiBi":2`}, {"bias", `"SeqQ":2,"Hiding":true,"Bias":{"On":true,"Batch":true,"Heads":true,"Rows":true}`},
		{"sinks", `"Sinks":true`}, {"scale", `"Scale":-0.2`},
		{"several", `"SeqQ":4,"NewKeys":4,"PageSize":16,"LeftPad":true,"Window":{"On":true,"Left":90},"Softcap":20,"ALiBi":1,"Sinks":true,"ValueDim":40,"NoLSE":true,"Bias":{"On":true,"DType":$dtype}`},
		{"lengths/none", `"Lens":[0,5,0]`}, {"lengths/many", `"Lens":` + squares(70)}, {"lengths/long", `"Lens":[3000]`},
		{"outliers", `"Kind":"outliers","Scale":1e-4`}, {"odd", `"Layout":"o"`},
	}},
	// Step in one kernel: rotations, caches of all kinds, new keys in several tiles, of a single
	// sequence and of several.
	"step": {`"Impl":"$impl","Lens":[1,300,33],"SeqQ":1,"Causal":true,"RoPE":{"Dims":64},"NewKeys":1,"Config":{"Impl":"$impl","Rows":8,"Subgroups":4,"Groups":12,"Append":true}`, [][2]string{
		{"halves", ``}, {"interleaved", `"RoPE":{"Interleaved":true}`}, {"no-rotation", `"RoPE":{"Dims":0}`}, {"dims/32", `"RoPE":{"Dims":32}`},
		{"rows/16", `"Config":{"Rows":16},"SeqQ":8,"NewKeys":8`}, {"head-dim/40", `"HeadDim":40,"RoPE":{"Dims":32}`}, {"head-dim/128", `"HeadDim":128,"RoPE":{"Dims":32}`},
		{"head-dim/256", `"HeadDim":256,"RoPE":{"Dims":32}`}, {"value-dim", `"ValueDim":200`}, {"page-size/8", `"PageSize":8,"NewKeys":20`},
		{"page-size/16", `"PageSize":16,"KeysFirst":true,"NewKeys":20`}, {"rows-of-cache", `"CacheRows":5,"KeysFirst":true`}, {"window", `"NewKeys":40,"Window":{"On":true,"Left":7}`},
		{"alone", `"Lens":[600],"SeqQ":2,"NewKeys":2`}, {"alone-short", `"Lens":[15],"SeqQ":4,"NewKeys":4`}, {"alone-left-pad", `"Lens":[40],"LeftPad":true,"NewKeys":3`}, {"odd", `"Layout":"o"`},
	}},
	// Append and Advance.
	"append": {`"Lens":[0,200,33],"SeqQ":2,"SeqKV":256,"NewKeys":2,"RoPE":{"Dims":64}`, [][2]string{
		{"halves", ``}, {"interleaved", `"RoPE":{"Interleaved":true}`}, {"no-rotation", `"RoPE":{"Dims":0},"NoQ":true`}, {"keys-only", `"NoQ":true`},
		{"dims/2", `"RoPE":{"Dims":2}`}, {"dims/2-interleaved", `"RoPE":{"Dims":2,"Interleaved":true}`}, {"dims/10", `"RoPE":{"Dims":10}`},
		{"dims/10-interleaved", `"RoPE":{"Dims":10,"Interleaved":true}`}, {"dims/48", `"RoPE":{"Dims":48}`}, {"dims/48-interleaved", `"RoPE":{"Dims":48,"Interleaved":true}`},
		{"value-dim", `"ValueDim":128`}, {"page-size/8", `"PageSize":8`}, {"page-size/64", `"PageSize":64,"KeysFirst":true`}, {"rows", `"CacheRows":5,"KeysFirst":true`},
		{"many-keys", `"NewKeys":50,"SeqQ":50`}, {"no-room", `"Lens":[0,255,256]`}, {"odd", `"Layout":"o"`}, {"advance", `"Advance":3`},
	}},
}

// squares returns a list of n lengths.
func squares(n int) string {
	list := make([]int, n)
	for i := range list {
		list[i] = i * i % 97
	}
	text, _ := json.Marshal(list)
	return string(text)
}

// FixedOf returns the fixed problems of decode, step or append on a path, in all formats.
func FixedOf(kernel string, impl attention.Impl) (list []Fixed) {
	for _, x := range fixed[kernel].cases {
		for _, format := range dtype.All() {
			words := strings.NewReplacer("$impl", impl.String(), "$dtype", fmt.Sprint(int(format)))
			_, p, err := Decode(words.Replace(fmt.Sprintf("%s:{%s,%s}", kernel, fixedData, fixed[kernel].common)))
			if err == nil {
				err = json.Unmarshal([]byte(words.Replace("{"+x[1]+"}")), p)
			}
			if err != nil {
				panic(err) // of constants
			}
			if s, ok := p.(*call.Step); ok {
				s.Decode.Tidy() // sets the capacity
			} else {
				p.(interface{ Tidy() }).Tidy()
			}
			cost := 0.0
			for _, t := range p.Tensors() {
				cost += float64(call.Product(t.Shape))
			}
			if d, ok := p.(*call.Decode); ok {
				cost = d.FLOPs()
			}
			list = append(list, Fixed{kernel + "/" + x[0] + "/" + format.String(), format, cost, p})
		}
	}
	return list
}
