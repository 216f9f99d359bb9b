package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench/kernels"
	"github.com/flashvk/flashvk/bench/safetensors"
	"github.com/flashvk/flashvk/vk"
)

func newRun(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "run KERNEL",
		Short:                 "Compute a kernel for tensors in a safetensors file",
		DisableFlagsInUseLine: true,
		Args:                  subcommandOnly,
		RunE:                  subcommandMissing,
	}
	cmd.AddCommand(newRunAttention(a))
	for _, k := range kernels.All() {
		cmd.AddCommand(newRunKernel(a, k))
	}
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
o = 0 and lse = -Inf.

With --backward the input file also holds the gradient of a loss by o,
    do    the shape and format of o
    dlse  the shape of lse, F32: its gradient by lse; may be missing
and the output file also gets the loss's gradients by the inputs,
    dq, dk, dv  the shapes and formats of q, k, v
    dbias       likewise, if there is a bias: summed over the axes that are 1
    dsinks      likewise, if there are sinks
Rows and keys in no sequence have 0.`,
		Example: `  flashvk run attention --in qkv.safetensors --out o.safetensors
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --impl scalar
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --causal-align top-left --scale 0.1
  flashvk run attention --in qkv.safetensors --out o.safetensors --window 512,0 --softcap 30 --dropout 0.1 --seed 7
  flashvk run attention --in qkv-do.safetensors --out gradients.safetensors --backward --causal`,
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
	f.BoolVar(&r.backward, "backward", false, "also compute gradients, for a tensor do in the input file")
	return cmd
}

func (r *runAttention) run(ctx context.Context, a *app) (err error) {
	var p attention.Problem
	switch {
	case r.in == "":
		return usagef("run attention needs --in FILE")
	case r.out == "":
		return usagef("run attention needs --out FILE")
	}
	if err := errors.Join(r.mask.apply(&p), r.tuning.check()); err != nil {
		return err
	}
	in, err := safetensors.Open(r.in)
	if err != nil {
		return err
	}
	defer in.Close()
	cu, err := readProblem(in, &p, r.backward)
	if err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := r.mask.checkAlign(&p); err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
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
	if r.backward {
		choice, err := attention.ChooseBackward(d.Caps(), p, opt)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "flashvk: backward %v\n", choice)
	}
	return r.compute(ctx, d, in, p, cu, opt)
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
