package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// peers asks the peers of c for the same problem on the same inputs. The failure of a peer is in
// its result; an error is a failure of ours.
func (r *opRun) peers(ctx context.Context, c Case, step func(what string)) ([]Result, error) {
	pr, params := c.Protocol, map[string]any{}
	for _, k := range r.op.Keys() {
		params[k.Name] = k.Value
	}
	request := peer.Request{
		Op: r.op.Name(), Pass: c.Pass.String(), Params: params, MaxIters: MaxBatchCalls, Sets: pr.sets(r.subject.bytes),
		WarmupNS: float64(pr.WarmupTime), Warmup: pr.Warmup, Samples: pr.Samples, SampleNS: float64(pr.SampleTime),
	}
	if pr.Iters > 0 {
		request.MaxIters = pr.batch(0, 0)
	}
	ask := PeerCall{Peers: c.Peers, Limit: c.PeerTime, Request: request, Of: r.subject, Check: r.checkOutput, Release: r.close, Step: step}
	ask.Write = func(path string) error {
		if err := r.restore(ctx); err != nil { // the timed calls have changed updated tensors
			return err
		}
		var list []FileTensor
		for _, t := range r.op.Tensors() {
			if c.Pass.Reads(t.Role) && t.Role != call.Output { // a peer computes outputs itself
				list = append(list, FileTensor{t.Name, r.sets[0][t.Name]})
			}
		}
		return WriteTensors(ctx, path, list)
	}
	return ask.Run(ctx)
}

// A PeerCall asks peers. Functions that are nil do nothing.
type PeerCall struct {
	Peers   []peer.Peer
	Limit   time.Duration
	Request peer.Request // but for the files
	Of      *Subject
	Write   func(path string) error            // writes the input file
	Release func()                             // then frees the device's memory, since the peers need it
	Check   func(path string, x *Result) error // of an output, which may also be wrong; it completes the result
	Step    func(what string)
}

// Run asks one peer after the other.
func (a *PeerCall) Run(ctx context.Context) ([]Result, error) {
	if len(a.Peers) == 0 {
		return nil, nil
	}
	temp, err := files.TempDir("flashvk-peer-")
	if err != nil {
		return nil, err
	}
	defer temp.Close()
	dir := temp.Path
	a.Request.Input = filepath.Join(dir, "in.safetensors")
	if a.Write != nil {
		if err := a.Write(a.Request.Input); err != nil {
			return nil, err
		}
	}
	if a.Release != nil {
		a.Release()
	}
	var results []Result
	for i, p := range a.Peers {
		if a.Step != nil {
			a.Step("peer " + p.Name)
		}
		a.Request.OutputDir = filepath.Join(dir, fmt.Sprint("out", i))
		if err := os.Mkdir(a.Request.OutputDir, 0o700); err != nil {
			return nil, err
		}
		reply, err := p.Run(ctx, a.Request, a.Limit)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, x := range reply.Answers {
			results = append(results, a.result(p, reply, x))
		}
		if err != nil {
			x := a.Of.Result(p.Name, Timing{})
			x.Peer, x.Status, x.Reason = true, StatusNoAnswer, err.Error()
			results = append(results, x)
		}
		if err := os.RemoveAll(a.Request.OutputDir); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// result makes a result of an answer and compares its output, if it has one.
func (a *PeerCall) result(p peer.Peer, reply peer.Reply, answer peer.Answer) Result {
	x := a.Of.Result(p.Name+":"+answer.Name, Timing{Iters: answer.Iters, Sets: answer.Sets, DeviceNS: answer.SamplesNS})
	x.Peer, x.Choice = true, reply.About
	if answer.Note != "" {
		x.Choice += " (" + answer.Note + ")"
	}
	if answer.Error != "" {
		x.Status, x.Reason, x.Timing = StatusNoAnswer, answer.Error, Timing{}
		return x
	}
	if answer.Output == "" || a.Check == nil {
		return x
	}
	path := answer.Output
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.Request.OutputDir, path)
	}
	if err := a.Check(path, &x); err != nil {
		x.Reason = err.Error()
	}
	return x
}

