package trial

import (
	"context"
	"flag"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

var (
	randomCount = flag.Int("random-count", 200, "how many problems TestRandom checks; 20 with -short")
	randomSeed  = flag.Uint64("random-seed", 14, "seed of TestRandom")
)

// onMatrices matches the names of modules that multiply cooperative matrices.
var onMatrices = regexp.MustCompile(`coopmat|^gemm_(narrow|narrow_bwd|mixture|pair)\.`)

// TestRandom checks random problems of all kernels and paths under core and synchronization
// validation, which flashvk selftest --random does without. An error of the layer fails the
// call that comes next, and so a problem, and the device's Close.
func TestRandom(t *testing.T) {
	d := openPoisoned(t)
	o := Options{Seed: *randomSeed, Problems: *randomCount, Kernels: All(), Hang: 10 * time.Minute, Shrink: 5 * time.Second, Space: call.Space{Work: 5e7}}
	if testing.Short() {
		o.Problems = min(o.Problems, 20)
	}
	if d.Caps().Type == vk.CPU {
		o.Space.Soft, o.Space.Work = true, 1e6
	}
	x, err := Run(context.Background(), d, o, nil)
	require.NoError(t, err)
	t.Log(x.Summary())
	for _, f := range x.Failures {
		t.Errorf("%s\n%s\nsmaller: %s\n%s", f.What, f.Problem, f.Smaller, f.Smallest)
	}
	matrices := map[string]bool{} // kernels that ran on them
	for _, m := range x.Modules {
		t.Log(m.Name, m.Problems)
		for kernel := range m.Problems {
			if onMatrices.MatchString(m.Name) {
				matrices[kernel] = true
			}
		}
	}
	require.Greater(t, x.Problems, o.Problems*9/10) // some may have found too little memory
	if o.Problems < 200 {
		return
	}
	for _, k := range All() {
		require.Positive(t, x.Kernels[k.Name], k.Name)
	}
	require.Greater(t, len(x.Modules), 40)
	if d.Caps().CoopMat {
		for _, name := range []string{"attention", "gemm", "gemm-group", "mlp", "grouped", "mixture"} { // the others have no such path
			require.Contains(t, matrices, name)
		}
	}
}
