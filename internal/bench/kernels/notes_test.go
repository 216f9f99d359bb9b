package kernels_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// find returns a kernel.
func find(t *testing.T, name string) kernels.Kernel {
	k, ok := kernels.Find(name)
	require.True(t, ok)
	return k
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
		op := k.New().Suite(true)[0]
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
	for _, op := range find(t, "decode").New().Suite(true) {
		list := []bench.DispatchProfile{{TracedDispatch: vk.TracedDispatch{Kernel: "attention_decode.f16"}}}
		noted := op.(interface {
			Note(*vk.Caps, string, bench.Pass, []bench.DispatchProfile) error
		})
		require.NoError(t, noted.Note(d.Caps(), "scalar", bench.Forward, list))
		flops, bytes := op.Cost(bench.Forward)
		require.Equal(t, vk.Note{Text: op.Describe(), FLOPs: flops, Bytes: bytes, DType: dtype.Float16}, list[0].Note)
		require.Len(t, traced(t, d, op, "scalar", bench.Forward), 1)
	}
}

// TestNotesOfKeep is TestNotes for a backward pass of grouped with pre kept. Nothing is computed
// again, and hidden units need no padding, so that its operations are those of the formulas.
func TestNotesOfKeep(t *testing.T) {
	d := vktest.Open(t)
	k := find(t, "grouped")
	for _, impl := range []string{"coopmat", "scalar"} {
		set, flags := pflag.NewFlagSet("grouped", pflag.ContinueOnError), k.New()
		flags.Add(set, true)
		require.NoError(t, set.Parse([]string{"--keep=pre", "--hidden=48"}))
		op, err := flags.FromFlags(true)
		require.NoError(t, err)
		_, err = op.Choose(d.Caps(), impl, bench.Backward)
		vktest.Require(t, "coopmat", err)
		wantFLOPs, _ := op.Cost(bench.Backward)
		flops := 0.0
		for _, x := range traced(t, d, op, impl, bench.Backward) {
			flops += x.Note.FLOPs
		}
		require.InEpsilon(t, wantFLOPs, flops, 1e-12)
	}
}

// TestNotesOfPaths is TestNotes for other ways of forward passes: two float16 parts of operands,
// splits of k, products of a group, padded hidden units.
func TestNotesOfPaths(t *testing.T) {
	d := vktest.Open(t)
	for _, x := range []struct {
		kernel, impl string
		args         []string
		texts        []string
		matrices     bool
	}{
		{"gemm", "coopmat", []string{"--dtype=float32", "--m=33", "--n=20", "--k=37"}, []string{"33x37, 37x20", "33x37, 37x20", "33x20x37 nt float32"}, true},
		{
			"gemm", "auto", []string{"--m=33", "--n=20", "--k=300", "--beta=2", "--config=scalar 64x64 t16x16 k16 g8 splits3"},
			[]string{"33x20x300 nn float16 to float32, k in 3 parts", "33x20, 3 sums of each"}, false,
		},
		{
			"gemm", "auto", []string{"--dtype=float32", "--m=20", "--n=18", "--k=110", "--config=coopmat s2x1 t1x2 k16 g4 splits2"},
			[]string{"20x110, 110x18", "20x110, 110x18", "20x18x110 nt float32, k in 2 parts", "20x18, 2 sums of each"}, true,
		},
		{"gemm", "scalar", []string{"--group=3x5x7,4x6x2"}, []string{"2 products"}, false},
		{"mlp", "fused", []string{"--tokens=20", "--hidden=37", "--in=18"}, []string{"x, w1, w2", "20x32x37 nn float16"}, true},
	} {
		t.Run(x.kernel+"/"+x.impl, func(t *testing.T) {
			k := find(t, x.kernel)
			set, flags := pflag.NewFlagSet(x.kernel, pflag.ContinueOnError), k.New()
			flags.Add(set, true)
			require.NoError(t, set.Parse(x.args))
			op, err := flags.FromFlags(true)
			require.NoError(t, err)
			_, err = op.Choose(d.Caps(), x.impl, bench.Forward)
			vktest.Require(t, "coopmat", err)
			wantFLOPs, wantBytes := op.Cost(bench.Forward)
			flops, bytes, matrices := 0.0, 0.0, false
			var texts []string
			for _, n := range traced(t, d, op, x.impl, bench.Forward) {
				texts, matrices = append(texts, n.Note.Text), matrices || n.Note.Matrices
				flops, bytes = flops+n.Note.FLOPs, bytes+n.Note.Bytes
			}
			require.Equal(t, x.texts, texts)
			require.Equal(t, x.matrices, matrices)
			require.InEpsilon(t, wantFLOPs, flops, 1e-12)
			require.GreaterOrEqual(t, bytes, wantBytes)
		})
	}
}