// checkOutput compares the outputs that a peer wrote with the reference.
func (r *opRun) checkOutput(path string, x *Result) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got := map[string][]float32{}
	var names []string
	for _, want := range r.op.Tensors() {
		if !r.pass.Writes(want.Role) {
			continue
		}
		names = append(names, want.Name)
		t, ok := f.Tensor(want.Name)
		if !ok {
			continue
		}
		if format := FileDType(want.DType); t.DType != format || !slices.Equal(t.Shape, want.Shape) {
			return fmt.Errorf("its %s is %s %v, want %s %v", t.Name, t.DType, t.Shape, format, want.Shape)
		}
		raw := make([]byte, t.Bytes())
		if err := f.ReadAt(t, raw, 0); err != nil {
			return err
		}
		got[t.Name] = make([]float32, call.Product(want.Shape))
		storage.Decode(want.DType, got[t.Name], raw)
	}
	if len(got) == 0 {
		return fmt.Errorf("its output has none of the tensors %q", names)
	}
	x.Check, err = r.compare(got) // of the one pass that a peer measures
	return err
}

// FileDType names a type in a file.
func FileDType(t dtype.DType) safetensors.DType {
	return map[dtype.DType]safetensors.DType{
		dtype.Float32: safetensors.F32, dtype.Float16: safetensors.F16, dtype.BFloat16: safetensors.BF16,
		dtype.Bool: "BOOL", dtype.Int32: "I32", dtype.E4M3: "F8_E4M3", dtype.Int8: "I8",
	}[t]
}

// A FileTensor is a tensor of a file, contiguous.
type FileTensor struct {
	Name string
	vk.Tensor
}

// WriteTensors writes tensors to a file, which appears when it is complete.
func WriteTensors(ctx context.Context, path string, tensors []FileTensor) error {
	var list []safetensors.Tensor
	for _, t := range tensors {
		list = append(list, safetensors.Tensor{Name: t.Name, DType: FileDType(t.DType), Shape: t.Shape})
	}
	w, err := safetensors.Create(path, list, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, t := range tensors {
		out, err := w.Tensor(t.Name)
		if err != nil {
			return err
		}
		err = InPieces(tensorBytes(t.Tensor), func(at int64, piece []byte) error {
			if err := t.Buffer.Download(ctx, at, piece); err != nil {
				return err
			}
			_, err := out.Write(piece)
			return err
		})
		if err != nil {
			return err
		}
	}
	return w.Commit()
}

// InPieces calls f for each piece of a tensor of this size in bytes, so that the host never holds all of it.
func InPieces(bytes int64, f func(at int64, piece []byte) error) error {
	piece := make([]byte, min(bytes, 64<<20))
	for at := int64(0); at < bytes; at += int64(len(piece)) {
		piece = piece[:min(bytes-at, int64(len(piece)))]
		if err := f(at, piece); err != nil {
			return err
		}
	}
	return nil
}

// RunBoth measures the forward pass, the backward pass, and one after the other, and returns
// their results in this order. Peers measure one pass at a time. The third result of a peer has
// the sum of the two times, and the worse of the two checks.
func RunBoth(ctx context.Context, d *vk.Device, c Case, progress Progress) ([]Result, error) {
	var all []Result
	var parts [2][]Result
	passes := []Pass{Forward, Backward, Both}
	for i, pass := range passes {
		one := c
		one.Pass = pass
		if pass == Both {
			one.Peers = nil
		}
		results, err := Run(ctx, d, one, progress.Part(i, len(passes), pass.String()+", "))
		if err != nil {
			return all, err
		}
		if pass == Both {
			results = append(results, sums(parts[0], parts[1], NewSubject(c.Op, Both))...)
		} else {
			parts[i] = results
		}
		all = append(all, results...)
	}
	return all, nil
}

// sums returns the results of peers of both passes as one, of a subject.
func sums(forward, backward []Result, of *Subject) (list []Result) {
	for _, f := range forward {
		if !f.Peer {
			continue
		}
		b := Result{Status: StatusNoAnswer, Reason: "it did not measure the backward pass"}
		if i := slices.IndexFunc(backward, func(b Result) bool { return b.Peer && b.Impl == f.Impl }); i >= 0 {
			b = backward[i]
		}
		x := of.Result(f.Impl, Timing{})
		x.Peer, x.Choice, x.Status, x.Reason = true, f.Choice, f.Status, cmp.Or(f.Reason, b.Reason)
		if x.Status == StatusOK {
			x.Status = b.Status
		}
		if x.Status == StatusOK {
			x.Check, x.Timing = f.Check.and(b.Check), f.Timing
			x.Timing.DeviceNS = nil
			for j := range min(len(f.Timing.DeviceNS), len(b.Timing.DeviceNS)) {
				x.Timing.DeviceNS = append(x.Timing.DeviceNS, f.Timing.DeviceNS[j]+b.Timing.DeviceNS[j])
			}
		}
		list = append(list, x)
	}
	return list
}
