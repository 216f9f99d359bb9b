package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/pipelines/optim"
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

// A layout says where parameters lie on a device. Parameters follow one another in buffers, each of
// which a kernel sees whole: AdamW updates all parameters of a buffer in one launch. Gradients and moments have
// the same order in buffers of their own.
type layout struct {
	o      *Options
	params []Param
	slots  map[string]*slot
	groups []*group
}

// A group is the parameters that share buffers.
type group struct {
	frozen  bool
	dtype   dtype.DType // of weights
	size    int         // elements
	weights vk.Tensor
	rounded vk.Tensor // weights in 16 bits
	grads   vk.Tensor // of a batch
	total   vk.Tensor // of a step: grads, or a row of sums
	sums    vk.Tensor // (sumsRows, size)
	m, v    vk.Tensor
}

// A bufferOf is one of the buffers of a group.
type bufferOf func(*group) vk.Tensor

func weightsOf(g *group) vk.Tensor { return g.weights }
func roundedOf(g *group) vk.Tensor { return g.rounded }

// A slot is where a parameter lies.
type slot struct {
	Param
	group *group
	first int // elements
}

// slotMultiple is the alignment of slots in elements: 256 bytes in 16-bit formats.
const slotMultiple = 128

// newLayout returns the layout of parameters, or an error if a kernel would see less than one of them.
func newLayout(caps *vk.Caps, params []Param, o *Options) (*layout, error) {
	l := &layout{o: o, params: params, slots: map[string]*slot{}}
	limit := min(caps.MaxStorageBufferRange, caps.MaxBufferBytes, caps.MaxAllocationBytes)
	last := map[dtype.DType]*group{} // of frozen parameters
	var trained *group
	for first, end := 0, 0; first < len(params); first = end {
		p, size, name := params[first], 0, ""
		for end = first; end == first || end < len(params) && params[end].Joined; end++ {
			size, name = size+params[end].span(), name+"+"+params[end].Name
		}
		size = (size + slotMultiple - 1) / slotMultiple * slotMultiple
		p.Frozen = o.frozen(p.Name)
		g, element := trained, uint64(4*l.rows())
		if p.Frozen {
			g, element = last[p.DType], uint64(p.DType.Size())
		}
		if bytes := uint64(size) * element; bytes > limit {
			help := "a smaller model would fit"
			if !p.Frozen && bytes/uint64(l.rows()) <= limit {
				help = "without accumulation it would fit"
			}
			return nil, argument.Unsupported("train", "parameter %s takes %d bytes, of which a kernel sees %d: %s",
				name[1:], bytes, limit, help)
		}
		if g == nil || uint64(g.size+size)*element > limit {
			g = &group{frozen: p.Frozen, dtype: dtype.Float32}
			l.groups = append(l.groups, g)
			if p.Frozen {
				g.dtype, last[p.DType] = p.DType, g
			} else {
				trained = g
			}
		}
		at := g.size
		for _, x := range params[first:end] {
			x.Frozen = p.Frozen
			l.slots[x.Name] = &slot{x, g, at}
			at += x.span()
		}
		g.size += size
	}
	return l, nil
}

// rows returns how often the memory of gradients has all parameters.
func (l *layout) rows() int {
	if l.o.batches() > 1 {
		return sumsRows
	}
	return 1
}

// A part is one of the buffers of a model.
type part struct {
	name   string
	dtype  dtype.DType
	size   int // elements
	tensor *vk.Tensor
}

// parts lists the buffers.
func (l *layout) parts() (list []part) {
	for _, g := range l.groups {
		list = append(list, part{"weights", g.dtype, g.size, &g.weights})
		if g.frozen {
			continue
		}
		if l.o.DType != dtype.Float32 {
			list = append(list, part{"weights, rounded", l.o.DType, g.size, &g.rounded})
		}
		if l.o.Pass >= Gradients {
			to := &g.grads
			if l.rows() > 1 {
				to = &g.sums
			}
			list = append(list, part{"gradients", dtype.Float32, l.rows() * g.size, to})
		}
		if l.o.Pass >= Train {
			list = append(list, part{"first moments", dtype.Float32, g.size, &g.m},
				part{"second moments", dtype.Float32, g.size, &g.v})
		}
	}
	return list
}

