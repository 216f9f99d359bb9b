package kernels_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

var update = flag.Bool("update", false, "write testdata/barriers.txt")

// ordersFile lists the kernels of calls in the order of recording.
const ordersFile = "testdata/barriers.txt"

// TestOrders records the calls of the file: a kernel, a path, flags, and passes. The file has the
// kernels of each call in order, with a bar where there is a barrier and a comma where there is none.
// So the test finds a new barrier, and kernels that no longer run side by side. It runs on a CPU device
// only, where no tuning decides what runs. To add a call, add a line without kernels and run the test
// with -update.
func TestOrders(t *testing.T) {
	d := vktest.Open(t)
	if d.Caps().Type != vk.CPU {
		t.Skip("a GPU has other choices than the CPU device of this test")
	}
	want, err := os.ReadFile(ordersFile)
	require.NoError(t, err)
	var text strings.Builder
	for line := range strings.Lines(string(want)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), ":")
		words, pass := callOf(line)
		fmt.Fprintf(&text, "%s: %s\n", line, order(t, d, opOf(t, words[0], words[2:]), words[1], pass))
	}
	if *update {
		require.NoError(t, os.WriteFile(ordersFile, []byte(text.String()), 0o644))
		return
	}
	require.Equal(t, string(want), text.String())
}

// callOf returns a call of a file: kernel, path and flags, then the pass.
func callOf(line string) (words []string, pass bench.Pass) {
	at := strings.LastIndex(line, ", ")
	passes := map[string]bench.Pass{"forward": bench.Forward, "backward": bench.Backward, "forward and backward": bench.Both}
	return strings.Fields(line[:at]), passes[strings.TrimSpace(line[at+2:])]
}

