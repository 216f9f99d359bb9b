package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/bench/peer"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Progress is called when a unit of work is done. What describes the next one;
// done counts up to total.
type Progress func(done, total int, what string)

// A Case is a problem and what to measure of it.
type Case struct {
	Problem  attention.Problem
	Pass     Pass
	Impls    []attention.Impl
	Naive    bool              // the baseline of naive_attention.comp, too, of a forward pass
	Tuning   *attention.Tuning // what the device was tuned to; nil: the built-in table only
	Protocol Protocol
	Peers    []peer.Peer
	PeerTime time.Duration // after which a peer is killed
}

// Attention checks c.Pass of c.Problem against the float64 reference on each path
// of c.Impls, and times those that are right. The results are in the order of the
// paths. A path that the device cannot take, also for lack of memory, is
// reported as unsupported. The baseline follows, and the results of the peers, in the
// order of the peers. An error means that the run was cut short.
func Attention(ctx context.Context, d *vk.Device, c Case, progress Progress) ([]Result, error) {
	p, pr := c.Problem, c.Protocol
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Varlen.On && p.Varlen != Varlen(p.Batch, p.SeqQ, p.SeqKV) {
		return nil, fmt.Errorf("bench: varlen=%v is not what is measured, %v", p.Varlen, Varlen(p.Batch, p.SeqQ, p.SeqKV))
	}
	r := newAttentionRun(d, p)
	r.pass, r.tuning = c.Pass, c.Tuning
	defer r.close()
	contenders := r.contenders(c)
	results := make([]Result, len(contenders))
	var able []int // positions in results
	for i, x := range contenders {
		results[i] = x.Result
		if x.record != nil {
			able = append(able, i)
		}
	}
	if len(able) == 0 && len(c.Peers) == 0 {
		return results, nil
	}

	done, total := 0, 1+len(able)+MeasureSteps(len(able), pr)+len(c.Peers)
	step := func(what string) {
		if progress != nil {
			progress(done, total, what)
		}
		done++
	}
	step("reference")
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	var targets []Target
	var timed []int // the result of each target
	for _, i := range able {
		step("checking " + results[i].Impl)
		target, err := r.check(ctx, contenders[i].impl, contenders[i].record, &results[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", results[i].Impl, err)
		}
		if results[i].Status == StatusOK {
			targets, timed = append(targets, target), append(timed, i)
		}
	}
	if len(targets) > 0 {
		if err := r.addSets(ctx, pr.sets(c.Pass.bytes(p))); err != nil {
			return nil, err
		}
		step("warm-up")
		measured, err := Measure(ctx, d, targets, len(r.sets), pr, func() { step("samples") })
		if err != nil {
			return nil, err
		}
		finish(results, timed, measured)
	}
	more, err := r.peers(ctx, c, step)
	return append(results, more...), err
}

// A contender is something to measure: an empty result, and what records a call
// of it; nil if the device cannot do it.
type contender struct {
	Result
	impl   attention.Impl
	record func(c *vk.Cmd, set int) error
}

// contenders returns what c asks for.
func (r *attentionRun) contenders(c Case) []contender {
	var list []contender
	for _, impl := range c.Impls {
		x := contender{impl: impl, Result: Result{Kernel: c.Pass.kernel(), Impl: impl.String(), Problem: r.p, Status: StatusUnsupported}}
		opt := attention.Options{Impl: impl, Tuning: c.Tuning}
		if choice, err := c.Pass.choice(r.d.Caps(), r.p, opt); err != nil {
			x.Reason = Reason(err, impl)
		} else {
			x.Choice, x.record = choice, r.record(opt)
		}
		list = append(list, x)
	}
	if c.Naive && c.Pass == Forward {
		x := contender{Result: Result{Kernel: "attention_fwd", Impl: naiveName, Choice: "a row per invocation", Problem: r.p, Status: StatusUnsupported}}
		if err := feasibleNaive(r.d.Caps(), r.p); err != nil {
			x.Reason = err.Error()
		} else {
			x.record = r.recordNaive
		}
		list = append(list, x)
	}
	return list
}

// Unsupported returns results that say that no path takes p.
func Unsupported(p attention.Problem, impls []attention.Impl, reason error) []Result {
	var list []Result
	for _, impl := range impls {
		list = append(list, Result{Kernel: "attention_fwd", Impl: impl.String(), Problem: p, Status: StatusUnsupported, Reason: Reason(reason, impl)})
	}
	return list
}

// Reason returns why a path does not take a problem, without the words that
// stand beside it: package, path, and that it is about the device.
func Reason(err error, impl attention.Impl) string { return reason("attention", impl.String(), err) }

func reason(kernel, impl string, err error) string {
	text := strings.TrimPrefix(err.Error(), kernel+": ")
	text = strings.TrimPrefix(text, impl+": ")
	return strings.TrimSuffix(text, ": "+vk.ErrUnsupported.Error())
}

// An attentionSet is one set of buffers. A forward pass has no do and gradients.
type attentionSet struct{ q, k, v, o, lse, do, dq, dk, dv vk.Tensor }

func (s attentionSet) tensors() []vk.Tensor {
	return []vk.Tensor{s.q, s.k, s.v, s.o, s.lse, s.do, s.dq, s.dk, s.dv}
}

// inputs returns what a pass reads, outputs what it writes.
func (s attentionSet) inputs(p Pass) []vk.Tensor {
	switch p {
	case Backward:
		return []vk.Tensor{s.q, s.k, s.v, s.do, s.o, s.lse}
	case Both:
		return []vk.Tensor{s.q, s.k, s.v, s.do}
	}
	return []vk.Tensor{s.q, s.k, s.v}
}

func (s attentionSet) outputs(p Pass) []vk.Tensor {
	switch p {
	case Backward:
		return []vk.Tensor{s.dq, s.dk, s.dv}
	case Both:
		return []vk.Tensor{s.o, s.lse, s.dq, s.dk, s.dv}
	}
	return []vk.Tensor{s.o, s.lse}
}

// attentionRun holds what the paths share.
type attentionRun struct {
	d      *vk.Device
	p      attention.Problem
	pass   Pass
	tuning *attention.Tuning
	sets   []attentionSet
	inputs attention.Inputs // of all sets
	oracle *oracle
	sample *ref.BackwardSample[float32] // of the gradients; nil in a forward pass
	shared *vk.Buffer                   // workspace of all backward passes, which run one after the other
	hash   hasher
	o, lse []float32 // of the path that is being checked
}

func newAttentionRun(d *vk.Device, p attention.Problem) *attentionRun {
	return &attentionRun{d: d, p: p, hash: newHasher()}
}

func (r *attentionRun) close() {
	for _, s := range r.sets {
		for _, t := range s.tensors() {
			t.Close()
		}
	}
	closeFeatures(r.inputs)
	r.shared.Close()
	r.sets, r.inputs, r.shared = nil, attention.Inputs{}, nil
}

// Seeds of the inputs.
const (
	seedQ = 1 + iota
	seedK
	seedV
	seedBias
	seedKeyMask
	seedSinks
	seedDO
)

// prepare makes the inputs, the first set of buffers and the reference.
func (r *attentionRun) prepare(ctx context.Context) error {
	p := r.p
	if err := r.addSet(); err != nil { // before the host makes an effort: memory may not suffice
		return err
	}
	in := featureInputs(p)
	in.Q = Normal(p.DType, elements(p.QShape()), seedQ)
	in.K = Normal(p.DType, elements(p.KShape()), seedK)
	in.V = Normal(p.DType, elements(p.VShape()), seedV)
	s := r.sets[0]
	for _, x := range []struct {
		t    vk.Tensor
		data []float32
	}{{s.q, in.Q}, {s.k, in.K}, {s.v, in.V}} {
		if err := x.t.Upload(ctx, x.data); err != nil {
			return err
		}
	}
	var err error
	if r.inputs, err = uploadFeatures(ctx, r.d, p, in); err != nil {
		return err
	}
	r.o, r.lse = make([]float32, elements(p.OShape())), make([]float32, elements(p.LSEShape()))
	r.oracle, err = newOracle(in, p)
	if err != nil {
		return err
	}
	if r.pass != Forward {
		if err := r.prepareBackward(ctx, in); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// addSet appends a set of buffers.
func (r *attentionRun) addSet() error {
	p := r.p
	var s attentionSet
	for _, x := range []struct {
		t     *vk.Tensor
		name  string
		dtype dtype.DType
		shape []int
	}{
		{&s.q, "q", p.DType, p.QShape()},
		{&s.k, "k", p.DType, p.KShape()},
		{&s.v, "v", p.DType, p.VShape()},
		{&s.o, "o", p.DType, p.OShape()},
		{&s.lse, "lse", dtype.Float32, p.LSEShape()},
		{&s.do, "do", p.DType, p.OShape()},
		{&s.dq, "dq", p.DType, p.QShape()},
		{&s.dk, "dk", p.DType, p.KShape()},
		{&s.dv, "dv", p.DType, p.VShape()},
	} {
		if x.t == &s.do && r.pass == Forward {
			break // it and the gradients are of the backward pass
		}
		var err error
		if *x.t, err = r.d.NewTensor(x.name, x.dtype, x.shape...); err != nil {
			for _, t := range s.tensors() {
				t.Close()
			}
			return err
		}
	}
	r.sets = append(r.sets, s)
	return nil
}

// addSets adds copies of the first set until there are n, or fewer if the
// memory of the device is full.
func (r *attentionRun) addSets(ctx context.Context, n int) error {
	for len(r.sets) < n {
		err := r.addSet()
		if errors.Is(err, vk.ErrOutOfDeviceMemory) {
			break
		}
		if err != nil {
			return err
		}
	}
	var copies [][]vk.Tensor
	for _, s := range r.sets {
		copies = append(copies, s.inputs(r.pass))
	}
	return copyFirst(ctx, r.d, copies)
}

// clear fills the outputs of a set with NaN.
func (r *attentionRun) clear(ctx context.Context, set int) error {
	return poison(ctx, r.d, r.sets[set].outputs(r.pass))
}

// fingerprint returns a hash of the outputs in a set.
func (r *attentionRun) fingerprint(ctx context.Context, set int) (uint64, error) {
	return r.hash.sum(ctx, r.sets[set].outputs(r.pass))
}

// record returns the function that records a call with these options.
func (r *attentionRun) record(opt attention.Options) func(c *vk.Cmd, set int) error {
	return func(c *vk.Cmd, set int) error {
		s := r.sets[set]
		opt.Inputs = r.inputs
		if r.pass != Backward {
			if err := attention.Forward(c, s.o, s.lse, s.q, s.k, s.v, r.p, opt); err != nil {
				return err
			}
		}
		if r.pass == Both {
			c.Barrier()
		}
		if r.pass != Forward {
			var err error
			if opt.Workspace, err = r.workspace(opt); err != nil {
				return err
			}
			return attention.Backward(c, s.dq, s.dk, s.dv, s.do, s.o, s.lse, s.q, s.k, s.v, r.p, opt)
		}
		return nil
	}
}

// check runs a path once and compares its outputs with the reference. It
// completes x and, if the path is right, returns it as something to time.
func (r *attentionRun) check(ctx context.Context, impl attention.Impl, record func(*vk.Cmd, int) error, x *Result) (Target, error) {
	if err := r.clear(ctx, 0); err != nil {
		return Target{}, err
	}
	err := r.once(ctx, record)
	if errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory) {
		x.Reason = Reason(err, impl)
		return Target{}, nil
	}
	if err != nil {
		return Target{}, err
	}
	check, wrong, err := r.compare(ctx)
	x.Check = check
	if err != nil {
		return Target{}, err
	}
	if wrong != nil {
		x.Status, x.Reason = StatusFailed, wrong.Error()
		return Target{}, nil
	}
	x.Status = StatusOK
	verify, err := verifier(ctx, r.fingerprint)
	return Target{Name: x.Impl, Record: record, Clear: r.clear, Verify: verify, MaxBatch: maxCalls(impl, r.p, r.pass)}, err
}

// compare compares the outputs in the first set with the reference. Wrong is what is
// wrong with them, err that they cannot be read.
func (r *attentionRun) compare(ctx context.Context) (c Check, wrong, err error) {
	if r.pass != Backward {
		if err := errors.Join(r.sets[0].o.Download(ctx, r.o), r.sets[0].lse.Download(ctx, r.lse)); err != nil {
			return c, nil, err
		}
		if c, wrong = r.oracle.check(r.o, r.lse); wrong != nil {
			return c, wrong, nil
		}
	}
	if r.pass != Forward {
		return r.compareGradients(ctx, c)
	}
	return c, nil, nil
}

// once records a call on the first set and runs it.
func (r *attentionRun) once(ctx context.Context, record func(c *vk.Cmd, set int) error) error {
	return submit(ctx, r.d, "bench check", func(c *vk.Cmd) error { return record(c, 0) })
}

// maxCalls limits a batch of the unfused path: each of its calls in a command
// buffer has memory for S of its own, in a backward pass for two of its size.
func maxCalls(impl attention.Impl, p attention.Problem, pass Pass) int {
	if impl != attention.Unfused {
		return 0
	}
	const limit = 2 << 30
	bytes := 4 * float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) * float64(p.SeqKV)
	bytes *= [...]float64{Forward: 1, Backward: 2, Both: 3}[pass]
	return int(max(limit/bytes, 1))
}
