package kernels_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

var update = flag.Bool("update", false, "write testdata/barriers.txt")

// ordersFile lists the kernels of calls in the order of recording.
const ordersFile = "testdata/barriers.txt"

// ordered are the calls in the file: a kernel, a path, flags.
var ordered = []string{
	"attention scalar",
	"attention coopmat --dtype=float16 --seqlen=40",
	"attention coopmat --dtype=float16 --heads=8 --kv-heads=2 --seqlen=1 --seqlen-kv=2000",
	"attention coopmat --dtype=float32 --seqlen=40",
	"attention unfused --dtype=float32",
	"attention scalar --dtype=float32 --bias=heads --sinks",
	"attention scalar --dtype=float32 --bias=rows,heads",
	"attention unfused --dtype=float32 --softcap=3",
	"decode scalar --page-size=16",
	"gemm scalar --dtype=float32",
	"gemm scalar --m=33 --n=20 --k=37 --dtype=float16",
	"gemm coopmat --m=33 --n=20 --k=37 --dtype=float16",
	"gemm coopmat --m=33 --n=20 --k=37 --dtype=float32",
	"gemm auto --m=33 --n=20 --k=300 --beta=2 --config=scalar,64x64,t16x16,k16,g8,splits3",
	"gemm auto --dtype=float32 --m=20 --n=18 --k=110 --config=coopmat,s2x1,t1x2,k16,g4,splits2",
	"gemm scalar --group=3x5x7,4x6x2",
	"mlp auto",
	"mlp scalar --dtype=float32",
	"mlp coopmat --keep=pre",
	"mlp coopmat --keep=hidden",
	"mlp coopmat --dtype=float32",
	"mlp fused --tokens=20 --hidden=37 --in=18",
	"grouped auto",
	"grouped coopmat --heads-at-a-time=1",
	"grouped coopmat --products",
	"grouped coopmat --keep=pre",
	"grouped scalar --dtype=float32",
	"mixture auto",
	"mixture scalar --dtype=float32",
	"mixture coopmat --heads-at-a-time=1",
	"mixture coopmat --groups=1",
	"gmm auto",
	"norm auto",
	"norm auto --rms --residual --dtype=float32",
	"optim auto",
	"optim auto --max-norm=1",
	"optim auto --max-norm=1 --tensors=3 --copy=float16",
}

// TestOrders compares the recorded calls with the file. The file has the kernels of each call in
// order, with a bar where there is a barrier and a comma where there is none. So the test finds a
// new barrier, and kernels that no longer run side by side. It runs on a CPU device only, where no
// tuning decides what runs.
func TestOrders(t *testing.T) {
	d := vktest.Open(t)
	if d.Caps().Type != vk.CPU {
		t.Skip("the choices are those of a CPU device")
	}
	var text strings.Builder
	for _, call := range ordered {
		words := strings.Fields(call)
		for pass := bench.Forward; pass <= bench.Both; pass++ {
			op := opOf(t, words[0], words[2:])
			if pass != bench.Forward && !bench.HasBackward(op) {
				continue
			}
			if _, err := op.Choose(d.Caps(), words[1], min(pass, bench.Backward)); errors.Is(err, vk.ErrUnsupported) {
				continue
			}
			fmt.Fprintf(&text, "%s, %v: %s\n", call, pass, order(t, d, op, words[1], pass))
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(ordersFile, []byte(text.String()), 0o644))
	}
	want, err := os.ReadFile(ordersFile)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
}

// opOf returns the problem of flags. A configuration in them has commas instead of spaces.
func opOf(t *testing.T, kernel string, args []string) bench.Op {
	set, flags := pflag.NewFlagSet(kernel, pflag.ContinueOnError), find(t, kernel).New()
	flags.Add(set, true)
	list := append([]string(nil), args...)
	for i, arg := range list {
		if strings.HasPrefix(arg, "--config=") {
			list[i] = strings.ReplaceAll(arg, ",", " ")
		}
	}
	require.NoError(t, set.Parse(list))
	op, err := flags.FromFlags(true)
	require.NoError(t, err)
	return op
}

// order returns the kernels of a call.
func order(t *testing.T, d *vk.Device, op bench.Op, impl string, p bench.Pass) string {
	var text strings.Builder
	for i, x := range traced(t, d, op, impl, p) {
		switch {
		case i > 0 && x.Beside:
			text.WriteString(", ")
		case i > 0:
			text.WriteString(" | ")
		}
		text.WriteString(x.Kernel)
	}
	return text.String()
}
