package main

import (
	"context"
	"errors"
	"fmt"

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

The input file holds the tensors
    q     (batch, heads, seq_q, headdim)
    k     (batch, kv-heads, seq_kv, headdim)
    v     (batch, kv-heads, seq_kv, valuedim)
all of one format, F16, BF16 or F32; heads is a multiple of kv-heads, headdim and
valuedim are multiples of 8 up to 256. The output file gets
    o     (batch, heads, seq_q, valuedim), in the format of q
    lse   (batch, heads, seq_q), F32: log(sum(exp(scores))) of each row
A row that sees no key has o = 0 and lse = -Inf, or its sink. The output file
appears only when it is complete.

The input file may hold tensors that change the scores
x = softcap(scale*q*k) + bias - slope*|i+shift-j|, where shift is seq_kv - seq_q,
or 0 with --causal-align top-left:
    bias           (batch or 1, heads or 1, seq_q or 1, seq_kv), F32 or as q
    alibi_slopes   (heads) or (batch, heads), F32
    key_mask       (batch, seq_kv), BOOL: true is visible
    sinks          (heads), F32: one more term of the sum and of lse
    cu_seqlens_q   (batch+1), I32: where the sequences begin in q, which is
    cu_seqlens_kv  (batch+1)       packed as (total, heads, headdim), and in k, v
With cu_seqlens o is packed, too, and lse is (heads, total); seq_q and seq_kv of
the other tensors are the longest lengths. Rows after the last sequence have
o = 0 and lse = -Inf.`,
		Example: `  flashvk run attention --in qkv.safetensors --out o.safetensors
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --impl scalar
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --causal-align top-left --scale 0.1
  flashvk run attention --in qkv.safetensors --out o.safetensors --window 512,0 --softcap 30 --dropout 0.1 --seed 7`,
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
	cu, err := readProblem(in, &p)
	if err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := r.mask.checkAlign(&p); err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
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
	return r.compute(ctx, d, in, p, cu, opt)
}

// compute reads the inputs, runs the kernel and writes the outputs.
func (r *runAttention) compute(ctx context.Context, d *vk.Device, in *safetensors.File, p attention.Problem, cu cuSeqlens, opt attention.Options) error {
	var q, k, v, o, lse vk.Tensor
	for _, x := range []struct {
		name   string
		target *vk.Tensor
		dtype  dtype.DType
		shape  []int
		output bool
	}{
		{"q", &q, p.DType, p.QShape(), false},
		{"k", &k, p.DType, p.KShape(), false},
		{"v", &v, p.DType, p.VShape(), false},
		{"bias", &opt.Inputs.Bias, p.Bias.DType, p.BiasShape(), false},
		{"alibi_slopes", &opt.Inputs.ALiBiSlopes, dtype.Float32, p.SlopesShape(), false},
		{"key_mask", &opt.Inputs.KeyMask, dtype.Bool, p.KeyMaskShape(), false},
		{"sinks", &opt.Inputs.Sinks, dtype.Float32, p.SinksShape(), false},
		{"cu_seqlens_q", &opt.Inputs.CuSeqlensQ, dtype.Int32, p.CuSeqlensShape(), false},
		{"cu_seqlens_kv", &opt.Inputs.CuSeqlensKV, dtype.Int32, p.CuSeqlensShape(), false},
		{"o", &o, p.DType, p.OShape(), true},
		{"lse", &lse, dtype.Float32, p.LSEShape(), true},
	} {
		if _, ok := in.Tensor(x.name); !ok && !x.output {
			continue
		}
		t, err := d.NewTensor(x.name, x.dtype, x.shape...)
		if err != nil {
			return err
		}
		defer t.Close()
		*x.target = t
		if x.output {
			continue
		}
		if err := upload(ctx, t.Buffer, in, x.name); err != nil {
			return err
		}
	}
	c, err := d.NewCmd("run attention")
	if err != nil {
		return err
	}
	defer c.Close()
	if p.Varlen.On && cu.rows() < p.Varlen.TotalQ {
		fillUnused(c, o, lse)
	}
	if err := attention.Forward(c, o, lse, q, k, v, p, opt); err != nil {
		return err
	}
	if err := c.Submit(ctx); err != nil {
		return err
	}
	out, err := safetensors.Create(r.out, []safetensors.Tensor{
		{Name: "o", DType: formatOf(p.DType), Shape: p.OShape()},
		{Name: "lse", DType: safetensors.F32, Shape: p.LSEShape()},
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

// fillUnused makes all rows what those that are in no sequence shall be: the
// kernel writes the others.
func fillUnused(c *vk.Cmd, o, lse vk.Tensor) {
	const minusInf = 0xff800000
	c.Fill(o.Buffer, 0, o.Buffer.Bytes(), 0)
	c.Fill(lse.Buffer, 0, lse.Buffer.Bytes(), minusInf)
	c.BarrierFromTransfer()
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
