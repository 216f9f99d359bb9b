package selftest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// formats are those that each path is tested with.
var formats = []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}

// items lists the cases to run on all paths. A software driver would take too long for the large
// ones.
func (r *run) items() (list []*item) {
	set := attntest.Full
	if r.report.Env.CPU {
		set = attntest.Short
	}
	forward, backward := attntest.Cases(set, kit.Forward), attntest.Cases(set, kit.Backward)
	for _, impl := range r.Impls {
		list = append(list, r.suite("forward", impl, ofAttention(impl, forward))...)
		list = append(list, r.suite("backward", impl, ofAttention(impl, backward))...)
		for _, kernel := range []string{"decode", "step", "append"} {
			if impl == attention.Scalar || impl == attention.CoopMat && kernel != "append" {
				list = append(list, r.suite(kernel, impl, fixedOf(kernel, impl))...)
			}
		}
	}
	return list
}

// suite returns the cases of a path that it takes, the cheapest first. A path that takes none is not
// supported.
func (r *run) suite(what string, impl attention.Impl, cases []*item) (list []*item) {
	slices.SortStableFunc(cases, func(a, b *item) int { return cmp.Compare(a.cost, b.cost) })
	if r.most > 0 {
		cases = cases[:r.most]
	}
	of, paths := new(lane), map[dtype.DType]*Path{}
	for _, t := range formats {
		paths[t] = &Path{What: what, Impl: impl, DType: t}
		r.report.Paths = append(r.report.Paths, paths[t])
	}
	taken := map[*Path]bool{}
	for _, it := range cases {
		p := paths[it.format]
		it.path, it.lane = p, of
		err := slow(r.d.Caps(), it)
		if err == nil {
			err = trial.Supports(it.problem, r.d.Caps())
		}
		if err == nil {
			taken[p], list = true, append(list, it)
		} else if p.Refused++; p.Why == "" {
			p.Why = strings.TrimPrefix(bench.Reason("attention", impl.String(), err), what+": ")
		}
	}
	for _, p := range paths {
		if taken[p] {
			p.Why = ""
		} else if p.Refused > 0 {
			p.Verdict, p.Refused = Unsupported, 0
		}
	}
	return list
}

// sampleCost is what the reference of a case may cost in operations, a second of a core. The forty
// largest cases are compared on a sample of rows and keys: whole they take more time of cores than
// all others together.
const sampleCost = 1e9

// ofAttention returns cases of attention on a path. What is expected of a case is computed once for all
// paths.
func ofAttention(impl attention.Impl, cases []*attntest.Case) (list []*item) {
	for _, c := range cases {
		a, cost := c.On(attention.Options{Impl: impl}), c.FLOPs()
		if 2*cost > sampleCost {
			a.Sample = int(sampleCost / (4 * float64(a.SeqKV) * float64(a.HeadDim+a.ValueHeadDim())))
		}
		list = append(list, &item{name: c.Name, format: a.DType, cost: cost, problem: a})
	}
	return list
}

// The largest dimensions of heads on a software driver's matrices: of the forward pass in float32, of
// the backward pass, and of that in float32. Above them a kernel takes up to a minute to compile, and
// minutes with head_dim 192.
const softForward32, softBackward, softBackward32 = 64, 72, 24

// slow returns an error for kernels that a software driver compiles for too long.
func slow(caps *vk.Caps, it *item) error {
	a, ok := it.problem.(*attntest.Case)
	if !ok || caps.Type != vk.CPU || it.path.Impl != attention.CoopMat2 && it.path.Impl != attention.CoopMat {
		return nil
	}
	dim, most := max(a.HeadDim, a.ValueHeadDim()), softBackward
	switch {
	case !a.Backward && a.DType == dtype.Float32:
		dim, most = a.HeadDim, softForward32
	case !a.Backward:
		return nil
	case a.DType == dtype.Float32:
		most = softBackward32
	}
	if dim <= most {
		return nil
	}
	return fmt.Errorf("the %s pass of %v on software matrices beyond head_dim %d takes long to compile", it.path.What, a.DType, most)
}

// fixedData is what all fixed problems have in common.
const fixedData = `"Seed":1,"Kind":"normal","Layout":"a","NumHeads":4,"NumKVHeads":2,"HeadDim":64,"DType":$dtype`

