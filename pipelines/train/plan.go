package train

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/vk"
)

// A Func is the forward pass of a model: it appends ops to a tape. For the passes beyond Forward it
// ends with a loss (Tape.Loss).
type Func func(t *Tape)

// PlanOptions say how a plan is computed. The zero value is the default.
type PlanOptions struct {
	// Checkpoint says which tensors of blocks the forward pass keeps for the backward pass.
	Checkpoint Checkpoint
	Attention  attention.Options // of Tape.Attention
	// Reduce is called by the Run that makes a step, of a plan of pass Train, with gradients that
	// no kernel of the step still writes: several devices add them up there. It is called for each
	// bucket, in the order of the backward pass, once the kernels that write it were submitted, and
	// before those that follow. It need not wait for the device: a download does. AdamW is
	// submitted after the last call.
	Reduce func(ctx context.Context, bucket []vk.Tensor) error
	// Bucket is how many bytes of gradients are at least in each call of Reduce but the last.
	Bucket int64
}

// A Checkpoint says which tensors of a block (Tape.Block) the forward pass keeps for the backward
// pass, which computes the rest again. The results are the same, bit for bit.
type Checkpoint uint8

// The choices.
const (
	Off       Checkpoint = iota // all
	Selective                   // those that Tape.Keep keeps for Selective or Blocks, and outputs of attention
	Blocks                      // those that Tape.Keep keeps for Blocks
	Auto                        // the first of them that fits into the device's memory
)

// String returns off, selective, blocks or auto.
func (c Checkpoint) String() string { return checkpointNames.Of(c) }

var checkpointNames = enum.Names[Checkpoint]{"off", "selective", "blocks", "auto"}

// ParseCheckpoint accepts the names that String returns.
func ParseCheckpoint(name string) (Checkpoint, error) {
	return checkpointNames.Parse("train: checkpoint", name)
}

// A Plan is a pass of a model over batches of one shape. It has the memory between kernels and
// one recording of all of them, which Run submits. It is for one goroutine at a time.
//
// Start submits it and returns, so that the host can make and upload the next batch meanwhile:
//
//	upload batch 0 to the inputs (Tensor)
//	for i := range steps {
//		SetLR(of step i)
//		Start                     the device works
//		upload batch i+1          beside it; queued behind it
//		download the loss         waits for step i
//	}
type Plan struct {
	t       *Tape
	m       *Model
	pass    Pass
	memory  *Memory
	parts   []bucket
	cmds    map[int][]*vk.Cmd // by turn: of each part, then AdamW's if it is apart
	scale   float64           // the loss scale of the recordings
	weight  float64           // of the loss, see Weigh
	running *vk.Cmd           // of the last batch
	batch   int               // of the next step
	host    time.Duration
}

// turn returns the first batch of a step with the recording of batch i: those between the first and the last differ in
// nothing but the row of the sum of gradients that they write.
func (p *Plan) turn(i int) int {
	if i == 0 || i == p.batches()-1 {
		return i
	}
	return 2 - i%2
}

// NewPlan allocates the memory of a pass, and records it. Close it before the model.
//
// If the device is known to have less memory than the plan takes, it returns an error that says
// how many bytes are missing, and allocates nothing. It returns an error that wraps
// vk.ErrUnsupported if no kernel handles the sizes on the device.
func (m *Model) NewPlan(ctx context.Context, f Func, pass Pass, o PlanOptions) (_ *Plan, err error) {
	heaps, err := m.d.Heaps()
	if err != nil {
		return nil, err
	}
	bytes := func(m *Memory) int64 { return m.Plan.Bytes }
	t, memory, err := fit{m.d.Caps(), heaps, f, pass, m.o, o}.choose("activations", bytes)
	if err != nil {
		return nil, err
	}
	if err := m.owns(t); err != nil {
		return nil, err
	}
	t.model = m
	p := &Plan{t: t, m: m, pass: pass, memory: memory, parts: m.buckets(t, pass), cmds: map[int][]*vk.Cmd{}}
	p.weight = 1 / float64(p.batches())
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := t.prog.Allocate(m.d); err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	if err := p.constants(ctx); err != nil {
		return nil, err
	}
	return p, p.recordAll()
}

