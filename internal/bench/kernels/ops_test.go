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

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

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
	set, flags := pflag.NewFlagSet(kernel, pflag.ContinueOnError), flagsOf(t, kernel)
	flags.Add(set, true)
	list := append([]string(nil), args...)
	for i, arg := range list {
		if strings.HasPrefix(arg, "--config=") {
			list[i] = strings.ReplaceAll(arg, ",", " ")
		}
	}
	require.NoError(t, set.Parse(list))
	ops, err := flags.Ops(true)
	require.NoError(t, err)
	return ops[0]
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

// flagsOf returns the flags of a kernel.
func flagsOf(t *testing.T, kernel string) kernels.Flags {
	k, ok := kernels.Find(kernel)
	require.True(t, ok)
	return k.New()
}

// casesOf returns the cases of the first suite.
func casesOf(t *testing.T, flags kernels.Flags, small bool) []bench.Op {
	_, ops, err := flags.Cases(flags.Suites()[0], small)
	require.NoError(t, err)
	return ops
}

// traced records passes on a path and returns its dispatches.
func traced(t *testing.T, d *vk.Device, op bench.Op, impl string, p bench.Pass) []vk.TracedDispatch {
	t.Cleanup(func() { bench.CloseOp(op) })
	tensors := map[string]vk.Tensor{}
	for _, x := range op.Tensors() {
		if p.Reads(x.Role) || p.Writes(x.Role) {
			tensor := vktest.Tensor(t, d, x.DType, x.Shape...)
			tensors[x.Name] = tensor
		}
	}
	passes := []bench.Pass{p}
	if p == bench.Both {
		passes = []bench.Pass{bench.Forward, bench.Backward}
	}
	c, err := d.NewCmd("notes")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	trace, err := d.NewTrace(64)
	require.NoError(t, err)
	t.Cleanup(trace.Close)
	c.Trace(trace)
	for _, p := range passes {
		plan, err := op.Choose(d.Caps(), impl, p)
		require.NoError(t, err)
		var workspace *vk.Buffer
		if bytes := plan.Workspace(); bytes > 0 {
			workspace, err = d.NewBuffer("workspace", bytes)
			require.NoError(t, err)
			t.Cleanup(workspace.Close)
		}
		require.NoError(t, op.Record(c, tensors, workspace, impl, p))
	}
	return trace.Dispatches()
}

// TestNotes adds up the notes of all dispatches of a small training case, for each kernel. Their
// operations are those of the formulas and those that are computed again; their bytes are at least
// the traffic of the formulas.
func TestNotes(t *testing.T) {
	d := vktest.Open(t)
	for _, k := range kernels.All() {
		if k.Name == "attention" || k.Name == "decode" {
			continue // these have a method Note, and tests of their own
		}
		op := casesOf(t, k.New(), true)[0]
		for pass := bench.Forward; pass <= bench.Backward; pass++ {
			if pass == bench.Backward && !bench.HasBackward(op) {
				continue
			}
			t.Run(k.Name+"/"+pass.String(), func(t *testing.T) {
				wantFLOPs, wantBytes := op.Cost(pass)
				flops, bytes := 0.0, 0.0
				for _, x := range traced(t, d, op, "auto", pass) {
					require.NotEmpty(t, x.Note.Text, x.Kernel)
					flops, bytes = flops+x.Note.FLOPs, bytes+x.Note.Bytes
				}
				require.GreaterOrEqual(t, bytes, wantBytes)
				switch k.Name + " " + pass.String() {
				case "mlp backward": // pre is a fifth product of the same size
					require.InEpsilon(t, 1.25*wantFLOPs, flops, 1e-12)
				case "grouped backward", "mixture backward": // pre, and the padding of heads
					require.Greater(t, flops, wantFLOPs)
					require.Less(t, flops, 2*wantFLOPs)
				case "mixture forward": // a kernel on matrices counts the products only
					require.InEpsilon(t, wantFLOPs, flops, 0.02)
				default:
					require.InEpsilon(t, wantFLOPs, flops, 1e-12)
				}
			})
		}
	}
}

// TestNoteOfDecode wants the note of decode's one dispatch to have all operations. Only the Op
// knows the lengths of sequences.
func TestNoteOfDecode(t *testing.T) {
	d := vktest.Open(t)
	for _, op := range casesOf(t, flagsOf(t, "decode"), true) {
		list := []bench.DispatchProfile{{TracedDispatch: vk.TracedDispatch{Kernel: "attention_decode.f16"}}}
		require.NoError(t, op.(bench.Noter).Note(d.Caps(), "scalar", bench.Forward, list))
		flops, bytes := op.Cost(bench.Forward)
		require.Equal(t, vk.Note{Text: op.Describe(), FLOPs: flops, Bytes: bytes, DType: dtype.Float16}, list[0].Note)
		require.Len(t, traced(t, d, op, "scalar", bench.Forward), 1)
	}
}

