package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// made is a problem that computes nothing on the device. It is wrong if its size is a multiple of
// Wrong. Like any other problem it runs the kernel of the poison.
type made struct {
	Size  int
	Wrong int
	Do    string // refuse, panic, hang, lose; endless: it is wrong and never smaller
}

func (m *made) String() string { return fmt.Sprintf("made of size %d", m.Size) }

func (m *made) Supports(*vk.Caps) error {
	if m.Do == "refuse" {
		return vk.ErrUnsupported
	}
	return nil
}

func (m *made) Check(ctx context.Context, r *Runner) error {
	switch m.Do {
	case "panic":
		panic("at the disco")
	case "hang":
		<-ctx.Done()
		time.Sleep(time.Hour)
	case "endless":
		return errors.New("wrong")
	case "lose":
		return fmt.Errorf("made: %w", vk.ErrDeviceLost)
	}
	err := r.Submit(ctx, "made", func(*vk.Cmd) error { return nil })
	if err == nil && m.Wrong > 0 && m.Size%m.Wrong == 0 {
		return errors.New("wrong")
	}
	return err
}

func (m *made) Smaller() []Problem {
	var list []Problem
	if m.Do == "endless" {
		return []Problem{m}
	}
	for _, n := range []int{m.Size / 2, m.Size - 1} {
		if n > 0 {
			list = append(list, &made{n, m.Wrong, m.Do})
		}
	}
	return list
}

// makes returns a Kernel of made problems with sizes from 1 to 1000.
func makes(name string, p made) Kernel {
	return Kernel{Name: name, Weight: 1, New: func() Problem { return new(made) }, Draw: func(_, rng *rand.Rand, _ call.Space) Problem {
		q := p
		q.Size = 1 + rng.IntN(1000)
		return &q
	}}
}

func openPoisoned(t *testing.T) *vk.Device {
	return vktest.Open(t, func(o *vk.Options) { o.PoisonScratch = ScratchWord })
}

// TestRunCounts checks right problems of two kernels, one of which the device refuses.
func TestRunCounts(t *testing.T) {
	d := openPoisoned(t)
	o := Options{Seed: 3, Problems: 100, Hang: time.Minute, Kernels: []Kernel{makes("a", made{}), makes("b", made{Do: "refuse"}), makes("c", made{})}}
	last := 0
	x, err := Run(context.Background(), d, o, func(done, total int, _ string) { last = max(last, done) })
	require.NoError(t, err)
	require.Equal(t, 100, x.Problems)
	require.Equal(t, 100, last)
	require.Equal(t, 100, x.Kernels["a"]+x.Kernels["c"])
	require.Positive(t, x.Kernels["a"])
	require.Positive(t, x.Kernels["c"])
	require.Positive(t, x.Refused)
	require.Empty(t, x.Failures)
	require.Len(t, x.Modules, 1)
	require.Equal(t, "poison", x.Modules[0].Name)
	require.NotEmpty(t, x.Modules[0].SPIRV)
	require.Equal(t, x.Kernels, x.Modules[0].Problems)
}

// TestRunShrinks says that Run makes a failure smaller, and that its text repeats it.
func TestRunShrinks(t *testing.T) {
	d := openPoisoned(t)
	o := Options{Problems: 300, Hang: time.Minute, Failures: 2, Shrink: time.Minute, Workers: 1, Kernels: []Kernel{makes("a", made{Wrong: 7})}}
	x, err := Run(context.Background(), d, o, nil)
	require.NoError(t, err)
	require.Len(t, x.Failures, 2)
	f := x.Failures[0]
	require.Equal(t, "wrong", f.What)
	require.True(t, strings.HasPrefix(f.Problem, `a:{"Size":`), f.Problem)
	require.Contains(t, f.Smallest, `"Wrong":7`)
	require.Less(t, len(f.Smallest), len(f.Problem)+1)
	require.Zero(t, x.Modules[0].Failed) // it is the poison's
}

// TestTally wants right and wrong problems to be counted by the modules that they ran. The module
// of the poison never counts as wrong.
func TestTally(t *testing.T) {
	gemm, poison := vk.ModuleInfo{Name: "gemm", SPIRV: []byte{1}}, vk.ModuleInfo{Name: poisonModule}
	var counts Tally
	for _, x := range []struct {
		kernel string
		right  bool
	}{{"a", true}, {"a", false}, {"b", true}} {
		counts.Add([]vk.ModuleInfo{poison, gemm}, x.kernel, x.right)
	}
	require.Equal(t, Tally{
		{ModuleInfo: gemm, Problems: map[string]int{"a": 1, "b": 1}, Failed: 1},
		{ModuleInfo: poison, Problems: map[string]int{"a": 2, "b": 1}},
	}, counts)
}

