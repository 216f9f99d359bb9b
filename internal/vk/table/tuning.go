package table

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// A Tuning is a kit.Tuning, which documents it and its methods. [Likeness] says which problems a
// row stands for.
type Tuning struct {
	device tuningDevice
	rows   []tunedRow
}

// tuningDevice is what a measurement is only valid for.
type tuningDevice struct {
	VendorID      uint32 `json:"vendor_id"`
	DeviceID      uint32 `json:"device_id"`
	Name          string `json:"name"`
	DriverID      uint32 `json:"driver_id"`
	DriverVersion uint32 `json:"driver_version"`
}

func tuningDeviceOf(caps *vk.Caps) tuningDevice {
	return tuningDevice{caps.VendorID, caps.DeviceID, caps.Name, caps.DriverID, caps.DriverVersion}
}

// A tunedRow is one measurement, in the form of the file and in that of its table.
type tunedRow struct {
	kernel, pass    string
	module          string
	problem, config json.RawMessage
	ns              float64 // device time of a call
	made            string  // when that was measured; "" if the file does not say

	// Measured is *measured[P, C] of the table of the kernel. It is nil if the kernels have changed
	// since the measurement, or if this program has no such table. A row without Measured stays in
	// the file as it is, for programs that know its table.
	table    tableReader
	measured any
	stale    bool
}

// measured is what a table knows of a row.
type measured[P, C any] struct {
	problem P
	config  C
	path    string
	ns      float64
}

// A tableReader reads and writes rows of a table.
type tableReader interface {
	read(row *tunedRow) error
	add(t *Tuning, problem, config any, ns float64) error
	runs(row *tunedRow, caps *vk.Caps) error
	describe(row *tunedRow) (problem, config string)
	space(problem any) *Space
}

// tables has the tables of the kernels that a program is linked with.
var tables = map[[2]string]tableReader{}

func register(kernel string, pass fmt.Stringer, t tableReader) {
	key := [2]string{kernel, pass.String()}
	if tables[key] != nil {
		panic("table: two tables of a kernel's pass")
	}
	tables[key] = t
}

// NewTuning is kit.NewTuning.
func NewTuning(caps *vk.Caps) *Tuning { return &Tuning{device: tuningDeviceOf(caps)} }

// Clone is that of kit.Tuning.
func (t *Tuning) Clone() *Tuning {
	return &Tuning{device: t.device, rows: slices.Clone(t.rows)}
}

// Len is that of kit.Tuning.
func (t *Tuning) Len() int { return t.count(func(r *tunedRow) bool { return r.measured != nil }) }

// Stale is that of kit.Tuning.
func (t *Tuning) Stale() int { return t.count(func(r *tunedRow) bool { return r.stale }) }

func (t *Tuning) count(is func(r *tunedRow) bool) (n int) {
	if t == nil {
		return 0
	}
	for i := range t.rows {
		if is(&t.rows[i]) {
			n++
		}
	}
	return n
}

// Add is that of kit.Tuning. Pass is a kit.Pass.
func (t *Tuning) Add(kernel string, pass fmt.Stringer, problem, config any, ns float64) error {
	table := tables[[2]string{kernel, pass.String()}]
	if table == nil {
		return fmt.Errorf("kit: tuning: %s %v has no configurations to choose from", kernel, pass)
	}
	return table.add(t, problem, config, ns)
}

// Words are a kit.TuningRow.
type Words struct {
	Kernel, Pass    string
	Problem, Config string
	NS              float64
	Err             error
}

// Rows is that of kit.Tuning.
func (t *Tuning) Rows(caps *vk.Caps) []Words {
	if t == nil {
		return nil
	}
	list := make([]Words, len(t.rows))
	for i := range t.rows {
		list[i] = t.rows[i].words(caps)
	}
	return list
}

// words describes a row.
func (r *tunedRow) words(caps *vk.Caps) Words {
	x := Words{Kernel: r.kernel, Pass: r.pass, NS: r.ns}
	if r.measured == nil {
		x.Problem, x.Config = string(r.problem), string(r.config)
		x.Err = fmt.Errorf("kit: tuning: this program has no kernel %s %s", r.kernel, r.pass)
		if r.stale {
			x.Err = fmt.Errorf("kit: tuning: the kernels of the row have changed since it was measured")
		}
		return x
	}
	x.Problem, x.Config = r.table.describe(r)
	if caps != nil {
		x.Err = r.table.runs(r, caps)
	}
	return x
}

// nearest returns the row of a path of q.Tuning that is nearest to p and feasible, nil if there
// is none, and the reason why one that is nearer is not.
func (t *Table[P, C, S]) nearest(caps *vk.Caps, p *P, q *Query[C], path string) (*measured[P, C], Origin) {
	if q.Tuning == nil || q.Tuning.device != tuningDeviceOf(caps) {
		return nil, Origin{}
	}
	var best *measured[P, C]
	var passed error
	least, nearer := math.Inf(1), math.Inf(1)
	like := t.Likeness(p)
	for i := range q.Tuning.rows {
		row, ok := q.Tuning.rows[i].measured.(*measured[P, C])
		if !ok || q.Tuning.rows[i].table != tableReader(t) || row.path != path {
			continue
		}
		d := t.Likeness(&row.problem).distance(like)
		if d >= least {
			continue
		}
		c := t.fit(row, caps, p)
		if err := t.check(&c, caps, p, q); err != nil {
			if d < nearer {
				nearer, passed = d, fmt.Errorf("the tuned row %v is passed over: %w", row.config, err)
			}
			continue
		}
		best, least = row, d
	}
	if nearer > least {
		passed = nil
	}
	return best, Origin{best != nil, passed}
}

