package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench/sheet"
)

// A Suite is a list of problems whose results make one table, a row for each.
type Suite struct {
	Name     string
	About    string              // what it repeats
	Problems []attention.Problem // of attention

	sizes   []string // what tells the rows apart: names of sizeOf
	unit    unit     // of the columns of implementations
	target  float64  // of perSequence, in µs; 0: none
	shrinks shrink   // to the small form
	small   bool     // this is the small form
	retype  bool     // the format is not part of the suite
}

// A unit is what the columns of implementations show.
type unit string

const (
	milliseconds unit = "ms"
	perSequence  unit = "µs/seq" // time divided by batch
	teraflops    unit = "TFLOP/s"
	microseconds unit = "µs"
	gigaflops    unit = "GFLOP/s"
	megaflops    unit = "MFLOP/s"
)

// thousandth has the next smaller unit of some.
var thousandth = map[unit]unit{milliseconds: microseconds, teraflops: gigaflops, gigaflops: megaflops}

// fit returns the first of u and smaller units in which the largest of some values is 1 or more, and
// what to multiply values by that are in u.
func (u unit) fit(most float64) (smaller unit, by float64) {
	by = 1
	for most > 0 && most*by < 1 && thousandth[u] != "" {
		u, by = thousandth[u], by*1000
	}
	return u, by
}

// fitting is fit of results.
func (u unit) fitting(results []Result) unit {
	most := 0.0
	for _, x := range results {
		if x.Status == StatusOK {
			most = max(most, u.of(x))
		}
	}
	u, _ = u.fit(most)
	return u
}

// of returns the median of x in the unit.
func (u unit) of(x Result) float64 {
	switch u {
	case perSequence:
		return x.NS() / 1e3 / float64(x.Subject.key("batch").(int))
	case teraflops:
		return x.FLOPRate() / 1e12
	case gigaflops:
		return x.FLOPRate() / 1e9
	case megaflops:
		return x.FLOPRate() / 1e6
	case microseconds:
		return x.NS() / 1e3
	}
	return x.NS() / 1e6
}

// Grid returns the suite of the problems of flags with lists.
func Grid() *Suite { return &Suite{Name: "grid", About: "every combination of the sizes given"} }

// name returns the name for machines, "" for no suite.
func (s *Suite) name() string {
	switch {
	case s == nil:
		return ""
	case s.small:
		return s.Name + "-small"
	}
	return s.Name
}

// passColumn is the column of passes, where there are several.
const passColumn = "pass"

// sizeKeys are the keys of columns that have other names.
var sizeKeys = map[string]string{"kv": "kv_heads", "seqlen": "seq_q", "seqlen-kv": "seq_kv", "dim": "head_dim"}

func sizeKey(column string) string {
	if key, ok := sizeKeys[column]; ok {
		return key
	}
	return column
}

// sizeOf returns a size of a problem by the name of its column.
func sizeOf(of *Subject, name string) string {
	if name == passColumn {
		return of.pass.String()
	}
	if name == "B,H,N,D" {
		return fmt.Sprintf("%v,%v,%v,%v", of.key("batch"), of.key("heads"), of.key("seq_q"), of.key("head_dim"))
	}
	value := of.key(sizeKey(name))
	if value == nil {
		panic("bench: a suite has a column that does not exist")
	}
	return fmt.Sprint(value)
}

// suiteSection shows a suite: a row for each problem, a column for each implementation. Ratios are
// to the first implementation of a problem.
func (r Report) suiteSection() sheet.Section {
	suite := *r.Suite
	t := suiteTable{suite: &suite, groups: r.groups(), copy: r.Copy}
	if suite.sizes == nil && len(t.groups) > 0 {
		suite.sizes, suite.unit = t.differing(), milliseconds
		t.traffic = true
		if t.amounts = t.groups[0][0].Subject.amounts; len(t.amounts) > 0 {
			suite.unit = microseconds
		}
	}
	if slices.ContainsFunc(t.groups, func(g []Result) bool { return g[0].Subject.pass != t.groups[0][0].Subject.pass }) {
		suite.sizes = append(slices.Clone(suite.sizes), passColumn)
	}
	for _, g := range t.groups {
		for _, x := range g[1:] {
			if x.Peer && x.Status == StatusNoAnswer && !strings.Contains(x.Impl, ":") {
				continue // a whole peer: the notes say it
			}
			if !slices.Contains(t.others, x.Impl) {
				t.others = append(t.others, x.Impl)
			}
		}
	}
	var first []Result
	for _, g := range t.groups {
		first = append(first, g[0])
	}
	t.second = milliseconds
	if suite.unit != teraflops {
		t.second = teraflops
	}
	t.unit, t.second = suite.unit.fitting(r.Results), t.second.fitting(first)
	var s sheet.Section
	t.facts(&s)
	t.columns(&s)
	for _, g := range t.groups {
		s.Rows = append(s.Rows, t.row(g))
	}
	t.notes(&s)
	return s
}

