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
	if len(c.Peers) == 0 {
		return nil, nil
	}
	request := newMeasurement(r.op.Name(), c.Pass, c.Protocol, r.subject.bytes)
	for _, k := range r.op.Keys() {
		request.Params[k.Name] = k.Value
	}
	ask := peerCall{list: c.Peers, limit: c.PeerTime, request: request, blank: r.subject.unsupported("", ""), check: r.checkOutput}
	write := func(path string) error {
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
	return ask.run(ctx, write, r.close, step)
}

// A peerCall asks peers.
type peerCall struct {
	list    []peer.Peer
	limit   time.Duration
	request peer.Request                       // but for the files
	blank   Result                             // what all their results have in common
	check   func(path string, x *Result) error // of an output, which may also be wrong; nil: there is none
}

// run asks one peer after the other. Write writes the input file. Release then frees the device's
// memory, since the peers need it.
func (a *peerCall) run(ctx context.Context, write func(path string) error, release func(), step func(what string)) ([]Result, error) {
	temp, err := files.TempDir("flashvk-peer-")
	if err != nil {
		return nil, err
	}
	defer temp.Close()
	dir := temp.Path
	a.request.Input = filepath.Join(dir, "in.safetensors")
	if write != nil {
		if err := write(a.request.Input); err != nil {
			return nil, err
		}
	}
	release()
	a.blank.Peer = true
	var results []Result
	for i, p := range a.list {
		step("peer " + p.Name)
		a.request.OutputDir = filepath.Join(dir, fmt.Sprint("out", i))
		if err := os.Mkdir(a.request.OutputDir, 0o700); err != nil {
			return nil, err
		}
		reply, err := p.Run(ctx, a.request, a.limit)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, x := range reply.Answers {
			results = append(results, a.result(p, reply, x))
		}
		if err != nil {
			x := a.blank
			x.Impl, x.Status, x.Reason = p.Name, StatusNoAnswer, err.Error()
			results = append(results, x)
		}
		if err := os.RemoveAll(a.request.OutputDir); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// AskPeers asks peers for what the caller times. Write writes the input file, and check reads the output of a result,
// which it completes; nil: there are no files.
func AskPeers(ctx context.Context, list []peer.Peer, limit time.Duration, request peer.Request, of *Subject,
	write func(path string) error, check func(path string, x *Result) error,
) ([]Result, error) {
	if len(list) == 0 {
		return nil, nil
	}
	ask := peerCall{list, limit, request, of.Result("", Timing{}), check}
	return ask.run(ctx, write, func() {}, func(string) {})
}

// newMeasurement returns a request that says how to measure, but not of what problem.
func newMeasurement(op string, pass Pass, pr Protocol, bytes float64) peer.Request {
	request := peer.Request{
		Op: op, Pass: pass.String(), Params: map[string]any{},
		WarmupNS: float64(pr.WarmupTime), Warmup: pr.Warmup, Samples: pr.Samples, SampleNS: float64(pr.SampleTime), MaxIters: MaxBatchCalls,
		Sets: pr.sets(bytes),
	}
	if pr.Iters > 0 {
		request.MaxIters = pr.batch(0, 0)
	}
	return request
}

// result makes a result of an answer and compares its output, if it has one.
func (a *peerCall) result(p peer.Peer, reply peer.Reply, answer peer.Answer) Result {
	x := a.blank
	x.Impl, x.Choice, x.Status = p.Name+":"+answer.Name, reply.About, StatusOK
	x.Timing = Timing{Iters: answer.Iters, Sets: answer.Sets, DeviceNS: answer.SamplesNS}
	if answer.Note != "" {
		x.Choice += " (" + answer.Note + ")"
	}
	if answer.Error != "" {
		x.Status, x.Reason, x.Timing = StatusNoAnswer, answer.Error, Timing{}
		return x
	}
	if answer.Output == "" || a.check == nil {
		return x
	}
	path := answer.Output
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.request.OutputDir, path)
	}
	if err := a.check(path, &x); err != nil {
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