// fixed has what the problems of a kernel have in common, and then what each has instead, by name, as
// JSON without braces. $impl stands for the path.
var fixed = map[string][][2]string{
	// Numbers of queries, heads and dimensions, caches of all kinds, each feature alone and all
	// together, lengths that differ and are 0. The windows of the longest sequence begin at keys 214 to
	// 229. Tiles of 16 or 32 keys begin at 224, which the queries from 11 on do not see, in a unit of 8,
	// 16 or 32 rows with queries that do.
	"decode": {
		{"", `"Impl":"$impl","Lens":[1,300,33],"SeqQ":1,"Causal":true`},
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
		{"lengths/none", `"Lens":[0,5,0]`}, {"lengths/many", `"Lens":[` + strings.Repeat("0,1,4,9,16,25,36,49,64,81,3,24,47,72,", 5) + `2]`}, {"lengths/long", `"Lens":[3000]`},
		{"outliers", `"Kind":"outliers","Scale":1e-4`}, {"odd", `"Layout":"o"`},
	},
	// Step in one kernel: rotations, caches of all kinds, new keys in several tiles, of a single
	// sequence and of several.
	"step": {
		{"", `"Impl":"$impl","Lens":[1,300,33],"SeqQ":1,"Causal":true,"RoPE":{"Dims":64},"NewKeys":1,"Config":{"Impl":"$impl","Rows":8,"Subgroups":4,"Groups":12,"Append":true}`},
		{"halves", ``}, {"interleaved", `"RoPE":{"Interleaved":true}`}, {"no-rotation", `"RoPE":{"Dims":0}`}, {"dims/32", `"RoPE":{"Dims":32}`},
		{"rows/16", `"Config":{"Rows":16},"SeqQ":8,"NewKeys":8`}, {"head-dim/40", `"HeadDim":40,"RoPE":{"Dims":32}`}, {"head-dim/128", `"HeadDim":128,"RoPE":{"Dims":32}`},
		{"head-dim/256", `"HeadDim":256,"RoPE":{"Dims":32}`}, {"value-dim", `"ValueDim":200`}, {"page-size/8", `"PageSize":8,"NewKeys":20`},
		{"page-size/16", `"PageSize":16,"KeysFirst":true,"NewKeys":20`}, {"rows-of-cache", `"CacheRows":5,"KeysFirst":true`}, {"window", `"NewKeys":40,"Window":{"On":true,"Left":7}`},
		{"alone", `"Lens":[600],"SeqQ":2,"NewKeys":2`}, {"alone-short", `"Lens":[15],"SeqQ":4,"NewKeys":4`}, {"alone-left-pad", `"Lens":[40],"LeftPad":true,"NewKeys":3`}, {"odd", `"Layout":"o"`},
	},
	// Append and Advance.
	"append": {
		{"", `"Lens":[0,200,33],"SeqQ":2,"SeqKV":256,"NewKeys":2,"RoPE":{"Dims":64}`},
		{"halves", ``}, {"interleaved", `"RoPE":{"Interleaved":true}`}, {"no-rotation", `"RoPE":{"Dims":0},"NoQ":true`}, {"keys-only", `"NoQ":true`},
		{"dims/2", `"RoPE":{"Dims":2}`}, {"dims/2-interleaved", `"RoPE":{"Dims":2,"Interleaved":true}`}, {"dims/10", `"RoPE":{"Dims":10}`},
		{"dims/10-interleaved", `"RoPE":{"Dims":10,"Interleaved":true}`}, {"dims/48", `"RoPE":{"Dims":48}`}, {"dims/48-interleaved", `"RoPE":{"Dims":48,"Interleaved":true}`},
		{"value-dim", `"ValueDim":128`}, {"page-size/8", `"PageSize":8`}, {"page-size/64", `"PageSize":64,"KeysFirst":true`}, {"rows", `"CacheRows":5,"KeysFirst":true`},
		{"many-keys", `"NewKeys":50,"SeqQ":50`}, {"no-room", `"Lens":[0,255,256]`}, {"odd", `"Layout":"o"`}, {"advance", `"Advance":3`},
	},
}

// fixedOf returns the fixed problems of decode, step or append on a path, in all formats.
func fixedOf(kernel string, impl attention.Impl) (list []*item) {
	for _, x := range fixed[kernel][1:] {
		for _, format := range dtype.All() {
			words := strings.NewReplacer("$impl", impl.String(), "$dtype", fmt.Sprint(int(format)))
			_, p, err := trial.Decode(words.Replace(fmt.Sprintf("%s:{%s,%s}", kernel, fixedData, fixed[kernel][0][1])))
			if err == nil {
				err = json.Unmarshal([]byte(words.Replace("{"+x[1]+"}")), p)
			}
			if err != nil {
				panic(err) // of constants
			}
			it := &item{name: kernel + "/" + x[0] + "/" + format.String(), format: format, problem: p}
			switch p := p.(type) {
			case *call.Step:
				p.Decode.Tidy() // sets the capacity
			case interface{ Tidy() }:
				p.Tidy()
			}
			for _, t := range p.Tensors() {
				it.cost += float64(call.Product(t.Shape))
			}
			if d, ok := p.(*call.Decode); ok {
				it.cost = d.FLOPs()
			}
			list = append(list, it)
		}
	}
	return list
}