// suiteTable is what the parts of a suite's table share.
type suiteTable struct {
	suite  *Suite
	groups [][]Result
	others []string // implementations but the first
	unit   unit     // of the columns of implementations
	second unit     // of the first one, again

	traffic bool     // is shown beside the rate
	amounts []Amount // are shown beside that
	copy    float64  // Report.Copy
}

// differing returns the keys that tell the problems apart.
func (t *suiteTable) differing() (names []string) {
	for _, g := range t.groups {
		for _, k := range g[0].Subject.keys {
			if !slices.Contains(names, k.Name) && k.Value != t.groups[0][0].Subject.key(k.Name) {
				names = append(names, k.Name)
			}
		}
	}
	return names
}

func (t *suiteTable) facts(s *sheet.Section) {
	s.Add("suite", "%s: %s", t.suite.Name, t.suite.About)
	if t.traffic {
		s.Add("kernel", "%s", t.groups[0][0].Subject.name)
	}
	if len(t.groups) > 0 && !slices.Contains(t.suite.sizes, passColumn) {
		s.Add("pass", "%v", t.groups[0][0].Subject.pass)
	}
	if d := t.suite.shrinks; t.suite.small && d == (shrink{}) {
		s.Add("small", "smaller cases of its kind: this is not the suite, but runs the same code")
	} else if t.suite.small {
		s.Add("small", "batch divided by %d, heads by %d, lengths by %d: this is not the suite, but runs the same code", d.batch, d.heads, d.seq)
	}
	if len(t.groups) == 0 {
		return
	}
	ours := t.groups[0][0].Impl
	if ours == "auto" {
		s.Add(ours, "the path that flashvk takes by itself, named under runs; other paths are forced")
	}
	if slices.Contains(t.others, attention.Unfused.String()) {
		s.Add("unfused", "GEMM, softmax, GEMM with all scores in memory: what PyTorch calls MATH")
	}
	s.Add("time", "device time per call, median of samples; of %s, %s", ours, IntervalWords)
	if slices.ContainsFunc(t.others, t.compared) {
		s.Add("ratio", "time/%s is the time of the column before it by that of %s: above 1, %s is faster", ours, ours, ours)
	}
	if t.share() {
		s.Add("of copy", "bytes a second by the %s of a copy in the same run", FormatSI(t.copy, "B/s"))
	}
	s.Add("check", "against a float64 reference, on %s", t.rowsChecked())
}

// rowsChecked says how many rows of each problem were compared.
func (t *suiteTable) rowsChecked() string {
	least := 0
	for _, g := range t.groups {
		for _, x := range g {
			if c := x.Check; c.Rows < c.OfRows && (least == 0 || c.Rows < least) {
				least = c.Rows
			}
		}
	}
	counted := t.groups[0][0].Check.Counted
	if counted == "" { // none of ours was checked
		counted = "rows"
	}
	if least == 0 {
		return "all " + counted
	}
	return fmt.Sprintf("all "+counted+", or where there are many on a sample, of %d at least", least)
}

func (t *suiteTable) columns(s *sheet.Section) {
	add := func(number bool, names ...string) {
		for _, n := range names {
			s.Columns = append(s.Columns, sheet.Column{Name: n, Number: number, Wide: n == "mean|Δ|" || n == "GB/s"})
		}
	}
	s.Keys = len(t.suite.sizes)
	for _, n := range t.suite.sizes {
		_, number := t.groups[0][0].Subject.key(sizeKey(n)).(int)
		add(number, n)
	}
	ours := t.groups[0][0].Impl
	add(true, ours+" "+string(t.unit))
	for _, impl := range t.others {
		add(true, impl+" "+string(t.unit))
		if t.compared(impl) {
			add(true, "time/"+ours)
		}
	}
	if t.suite.target > 0 {
		add(true, fmt.Sprintf("vs %g µs", t.suite.target))
	}
	if t.suite.unit == teraflops {
		add(true, ours+" "+string(t.second))
	} else {
		add(true, string(t.second))
	}
	if t.traffic {
		add(true, "GB/s")
	}
	for _, a := range t.amounts {
		prefix, unit, _ := a.scale()
		add(true, a.Name+" "+prefix+unit+"/s")
	}
	if t.share() {
		add(true, "of copy")
	}
	add(true, "±", "max|Δ|", "mean|Δ|")
	add(false, "check", "runs")
}

