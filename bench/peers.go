package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/flashvk/flashvk/bench/peer"
	"github.com/flashvk/flashvk/bench/safetensors"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// peers asks the peers of c for the same problem on the same inputs. What is
// wrong with a peer is in its result; an error is about us.
func (r *attentionRun) peers(ctx context.Context, c Case, step func(what string)) ([]Result, error) {
	if len(c.Peers) == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "flashvk-peer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	request := newRequest(c)
	request.Input = filepath.Join(dir, "in.safetensors")
	if err := r.writeInputs(ctx, request.Input); err != nil {
		return nil, err
	}
	r.close() // the peers need the device's memory
	var results []Result
	for i, p := range c.Peers {
		step("peer " + p.Name)
		request.OutputDir = filepath.Join(dir, fmt.Sprint("out", i))
		if err := os.Mkdir(request.OutputDir, 0o700); err != nil {
			return nil, err
		}
		reply, err := p.Run(ctx, request, c.PeerTime)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, a := range reply.Answers {
			results = append(results, r.peerResult(p, reply, a, request.OutputDir))
		}
		if err != nil {
			results = append(results, Result{Kernel: r.pass.kernel(), Impl: p.Name, Peer: true, Problem: r.p, Status: StatusNoAnswer, Reason: err.Error()})
		}
		if err := os.RemoveAll(request.OutputDir); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// newRequest returns what peers are asked, but for the files.
func newRequest(c Case) peer.Request {
	p, pr := c.Problem, c.Protocol
	request := peer.Request{
		Op: "attention", Pass: c.Pass.String(),
		DType: p.DType.String(), Batch: p.Batch, Heads: p.NumHeads, KVHeads: p.NumKVHeads, SeqQ: p.SeqQ, SeqKV: p.SeqKV,
		HeadDim: p.HeadDim, ValueDim: p.ValueHeadDim(), Causal: p.Causal, CausalAlign: p.CausalAlign.String(), Scale: p.EffectiveScale(),
		Features: p.FeatureKeys(),
		WarmupNS: float64(pr.WarmupTime), Warmup: pr.Warmup, Samples: pr.Samples, SampleNS: float64(pr.SampleTime), MaxIters: MaxBatchCalls,
		Sets: pr.sets(c.Pass.bytes(p)),
	}
	if pr.Iters > 0 {
		request.MaxIters = pr.batch(0, 0)
	}
	return request
}

// peerResult makes a result of an answer and compares its output, if it has
// one.
func (r *attentionRun) peerResult(p peer.Peer, reply peer.Reply, a peer.Answer, dir string) Result {
	x := Result{
		Kernel: r.pass.kernel(), Impl: p.Name + ":" + a.Name, Peer: true, Problem: r.p, Choice: reply.About,
		Status: StatusOK, Timing: Timing{Iters: a.Iters, Sets: a.Sets, DeviceNS: a.SamplesNS},
	}
	if a.Note != "" {
		x.Choice += " (" + a.Note + ")"
	}
	if a.Error != "" {
		x.Status, x.Reason, x.Timing = StatusNoAnswer, a.Error, Timing{}
		return x
	}
	if a.Output == "" {
		return x
	}
	path := a.Output
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	var err error
	if x.Check, err = r.checkOutput(path); err != nil {
		x.Reason = err.Error()
	}
	return x
}

// checkOutput compares the output of a peer with the reference.
func (r *attentionRun) checkOutput(path string) (Check, error) {
	p := r.p
	if r.pass == Forward {
		o, err := readOutput(path, "o", p.DType, p.OShape())
		if err != nil {
			return Check{}, err
		}
		return r.oracle.checkO(o)
	}
	var got [3][]float32
	for i, x := range []struct {
		name  string
		shape []int
	}{{"dq", p.QShape()}, {"dk", p.KShape()}, {"dv", p.VShape()}} {
		var err error
		if got[i], err = readOutput(path, x.name, p.DType, x.shape); err != nil {
			return Check{}, err
		}
	}
	return r.checkGradients(Check{}, got)
}

// readOutput reads a tensor of a file.
func readOutput(path, name string, format dtype.DType, shape []int) ([]float32, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, ok := f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("its output has no tensor %q", name)
	}
	if t.DType != fileDType(format) || !slices.Equal(t.Shape, shape) {
		return nil, fmt.Errorf("its %s is %s %v, want %s %v", name, t.DType, t.Shape, fileDType(format), shape)
	}
	raw := make([]byte, t.Bytes())
	if err := f.ReadAt(t, raw, 0); err != nil {
		return nil, err
	}
	o := make([]float32, elements(shape))
	for i := range o {
		switch format {
		case dtype.Float16:
			o[i] = dtype.FromFloat16(binary.LittleEndian.Uint16(raw[2*i:]))
		case dtype.BFloat16:
			o[i] = dtype.FromBFloat16(binary.LittleEndian.Uint16(raw[2*i:]))
		default:
			o[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
	return o, nil
}

// fileDType names a type in a file.
func fileDType(t dtype.DType) safetensors.DType {
	switch t {
	case dtype.Float16:
		return safetensors.F16
	case dtype.BFloat16:
		return safetensors.BF16
	case dtype.Bool:
		return "BOOL"
	case dtype.Int32:
		return "I32"
	}
	return safetensors.F32
}

// writeInputs writes the inputs to a file as flashvk run attention reads them.
func (r *attentionRun) writeInputs(ctx context.Context, path string) error {
	s, in := r.sets[0], r.inputs
	var names []string
	var tensors []vk.Tensor
	var list []safetensors.Tensor
	for _, x := range []struct {
		name string
		t    vk.Tensor
	}{
		{"q", s.q}, {"k", s.k}, {"v", s.v}, {"do", s.do}, {"bias", in.Bias}, {"alibi_slopes", in.ALiBiSlopes}, {"key_mask", in.KeyMask}, {"sinks", in.Sinks},
		{"cu_seqlens_q", in.CuSeqlensQ}, {"cu_seqlens_kv", in.CuSeqlensKV},
	} {
		if !x.t.IsZero() {
			names, tensors = append(names, x.name), append(tensors, x.t)
			list = append(list, safetensors.Tensor{Name: x.name, DType: fileDType(x.t.DType), Shape: x.t.Shape})
		}
	}
	w, err := safetensors.Create(path, list, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	for i, t := range tensors {
		if err := writeTensor(ctx, w, names[i], t); err != nil {
			return err
		}
	}
	return w.Commit()
}

// writeTensor copies a contiguous tensor to one of a file.
func writeTensor(ctx context.Context, w *safetensors.Writer, name string, t vk.Tensor) error {
	const pieceBytes = 64 << 20 // so that the host never holds a whole one
	out, err := w.Tensor(name)
	if err != nil {
		return err
	}
	bytes := tensorBytes(t)
	piece := make([]byte, min(bytes, pieceBytes))
	for at := int64(0); at < bytes; at += int64(len(piece)) {
		piece = piece[:min(bytes-at, pieceBytes)]
		if err := t.Buffer.Download(ctx, at, piece); err != nil {
			return err
		}
		if _, err := out.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
