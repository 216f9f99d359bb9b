package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/flashvk/flashvk/bench/peer"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// An OpCase is an Op and what to measure of it.
type OpCase struct {
	Op       Op
	Pass     Pass
	Impls    []string
	Protocol Protocol
	Peers    []peer.Peer
	PeerTime time.Duration // after which a peer is killed
}

// MeasureOp is Attention for any kernel: it checks c.Pass of c.Op against the
// reference on each path and times those that are right.
func MeasureOp(ctx context.Context, d *vk.Device, c OpCase, progress Progress) ([]Result, error) {
	r := newOpRun(d, c)
	defer r.close()
	results := make([]Result, len(c.Impls))
	var able []int // positions in results
	for i, impl := range c.Impls {
		results[i] = r.result(impl)
		results[i].Status = StatusUnsupported
		choice, err := r.choose(impl)
		if err != nil {
			results[i].Reason = reason(c.Op.Name(), impl, err)
			continue
		}
		results[i].Choice = choice
		able = append(able, i)
	}
	if len(able) == 0 && len(c.Peers) == 0 {
		return results, nil
	}
	done, total := 0, 1+len(able)+MeasureSteps(len(able), c.Protocol)+len(c.Peers)
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
		target, err := r.check(ctx, &results[i])
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
		finish(results, timed, measured)
	}
	more, err := r.peers(ctx, c, step)
	return append(results, more...), err
}

// finish puts what was measured into the result of each target.
func finish(results []Result, timed []int, measured []Measured) {
	for j, m := range measured {
		x := &results[timed[j]]
		if m.Err != nil {
			x.Status, x.Reason = StatusFailed, m.Err.Error()
			continue
		}
		x.Timing = m.Timing
	}
}

// opRun holds what the paths share.
type opRun struct {
	d       *vk.Device
	op      Op
	pass    Pass
	subject *Subject
	sets    []map[string]vk.Tensor
	values  map[string][]float32 // of the first set: what the pass does not write
	want    []Expected
	shared  *vk.Buffer // workspace of all calls, which run one after the other
	hash    hasher
}

func newOpRun(d *vk.Device, c OpCase) *opRun {
	return &opRun{d: d, op: c.Op, pass: c.Pass, hash: newHasher(), subject: NewSubject(c.Op, c.Pass)}
}

func (r *opRun) count() int { return len(r.sets) }

// note implements profiled: kernels of pipelines say what their dispatches do.
func (r *opRun) note([]DispatchProfile) {}

// result returns an empty result of a path.
func (r *opRun) result(impl string) Result {
	return Result{Kernel: r.subject.kernel, Impl: impl, Subject: r.subject}
}

func (r *opRun) close() {
	CloseOp(r.op)
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
	for _, p := range opPasses(r.pass) {
		one, err := r.op.Choose(r.d.Caps(), impl, p)
		if err != nil {
			return "", err
		}
		if choice != "" && choice != one {
			one = choice + "; " + one
		}
		choice = one
	}
	return choice, nil
}

// tensors returns the tensors of a set for which keep is true, in the order of the Op.
func (r *opRun) tensors(set int, keep func(t *OpTensor) bool) (list []vk.Tensor) {
	for _, t := range r.op.Tensors() {
		if keep(&t) {
			list = append(list, r.sets[set][t.Name])
		}
	}
	return list
}

func (r *opRun) read(t *OpTensor) bool    { return t.Read(r.pass) }
func (r *opRun) written(t *OpTensor) bool { return t.Written(r.pass) }