// bytes returns the bytes of a part.
func (p *part) bytes() int64 { return int64(p.size) * int64(p.dtype.Size()) }

// bytes returns the bytes of all parts.
func (l *layout) bytes() (bytes int64) {
	for _, x := range l.parts() {
		bytes += x.bytes()
	}
	return bytes
}

// optimized lists the parameters for AdamW.
func (l *layout) optimized() (list []optim.Param) {
	for _, p := range l.params {
		s := l.slots[p.Name]
		if g := s.group; !g.frozen {
			list = append(list, optim.Param{Name: p.Name, NoDecay: p.NoDecay, Tensors: optim.Tensors{
				Param: s.of(g.weights), Grad: s.of(g.total), M: s.of(g.m), V: s.of(g.v), Copy: s.of(g.rounded),
			}})
		}
	}
	return list
}

// of returns the part of a buffer that the slot is. It is zero for a zero tensor.
func (s *slot) of(all vk.Tensor) vk.Tensor { return s.from(all, s.device()) }

// from returns the part of a buffer that begins with the slot: with parameters that are joined to it.
func (s *slot) from(all vk.Tensor, shape []int) vk.Tensor {
	if all.IsZero() {
		return vk.Tensor{}
	}
	t := vk.View(all.Buffer, all.DType, shape...)
	t.Offset = all.Offset + s.first
	return t
}

// write uploads elements of a parameter from first on to a buffer, if there is the buffer.
func (s *slot) write(ctx context.Context, of bufferOf, first int, x []float32) error {
	t := s.flat(of)
	if t.IsZero() {
		return nil
	}
	if s.At == nil {
		return t.Slice(0, first, first+len(x)).Upload(ctx, x)
	}
	device := make([]float32, t.NumElements())
	if len(x) < s.Size() {
		if err := t.Download(ctx, device); err != nil {
			return err
		}
	}
	for i, v := range x {
		device[s.At(first+i)] = v
	}
	return t.Upload(ctx, device)
}

// read downloads elements of a parameter from first on.
func (s *slot) read(ctx context.Context, of bufferOf, first int, x []float32) error {
	t := s.flat(of)
	if s.At == nil {
		return t.Slice(0, first, first+len(x)).Download(ctx, x)
	}
	device := make([]float32, t.NumElements())
	err := t.Download(ctx, device)
	for i := range x {
		x[i] = device[s.At(first+i)]
	}
	return err
}

// flat returns the elements of the slot in a buffer.
func (s *slot) flat(of bufferOf) vk.Tensor { return s.from(of(s.group), []int{s.span()}) }

// Gradients that are added up over batches have three rows of all slots,
//
//	row 0  a sum          0        g0+g1
//	row 1  of a batch     g0       g1       g2
//	row 2  a sum          0+g0              g0+g1+g2
//
// Two neighbours are added up into the third: after the first batch rows 0 and 1 into row 2,
// after the second rows 1 and 2 into row 0, and so on. Row 0 is 0 at first.
const sumsRows = 3

// sumRow returns the row of the sum after batch i.
func sumRow(i int) int { return 2 * (1 - i%2) }

// row returns a row of the sums. It is a view of the whole buffer: AdamW is one launch then.
func (g *group) row(i int) vk.Tensor {
	t := vk.View(g.sums.Buffer, g.sums.DType, g.size)
	t.Offset = i * g.size
	return t
}

// divide places the gradients of a batch and of a step.
func (l *layout) divide() {
	for _, g := range l.groups {
		g.total = g.grads
		if l.rows() > 1 && !g.frozen {
			g.sums.Shape, g.sums.Strides = []int{sumsRows, g.size}, []int{g.size, 1}
			g.grads, g.total = g.row(1), g.row(sumRow(l.o.Accumulate-1))
		}
	}
}

// add records the sum of the gradients up to batch i.
func (g *group) add(c *vk.Cmd, i int) error {
	to := sumRow(i)
	first := 1 - to/2
	return sumrows.Record(c, g.row(to).Narrow(), g.sums.Slice(0, first, first+2).Narrow())
}