// TestRunEnds has problems that panic, and runs that cannot go on.
func TestRunEnds(t *testing.T) {
	d := openPoisoned(t)
	o := Options{Problems: 1, Hang: time.Minute, Kernels: []Kernel{makes("a", made{Do: "panic"})}}
	x, err := Run(context.Background(), d, o, nil)
	require.NoError(t, err)
	require.Len(t, x.Failures, 1)
	require.Contains(t, x.Failures[0].What, "panic: at the disco")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o = Options{Problems: 1, Hang: time.Minute, Kernels: []Kernel{makes("a", made{})}}
	_, err = Run(ctx, d, o, nil)
	require.ErrorIs(t, err, context.Canceled)

	o.Kernels = []Kernel{makes("a", made{Do: "refuse"})}
	_, err = Run(context.Background(), d, o, nil)
	require.EqualError(t, err, "trial: the device supports none of 10000 problems one after the other")
	o.Problems = 0
	_, err = Run(context.Background(), d, o, nil)
	require.EqualError(t, err, "trial: 0 problems of 1 kernels: at least one of each is needed")
}

// TestRunHangs has a problem that does not come back. Everything that it may use stays open.
func TestRunHangs(t *testing.T) {
	caps := openPoisoned(t).Caps() // or skips the test
	d, err := vk.Open(vk.Options{Device: caps.Name, PoisonScratch: ScratchWord})
	require.NoError(t, err)
	o := Options{Problems: 1, Hang: 50 * time.Millisecond, Kernels: []Kernel{makes("a", made{Do: "hang"})}}
	_, err = Run(context.Background(), d, o, nil)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, `a:{"Do":"hang","Size":`)
	require.ErrorContains(t, d.Close(), `1 objects open: buffer "sink"`)
}

// TestRunLost says that a lost device ends the run, and that one problem is to blame, without a
// smaller one.
func TestRunLost(t *testing.T) {
	d := openPoisoned(t)
	o := Options{Problems: 1000, Workers: 4, Hang: time.Minute, Shrink: time.Minute, Kernels: []Kernel{makes("a", made{Do: "lose"})}}
	x, err := Run(context.Background(), d, o, nil)
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	require.Len(t, x.Failures, 1)
	f := x.Failures[0]
	require.Equal(t, f.Problem, f.Smallest)
	require.Contains(t, f.Problem, `a:{"Do":"lose","Size":`)
	require.Equal(t, 1, x.Problems)
}

// TestRunBudget says that a run ends at its budget with what it has, also while it makes a failure
// smaller.
func TestRunBudget(t *testing.T) {
	d := openPoisoned(t)
	o := Options{
		Problems: math.MaxInt, Failures: math.MaxInt, Budget: 100 * time.Millisecond,
		Hang: time.Minute, Shrink: time.Hour, Kernels: []Kernel{makes("a", made{Do: "endless"})},
	}
	x, err := Run(context.Background(), d, o, nil)
	require.NoError(t, err)
	require.Positive(t, x.Problems)
	require.Len(t, x.Failures, x.Problems)
	require.GreaterOrEqual(t, x.Took, o.Budget)
}

// TestDraw says that a seed draws the same problems each time, that problems of a family share
// pipelines, and that all kinds of sizes occur.
func TestDraw(t *testing.T) {
	type drawn struct{ family, n uint64 }
	var got []drawn
	kernels := []Kernel{{Name: "a", Weight: 1, Draw: func(of, rng *rand.Rand, _ call.Space) Problem {
		got = append(got, drawn{of.Uint64(), rng.Uint64()})
		return &made{}
	}}}
	for range 2 {
		for n := range 4 * family * turns {
			_, _, ok := Draw(5, n, kernels, call.Space{})
			require.True(t, ok)
		}
	}
	half := len(got) / 2
	require.Equal(t, got[:half], got[half:])
	families, all := map[uint64]int{}, map[uint64]bool{}
	for i, x := range got[:half] {
		families[x.family]++
		all[x.n] = true
		if i > 0 && x.family == got[i-1].family {
			t.Fatalf("problems %d and %d are of one family", i-1, i)
		}
	}
	require.Len(t, families, 4*turns)
	require.Len(t, all, half)
	for _, n := range families {
		require.Equal(t, family, n)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	sizes := map[int]int{}
	for range 10000 {
		n := call.Size(rng, 700)
		require.True(t, 1 <= n && n <= 700)
		sizes[n]++
	}
	for _, n := range []int{1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512} {
		require.Positive(t, sizes[n], n)
	}
	s := call.Space{Impls: []string{"b", "c"}, DTypes: []dtype.DType{dtype.Float16}}
	impl, ok := s.Impl(rng, "a", "b")
	require.True(t, ok)
	require.Equal(t, "b", impl)
	_, ok = s.DType(rng, dtype.Float32)
	require.False(t, ok)
	_, ok = call.Space{}.DType(rng, dtype.All()...)
	require.True(t, ok)
}

// TestDecodeRefuses has texts that are no problems.
func TestDecodeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"attention":  `trial: problem "attention" is not a kernel's name, a colon, and JSON`,
		"nothing:{}": `trial: no kernel "nothing"`,
	} {
		_, _, err := Decode(text)
		require.EqualError(t, err, want)
	}
}

// newTestRunner returns a Runner for a test.
func newTestRunner(t *testing.T, d *vk.Device) *Runner {
	t.Helper()
	r, err := newRunner(d)
	require.NoError(t, err)
	t.Cleanup(r.close)
	return r
}