// scale returns how a column shows an amount a second: a prefix, the unit, and what to divide by.
func (a *Amount) scale() (prefix, unit string, by float64) {
	if a.Unit == "B" {
		return "G", a.Unit, 1e9
	}
	return "k", a.Unit, 1e3
}

// share reports whether there is a share of a copy's rate to show.
func (t *suiteTable) share() bool { return len(t.amounts) > 0 && t.copy > 0 }

// compared reports whether an implementation has a column of ratios to ours: a peer, and the
// unfused formula.
func (t *suiteTable) compared(impl string) bool {
	if impl == attention.Unfused.String() {
		return true
	}
	return slices.ContainsFunc(t.groups, func(g []Result) bool {
		return slices.ContainsFunc(g, func(x Result) bool { return x.Peer && x.Impl == impl })
	})
}

func (t *suiteTable) row(g []Result) []string {
	ours := g[0]
	find := func(impl string) (x Result) {
		if i := slices.IndexFunc(g, func(x Result) bool { return x.Impl == impl }); i >= 0 {
			x = g[i]
		}
		return x
	}
	var row []string
	for _, n := range t.suite.sizes {
		row = append(row, sizeOf(ours.Subject, n))
	}
	row = append(row, t.cell(ours))
	for _, impl := range t.others {
		x := find(impl)
		row = append(row, t.cell(x))
		if t.compared(impl) {
			row = append(row, ratio(x.NS(), ours.NS()))
		}
	}
	if t.suite.target > 0 {
		row = append(row, ratio(t.suite.target, perSequence.of(ours)))
	}
	if ours.Status != StatusOK {
		row = append(row, "-", "-")
		if t.traffic {
			row = append(row, "-")
		}
		for range t.amounts {
			row = append(row, "-")
		}
		if t.share() {
			row = append(row, "-")
		}
	} else {
		row = append(row, significant(t.second.of(ours)))
		if t.traffic {
			row = append(row, significant(ours.ByteRate()/1e9))
		}
		for _, a := range ours.Subject.amounts {
			_, _, by := a.scale()
			row = append(row, significant(ours.rate(a.N)/by))
		}
		if t.share() {
			row = append(row, fmt.Sprintf("%.1f%%", 100*Report{Copy: t.copy}.CopyShare(ours)))
		}
		row = append(row, Summarize(ours.Timing.DeviceNS).PlusMinus())
	}
	if ours.Status != StatusOK && ours.Status != StatusFailed {
		return append(row, "-", "-", "-", "-")
	}
	check := checkCells(ours)
	return append(row, check[0], check[2], check[3], ours.Choice)
}

// cell shows a result in the suite's unit.
func (t *suiteTable) cell(x Result) string {
	switch x.Status {
	case StatusOK:
		return significant(t.unit.of(x))
	case StatusFailed:
		return "FAIL"
	}
	return "-"
}

// notes says why cells are empty, once for each implementation and reason.
func (t *suiteTable) notes(s *sheet.Section) {
	type cause struct {
		impl, reason string
		status       Status
	}
	var order []Result
	rows := make(map[cause][]int)
	for i, g := range t.groups {
		for _, x := range g {
			if x.Reason == "" {
				continue
			}
			c := cause{x.Impl, x.Reason, x.Status}
			if rows[c] == nil {
				order = append(order, x)
			}
			rows[c] = append(rows[c], i+1)
		}
	}
	for _, x := range order {
		s.Notes = append(s.Notes, x.complaint(", "+ranges(rows[cause{x.Impl, x.Reason, x.Status}])))
	}
}

// ranges writes ascending numbers as rows 1-3, 5.
func ranges(list []int) string {
	var parts []string
	for first := 0; first < len(list); {
		last := first
		for last+1 < len(list) && list[last+1] == list[last]+1 {
			last++
		}
		part := strconv.Itoa(list[first])
		if last > first {
			part += "-" + strconv.Itoa(list[last])
		}
		parts, first = append(parts, part), last+1
	}
	word := "row "
	if len(list) > 1 {
		word = "rows "
	}
	return word + strings.Join(parts, ", ")
}

// ratio returns other/ours as 1.23x.
func ratio(other, ours float64) string {
	if other == 0 || ours == 0 {
		return "-"
	}
	return significant(other/ours) + "x"
}

// significant returns x with three significant digits, more before the point
// if it has more there.
func significant(x float64) string {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	magnitude := int(math.Floor(math.Log10(math.Abs(x))))
	if math.Abs(x) >= 9.995*math.Pow10(magnitude) { // rounds up to one digit more
		magnitude++
	}
	return strconv.FormatFloat(x, 'f', max(2-magnitude, 0), 64)
}
