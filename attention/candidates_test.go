package attention

import (
	"reflect"
	"testing"

	"github.com/flashvk/flashvk/dtype"
)

// TestCandidates says that candidates are feasible, different, not too many, led by
// the table's choice and then by what is like it.
func TestCandidates(t *testing.T) {
	for _, d := range fakeDevices() {
		for _, headDim := range []int{8, 64, 128, 256} {
			for _, dt := range dtype.All() {
				p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: headDim, DType: dt}
				for _, impl := range Impls() {
					list := candidates(&d.caps, p, impl)
					start, err := chooseForward(&d.caps, p, Options{Impl: impl})
					if err != nil {
						if len(list) != 0 {
							t.Errorf("%s %v %v: %d candidates, but %v", d.caps.Name, p, impl, len(list), err)
						}
						continue
					}
					if len(list) < 2 || len(list) > 150 || list[0] != start {
						t.Errorf("%s %v %v: %d candidates, the first %v, want %v", d.caps.Name, p, impl, len(list), list[0], start)
					}
					seen := make(map[Config]bool)
					for i, c := range list {
						if err := c.Feasible(&d.caps, p); err != nil || seen[c] || c.Impl != impl {
							t.Errorf("%s %v: %v: %v, seen %v", d.caps.Name, p, c, err, seen[c])
						}
						if i > 1 && distance(c, start) < distance(list[i-1], start) {
							t.Errorf("%s %v: %v comes after %v, which is farther from %v", d.caps.Name, p, c, list[i-1], start)
						}
						seen[c] = true
						for _, v := range variants(&d.caps, p, c) {
							if err := v.Feasible(&d.caps, p); err != nil || seen[v] && distance(v, c) == 0 || v.Impl != impl {
								t.Errorf("%s %v: variant %v of %v: %v", d.caps.Name, p, v, c, err)
							}
						}
					}
				}
			}
		}
	}
}

// TestCandidatesSmall says that blocks far larger than a small problem are left
// out, and that one size is always left.
func TestCandidatesSmall(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 20, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}
	for _, c := range []struct{ seqQ, least, most int }{{1, 16, 16}, {20, 16, 32}, {64, 16, 64}, {4096, 16, 256}} {
		p.SeqQ = c.seqQ
		least, most := 1<<20, 0
		for _, config := range candidates(&caps, p, CoopMat2)[1:] { // the first is the table's
			rows := config.blockRows(&caps, p.DType)
			least, most = min(least, rows), max(most, rows)
		}
		if least != c.least || most != c.most {
			t.Errorf("seq_q %d: blocks of %d to %d rows, want %d to %d", c.seqQ, least, most, c.least, c.most)
		}
	}
}

// TestCandidatesVary says that every choice that a Config offers is tried on
// some path: a new field needs a place in Candidates or in Variants.
func TestCandidatesVary(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}
	values := make(map[string]map[any]bool)
	note := func(c Config) {
		v := reflect.ValueOf(c)
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if values[name] == nil {
				values[name] = make(map[any]bool)
			}
			values[name][v.Field(i).Interface()] = true
		}
	}
	few := p // blocks of rows, of which a device has too many units
	few.Batch, few.SeqQ = 1, 1
	short := p
	short.SeqQ, short.SeqKV = 256, 256
	for _, p := range []Problem{p, few, short} {
		for _, impl := range []Impl{CoopMat2, Scalar} {
			for _, c := range candidates(&caps, p, impl) {
				note(c)
				for _, v := range variants(&caps, p, c) {
					note(v)
				}
			}
		}
	}
	for name, seen := range values {
		least := 2
		switch name {
		case "Impl":
			continue
		case "Detour":
			least = 1 // for tests only
		case "Splits":
			least = 4 // none, what the rule says, half and twice that
		case "Threads", "ThreadsX", "BlockM", "Depth", "ValueRows", "Subgroups", "RowTiles", "LoadAhead":
			least = 3 // 0 is the other path's
		}
		if len(seen) < least {
			t.Errorf("%s takes %d values in all candidates, want %d: add it to candidates or variants", name, len(seen), least)
		}
	}
}

// TestTableRow has the row of a configuration as the table has it.
func TestTableRow(t *testing.T) {
	caps := nvidia("NVIDIA A30", 56, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 500, SeqKV: 512, HeadDim: 64, DType: dtype.Float16, Causal: true}
	c := Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, Splits: 2}
	if got, want := tableRow(&caps, p, c, fwdSpace.Fill(&caps, p, c)), `{Family: "ampere", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Fill: 0.57, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, Prefetch: true, BlockN: 64}},`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	caps, p.Causal = leastDevice(), false
	c = Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, Depth: 8, ValueRows: 4}
	if got, want := tableRow(&caps, p, c, fwdSpace.Fill(&caps, p, c)), `{Shape: shape{headDim: 64}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, Depth: 8, ValueRows: 4, BlockN: 16}},`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