// addSet appends a set of buffers.
func (r *opRun) addSet() error {
	set := map[string]vk.Tensor{}
	for _, t := range r.op.Tensors() {
		if !t.Read(r.pass) && !t.Written(r.pass) {
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

// addSets adds copies of the first set until there are n, or fewer if the memory of
// the device is full.
func (r *opRun) addSets(ctx context.Context, n int) error {
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
	for set := range r.sets {
		copies = append(copies, r.tensors(set, r.read))
	}
	return copyFirst(ctx, r.d, copies)
}

// prepare makes the first set, draws the values that the pass reads, and computes
// what it should write. Before a backward pass alone the forward pass runs, whose
// outputs it reads.
func (r *opRun) prepare(ctx context.Context) error {
	if err := r.addSet(); err != nil {
		return err
	}
	r.values = map[string][]float32{}
	for i, t := range r.op.Tensors() {
		if t.Role == Output || t.Role == Gradient || !t.Read(r.pass) {
			continue
		}
		x := Normal(t.DType, t.elements(), uint64(i+1))
		if t.Draw != nil {
			for j := range x {
				x[j] = t.DType.Round(t.Draw(x[j]))
			}
		}
		r.values[t.Name] = x
	}
	if err := r.restore(ctx); err != nil {
		return err
	}
	if r.pass == Backward {
		if err := r.runForward(ctx); err != nil {
			return err
		}
	}
	for _, p := range opPasses(r.pass) {
		want, err := r.op.Reference(r.values, p)
		if err != nil {
			return err
		}
		r.want = append(r.want, want...)
	}
	return ctx.Err()
}

// restore uploads the drawn values to the first set.
func (r *opRun) restore(ctx context.Context) error {
	for name, x := range r.values {
		if err := uploadValues(ctx, r.sets[0][name], x); err != nil {
			return err
		}
	}
	return nil
}

// runForward runs the forward pass on the first set and checks and keeps its outputs.
func (r *opRun) runForward(ctx context.Context) error {
	err := submit(ctx, r.d, "bench forward", func(c *vk.Cmd) error {
		return r.recordPass(c, 0, r.op, "auto", Forward)
	})
	if err != nil {
		return err
	}
	outputs, err := r.download(ctx, func(t *OpTensor) bool { return t.Role == Output })
	if err != nil {
		return err
	}
	want, err := r.op.Reference(r.values, Forward)
	if err != nil {
		return err
	}
	if _, wrong := compareAll(outputs, want); wrong != nil {
		return fmt.Errorf("the forward pass is wrong: %w", wrong)
	}
	for name, x := range outputs {
		r.values[name] = x
	}
	return nil
}

// download returns tensors of the first set.
func (r *opRun) download(ctx context.Context, keep func(t *OpTensor) bool) (map[string][]float32, error) {
	values := map[string][]float32{}
	for _, t := range r.op.Tensors() {
		if !keep(&t) {
			continue
		}
		x := make([]float32, t.elements())
		if err := downloadValues(ctx, r.sets[0][t.Name], x); err != nil {
			return nil, err
		}
		values[t.Name] = x
	}
	return values, nil
}

// record records the passes of op, which is that of r or has the same tensors, on a set.
func (r *opRun) record(c *vk.Cmd, set int, op Op, impl string) error {
	if err := r.growShared(op, impl, opPasses(r.pass)...); err != nil {
		return err
	}
	for i, p := range opPasses(r.pass) {
		if i > 0 {
			c.Barrier()
		}
		if err := r.recordPass(c, set, op, impl, p); err != nil {
			return err
		}
	}
	return nil
}

func (r *opRun) recordPass(c *vk.Cmd, set int, op Op, impl string, p Pass) error {
	if err := r.growShared(op, impl, p); err != nil {
		return err
	}
	return op.Record(c, r.sets[set], r.shared, impl, p)
}

// growShared makes the workspace large enough for passes. It comes before any of them
// is recorded, and grows while paths are checked, before commands are recorded that are
// kept: they would refer to the old one.
func (r *opRun) growShared(op Op, impl string, passes ...Pass) error {
	for _, p := range passes {
		bytes, err := op.Workspace(r.d.Caps(), impl, p)
		if err != nil {
			return err
		}
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

// clear fills what the pass only writes with NaN.
func (r *opRun) clear(ctx context.Context, set int) error {
	return poison(ctx, r.d, r.tensors(set, func(t *OpTensor) bool { return t.Written(r.pass) && t.Role != Update }))
}

// check runs a path once and compares its outputs. It completes x and, if the path
// is right, returns it as something to time.
func (r *opRun) check(ctx context.Context, x *Result) (Target, error) {
	if err := r.restore(ctx); err != nil {
		return Target{}, err
	}
	impl := x.Impl
	return r.checkCall(ctx, func(c *vk.Cmd, set int) error { return r.record(c, set, r.op, impl) }, x)
}

// updates reports whether the passes read what they have written before.
func (r *opRun) updates() bool {
	return slices.ContainsFunc(r.op.Tensors(), func(t OpTensor) bool { return t.Role == Update })
}

// checkCall is check for what record records, with inputs that are as they were drawn. The
// calls of a kernel that updates a tensor go on from each other's results, so that there is
// nothing to verify.
func (r *opRun) checkCall(ctx context.Context, record func(*vk.Cmd, int) error, x *Result) (Target, error) {
	if err := r.clear(ctx, 0); err != nil {
		return Target{}, err
	}
	err := submit(ctx, r.d, "bench check", func(c *vk.Cmd) error { return record(c, 0) })
	if errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory) {
		x.Reason = reason(r.op.Name(), x.Impl, err)
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
	if x.Check, wrong = compareAll(got, r.want); wrong != nil {
		x.Status, x.Reason = StatusFailed, wrong.Error()
		return Target{}, nil
	}
	x.Status = StatusOK
	target := Target{Name: x.Impl, Record: record}
	if r.updates() {
		return target, nil
	}
	target.Clear = r.clear
	target.Verify, err = verifier(ctx, func(ctx context.Context, set int) (uint64, error) {
		return r.hash.sum(ctx, r.tensors(set, r.written))
	})
	return target, err
}

// uploadValues is t.Upload, for tensors of int32, too.
func uploadValues(ctx context.Context, t vk.Tensor, x []float32) error {
	if t.DType != dtype.Int32 {
		return t.Upload(ctx, x)
	}
	raw := make([]byte, 0, 4*len(x))
	for _, v := range x {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(int32(v)))
	}
	return t.UploadRaw(ctx, raw)
}

// downloadValues is t.Download, for tensors of int32, too.
func downloadValues(ctx context.Context, t vk.Tensor, x []float32) error {
	if t.DType != dtype.Int32 {
		return t.Download(ctx, x)
	}
	raw := make([]byte, 4*len(x))
	if err := t.DownloadRaw(ctx, raw); err != nil {
		return err
	}
	decodeValues(dtype.Int32, x, raw)
	return nil
}

// decodeValues reads x from a storage format, little endian.
func decodeValues(t dtype.DType, x []float32, raw []byte) {
	for i := range x {
		switch t {
		case dtype.Float16:
			x[i] = dtype.FromFloat16(binary.LittleEndian.Uint16(raw[2*i:]))
		case dtype.BFloat16:
			x[i] = dtype.FromBFloat16(binary.LittleEndian.Uint16(raw[2*i:]))
		case dtype.Int32:
			x[i] = float32(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		default:
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
}

// UnsupportedOp returns results that say that no path takes the case.
func UnsupportedOp(c OpCase, err error) []Result {
	r := &opRun{op: c.Op, pass: c.Pass, subject: NewSubject(c.Op, c.Pass)}
	var list []Result
	for _, impl := range c.Impls {
		x := r.result(impl)
		x.Status, x.Reason = StatusUnsupported, reason(c.Op.Name(), impl, err)
		list = append(list, x)
	}
	return list
}
