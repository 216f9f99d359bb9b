package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

// The scripts of tests/cli test the commands. Here are parts of them that no script reaches.

// TestHelp says that every command has help with an example, all of whose flags there are.
func TestHelp(t *testing.T) {
	root := program()
	for _, cmd := range allCommands(root) {
		if cmd.Name() == "version" || cmd.HasParent() && cmd.Parent().Name() == "completion" || cmd.HasSubCommands() && !whole(cmd) {
			continue
		}
		require.NotEmpty(t, cmd.Long, cmd.CommandPath())
		for _, line := range strings.Split(cmd.Example, "\n") {
			args := strings.Fields(strings.Split(strings.Split(line, "&&")[0], ">")[0])
			if len(args) == 0 {
				continue
			}
			require.Equal(t, "flashvk", args[0], line)
			found, rest, err := root.Find(args[1:])
			require.NoError(t, err, line)
			require.NoError(t, found.ParseFlags(rest), line)
			require.True(t, whole(found), line)
		}
	}
}

// TestDescribeDevice describes a device that is not here: no matrices, no 16-bit storage, and one
// path that takes some sizes only; then one that is unusable.
func TestDescribeDevice(t *testing.T) {
	caps := vk.Caps{
		Name: "Small GPU", Type: vk.IntegratedGPU, DriverName: "drv", DriverInfo: "1.0", APIVersion: vk.MakeVersion(1, 2, 3),
		SubgroupSize: 16, MinSubgroupSize: 8, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 16384, MaxWorkgroupInvocations: 128,
		MaxWorkgroupSize: [3]uint32{128, 128, 64}, ScalarBlockLayout: true,
		Heaps: []vk.Heap{{SizeBytes: 1 << 30}}, MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30,
	}
	var b strings.Builder
	describeDevice(&b, &caps)
	caps.Unusable = "it has no timeline semaphores"
	describeDevice(&b, &caps)
	want, err := os.ReadFile("testdata/devices.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}

// TestCompiling: what takes long to compile is said, while it lasts and at its end, and on a
// terminal only.
func TestCompiling(t *testing.T) {
	var b bytes.Buffer
	a := &app{stderr: &b, patience: time.Hour}
	a.compiling("quick")()
	require.Empty(t, b.String())
	from, to := io.Pipe()
	said := bufio.NewScanner(from)
	a.stderr, a.patience = to, 0
	slow := a.compiling("slow")
	require.True(t, said.Scan())
	require.Equal(t, "\r\x1b[Kflashvk: the driver compiles slow", said.Text())
	go slow()
	require.True(t, said.Scan())
	require.Regexp(t, "^\r\x1b\\[Kflashvk: the driver compiled slow in [0-9.]+m?s$", said.Text())
}

// TestLabel: the text before a progress bar is of one width, so that the bar stands still, and the
// text of a training is not cut.
func TestLabel(t *testing.T) {
	for _, what := range []string{"", "case 112 of 1200: checking a path with a long name", "max|Δ| ±\n"} {
		require.Equal(t, labelWidth, utf8.RuneCountInString(label(what)), what)
	}
	require.Contains(t, label(trainLabel(-2.34567, 1069234, 141e9)), "loss -2.3457, 1.069 M tokens/s, 141.0 GB")
	for of, want := range map[[2]int]string{{0, 0}: "  0% |                | - left", {1, 4}: " 25% |████            | 0s left", {9, 8}: "100% |████████████████| 0s left"} {
		var b strings.Builder
		p := &progress{w: &b, terminal: true, start: time.Now()}
		p.step(of[0], of[1], "x")
		p.finish()
		require.Equal(t, "\r\x1b[K"+label("x")+" "+want+"\r\x1b[K", b.String())
	}
}

func TestCommandLine(t *testing.T) {
	require.Equal(t, `flashvk bench --peer 'a=sh -c "x"' '' 'it'\''s' --n=1,2`, commandLine([]string{"bench", "--peer", `a=sh -c "x"`, "", "it's", "--n=1,2"}))
}

// FuzzSizes says that no sizes on a command line make the program panic, or take its time before
// it says what is wrong.
func FuzzSizes(f *testing.F) {
	for i, args := range []string{
		"--batch 1 --seqlen 1..9223372036854775807x2 --headdim 8", "--keys 5..40 --batch 3", "--m 4..16x2 --n 0 --k -1 --dtype half", "--tokens 1,2,2",
		"--heads 3 --hidden 99999999999999999999", "--tokens 1..3+1 --components 4", "--rows 9223372036854775807 --cols 2", "--rows 1..1000000+1", "--tensors 2147483647 --elements 2147483647",
		"--group 1x2x3,4x5x6 --trans nt", "--batch=4 --varlen --window 1,2 --dropout 0.5 --seed 1", "--suite length --small",
	} {
		f.Add(uint8(i), args)
	}
	all := kernels.All()
	f.Fuzz(func(t *testing.T, kernel uint8, args string) {
		b := &benchKernel{kernelFlags: newKernelFlags(all[int(kernel)%len(all)])}
		set := pflag.NewFlagSet("test", pflag.ContinueOnError)
		set.Usage = func() {}
		b.add(set)
		if err := set.Parse(strings.Fields(args)); err != nil {
			return
		}
		ops, _, err := b.ops(true)
		if err != nil {
			return
		}
		if len(ops) == 0 || len(ops) > maxProblems || ops[0].Describe() == "" || len(ops[0].Tensors()) == 0 {
			t.Errorf("%d problems: %v", len(ops), fmt.Sprint(ops[:min(1, len(ops))]))
		}
	})
}