// recordAll records the batches of all turns.
func (p *Plan) recordAll() error {
	p.scale = p.m.scale
	for i := range p.batches() {
		if p.turn(i) != i {
			continue
		}
		if err := p.recordTurn(i); err != nil {
			return err
		}
	}
	return nil
}

// recordTurn records a batch into the Cmds of its turn, which it makes if there are none.
func (p *Plan) recordTurn(batch int) error {
	turn, n := p.turn(batch), len(p.parts)
	if p.reduces() && batch == p.batches()-1 {
		n++
	}
	for len(p.cmds[turn]) < n {
		c, err := p.m.d.NewCmd("train " + p.pass.String())
		if err != nil {
			return err
		}
		p.cmds[turn] = append(p.cmds[turn], c)
	}
	for _, c := range p.cmds[turn] {
		c.Reset()
	}
	return p.record(p.cmds[turn], batch, nil)
}

// reduces reports whether a step waits for PlanOptions.Reduce.
func (p *Plan) reduces() bool { return p.t.o.Reduce != nil && p.pass == Train && p.m.adam != nil }

// owns returns an error if the forward pass has a parameter that the model has not, or another.
func (m *Model) owns(t *Tape) error {
	var before *slot
	for _, p := range t.params {
		s := m.layout.slots[p.Name]
		if s == nil || s.span() != p.span() || s.DType != p.DType {
			return fmt.Errorf("train: the model has no parameter %s of %v %v", p.Name, p.DType, p.Shape)
		}
		if p.Joined && (s.group != before.group || s.first != before.first+before.span()) {
			return fmt.Errorf("train: the model has parameter %s, but not joined to %s", p.Name, before.Name)
		}
		before = s
	}
	return nil
}

// constants uploads the inputs that no caller knows.
func (p *Plan) constants(ctx context.Context) error {
	for n, v := range p.t.counts {
		rows := make([]int32, n)
		for i := range rows {
			rows[i] = int32(i)
		}
		if err := v.View().UploadInts(ctx, rows); err != nil {
			return err
		}
	}
	if p.t.scale == nil {
		return nil
	}
	return p.Weigh(ctx, p.weight)
}

// Weigh multiplies the loss of the batches that are run or started from now on, where gradients begin:
// what Download returns stays. It is 1/Options.Accumulate until then. A loss that is a sum over tokens
// becomes the mean over all tokens of a step so.
func (p *Plan) Weigh(ctx context.Context, weight float64) error {
	if p.t.scale == nil {
		return fmt.Errorf("train: a plan of pass %v has no gradients, and no weight=%v of a loss", p.pass, weight)
	}
	p.weight = weight
	return p.t.scale.View().Upload(ctx, []float32{float32(p.m.scale * weight)})
}

// batches returns how many Runs make a step.
func (p *Plan) batches() int {
	if p.pass < Train {
		return 1
	}
	return p.m.o.batches()
}

// record records all steps of a batch into one Cmd, or one for each part and one for AdamW; before is called with the name of each
// step.
func (p *Plan) record(cmds []*vk.Cmd, batch int, before func(step string)) error {
	first := 0
	for i, x := range p.parts {
		if err := p.t.prog.RecordPart(cmds[min(i, len(cmds)-1)], first, x.end, before); err != nil {
			return fmt.Errorf("train: %w", err)
		}
		first = x.end
	}
	if before == nil {
		before = func(string) {}
	}
	if p.pass < Train || p.m.adam == nil {
		return nil
	}
	if p.batches() > 1 {
		before("sum of gradients")
		if err := p.sum(cmds[0], batch); err != nil || batch < p.batches()-1 {
			return err
		}
	}
	before("optimizer")
	return p.m.adam.Step(cmds[len(cmds)-1])
}

// sum records the sum of the gradients of a step of several batches up to one of them.
func (p *Plan) sum(c *vk.Cmd, batch int) error {
	for _, g := range p.m.layout.groups {
		if g.frozen {
			continue
		}
		if batch == 0 { // the sum is 0
			c.Fill(g.sums.Buffer, 0, 4*int64(g.size), 0)
		}
		if err := g.add(c, batch); err != nil {
			return fmt.Errorf("train: %w", err)
		}
	}
	return nil
}

