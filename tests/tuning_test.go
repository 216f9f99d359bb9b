package tests

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// tunedProblems has a small problem of each kernel with configurations to choose from, and the
// paths on which it is run.
var tunedProblems = []struct {
	kernel, flags string
	impls         []string
}{
	{"attention", "--batch=1 --heads=2 --seqlen=40 --headdim=16 --dtype=float16", []string{"scalar", "unfused", "coopmat2"}},
	{"attention", "--batch=1 --heads=2 --seqlen=40 --headdim=16 --dtype=float32", []string{"scalar"}},
	{"gemm", "--m=40 --n=48 --k=64 --dtype=float16", []string{"scalar", "coopmat"}},
	{"mlp", "--tokens=40 --in=32 --hidden=40 --out=16 --dtype=float16", []string{"scalar"}},
	{"grouped", "--tokens=40 --heads=2 --in=32 --hidden=40 --out=3 --dtype=float16", []string{"coopmat"}},
	{"mixture", "--tokens=40 --heads=3 --in=32 --hidden=40 --dtype=float16", []string{"coopmat"}},
	{"decode", "--batch=1 --heads=2 --kv-heads=1 --keys=100 --headdim=64 --dtype=float16", []string{"coopmat", "scalar"}},
	{"norm", "--rows=40 --cols=72 --dtype=float16", []string{"auto"}},
	{"normlinear", "--rows=2 --in=72 --out=40 --dtype=float16", []string{"auto"}},
}

// TestTuned wants a row of a user's file to decide what runs, for each kernel with
// configurations, in both passes. The row goes through the file and runs on the device, with a
// right result.
func TestTuned(t *testing.T) {
	d := vktest.Open(t)
	caps := d.Caps()
	seen := map[string]bool{}
	for _, x := range tunedProblems {
		k, ok := kernels.Find(x.kernel)
		require.True(t, ok && k.Tune != nil, x.kernel)
		seen[x.kernel] = true
		flags, set := k.New(), pflag.NewFlagSet(x.kernel, pflag.ContinueOnError)
		flags.Add(set, true)
		require.NoError(t, set.Parse(strings.Fields(x.flags)))
		op, err := flags.Op(true)
		require.NoError(t, err)
		passes := []bench.Pass{bench.Forward}
		if k.Backward {
			passes = append(passes, bench.Backward)
		}
		for _, pass := range passes {
			list, err := op.Tunables(caps, pass)
			require.NoError(t, err)
			require.NotEmpty(t, list)
			for _, of := range list {
				for _, impl := range x.impls {
					t.Run(strings.Join([]string{of.Op.Name(), pass.String(), impl, of.Op.Describe()}, " "), func(t *testing.T) {
						tuning, mine := tunedRow(t, d, of, impl)
						// A product that is tuned alone is also a part of a
						// kernel.
						whole, err := op.Use(tuning).Choose(caps, impl, pass)
						require.NoError(t, err)
						require.Contains(t, whole.String(), mine)
					})
				}
			}
		}
	}
	for _, k := range kernels.All() {
		require.Equal(t, k.Tune != nil, seen[k.Name], "%s has configurations to choose from, and no row here", k.Name)
		require.Equal(t, k.Tune == nil, k.Parts["fixed"] != "", k.Name)
	}
}

// tunedRow makes a row of another configuration than the built-in one, and returns it.
func tunedRow(t *testing.T, d *vk.Device, of bench.Tunable, impl string) (tuning *kit.Tuning, config string) {
	caps := d.Caps()
	list, err := of.Candidates(caps, impl)
	if err != nil {
		t.Skip(err)
	}
	variants := append(of.Variants(caps, list[0]), list[1:]...) // variants have the same tiles; a software driver takes minutes to compile large ones
	require.NotEmpty(t, variants)
	mine := variants[0]
	tuning = kit.NewTuning(caps)
	require.NoError(t, of.Keep(tuning, mine, 1))
	var file bytes.Buffer
	require.NoError(t, tuning.Write(&file))
	tuning, err = kit.LoadTuning(&file, caps)
	require.NoError(t, err)
	require.Equal(t, 1, tuning.Len())

	op := of.Op
	usual, err := op.Choose(caps, impl, of.Pass)
	require.NoError(t, err)
	require.NotContains(t, usual.String(), mine.String())
	op = op.Use(tuning)
	results, err := bench.Run(context.Background(), d, bench.Case{Op: op, Pass: of.Pass, Impls: []string{impl}, Protocol: bench.Protocol{Samples: 1, Iters: 1}}, nil)
	require.NoError(t, err)
	require.Equal(t, bench.StatusOK, results[0].Status, results[0].Reason)
	require.Contains(t, results[0].Choice, mine.String())
	none, err := op.Use(nil).Choose(caps, impl, of.Pass)
	require.NoError(t, err)
	require.Equal(t, usual.String(), none.String())
	return tuning, mine.String()
}