// reorder returns what a call takes without a path where usual is built in.
func (t *Table[P, C, S]) reorder(caps *vk.Caps, p *P, q *Query[C], usual C) (C, Origin) {
	best, origin := t.nearest(caps, p, q, t.Path(&usual))
	if best == nil {
		return usual, origin
	}
	same := best.problem
	for i := range q.Tuning.rows {
		row, ok := q.Tuning.rows[i].measured.(*measured[P, C])
		if !ok || q.Tuning.rows[i].table != tableReader(t) || row.problem != same || row.path == t.Manual || row.ns >= best.ns {
			continue
		}
		if c := t.fit(row, caps, p); t.check(&c, caps, p, q) == nil {
			best = row
		}
	}
	return t.fit(best, caps, p), origin
}

// fit returns the row's configuration for p. What follows from the sizes was measured for the
// same sizes only.
func (t *Table[P, C, S]) fit(row *measured[P, C], caps *vk.Caps, p *P) C {
	c := row.config
	if t.Fit == nil {
		return c
	}
	same := row.problem == *p
	if t.Same != nil {
		same = t.Same(&row.problem, p)
	}
	if same {
		return c
	}
	return t.Fit(c, caps, p, true)
}

// A Likeness says how near problems are to each other: not at all unless Kind is equal, and
// otherwise by the doublings between their sizes.
type Likeness struct {
	Kind  any // comparable: what is not a size, and sizes that must be the same
	Sizes [4]Size
}

// A Size is one that decides which configuration is best.
type Size struct {
	N      float64
	Enough float64 // from here on more makes no difference
}

// distance returns doublings, +Inf if one problem does not tell anything about the other.
func (a Likeness) distance(b Likeness) (d float64) {
	if a.Kind != b.Kind {
		return math.Inf(1)
	}
	for i, x := range a.Sizes {
		if x != b.Sizes[i] {
			d += doublings(x.N, b.Sizes[i].N, x.Enough)
		}
	}
	return d
}

// doublings returns how many times a has to be doubled or halved to give b:
// +Inf beyond two, unless both are enough.
func doublings(a, b, enough float64) float64 {
	d := math.Abs(math.Log2(a / b))
	if d > 2 && min(a, b) < enough {
		return math.Inf(1)
	}
	return d
}

// add implements tableReader.
func (t *Table[P, C, S]) add(to *Tuning, problem, config any, ns float64) error {
	p, ok := problem.(P)
	c, alike := config.(C)
	if !ok || !alike {
		return fmt.Errorf("kit: tuning: %s %v has problems of %T and configurations of %T, not %T and %T", t.Kernel, t.Pass, p, c, problem, config)
	}
	m := &measured[P, C]{p, c, t.Path(&c), ns}
	if err := t.validate(m); err != nil {
		return fmt.Errorf("kit: tuning: %w", err)
	}
	row := tunedRow{kernel: t.Kernel, pass: t.Pass.String(), module: t.Module(&p, &c), ns: ns, made: time.Now().UTC().Format(time.RFC3339), table: t, measured: m}
	var err error
	if row.problem, err = json.Marshal(t.encode(&p)); err != nil {
		return fmt.Errorf("kit: tuning: %w", err)
	}
	if row.config, err = json.Marshal(c); err == nil {
		row.config, err = renamed(row.config, text.Snake)
	}
	if err != nil {
		return fmt.Errorf("kit: tuning: %w", err)
	}
	to.rows = slices.DeleteFunc(to.rows, func(old tunedRow) bool { return t.replaces(m, &old) })
	to.rows = append(to.rows, row)
	return nil
}

// replaces reports whether m says what a row says, which may be stale.
func (t *Table[P, C, S]) replaces(m *measured[P, C], old *tunedRow) bool {
	if old.kernel != t.Kernel || old.pass != t.Pass.String() {
		return false
	}
	was, ok := old.measured.(*measured[P, C])
	if !ok {
		p, c, err := t.decode(old)
		if err != nil {
			return false
		}
		was = &measured[P, C]{p, c, t.Path(&c), old.ns}
	}
	return was.problem == m.problem && was.path == m.path
}

// runs implements tableReader.
func (t *Table[P, C, S]) runs(row *tunedRow, caps *vk.Caps) error {
	m := row.measured.(*measured[P, C])
	return t.Feasible(&m.config, caps, &m.problem)
}

// describe implements tableReader.
func (t *Table[P, C, S]) describe(row *tunedRow) (problem, config string) {
	m := row.measured.(*measured[P, C])
	return fmt.Sprint(m.problem), fmt.Sprint(m.config)
}
