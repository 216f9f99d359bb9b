package norm

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// compared returns the configurations that BenchmarkConfigs compares: those that are feasible
// for the problem.
func compared(caps *vk.Caps, p Problem, backward bool) (list []Config) {
	for _, threads := range []int{64, 128, 256, 512} {
		for _, subgroup := range []bool{true, false} {
			base := Config{Threads: threads, SubgroupTeam: subgroup, Rows: 1, Groups: 1}
			team := base.team(caps)
			base.Loads = (vecs(&p) + team - 1) / team
			for _, reload := range []bool{false, true} {
				base.Reload = reload
				if !backward {
					for _, base.Rows = range []int{1, 2, 4} {
						list = append(list, base)
					}
					continue
				}
				for _, base.Ahead = range []bool{false, true} {
					for _, perUnit := range []int{512, 1024, 2048} {
						base.Groups = max(perUnit/threads, 1)
						list = append(list, base)
					}
				}
			}
		}
	}
	feasible := list[:0]
	for _, c := range list {
		if c.Feasible(caps, p) == nil {
			feasible = append(feasible, c)
		}
	}
	return feasible
}

// BenchmarkConfigs measures every candidate in device time, on tensors that exceed
// caches. Run it with -benchtime 1x; on a CPU device it says nothing.
//
//	go test ./pipelines/norm -run '^$' -bench Configs -benchtime 1x
func BenchmarkConfigs(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	shapes := [][2]int{{18048, 512}, {205000, 512}, {65536, 1024}, {16384, 4096}, {8192, 8192}}
	if d.Caps().Type == vk.CPU {
		shapes = [][2]int{{64, 64}}
	}
	for _, shape := range shapes {
		for _, backward := range []bool{false, true} {
			p := Problem{Rows: shape[0], Cols: shape[1], Eps: 1e-5, DType: dtype.BFloat16}
			m := newMeasurement(b, d, p, backward)
			for _, c := range compared(d.Caps(), p, backward) {
				pass := map[bool]string{false: "fwd", true: "bwd"}[backward]
				b.Run(fmt.Sprintf("%s/rows=%d/cols=%d/config=%s", pass, p.Rows, p.Cols, strings.ReplaceAll(c.String(), " ", "-")), func(b *testing.B) {
					for range b.N {
						ns, registers := m.measure(b, c)
						b.ReportMetric(ns, "ns/op")
						b.ReportMetric(m.bytes/ns*1e9, "B/s")
						b.ReportMetric(float64(registers), "registers")
					}
				})
			}
			m.close()
		}
	}
}

// A measurement has the tensors of one pass, several sets of them.
type measurement struct {
	d        *vk.Device
	p        Problem
	backward bool
	bytes    float64
	sets     []map[string]vk.Tensor
}

func newMeasurement(b *testing.B, d *vk.Device, p Problem, backward bool) *measurement {
	m := &measurement{d: d, p: p, backward: backward, bytes: p.Bytes()}
	names := []string{"x", "y"}
	if backward {
		names, m.bytes = append(names, "dx"), p.BackwardBytes()
	}
	const cacheBytes = 256 << 20
	for range min(max(int(cacheBytes/m.bytes), 1), 16) {
		set := map[string]vk.Tensor{}
		add := func(name string, format dtype.DType, shape ...int) {
			t, err := d.NewTensor(name, format, shape...)
			require.NoError(b, err)
			set[name] = t
		}
		for _, name := range names {
			add(name, p.DType, p.Rows, p.Cols)
		}
		for _, name := range []string{"w", "dw"} {
			add(name, dtype.Float32, p.Cols)
		}
		for _, name := range []string{"mean", "rstd"} {
			add(name, dtype.Float32, p.Rows)
		}
		m.sets = append(m.sets, set)
	}
	return m
}

func (m *measurement) close() {
	for _, s := range m.sets {
		for _, t := range s {
			t.Close()
		}
	}
}

// measure returns the least time of a call over several batches, and the registers of its kernel.
func (m *measurement) measure(b *testing.B, config Config) (ns float64, registers uint64) {
	ctx := context.Background()
	c, err := m.d.NewCmd("measure")
	require.NoError(b, err)
	defer c.Close()
	timer, err := m.d.NewTimer(2)
	require.NoError(b, err)
	defer timer.Close()
	const calls = 100
	c.Timestamp(timer, 0)
	for i := range calls {
		s := m.sets[i%len(m.sets)]
		t := Tensors{X: s["x"], W: s["w"], Y: s["y"], Mean: s["mean"], RStd: s["rstd"]}
		if m.backward {
			err = Backward(c, t, Gradients{DY: s["y"], DX: s["dx"], DW: s["dw"]}, m.p, Options{Config: &config})
		} else {
			err = Forward(c, t, m.p, Options{Config: &config})
		}
		require.NoError(b, err)
		c.Barrier()
	}
	c.Timestamp(timer, 1)
	for range 6 {
		require.NoError(b, c.Submit(ctx))
		one, err := timer.Nanoseconds(0, 1)
		require.NoError(b, err)
		if ns == 0 || one/calls < ns {
			ns = one / calls
		}
	}
	for _, k := range m.d.CachedKernels() {
		if config.describes(k.Spec, m.backward) {
			registers = k.Stats.Registers
		}
	}
	return ns, registers
}

// describes reports whether a kernel's specialization is of c.
func (c *Config) describes(spec any, backward bool) bool {
	shared := func(s sharedSpec) bool {
		return int(s.WorkgroupSize) == c.Threads && s.SubgroupTeam == c.SubgroupTeam && int(s.Loads) == c.Loads && s.HoldWeights == !c.Reload
	}
	switch s := spec.(type) {
	case fwdSpec:
		return !backward && shared(s.shared) && int(s.Rows) == c.Rows
	case bwdSpec:
		return backward && shared(s.shared) && s.Ahead == c.Ahead
	}
	return false
}
