package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// A Case is an Op and what to measure of it.
type Case struct {
	Op       Op
	Pass     Pass
	Impls    []string
	Protocol Protocol
	Peers    []peer.Peer
	PeerTime time.Duration // after which a peer is killed
	Close    *Tolerance    // further demands on results; nil: none
}

// Run checks c.Pass of c.Op against the reference on each path of c.Impls, and times
// the right paths. The results are in the order of the paths; a path that the device
// cannot take, also for lack of memory, is reported as unsupported. The results of the
// peers follow, in the order of the peers. An error means that the run was cut short.
func Run(ctx context.Context, d *vk.Device, c Case, progress Progress) ([]Result, error) {
	return run(ctx, d, c, progress, func(context.Context, *opRun, Target, *Result) error { return nil })
}

// run is Run, and does more with each path that is right and timed.
func run(ctx context.Context, d *vk.Device, c Case, progress Progress, more func(context.Context, *opRun, Target, *Result) error) ([]Result, error) {
	r := newOpRun(d, c)
	defer r.close()
	results := make([]Result, len(c.Impls))
	var able []int // positions in results
	for i, impl := range c.Impls {
		results[i] = r.subject.unsupported(impl, "")
		choice, err := r.choose(impl)
		if err != nil {
			results[i].Reason = Reason(c.Op.Name(), impl, err)
			continue
		}
		results[i].Choice = choice
		able = append(able, i)
	}
	if len(able) == 0 && len(c.Peers) == 0 {
		return results, nil
	}
	step := progress.Steps(1 + len(able) + MeasureSteps(len(able), c.Protocol) + len(c.Peers))
	step("reference")
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	var targets []Target
	var timed []int // the result of each target
	for _, i := range able {
		step("checking " + results[i].Impl)
		target, err := r.check(ctx, r.call(r.op, results[i].Impl), &results[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", results[i].Impl, err)
		}
		if results[i].Status == StatusOK {
			targets, timed = append(targets, target), append(timed, i)
		}
	}
	if len(targets) > 0 {
		if err := r.addSets(ctx, c.Protocol.sets(r.subject.bytes)); err != nil {
			return nil, err
		}
		step("warm-up")
		measured, err := Measure(ctx, d, targets, len(r.sets), c.Protocol, func() { step("samples") })
		if err != nil {
			return nil, err
		}
		for j, m := range measured {
			x := &results[timed[j]]
			if m.Err != nil {
				x.Status, x.Reason = StatusFailed, m.Err.Error()
				continue
			}
			x.Timing = m.Timing
			if err := more(ctx, r, targets[j], x); err != nil {
				return nil, fmt.Errorf("%s: %w", x.Impl, err)
			}
		}
	}
	peers, err := r.peers(ctx, c, step)
	return append(results, peers...), err
}

// Reason returns why a path does not take a problem, without the words that
// stand beside it: kernel, path, and that it is about the device.
func Reason(kernel, impl string, err error) string {
	text := strings.TrimPrefix(err.Error(), kernel+": ")
	text = strings.TrimPrefix(text, impl+": ")
	return strings.TrimSuffix(text, ": "+vk.ErrUnsupported.Error())
}

// opRun holds what the paths share.
type opRun struct {
	d       *vk.Device
	op      Op
	pass    Pass
	subject *Subject
	sets    []map[string]vk.Tensor
	values  map[string][]float32 // of the first set: what the pass does not write
	want    []call.Outputs       // of each pass
	shared  *vk.Buffer           // workspace of all calls, which run one after the other
	dirty   bool                 // what is read of the first set may not be what was drawn
	seed    maphash.Seed
	near    *Tolerance
}

func newOpRun(d *vk.Device, c Case) *opRun {
	return &opRun{d: d, op: c.Op, pass: c.Pass, seed: maphash.MakeSeed(), near: c.Close, subject: NewSubject(c.Op, c.Pass)}
}

func (r *opRun) close() {
	r.op.Close()
	for _, s := range r.sets {
		for _, t := range s {
			t.Close()
		}
	}
	r.shared.Close()
	r.sets, r.shared = nil, nil
}

// choose returns what runs for the passes, or why nothing does.
func (r *opRun) choose(impl string) (choice string, err error) {
	if op, ok := As[interface{ Takes(Pass) error }](r.op); ok {
		if err := op.Takes(r.pass); err != nil {
			return "", err
		}
	}
	for _, p := range r.pass.Parts() {
		plan, err := r.op.Choose(r.d.Caps(), impl, p)
		if err != nil {
			return "", err
		}
		one := plan.String()
		if choice != "" && choice != one {
			one = choice + "; " + one
		}
		choice = one
	}
	return choice, nil
}

// tensors returns the tensors of a set for which keep is true, in the order of the Op.
func (r *opRun) tensors(set int, keep func(t *call.Tensor) bool) (list []vk.Tensor) {
	for _, t := range r.op.Tensors() {
		if keep(&t) {
			list = append(list, r.sets[set][t.Name])
		}
	}
	return list
}

func (r *opRun) read(t *call.Tensor) bool    { return r.pass.Reads(t.Role) }
func (r *opRun) written(t *call.Tensor) bool { return r.pass.Writes(t.Role) }

// addSet appends a set of buffers.
func (r *opRun) addSet() error {
	set := map[string]vk.Tensor{}
	for _, t := range r.op.Tensors() {
		if !r.pass.Reads(t.Role) && !r.pass.Writes(t.Role) {
			continue
		}
		x, err := r.d.NewTensor(t.Name, t.DType, t.Shape...)
		if err != nil {
			for _, t := range set {
				t.Close()
			}
			return err
		}
		set[t.Name] = x
	}
	r.sets = append(r.sets, set)
	return nil
}

// addSets adds copies of the first set until there are n, or fewer if the memory of the device is
// full.
func (r *opRun) addSets(ctx context.Context, n int) error {
	if err := r.clean(ctx); err != nil {
		return err
	}
	for len(r.sets) < n {
		err := r.addSet()
		if errors.Is(err, vk.ErrOutOfDeviceMemory) {
			break
		}
		if err != nil {
			return err
		}
	}
	return r.d.Run(ctx, "bench sets", func(c *vk.Cmd) error {
		from := r.tensors(0, r.read)
		for set := 1; set < len(r.sets); set++ {
			for i, to := range r.tensors(set, r.read) {
				c.Copy(to.Buffer, 0, from[i].Buffer, 0, tensorBytes(to))
			}
		}
		return nil
	})
}

// prepare makes the first set, draws the values that the pass reads, and computes the right
// outputs. Before a backward pass it runs the forward pass, since the backward pass reads its
// outputs.
func (r *opRun) prepare(ctx context.Context) error {
	if err := r.addSet(); err != nil { // before the host makes an effort: memory may not suffice
		return err
	}
	r.draw()
	if err := r.restore(ctx); err != nil {
		return err
	}
	forward, err := r.op.Reference(r.values, Forward)
	if err != nil {
		return err
	}
	if r.pass != Backward {
		r.want = append(r.want, forward)
	}
	if r.pass != Forward {
		if err := r.runForward(ctx, forward); err != nil {
			return err
		}
		backward, err := r.op.Reference(r.values, Backward)
		if err != nil {
			return err
		}
		r.want = append(r.want, backward)
	}
	return ctx.Err()
}

// draw draws the values that the pass reads.
func (r *opRun) draw() {
	r.values = map[string][]float32{}
	for i, t := range r.op.Tensors() {
		if t.Role != call.Output && t.Role != call.Gradient && r.pass.Reads(t.Role) && t.Ints == nil {
			r.values[t.Name] = Drawn(&t, uint64(i+1))
		}
	}
}

// restore uploads the drawn values to the first set.
func (r *opRun) restore(ctx context.Context) error {
	for _, t := range r.op.Tensors() {
		var err error
		if x, ok := r.values[t.Name]; ok {
			err = r.sets[0][t.Name].UploadRaw(ctx, storage.Bytes(t.DType, x))
		} else if t.Ints != nil {
			err = r.sets[0][t.Name].UploadInts(ctx, t.Ints)
		}
		if err != nil {
			return err
		}
	}
	r.dirty = r.updates() // by any call
	return nil
}

// clean restores the first set if it has changed, which takes long for large problems.
func (r *opRun) clean(ctx context.Context) (err error) {
	if r.dirty {
		err = r.restore(ctx)
	}
	return err
}

// runForward runs the forward pass on the first set and checks and keeps its outputs.
func (r *opRun) runForward(ctx context.Context, want call.Outputs) error {
	err := r.d.Run(ctx, "bench forward", func(c *vk.Cmd) error {
		list, err := r.bind(0, r.op, "auto", Forward)
		if err != nil {
			return err
		}
		return list.Record(c)
	})
	if err != nil {
		return err
	}
	outputs, err := r.download(ctx, func(t *call.Tensor) bool { return t.Role == call.Output })
	if err != nil {
		return err
	}
	if _, wrong := CheckOutputs(r.op.Tensors(), want, outputs, nil); wrong != nil {
		return fmt.Errorf("the forward pass is wrong: %w", wrong)
	}
	for name, x := range outputs {
		r.values[name] = x
	}
	return nil
}

// download returns tensors of the first set.
func (r *opRun) download(ctx context.Context, keep func(t *call.Tensor) bool) (map[string][]float32, error) {
	values := map[string][]float32{}
	for _, t := range r.op.Tensors() {
		if !keep(&t) {
			continue
		}
		raw, x := make([]byte, call.Product(t.Shape)*t.DType.Size()), make([]float32, call.Product(t.Shape))
		if err := r.sets[0][t.Name].DownloadRaw(ctx, raw); err != nil {
			return nil, err
		}
		storage.Decode(t.DType, x, raw)
		values[t.Name] = x
	}
	return values, nil
}

// bind returns what records passes of op, which is the Op of r or one with the same tensors, on a set.
func (r *opRun) bind(set int, op Op, impl string, passes ...Pass) (list steps.List, err error) {
	if err := r.growShared(op, impl, passes); err != nil {
		return nil, err
	}
	for _, p := range passes {
		record, err := op.Bind(r.d, r.sets[set], r.shared, impl, p)
		if err != nil {
			return nil, err
		}
		list = append(list, record)
	}
	return list, nil
}

// growShared makes the workspace large enough for passes. It must come before they are bound.
// Commands that are kept must be recorded after all paths are checked, since they would refer to
// an older workspace.
func (r *opRun) growShared(op Op, impl string, passes []Pass) error {
	for _, p := range passes {
		plan, err := op.Choose(r.d.Caps(), impl, p)
		if err != nil {
			return err
		}
		bytes := plan.Workspace()
		if bytes == 0 || r.shared != nil && bytes <= r.shared.Bytes() {
			continue
		}
		r.shared.Close()
		if r.shared, err = r.d.NewBuffer("workspace", bytes); err != nil {
			return err
		}
	}
	return nil
}

// clear fills the tensors that the pass only writes with NaN, which is all bits set in every format.
// A last half word is left as it was.
func (r *opRun) clear(ctx context.Context, set int) error {
	return r.d.Run(ctx, "bench clear", func(c *vk.Cmd) error {
		for _, t := range r.tensors(set, func(t *call.Tensor) bool { return r.pass.Writes(t.Role) && t.Role != call.Update }) {
			if bytes := tensorBytes(t) &^ 3; bytes > 0 {
				c.Fill(t.Buffer, 0, bytes, 0xffffffff)
			}
		}
		return nil
	})
}

// fingerprint returns a hash of the outputs in a set.
func (r *opRun) fingerprint(ctx context.Context, set int) (uint64, error) {
	var sum maphash.Hash
	sum.SetSeed(r.seed)
	for _, t := range r.tensors(set, r.written) {
		raw := make([]byte, tensorBytes(t))
		if err := t.Buffer.Download(ctx, 0, raw); err != nil {
			return 0, err
		}
		sum.Write(raw)
	}
	return sum.Sum64(), nil
}

// call returns what records a call of op on a path. A call is bound once for each set, so that
// recording it again costs the host what it costs a program.
func (r *opRun) call(op Op, impl string) func(c *vk.Cmd, set int) error {
	type at struct {
		set       int
		workspace *vk.Buffer // which other calls replace
	}
	bound := map[at]steps.List{}
	return func(c *vk.Cmd, set int) (err error) {
		list := bound[at{set, r.shared}]
		if list == nil {
			if list, err = r.bind(set, op, impl, r.pass.Parts()...); err != nil {
				return err
			}
			bound[at{set, r.shared}] = list
		}
		return list.Record(c)
	}
}

// updates reports whether the passes read what they have written before.
func (r *opRun) updates() bool {
	return slices.ContainsFunc(r.op.Tensors(), func(t call.Tensor) bool { return t.Role == call.Update })
}

// check runs a call once and compares its outputs. It completes x and, if the path is right,
// returns it as a target. A wrong call may have written anywhere. Calls of a kernel that updates
// a tensor continue from each other's results, so they have nothing to verify.
func (r *opRun) check(ctx context.Context, record func(*vk.Cmd, int) error, x *Result) (Target, error) {
	if err := errors.Join(r.clean(ctx), r.clear(ctx, 0)); err != nil {
		return Target{}, err
	}
	r.dirty = true
	err := r.d.Run(ctx, "bench check", func(c *vk.Cmd) error { return record(c, 0) })
	if errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory) {
		x.Reason = Reason(r.op.Name(), x.Impl, err)
		return Target{}, nil
	}
	if err != nil {
		return Target{}, err
	}
	got, err := r.download(ctx, r.written)
	if err != nil {
		return Target{}, err
	}
	var wrong error
	if x.Check, wrong = r.compare(got); wrong != nil {
		x.Status, x.Reason = StatusFailed, wrong.Error()
		return Target{}, nil
	}
	x.Status, r.dirty = StatusOK, r.updates()
	target := Target{Name: x.Impl, Record: record}
	if limited, ok := As[interface{ MaxCalls(string, Pass) int }](r.op); ok {
		target.MaxBatch = limited.MaxCalls(x.Impl, r.pass)
	}
	if r.updates() {
		return target, nil
	}
	right, err := r.fingerprint(ctx, 0)
	target.Clear, target.Verify = r.clear, func(ctx context.Context, set int) error {
		got, err := r.fingerprint(ctx, set)
		if err == nil && got != right {
			err = errors.New("the outputs of the timed calls differ from those that were checked")
		}
		return err
	}
	return target, err
}

// compare compares outputs of all passes with their references.
func (r *opRun) compare(got map[string][]float32) (c Check, wrong error) {
	for _, want := range r.want {
		one, err := CheckOutputs(r.op.Tensors(), want, got, r.near)
		c, wrong = c.and(one), cmp.Or(wrong, err)
	}
	return c, wrong
}

// Unsupported returns results that say that no path takes the case.
func Unsupported(c Case, err error) []Result {
	of, list := NewSubject(c.Op, c.Pass), []Result(nil)
	for _, impl := range c.Impls {
		list = append(list, of.unsupported(impl, Reason(c.Op.Name(), impl, err)))
	}
	return list
}
