package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench/safetensors"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// errNoBackward answers flags that ask for gradients.
var errNoBackward = errors.New("this version computes the forward pass only, --backward is not available")

func newRun(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "run KERNEL",
		Short:                 "Compute a kernel for tensors in a safetensors file",
		DisableFlagsInUseLine: true,
		Args:                  subcommandOnly,
		RunE:                  subcommandMissing,
	}
	cmd.AddCommand(newRunAttention(a))
	return cmd
}

// runAttention holds the flags of run attention.
type runAttention struct {
	in, out, device string
	impl            attention.Impl
	mask            maskFlags
	backward        bool
	tuning          tuningFlags
}

func newRunAttention(a *app) *cobra.Command {
	var r runAttention
	cmd := &cobra.Command{
		Use:   "attention --in FILE --out FILE",
		Short: "Compute softmax attention for tensors q, k, v",
		Long: `Computes softmax attention, O = softmax(scale * Q * Kᵀ) * V, on a Vulkan device.

The input file holds exactly the tensors
    q     (batch, heads, seq_q, headdim)
    k, v  (batch, kv-heads, seq_kv, headdim)
all of one format, F16, BF16 or F32; heads is a multiple of kv-heads, headdim a
multiple of 8 up to 256. The output file gets
    o     (batch, heads, seq_q, headdim), in the format of q
    lse   (batch, heads, seq_q), F32: log(sum(exp(scores))) of each row
A row that sees no key has o = 0 and lse = -Inf. The output file appears only
when it is complete.`,
		Example: `  flashvk run attention --in qkv.safetensors --out o.safetensors
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --impl scalar
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --causal-align top-left --scale 0.1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&r.in, "in", "", "safetensors file to read")
	f.StringVar(&r.out, "out", "", "safetensors file to write; may be the one that is read")
	r.mask.add(f)
	f.Var(value[attention.Impl]{&r.impl, parseImpl, "PATH"}, "impl", "path to use: "+implNames()+" (default auto)")
	deviceVar(f, &r.device)
	r.tuning.add(f)
	f.BoolVar(&r.backward, "backward", false, "gradients; not available in this version")
	return cmd
}

func (r *runAttention) run(ctx context.Context, a *app) (err error) {
	var p attention.Problem
	switch {
	case r.in == "":
		return usagef("run attention needs --in FILE")
	case r.out == "":
		return usagef("run attention needs --out FILE")
	case r.backward:
		return errNoBackward
	}
	if err := errors.Join(r.mask.apply(&p), r.tuning.check()); err != nil {
		return err
	}
	in, err := safetensors.Open(r.in)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := readProblem(in, &p); err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	d, err := openDevice(r.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	announce(a.stderr, environment(d.Caps()))
	opt := attention.Options{Impl: r.impl}
	if opt.Tuning, err = r.tuning.load(a.stderr, d.Caps()); err != nil {
		return err
	}
	choice, err := attention.Choose(d.Caps(), p, opt)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "flashvk: %v\n", choice)
	return r.compute(ctx, d, in, p, opt)
}

// compute reads the inputs, runs the kernel and writes the outputs.
func (r *runAttention) compute(ctx context.Context, d *vk.Device, in *safetensors.File, p attention.Problem, opt attention.Options) error {
	query := []int{p.Batch, p.NumHeads, p.SeqQ, p.HeadDim}
	key := []int{p.Batch, p.NumKVHeads, p.SeqKV, p.HeadDim}
	var t [5]vk.Tensor // q, k, v, o, lse
	for i, x := range []struct {
		name  string
		dtype dtype.DType
		shape []int
	}{{"q", p.DType, query}, {"k", p.DType, key}, {"v", p.DType, key}, {"o", p.DType, query}, {"lse", dtype.Float32, query[:3]}} {
		var err error
		if t[i], err = d.NewTensor(x.name, x.dtype, x.shape...); err != nil {
			return err
		}
		defer t[i].Close()
	}
	q, k, v, o, lse := t[0], t[1], t[2], t[3], t[4]
	for _, x := range []struct {
		name   string
		tensor vk.Tensor
	}{{"q", q}, {"k", k}, {"v", v}} {
		if err := upload(ctx, x.tensor.Buffer, in, x.name); err != nil {
			return err
		}
	}
	c, err := d.NewCmd("run attention")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := attention.Forward(c, o, lse, q, k, v, p, opt); err != nil {
		return err
	}
	if err := c.Submit(ctx); err != nil {
		return err
	}
	out, err := safetensors.Create(r.out, []safetensors.Tensor{
		{Name: "o", DType: formatOf(p.DType), Shape: query},
		{Name: "lse", DType: safetensors.F32, Shape: query[:3]},
	}, nil)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := download(ctx, out, "o", o); err != nil {
		return err
	}
	if err := download(ctx, out, "lse", lse); err != nil {
		return err
	}
	return out.Commit()
}

// transferBytes is the piece in which tensors travel between a file and a
// buffer, so that the host never holds a whole one.
const transferBytes = 64 << 20

// upload copies a tensor of the file to the start of b.
func upload(ctx context.Context, b *vk.Buffer, in *safetensors.File, name string) error {
	t, _ := in.Tensor(name)
	piece := make([]byte, min(t.Bytes(), transferBytes))
	for at := int64(0); at < t.Bytes(); at += int64(len(piece)) {
		piece = piece[:min(t.Bytes()-at, transferBytes)]
		if err := in.ReadAt(t, piece, at); err != nil {
			return err
		}
		if err := b.Upload(ctx, at, piece); err != nil {
			return err
		}
	}
	return nil
}

// download copies a contiguous tensor to one of the file that is written.
func download(ctx context.Context, out *safetensors.Writer, name string, t vk.Tensor) error {
	w, err := out.Tensor(name)
	if err != nil {
		return err
	}
	bytes := int64(t.NumElements()) * int64(t.DType.Size())
	piece := make([]byte, min(bytes, transferBytes))
	for at := int64(0); at < bytes; at += int64(len(piece)) {
		piece = piece[:min(bytes-at, transferBytes)]
		if err := t.Buffer.Download(ctx, at, piece); err != nil {
			return err
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// formats pairs the formats of tensors with those of safetensors.
var formats = []struct {
	dtype  dtype.DType
	format safetensors.DType
}{{dtype.Float16, safetensors.F16}, {dtype.BFloat16, safetensors.BF16}, {dtype.Float32, safetensors.F32}}

func formatOf(t dtype.DType) safetensors.DType {
	for _, f := range formats {
		if f.dtype == t {
			return f.format
		}
	}
	panic("flashvk: unknown dtype")
}

// readProblem takes sizes and dtype of p from the tensors of the file, and
// checks that they go together.
func readProblem(in *safetensors.File, p *attention.Problem) error {
	for _, t := range in.Tensors() {
		switch t.Name {
		case "q", "k", "v":
		case "do":
			return errors.New(`tensor "do" is for --backward only`)
		default:
			return fmt.Errorf("tensor %s is not one of q, k, v", shortName(t.Name))
		}
	}
	var shapes [3][]int
	for i, name := range []string{"q", "k", "v"} {
		t, ok := in.Tensor(name)
		if !ok {
			return fmt.Errorf("tensor %q is missing", name)
		}
		if len(t.Shape) != 4 {
			return fmt.Errorf("tensor %q: shape %v has %d axes, want 4: batch, heads, seq, headdim", name, t.Shape, len(t.Shape))
		}
		known := false
		for _, f := range formats {
			if f.format == t.DType {
				known = true
				if i == 0 {
					p.DType = f.dtype
				}
			}
		}
		if !known {
			return fmt.Errorf("tensor %q: dtype %s is not one of F16, BF16, F32", name, t.DType)
		}
		if want := formatOf(p.DType); t.DType != want {
			return fmt.Errorf("tensor %q: dtype %s differs from %s of q", name, t.DType, want)
		}
		shapes[i] = t.Shape
	}
	q, k, v := shapes[0], shapes[1], shapes[2]
	for i := range v {
		if v[i] != k[i] {
			return fmt.Errorf(`tensor "v": shape %v differs from %v of k`, v, k)
		}
	}
	if k[0] != q[0] {
		return fmt.Errorf(`tensor "k": batch %d differs from %d of q`, k[0], q[0])
	}
	if k[3] != q[3] {
		return fmt.Errorf(`tensor "k": headdim %d differs from %d of q`, k[3], q[3])
	}
	p.Batch, p.NumHeads, p.SeqQ, p.HeadDim = q[0], q[1], q[2], q[3]
	p.NumKVHeads, p.SeqKV = k[1], k[2]
	return p.Validate()
}

// shortName quotes a name from a file, cut to a reasonable length.
func shortName(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(name[:most], ""))
	}
	return fmt.Sprintf("%q", name)
}