// TestNotesOfPaths is TestNotes for other ways of passes: two float16 parts of operands, splits of k,
// products of a group, padded hidden units. With pre kept, a backward pass computes nothing again, and
// hidden units need no padding.
func TestNotesOfPaths(t *testing.T) {
	d := vktest.Open(t)
	for _, x := range []struct {
		kernel, impl string
		pass         bench.Pass
		args         string
		texts        string // nil: any
		matrices     bool
	}{
		{"gemm", "coopmat", bench.Forward, "--dtype=float32 --m=33 --n=20 --k=37", "33x37, 37x20; 33x37, 37x20; 33x20x37 nt float32", true},
		{"gemm", "auto", bench.Forward, "--m=33 --n=20 --k=300 --beta=2 --config=scalar,64x64,t16x16,k16,g8,splits3", "33x20x300 nn float16 to float32, k in 3 parts; 33x20, 3 sums of each", false},
		{
			"gemm", "auto", bench.Forward, "--dtype=float32 --m=20 --n=18 --k=110 --config=coopmat,s2x1,t1x2,k16,g4,splits2",
			"20x110, 110x18; 20x110, 110x18; 20x18x110 nt float32, k in 2 parts; 20x18, 2 sums of each", true,
		},
		{"gemm", "scalar", bench.Forward, "--group=3x5x7,4x6x2", "2 products", false},
		{"mlp", "fused", bench.Forward, "--tokens=20 --hidden=37 --in=18", "x, w1, w2; 20x32x37 nn float16", true},
		{"grouped", "coopmat", bench.Backward, "--keep=pre --hidden=48", "", true},
		{"grouped", "scalar", bench.Backward, "--keep=pre --hidden=48", "", false},
	} {
		t.Run(x.kernel+"/"+x.impl+"/"+x.pass.String(), func(t *testing.T) {
			op := opOf(t, x.kernel, strings.Fields(x.args))
			_, err := op.Choose(d.Caps(), x.impl, x.pass)
			vktest.Require(t, "coopmat", err)
			wantFLOPs, wantBytes := op.Cost(x.pass)
			flops, bytes, matrices := 0.0, 0.0, false
			var texts []string
			for _, n := range traced(t, d, op, x.impl, x.pass) {
				texts, matrices = append(texts, n.Note.Text), matrices || n.Note.Matrices
				flops, bytes = flops+n.Note.FLOPs, bytes+n.Note.Bytes
			}
			if x.texts != "" {
				require.Equal(t, x.texts, strings.Join(texts, "; "))
			}
			require.Equal(t, x.matrices, matrices)
			require.InEpsilon(t, wantFLOPs, flops, 1e-12)
			require.GreaterOrEqual(t, bytes, wantBytes)
		})
	}
}

// TestDescribe wants all descriptions of problems to have one form: FORMAT: NAME VALUE, NAME VALUE,
// WORDS.
func TestDescribe(t *testing.T) {
	for _, k := range kernels.All() {
		for _, cpu := range []bool{false, true} {
			flags := k.New()
			flags.Add(pflag.NewFlagSet(k.Name, pflag.ContinueOnError), true)
			ops, err := flags.Ops(cpu)
			require.NoError(t, err, k.Name)
			for _, op := range append(casesOf(t, flags, cpu), ops...) {
				require.Regexp(t, `^(float16|bfloat16|float32): [A-Za-z-]+( [a-z]+)*( \S*[0-9]\S*|, )`, op.Describe(), k.Name)
				require.NotRegexp(t, `  |, ,|[0-9] (tokens|heads|parameters)`, op.Describe(), k.Name)
			}
		}
	}
	for args, want := range map[string]string{
		"--m=2 --n=3 --k=5 --trans=nt --dtype=bf16 --out-dtype=fp32 --batch=7 --alpha=2 --residual": "bfloat16: batch 7, m 2, n 3, k 5, nt, out float32, alpha 2, residual",
		"--group=2x3x5,0x3x5,4x4x4,5x5x5,6x6x6 --dtype=half --activation=silu":                      "float16: group 2x3x5 0x3x5 4x4x4 2 more, nn, silu",
	} {
		require.Equal(t, want, opOf(t, "gemm", strings.Fields(args)).Describe())
	}
}

// TestUnsaidFormats says that without a flag for a format, the format is that of the zero value in
// the package.
func TestUnsaidFormats(t *testing.T) {
	for _, format := range dtype.All() {
		for _, x := range []struct {
			kernel, tensor string
			args           []string
			want           dtype.DType
		}{
			{"gemm", "c", nil, gemm.Problem{DType: format}.OutDType()},
			{"gemm", "c", []string{"--group=3x5x7"}, gemm.Problem{DType: format}.OutDType()},
			{"mlp", "dw1", nil, mlp.Problem{DType: format}.GradDType()},
			{"grouped", "dw2", nil, mlp.Problem{DType: format}.GradDType()},
			{"mixture", "dw1", nil, mixture.Problem{DType: format}.GradDType()},
			{"gmm", "dp", nil, gmm.Problem{DType: format}.GradDType()},
			{"norm", "w", nil, norm.Problem{DType: format}.WeightDType},
			{"attention", "bias", []string{"--bias=shared"}, attention.Bias{}.DType},
		} {
			op := opOf(t, x.kernel, append(x.args, "--dtype="+format.String()))
			found := false
			for _, tensor := range op.Tensors() {
				if tensor.Name == x.tensor {
					require.Equal(t, x.want, tensor.DType, "%s %v: %s", x.kernel, format, x.tensor)
					found = true
				}
			}
			require.True(t, found, "%s has no %s", x.kernel, x.tensor)
		}
	}
}
