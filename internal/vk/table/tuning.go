package table

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/flashvk/flashvk/vk"
)

// A Tuning is kit.Tuning. [Likeness] says which problems a row stands for.
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

// A tunedRow is one measurement, in the form of the file and in the form of its table.
type tunedRow struct {
	tuningFileRow

	// Measured is nil if the kernels have changed since the measurement (stale), or if this program
	// has no such table. A row without Measured stays in the file as it is, for programs that know
	// its table.
	measured measurement
	stale    bool
}

// A measurement is what a table knows of a row: a *measured.
type measurement interface {
	words() (problem, config string)
	runs(caps *vk.Caps) error
	builtIn(caps *vk.Caps) (row, before string, err error)
}

type measured[P, C comparable, S Shape[P]] struct {
	table   *Table[P, C, S]
	problem P
	config  C
	path    string
	ns      float64
}

func (m *measured[P, C, S]) words() (problem, config string) {
	return fmt.Sprint(m.problem), fmt.Sprint(m.config)
}

func (m *measured[P, C, S]) runs(caps *vk.Caps) error {
	return m.table.Feasible(&m.config, caps, &m.problem)
}

// A tableReader reads and writes rows of a table.
type tableReader interface {
	read(row *tunedRow) error
	add(t *Tuning, problem, config any, ns float64) error
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

// Clone returns a copy of t. Adding to one does not change the other.
func (t *Tuning) Clone() *Tuning {
	return &Tuning{device: t.device, rows: slices.Clone(t.rows)}
}

// Len returns the number of rows that count: rows that are not stale and whose kernel the program
// has. A nil Tuning has 0.
func (t *Tuning) Len() int { return t.count(func(r *tunedRow) bool { return r.measured != nil }) }

// Stale returns the number of rows whose kernels have changed since they were measured. They have
// no effect, and stay in the file until the same problem is measured again.
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

// Add records that config is the best configuration of its path for a problem of a pass, a kit.Pass,
// of a kernel, with a device time of ns nanoseconds. It replaces an earlier record of the same three.
// Problem and config have the types of the kernel's package, such as attention.Problem and
// attention.Config. It is an error if no row can hold them.
func (t *Tuning) Add(kernel string, pass fmt.Stringer, problem, config any, ns float64) error {
	table := tables[[2]string{kernel, pass.String()}]
	if table == nil {
		return fmt.Errorf("kit: tuning: %s %v has no configurations to choose from", kernel, pass)
	}
	if err := table.add(t, problem, config, ns); err != nil {
		return fmt.Errorf("kit: tuning: %w", err)
	}
	return nil
}

// Words are a row of a Tuning in words.
type Words struct {
	Kernel, Pass    string
	Problem, Config string
	NS              float64
	// Err is the reason why the row has no effect for its own problem: the device cannot run it,
	// its kernels have changed, or this program does not have the kernel. Nil if it has an effect.
	Err error
}

// Rows returns the rows in the order of the file. Unless caps is nil, rows that the device cannot
// run have the reason in Err.
func (t *Tuning) Rows(caps *vk.Caps) (list []Words) {
	if t == nil {
		return nil
	}
	for _, r := range t.rows {
		x := Words{Kernel: r.Kernel, Pass: r.Pass, Problem: string(r.Problem), Config: string(r.Config), NS: r.NS}
		switch {
		case r.stale:
			x.Err = fmt.Errorf("kit: tuning: the kernels of the row have changed since it was measured")
		case r.measured == nil:
			x.Err = fmt.Errorf("kit: tuning: this program has no kernel %s %s", r.Kernel, r.Pass)
		default:
			if x.Problem, x.Config = r.measured.words(); caps != nil {
				x.Err = r.measured.runs(caps)
			}
		}
		list = append(list, x)
	}
	return list
}

// measuredOn returns the rows of q.Tuning for the table, if it is of the device.
func (t *Table[P, C, S]) measuredOn(caps *vk.Caps, q *Query[C]) (list []*measured[P, C, S]) {
	if q.Tuning == nil || q.Tuning.device != tuningDeviceOf(caps) {
		return nil
	}
	for i := range q.Tuning.rows {
		if m, ok := q.Tuning.rows[i].measured.(*measured[P, C, S]); ok && m.table == t {
			list = append(list, m)
		}
	}
	return list
}

// nearest returns the feasible row of a path of q.Tuning that is nearest to p, nil if there is
// none, and the reason why a nearer row is not feasible.
func (t *Table[P, C, S]) nearest(caps *vk.Caps, p *P, q *Query[C], path string) (*measured[P, C, S], Origin) {
	if q.Tuning == nil {
		return nil, Origin{}
	}
	var best *measured[P, C, S]
	var passed error
	least, nearer := math.Inf(1), math.Inf(1)
	like := t.Likeness(p)
	for _, row := range t.measuredOn(caps, q) {
		if row.path != path {
			continue
		}
		d := t.Likeness(&row.problem).distance(like)
		if d >= least {
			continue
		}
		c := t.fit(row, caps, p)
		if err := t.check(&c, caps, p, q); err == nil {
			best, least = row, d
		} else if d < nearer {
			nearer, passed = d, fmt.Errorf("the tuned row %v is passed over: %w", row.config, err)
		}
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
	for _, row := range t.measuredOn(caps, q) {
		if row.problem != same || row.path == t.Manual || row.ns >= best.ns {
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
func (t *Table[P, C, S]) fit(row *measured[P, C, S], caps *vk.Caps, p *P) C {
	if t.Fit == nil || row.problem == *p || t.Same != nil && t.Same(&row.problem, p) {
		return row.config
	}
	return t.Fit(row.config, caps, p, true)
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
func (t *Table[P, C, S]) add(to *Tuning, problem, config any, ns float64) (err error) {
	p, ok := problem.(P)
	c, alike := config.(C)
	if !ok || !alike {
		return fmt.Errorf("%s %v has problems of %T and configurations of %T, not %T and %T", t.Kernel, t.Pass, p, c, problem, config)
	}
	m := &measured[P, C, S]{t, p, c, t.Path(&c), ns}
	if err := t.validate(m); err != nil {
		return err
	}
	row := tunedRow{measured: m, tuningFileRow: tuningFileRow{
		Kernel: t.Kernel, Pass: t.Pass.String(), Module: t.Module(&p, &c), NS: ns, Made: time.Now().UTC().Format(time.RFC3339),
	}}
	if row.Problem, err = json.Marshal(fields(reflect.ValueOf(p))); err == nil {
		row.Config, err = json.Marshal(fields(reflect.ValueOf(c)))
	}
	if err != nil {
		return err
	}
	to.rows = append(slices.DeleteFunc(to.rows, func(old tunedRow) bool { return t.replaces(m, &old) }), row)
	return nil
}

// replaces reports whether m says what a row says, which may be stale.
func (t *Table[P, C, S]) replaces(m *measured[P, C, S], old *tunedRow) bool {
	if old.Kernel != t.Kernel || old.Pass != t.Pass.String() {
		return false
	}
	was, err := t.decode(old)
	return err == nil && was.problem == m.problem && was.path == m.path
}