// opOf returns the problem of flags. A configuration in them has commas instead of spaces.
func opOf(t testing.TB, kernel string, args []string) bench.Op {
	k, ok := kernels.Find(kernel)
	require.True(t, ok, kernel)
	flags, set := k.New(), pflag.NewFlagSet(kernel, pflag.ContinueOnError)
	flags.Add(set, true)
	for _, arg := range args {
		if strings.HasPrefix(arg, "--config=") {
			arg = strings.ReplaceAll(arg, ",", " ")
		}
		require.NoError(t, set.Parse([]string{arg}))
	}
	op, err := flags.Op(true)
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

// traced records passes on a path and returns its dispatches.
func traced(t *testing.T, d *vk.Device, op bench.Op, impl string, p bench.Pass) []vk.TracedDispatch {
	t.Cleanup(op.Close)
	c, err := d.NewCmd("notes")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	trace, err := d.NewTrace(64)
	require.NoError(t, err)
	t.Cleanup(trace.Close)
	c.Trace(trace)
	require.NoError(t, bound(t, d, op, impl, p).Record(c))
	return trace.Dispatches()
}

// bound returns what records passes on a path.
func bound(t testing.TB, d *vk.Device, op bench.Op, impl string, p bench.Pass) (list steps.List) {
	tensors := map[string]vk.Tensor{}
	for _, x := range op.Tensors() {
		if p.Reads(x.Role) || p.Writes(x.Role) {
			tensors[x.Name] = vktest.Tensor(t, d, x.DType, x.Shape...)
		}
	}
	for _, of := range p.Parts() {
		plan, err := op.Choose(d.Caps(), impl, of)
		require.NoError(t, err)
		var workspace *vk.Buffer
		if bytes := plan.Workspace(); bytes > 0 {
			workspace, err = d.NewBuffer("workspace", bytes)
			require.NoError(t, err)
			t.Cleanup(workspace.Close)
		}
		record, err := op.Bind(d, tensors, workspace, impl, of)
		require.NoError(t, err)
		list = append(list, record)
	}
	return list
}

// TestNotes adds up the notes of all dispatches of the calls of notes.txt. Bytes are at least the traffic of
// the formulas. Texts are the notes of the dispatches; "": any.
func TestNotes(t *testing.T) {
	d := vktest.Open(t)
	file, err := os.ReadFile("testdata/notes.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(file)) {
		if line[0] == '#' {
			continue
		}
		part := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		t.Run(part[0], func(t *testing.T) {
			words, pass := callOf(part[0])
			op := opOf(t, words[0], words[2:])
			_, err := op.Choose(d.Caps(), words[1], pass)
			vktest.Require(t, words[1], err)
			var list []bench.DispatchProfile
			for _, dispatch := range traced(t, d, op, words[1], pass) {
				list = append(list, bench.DispatchProfile{TracedDispatch: dispatch})
			}
			require.NoError(t, op.Note(d.Caps(), words[1], pass, list))
			low, high := 1.0, 1.0
			fmt.Sscanf(strings.TrimSpace(part[1]), "%f to %f", &low, &high)
			wantFLOPs, wantBytes := op.Cost(pass)
			flops, bytes, matrices := 0.0, 0.0, false
			var texts []string
			for _, n := range list {
				texts, matrices = append(texts, n.Note.Text), matrices || n.Note.Matrices
				flops, bytes = flops+n.Note.FLOPs, bytes+n.Note.Bytes
			}
			want := strings.TrimSpace(part[2])
			if want != "" {
				require.Equal(t, want, strings.Join(texts, "; "))
			}
			if want != "" || words[1] != "auto" { // devices differ in what auto is
				require.Equal(t, strings.Contains(part[1], "matrices"), matrices)
			}
			require.GreaterOrEqual(t, flops, low*wantFLOPs*(1-1e-12))
			require.LessOrEqual(t, flops, high*wantFLOPs*(1+1e-12))
			require.GreaterOrEqual(t, bytes, wantBytes*(1-1e-12))
		})
	}
}

// TestDescribe wants all descriptions of problems to have one form: FORMAT: NAME VALUE, NAME VALUE,
// WORDS.
func TestDescribe(t *testing.T) {
	for _, k := range kernels.All() {
		for _, small := range []bool{false, true} {
			flags := k.New()
			op, err := flags.Op(small)
			require.NoError(t, err, k.Name)
			list := []bench.Op{op}
			for _, s := range flags.Suites() {
				_, cases, err := flags.Cases(s.Name, small)
				require.NoError(t, err, k.Name)
				list = append(list, cases...)
			}
			for _, op := range list {
				require.Regexp(t, `^(float16|bfloat16|float32): [A-Za-z-]+( [a-z]+)*( \S*[0-9]\S*|, )`, op.Describe(), k.Name)
				require.NotRegexp(t, `  |, ,|[0-9] (tokens|heads|parameters)`, op.Describe(), k.Name)
			}
		}
	}
	for args, want := range map[string]string{
		"--m=2 --n=3 --k=5 --trans=nt --dtype=bf16 --out-dtype=fp32 --batch=7 --alpha=2 --residual": "bfloat16: out float32, trans nt, batch 7, m 2, n 3, k 5, alpha 2, residual",
		"--group=2x3x5,0x3x5,4x4x4,5x5x5,6x6x6 --dtype=half --activation=silu":                      "float16: group 2x3x5 0x3x5 4x4x4 2 more, nn, silu",
	} {
		require.Equal(t, want, opOf(t, "gemm", strings.Fields(args)).Describe())
	}
}

// TestSuites has how many cases a suite of attention has, and its last case, in the small form, too. Only one
// suite takes another format.
func TestSuites(t *testing.T) {
	var got []string
	k, _ := kernels.Find("attention")
	for _, s := range k.New().Suites() {
		for _, args := range []string{"", "--dtype=bfloat16"} {
			flags, set := k.New(), pflag.NewFlagSet("attention", pflag.ContinueOnError)
			flags.Add(set, true)
			require.NoError(t, set.Parse(strings.Fields(args)))
			for _, small := range []bool{false, true} {
				of, cases, err := flags.Cases(s.Name, small)
				if err != nil {
					require.EqualError(t, err, "--dtype bfloat16: suite "+s.Name+" says which formats its cases have")
					continue
				}
				require.Equal(t, bench.Suite{Name: s.Name, About: s.About, Small: small}, *of)
				got = append(got, fmt.Sprint(s.Name, " ", len(cases), " ", cases[len(cases)-1].Describe()))
			}
		}
	}
	want, err := os.ReadFile("testdata/suites.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), strings.Join(got, "\n")+"\n")
}

// TestAttentionCalls has the limit of calls of the unfused path, 64 MiB each, and the lengths of packed
// sequences.
func TestAttentionCalls(t *testing.T) {
	op := opOf(t, "attention", strings.Fields("--batch=2 --heads=8 --seqlen=1024"))
	limit, ok := bench.As[interface{ MaxCalls(string, bench.Pass) int }](op)
	require.True(t, ok)
	require.Equal(t, []int{32, 10, 0}, []int{limit.MaxCalls("unfused", bench.Forward), limit.MaxCalls("unfused", bench.Both), limit.MaxCalls("scalar", bench.Forward)})
	op = opOf(t, "attention", strings.Fields("--batch=5 --heads=2 --seqlen=8 --seqlen-kv=10 --headdim=8 --varlen"))
	require.Contains(t, op.Keys(), bench.Key{Name: "varlen", Value: "28x36"})
	flops, _ := op.Cost(bench.Forward)
	require.Equal(t, 4.0*2*8*(80+48+20+6+80), flops)
}

// recorded are calls of a kernel with flags, and the most allocations that recording one again takes on
// the path that lavapipe chooses: a tenth more than at the time of writing.
var recorded = []struct {
	call        string
	pass        bench.Pass
	allocations float64
}{
	{call: "attention --seqlen=16", allocations: 12},
	{call: "attention --seqlen=16", pass: bench.Backward, allocations: 37},
	{call: "decode --part=decode", allocations: 29},
	{call: "decode --part=step", allocations: 39},
	{call: "norm", allocations: 10},
	{call: "norm", pass: bench.Backward, allocations: 16},
	{call: "gemm", allocations: 17},
	{call: "mlp", allocations: 71},
	{call: "mlp", pass: bench.Backward, allocations: 188},
	{call: "grouped", allocations: 74},
	{call: "gmm", allocations: 22},
	{call: "mixture", allocations: 74},
	{call: "optim", allocations: 33},
}

// TestRecordAgain wants a call that is recorded again to allocate little. Allocations stand for the
// time that a call takes the host beside the driver, which a test cannot measure; bench overhead does.
func TestRecordAgain(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	if d.Caps().Type != vk.CPU {
		t.Skip("a GPU has other choices than the CPU device of this test")
	}
	for _, x := range recorded {
		words := strings.Fields(x.call)
		op := opOf(t, words[0], words[1:])
		t.Cleanup(op.Close)
		list := bound(t, d, op, "auto", x.pass)
		require.Len(t, list, 1)
		require.NoError(t, d.Run(t.Context(), "first", list[0]))
		c, err := d.NewCmd("again")
		require.NoError(t, err)
		t.Cleanup(c.Close)
		n := testing.AllocsPerRun(20, func() { err = list[0](c) })
		require.NoError(t, err)
		require.LessOrEqual(t, n, x.allocations, "of %s %v", x.call, x.pass)
	}
}
