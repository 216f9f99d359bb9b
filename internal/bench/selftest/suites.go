package selftest

import (
	"cmp"
	_ "embed"
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
			err = call.Supports(it.problem, r.d.Caps())
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

// sampleCost bounds the operations of a case's reference: a second of a core. The forty largest
// cases are compared on a sample of rows and keys: their whole references take more time than all
// others together.
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
// the backward pass in 16 bits, and of the backward pass in float32. A kernel with larger heads
// takes up to a minute to compile, and minutes with head_dim 192.
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

//go:embed fixed.txt
var fixed string

// fixedOf returns the fixed problems of decode, step or append on a path, in all formats.
func fixedOf(kernel string, impl attention.Impl) (list []*item) {
	for _, x := range call.Lines(fixed) {
		for _, format := range dtype.All() {
			if x.Section[0] != kernel {
				continue
			}
			words := strings.NewReplacer("$impl", impl.String(), "$dtype", fmt.Sprint(int(format)))
			_, p, err := trial.Decode(words.Replace(fmt.Sprintf("%s:{%s}", kernel, x.Fields)))
			if err != nil {
				panic(err) // of constants
			}
			it := &item{name: kernel + "/" + x.Words[0] + "/" + format.String(), format: format, problem: p}
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
