package attention

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// checkConfig wants c to be feasible for p, and to be the configuration that its words say, unless
// these were read before.
func checkConfig(t *testing.T, caps *vk.Caps, p Problem, c table.Config, read map[table.Config]bool) {
	require.NoError(t, c.(interface{ Feasible(*vk.Caps, Problem) error }).Feasible(caps, p))
	if read[c] {
		return
	}
	read[c] = true
	forward, ok := c.(Config)
	if !ok {
		got, err := ParseBackwardConfig(c.String())
		require.NoError(t, err)
		require.Equal(t, c, got)
		return
	}
	got, err := ParseConfig(c.String())
	require.NoError(t, err)
	if forward.Splits == 1 { // has no word
		forward.Splits = 0
	}
	require.Equal(t, forward, got)
}

// TestCandidates says that candidates and variants are feasible, different, not too many, and led by
// the table's choice, and that their words are read as they are written.
func TestCandidates(t *testing.T) {
	read := map[table.Config]bool{}
	for _, d := range fakeDevices() {
		for _, headDim := range []int{8, 64, 128, 256} {
			for _, dt := range dtype.All() {
				p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: headDim, DType: dt}
				for _, impl := range Impls() {
					for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
						name := fmt.Sprintf("%s %v %v %v", d.caps.Name, p, impl, pass)
						space := table.SpaceOf("attention", pass, p)
						list, err := space.Candidates(&d.caps, impl.String())
						plan, errPlan := Choose(&d.caps, p, pass, Options{Impl: impl})
						if err != nil {
							require.EqualError(t, errPlan, err.Error(), name)
							continue
						}
						require.Equal(t, plan.String(), list[0].String(), name)
						require.Greater(t, len(list), 2, name)
						require.Less(t, len(list), 250, name)
						seen := map[table.Config]bool{}
						for i, c := range list {
							require.False(t, seen[c], "%s: %v", name, c)
							seen[c] = true
							checkConfig(t, &d.caps, p, c, read)
							require.Equal(t, impl.String(), space.Path(c))
							if i%59 != 0 {
								continue
							}
							variants := map[table.Config]bool{c: true}
							for _, v := range space.Variants(&d.caps, c) {
								require.False(t, variants[v], "%s: %v", name, v)
								variants[v] = true
								checkConfig(t, &d.caps, p, v, read)
							}
						}
					}
				}
			}
		}
	}
	_, err := ParseConfig("coopmat2 sg4 t2x2")
	require.EqualError(t, err, `attention: configuration "coopmat2 sg4 t2x2": "t2x2" is not one of its choices`)
	for text, want := range map[string]string{
		"":                             ` does not begin with a path`,
		"auto dkv sg1":                 ` does not begin with a path`,
		"coopmat2 sg1":                 `: "sg1" is not one of its choices`,
		"coopmat2 dkv sg02":            `: "sg02" is not one of its choices`,
		"scalar dkv 32x32 t8x16 dq by": `: "by" is not one of its choices`,
	} {
		_, err := ParseBackwardConfig(text)
		require.EqualError(t, err, `attention: backward: configuration "`+text+`"`+want)
	}
}

// TestCandidatesSmall says that blocks far larger than a small problem are left
// out, and that one size is always left.
func TestCandidatesSmall(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 20, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}
	for _, c := range []struct{ seqQ, least, most int }{{1, 16, 16}, {20, 16, 32}, {64, 16, 64}, {4096, 16, 256}} {
		p.SeqQ = c.seqQ
		list, err := table.SpaceOf("attention", kit.Forward, p).Candidates(&caps, "coopmat2")
		require.NoError(t, err)
		least, most := 1<<20, 0
		for _, x := range list[1:] { // the first is the table's
			config := x.(Config)
			rows := config.blockRows(&caps, p.DType)
			least, most = min(least, rows), max(most, rows)
		}
		require.Equal(t, []int{c.least, c.most}, []int{least, most}, "seq_q %d", c.seqQ)
	}
}

// TestCandidatesVary says that every choice that a configuration offers is tried on some path: a new
// field needs a tag tune or vary.
func TestCandidatesVary(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	values := map[string]map[any]bool{}
	var note func(v reflect.Value, prefix string)
	note = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name := prefix + v.Type().Field(i).Name
			if v.Field(i).Kind() == reflect.Struct {
				note(v.Field(i), name+".")
				continue
			}
			if values[name] == nil {
				values[name] = map[any]bool{}
			}
			values[name][v.Field(i).Interface()] = true
		}
	}
	p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 4, SeqQ: 4096, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}
	few := p // blocks of rows, of which a device has too many units
	few.Batch, few.SeqQ = 1, 1
	short := p
	short.Batch, short.SeqQ, short.SeqKV = 16, 256, 256
	block := short // of keys, which one kernel computes all gradients of
	block.SeqKV = 32
	for _, p := range []Problem{p, few, short, block} {
		for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
			space := table.SpaceOf("attention", pass, p)
			for _, impl := range []string{"coopmat2", "scalar"} {
				list, err := space.Candidates(&caps, impl)
				require.NoError(t, err)
				for i, c := range list {
					b, _ := c.(BackwardConfig)
					note(reflect.ValueOf(c), pass.String()+".")
					if i%5 == 0 || b.fused() || b.stored() {
						for _, v := range space.Variants(&caps, c) {
							note(reflect.ValueOf(v), pass.String()+".")
						}
					}
				}
			}
		}
	}
	for name, seen := range values {
		least := 3 // 0 is the other path's
		switch field := name[strings.LastIndex(name, ".")+1:]; {
		case name == "forward.Splits": // none, what the rule says, half and twice that
			least = 4
		case field == "Detour", field == "Impl": // for tests only; of the call
			least = 1
		case strings.HasPrefix(name, "backward.Stored.") || strings.HasPrefix(name, "backward.Fused."): // of the matrix paths
			least = 1
			if field == "Subgroups" || field == "RowTiles" || field == "BlockN" {
				least = 3
			}
		case field == "Prefetch", field == "KeysFirst", field == "PeelMask":
			least = 2
		}
		require.GreaterOrEqual(t, len(seen), least, name)
	}
}