// Close frees the memory of the plan once the submissions so far have finished. It is idempotent
// and may be called on nil.
func (p *Plan) Close() {
	if p == nil {
		return
	}
	for _, cmds := range p.cmds {
		for _, c := range cmds {
			c.Close()
		}
	}
	p.t.prog.Close()
}

// Modules lists the kernels of the recording.
func (p *Plan) Modules() (list []vk.ModuleInfo) {
	for _, c := range p.cmds[p.turn(0)] {
		list = append(list, c.Modules()...)
	}
	return list
}

// Memory returns how much memory model and plan take.
func (p *Plan) Memory() *Memory { return p.memory }

// Tensor returns the memory of an input or output (Tape.Input, Tape.Output) by its name, zero for
// another name. Uploads come behind the batches that were started, and do not wait for them.
// Downloads wait.
func (p *Plan) Tensor(name string) vk.Tensor {
	if v := cmp.Or(p.t.inputs[name], p.t.outputs[name]); v != nil {
		return v.View()
	}
	return vk.Tensor{}
}

// Upload uploads an input of floating-point numbers by its name.
func (p *Plan) Upload(ctx context.Context, name string, x []float32) error {
	v := p.t.inputs[name]
	if v == nil {
		return fmt.Errorf("train: %q is no input", name)
	}
	return v.View().Upload(ctx, x)
}

// Download downloads an output of floating-point numbers by its name, of the last Run or Start, for
// which it waits.
func (p *Plan) Download(ctx context.Context, name string) ([]float32, error) {
	v := p.t.outputs[name]
	if v == nil {
		return nil, fmt.Errorf("train: %q is no output", name)
	}
	x := make([]float32, v.view.NumElements())
	return x, v.View().Download(ctx, x)
}

// Run computes a batch, and waits for it. With Options.Accumulate, the last Run of that many makes
// the step. If ctx ends meanwhile, the batch runs on, and counts.
func (p *Plan) Run(ctx context.Context) error {
	if err := p.Start(ctx); err != nil {
		return err
	}
	return p.running.Wait(ctx)
}

// Start is Run without the wait. Calls that read results wait, and read the results of the batch:
// Download, Model.SaveState. Uploads, SetLR and the next Start are for the next batch. An error of
// the device may come from any later call.
//
// If ctx has ended, nothing is submitted, and the batch remains to be run.
func (p *Plan) Start(ctx context.Context) error { return p.start(ctx, false) }

// RunFresh is Run with a recording that is made now: HostTime includes the time to record. The
// results are the results of Run, bit for bit.
func (p *Plan) RunFresh(ctx context.Context) error {
	if err := p.start(ctx, true); err != nil {
		return err
	}
	return p.running.Wait(ctx)
}

// start submits the recording of a batch, which is made anew if it is to be fresh.
func (p *Plan) start(ctx context.Context, fresh bool) error {
	if err := p.rescale(ctx); err != nil {
		return err
	}
	turn := p.turn(p.batch)
	for _, c := range p.cmds[turn] {
		if err := c.Wait(ctx); err != nil { // its runs do not overlap
			return err
		}
	}
	begin := time.Now()
	if fresh {
		if err := p.recordTurn(p.batch); err != nil {
			return err
		}
	}
	for i, c := range p.cmds[turn] {
		if err := c.Start(ctx); err != nil {
			return err
		}
		if p.running = c; i < len(p.cmds[turn])-1 {
			if err := p.t.o.Reduce(ctx, p.parts[i].gradients); err != nil {
				return err
			}
		}
	}
	p.host, p.batch = time.Since(begin), (p.batch+1)%p.batches()
	return nil
}

