package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

func newRun(a *app) *cobra.Command {
	cmd := kernelCommands("run KERNEL", "Compute a kernel for tensors in a safetensors file", func(k kernels.Kernel) *cobra.Command { return newRunKernel(a, k) })
	cmd.Long = "Computes a kernel for tensors in a safetensors file. The output file appears only when it is complete."
	cmd.AddCommand(newRunModel(a))
	return cmd
}

// runKernel holds the flags of run NAME.
type runKernel struct {
	kernelFlags
	in, out, impl string
	names         kernels.FileFlags
}

func newRunKernel(a *app, k kernels.Kernel) *cobra.Command {
	r := &runKernel{kernelFlags: newKernelFlags(k), impl: k.Impls[0]}
	return a.command(&cobra.Command{
		Use: k.Name + " --in FILE --out FILE", Short: "Compute " + k.Title, Example: k.Example("run"),
		Long: "Computes " + k.Title + ":\n" + k.Formulas + "\n\nThe tensors of the input file, and of the output file where they are written, are" + k.Files,
	}, func(f *pflag.FlagSet) {
		r.set = f
		fileVar(f, &r.in, "in", "safetensors file to read")
		fileVar(f, &r.out, "out", "safetensors file to write; may be the one that is read")
		r.names.Add(f)
		r.flags.Add(f, false)
		implVar(f, &r.impl, k, "path to use")
		deviceVar(f, &r.device)
		r.addTuning(f)
		if r.kernel.Backward {
			f.BoolVar(&r.backward, "backward", false, "also compute gradients, for the gradients of outputs in the input file")
		}
	}, func(ctx context.Context) error { return r.run(ctx, a) })
}

func (r *runKernel) run(ctx context.Context, a *app) error {
	if _, err := r.flags.Op(true); err != nil { // finds flags that are wrong with any file
		return usageError{err}
	}
	if err := exclusive(r.set, "tuning", "no-tuning"); err != nil {
		return err
	}
	in, err := safetensors.Open(r.in)
	if err != nil {
		return err
	}
	defer in.Close()
	if r.names.Given() {
		if err := checkReplaced(r.in, r.out); err != nil {
			return err
		}
	}
	source, op, err := r.names.Read(in, r.flags, r.backward)
	if err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
	}
	return a.onDevice(r.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		fmt.Fprintf(a.stderr, "flashvk: %s %s\n", r.kernel.Name, op.Describe())
		for _, text := range r.flags.Doubts(op) {
			fmt.Fprintf(a.stderr, "flashvk: WARNING: %s\n", text)
		}
		ops := []bench.Op{op}
		if err := r.use(a.stderr, d.Caps(), ops); err != nil {
			return err
		}
		for _, p := range r.pass().Parts() {
			plan, err := ops[0].Choose(d.Caps(), r.impl, p)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stderr, "flashvk: %v %s\n", p, plan)
		}
		defer bench.CloseOp(ops[0])
		return r.compute(ctx, a, d, source, ops[0])
	})
}

// checkReplaced returns an error if the output would replace an input that has more than the
// outputs.
func checkReplaced(in, out string) error {
	if files.Same(in, out) {
		return usagef("--out %s is the input, whose other tensors would be lost", out)
	}
	return nil
}

// pass returns what to compute.
func (r *runKernel) pass() bench.Pass {
	if r.backward {
		return bench.Both
	}
	return bench.Forward
}

// A warner is an Op that may have a warning of the result; "" is none.
type warner interface {
	Warning(ctx context.Context) (string, error)
}

// compute reads the inputs, runs the kernels and writes the outputs.
func (r *runKernel) compute(ctx context.Context, a *app, d *vk.Device, in *kernels.Source, op bench.Op) error {
	tensors := map[string]vk.Tensor{}
	defer func() {
		for _, t := range tensors {
			t.Close()
		}
	}()
	pass := r.pass()
	for _, t := range op.Tensors() {
		if !pass.Reads(t.Role) && !pass.Writes(t.Role) {
			continue
		}
		axes := r.flags.Axes(t.Name, len(t.Shape))
		x, err := d.NewTensor(t.Name, t.DType, kernels.Permuted(t.Shape, axes)...)
		if err != nil {
			return err
		}
		if axes != nil {
			x = x.Permute(axes...)
		}
		tensors[t.Name] = x
		if !pass.Reads(t.Role) {
			continue
		}
		if err := upload(ctx, x.Buffer, in, t.Name); err != nil {
			return err
		}
	}
	c, err := d.NewCmd("run " + op.Name())
	if err != nil {
		return err
	}
	defer c.Close()
	for _, p := range r.pass().Parts() {
		plan, err := op.Choose(d.Caps(), r.impl, p)
		if err != nil {
			return err
		}
		end := c.Scope()
		var workspace *vk.Buffer
		if bytes := plan.Workspace(); bytes > 0 {
			workspace = c.Scratch(op.Name(), bytes)
		}
		if err := op.Record(c, tensors, workspace, r.impl, p); err != nil {
			return err
		}
		end()
	}
	if err := c.Submit(ctx); err != nil {
		return err
	}
	if n, ok := bench.As[warner](op); ok {
		text, err := n.Warning(ctx)
		if err != nil {
			return err
		}
		if text != "" {
			fmt.Fprintf(a.stderr, "flashvk: WARNING: %s\n", text)
		}
	}
	var outputs []bench.FileTensor
	for _, t := range op.Tensors() {
		if pass.Writes(t.Role) {
			x := tensors[t.Name]
			if err := a.warnOfOverflow(ctx, t, x); err != nil {
				return err
			}
			if axes := r.flags.Axes(t.Name, len(t.Shape)); axes != nil {
				x = x.Permute(axes...) // back to the file's order
			}
			outputs = append(outputs, bench.FileTensor{Name: t.Name, Tensor: x})
		}
	}
	return bench.WriteTensors(ctx, r.out, outputs)
}

// warnOfOverflow warns of a gradient in float16 that is not finite.
func (a *app) warnOfOverflow(ctx context.Context, t call.Tensor, x vk.Tensor) error {
	if t.DType != dtype.Float16 || bench.Forward.Writes(t.Role) {
		return nil
	}
	const infinite = 0x7c00 // the exponent of what is not finite
	bytes := 2 * int64(x.NumElements())
	piece := make([]byte, min(bytes, transferBytes))
	for at := int64(0); at < bytes; at += int64(len(piece)) {
		piece = piece[:min(bytes-at, transferBytes)]
		if err := x.Buffer.Download(ctx, at, piece); err != nil {
			return err
		}
		for i := 0; i < len(piece); i += 2 {
			if binary.LittleEndian.Uint16(piece[i:])&infinite == infinite {
				fmt.Fprintf(a.stderr, "flashvk: WARNING: %s has elements that are not finite: they, or what they are computed from, are beyond float16's 65504; "+
					"multiply the incoming gradients by a loss scale, a power of two below 1, and the results by its inverse\n", t.Name)
				return nil
			}
		}
	}
	return nil
}

// transferBytes is the size of pieces that tensors are copied in between a file and a buffer, so
// that the host never holds a whole tensor.
const transferBytes = 64 << 20

// upload copies a tensor of the file to the start of b.
func upload(ctx context.Context, b *vk.Buffer, in *kernels.Source, name string) error {
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
