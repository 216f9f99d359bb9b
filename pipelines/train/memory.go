package train

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
)

// A Memory says how much memory a model and a plan of it take.
type Memory struct {
	Checkpoint Checkpoint // Auto's choice

	Model int64           // weights, gradients and moments
	Parts []record.Holder // of Model, by name
	Plan  *record.Memory  // what lies between the kernels
}

// hold adds bytes to the holder with that name.
func hold(list []record.Holder, name string, bytes int64) []record.Holder {
	i := slices.IndexFunc(list, func(h record.Holder) bool { return h.Name == name })
	if i < 0 {
		return append(list, record.Holder{Name: name, Bytes: bytes})
	}
	list[i].Bytes += bytes
	return list
}

// Bytes returns the sum of both.
func (m *Memory) Bytes() int64 { return m.Model + m.Plan.Bytes }

// String names both in a line.
func (m *Memory) String() string {
	return fmt.Sprintf("%s: model %s, activations %v", text.Bytes(m.Bytes()), text.Bytes(m.Model), m.Plan)
}

// ByName returns who holds Bytes, the parts of the model first, then the tensors that are needed
// where a plan holds the most, the largest first: the tensors of all blocks as one, and all
// workspaces as one. The bytes that the plan's other tensors take are of the name "gaps".
func (m *Memory) ByName() []record.Holder {
	var list []record.Holder
	gaps := m.Plan.Bytes
	for _, h := range m.Plan.Holders {
		name := "workspaces"
		if !strings.HasPrefix(h.Name, workspaceOf) {
			name = stageOf(h.Name)
		}
		list = hold(list, name, h.Bytes)
		gaps -= h.Bytes
	}
	if gaps > 0 {
		list = append(list, record.Holder{Name: "gaps", Bytes: gaps})
	}
	slices.SortStableFunc(list, func(a, b record.Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return append(slices.Clone(m.Parts), list...)
}

// Measure returns the memory of a model and of a plan of pass o.Pass, without allocating it. Auto
// compares with the memory that caps have; where nothing fits, it takes the checkpoint that needs
// least.
func Measure(caps *vk.Caps, f Func, o Options, p PlanOptions) (*Memory, error) {
	_, m, err := fit{caps, caps.Heaps, f, o.Pass, o, p}.first((*Memory).Bytes)
	return m, err
}

// A Smaller is another forward pass of a model, which takes less memory: of half the batch, for
// example. Its name completes "with … it would fit".
type Smaller struct {
	Name string
	Func Func
}

// CheckFits returns an error if a device is known to have less memory left than a model and a plan
// of pass o.Pass take. The error says how many bytes are missing, which checkpoint would take
// less, and which of the smaller forward passes would fit. The error wraps vk.ErrUnsupported if a kernel would see less than its whole tensors, and
// says with which checkpoint, or which of the smaller forward passes, all kernels see whole tensors.
// CheckFits allocates nothing, and compiles the kernels of the plan. It returns the memory that they take, nil where
// there is no plan. NewModel and NewPlan check only the memory that they take themselves.
func CheckFits(d *vk.Device, f Func, o Options, p PlanOptions, smaller []Smaller) (*Memory, error) {
	heaps, err := d.Heaps()
	if err != nil {
		return nil, err
	}
	x := fit{d.Caps(), heaps, f, o.Pass, o, p}
	const what = "model and activations"
	t, m, err := x.choose(what, (*Memory).Bytes)
	if err == nil {
		err = x.record(d, t)
	}
	short := m != nil && missing(heaps, m.Bytes()) > 0
	if !short && !errors.Is(err, vk.ErrUnsupported) {
		return m, err
	}
	fits := func() bool {
		t, _, err := x.choose(what, (*Memory).Bytes)
		return err == nil && x.record(d, t) == nil
	}
	for _, x.p.Checkpoint = range []Checkpoint{Selective, Blocks} {
		if !short && x.p.Checkpoint != p.Checkpoint && fits() {
			return m, fmt.Errorf("%w; with checkpoint %v it would fit", err, x.p.Checkpoint)
		}
	}
	x.p = p
	for _, s := range smaller {
		if x.f = s.Func; fits() {
			return m, fmt.Errorf("%w; with %s it would fit", err, s.Name)
		}
	}
	if len(smaller) > 0 {
		err = fmt.Errorf("%w; no smaller batch would fit", err)
	}
	return m, err
}

// A fit is a plan that heaps may have too little for.
type fit struct {
	caps  *vk.Caps
	heaps []vk.Heap
	f     Func
	pass  Pass
	o     Options
	p     PlanOptions
}

// record records a plan without its memory, and returns the error of a kernel.
func (x fit) record(d *vk.Device, t *Tape) error {
	for _, part := range t.layout.parts() {
		*part.tensor = vk.View(d.Placeholder(part.name, part.bytes()), part.dtype, part.size)
	}
	t.layout.divide()
	t.model = &Model{d: d, o: x.o, layout: t.layout, scale: cmp.Or(x.o.LossScale, 1)}
	if err := t.prog.Check(d); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	return nil
}

// first makes the program of the plan. Auto is the first checkpoint whose bytes fit, or else the checkpoint that needs
// least.
func (x fit) first(bytes func(*Memory) int64) (t *Tape, m *Memory, err error) {
	checkpoints := []Checkpoint{x.p.Checkpoint}
	switch {
	case x.p.Checkpoint > Auto:
		return nil, nil, fmt.Errorf("train: checkpoint=%v is not one of %v", x.p.Checkpoint, checkpointNames)
	case x.p.Checkpoint == Auto:
		checkpoints = []Checkpoint{Off, Selective, Blocks}
	}
	for _, x.p.Checkpoint = range checkpoints {
		t, m, err = build(x.caps, x.f, x.pass, x.o, x.p)
		if err != nil || missing(x.heaps, bytes(m)) == 0 {
			break
		}
	}
	return t, m, err
}

// choose makes the program of the plan, or returns an error that names what if the program's bytes
// do not fit.
func (x fit) choose(what string, bytes func(*Memory) int64) (*Tape, *Memory, error) {
	t, m, err := x.first(bytes)
	if err != nil || missing(x.heaps, bytes(m)) == 0 {
		return t, m, err
	}
	help := "no other checkpoint takes less"
	x.p.Checkpoint = Auto
	if _, less, err := x.first(bytes); err == nil && bytes(less) < bytes(m) {
		help = fmt.Sprintf("with checkpoint %v it would fit, %d", less.Checkpoint, bytes(less))
		if missing(x.heaps, bytes(less)) > 0 {
			help = fmt.Sprintf("with checkpoint %v it would take %d, too many as well", less.Checkpoint, bytes(less))
		}
	}
	return nil, m, fmt.Errorf("train: %s take %d bytes, %d more than the device has left: %s",
		what, bytes(m), missing(x.heaps, bytes(m)), help)
}

// Free returns the bytes that a device says it has left; 0: it does not say.
func Free(heaps []vk.Heap) (free uint64) {
	for _, h := range heaps {
		switch {
		case !h.DeviceLocal:
		case h.BudgetBytes == 0: // the device does not tell
			free = max(free, h.SizeBytes)
		case h.BudgetBytes > h.UsageBytes:
			free = max(free, h.BudgetBytes-h.UsageBytes)
		}
	}
	return free
}

// missing returns how many of the bytes a device is known not to have left.
func missing(heaps []vk.Heap, bytes int64) uint64 {
	free := Free(heaps)
	if free == 0 || uint64(bytes) <= free {
		return 0
	}
	return uint64(bytes) - free
}