// Repeat records a batch n times, one behind the other: a batch reads what the batch before has written. Batch i has the input
// of a name at(i), which is called before the batch is recorded. The plan is of pass Forward. The recording is the caller's, to be
// closed before the plan.
func (p *Plan) Repeat(n int, input string, at func(i int) vk.Tensor) (*vk.Cmd, error) {
	v := p.t.inputs[input]
	if p.pass != Forward || n < 1 || v == nil {
		return nil, fmt.Errorf("train: %d times of pass %v with input %q: pass forward is repeated, once or more, with one of its inputs", n, p.pass, input)
	}
	defer v.node.memory.Move(v.View())
	c, err := p.m.d.NewCmd("train forward, repeated")
	for i := 0; i < n && err == nil; i++ {
		v.node.memory.Move(at(i))
		err = p.record([]*vk.Cmd{c}, 0, nil)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// HostTime returns how long the host worked on the last Run or Start, until it had submitted the
// recording. The device has the rest of a Run.
func (p *Plan) HostTime() time.Duration { return p.host }

// A bucket is the gradients that are complete after some steps of a program.
type bucket struct {
	end       int // steps
	gradients []vk.Tensor
}

// buckets divides a plan where gradients are reduced. Gradients that are added up over batches are
// complete at the end.
func (m *Model) buckets(t *Tape, pass Pass) []bucket {
	var list []bucket
	whole := m.o.batches() > 1 || t.o.Bucket <= 0 || t.o.Reduce == nil || pass < Train
	last, bytes := bucket{end: t.prog.Steps()}, int64(0)
	params := slices.DeleteFunc(m.trained(), func(p Param) bool { return t.complete[p.Name] == 0 })
	slices.SortStableFunc(params, func(a, b Param) int {
		return cmp.Compare(t.complete[a.Name], t.complete[b.Name])
	})
	for i, p := range params {
		s := m.layout.slots[p.Name]
		last.gradients = append(last.gradients, s.of(s.group.total))
		bytes += 4 * int64(p.span())
		end := t.complete[p.Name]
		if whole || bytes < t.o.Bucket || i == len(params)-1 || t.complete[params[i+1].Name] == end {
			continue
		}
		list = append(list, bucket{end, last.gradients})
		last.gradients, bytes = nil, 0
	}
	return append(list, last)
}

// A Stage is the time of all steps of one kind, over all blocks.
type Stage struct {
	Name       string // as in attention, backward
	Dispatches int
	NS         float64 // device time, each dispatch by itself
}

// maxDispatches is how many dispatches a Trace holds: 1,024 blocks have fewer.
const maxDispatches = 1 << 16

// Stages runs the plan once more with a timestamp around each dispatch. It returns the time of
// each stage, in the order in which they first ran. Dispatches run one after the other, so the
// sum is more than the time of Run. It is a step like any other: a plan of pass Train changes the
// weights. With Options.Accumulate it is the last batch of a step.
func (p *Plan) Stages(ctx context.Context) ([]Stage, error) {
	trace, err := p.m.d.NewTrace(maxDispatches)
	if err != nil {
		return nil, err
	}
	defer trace.Close()
	c, err := p.m.d.NewCmd("train stages")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.Trace(trace)
	var steps []string // of each dispatch
	step := ""
	follow := func(name string) {
		for len(steps) < len(trace.Dispatches()) {
			steps = append(steps, step)
		}
		step = stageOf(name)
	}
	if err := p.record([]*vk.Cmd{c}, p.batches()-1, follow); err != nil {
		return nil, err
	}
	follow("")
	if err := c.Submit(ctx); err != nil {
		return nil, err
	}
	begin, end, err := trace.Times()
	if err != nil {
		return nil, err
	}
	var list []Stage
	at := map[string]int{}
	for i, name := range steps {
		if _, ok := at[name]; !ok {
			at[name] = len(list)
			list = append(list, Stage{Name: name})
		}
		s := &list[at[name]]
		s.Dispatches++
		s.NS += end[i] - begin[i]
	}
	return list, nil
}

// ofBlock matches the names of a block, such as "blocks.3.", "model.layers.3." or one after the other.
var ofBlock = regexp.MustCompile(`^.*\b\d+\.`)

// stageOf returns the stage of a step: its name without the name of its block.
func stageOf(step string) string { return ofBlock.ReplaceAllString(step, "") }
