package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Search says how to look for the best configuration of a problem.
type Search struct {
	Impls  []string      // paths
	Skip   []Candidate   // not to be tried again: they lost the device
	Budget time.Duration // for trying candidates; what they are timed for comes on top
	Hang   time.Duration // a candidate that takes longer for one call is dropped
	Quick  Protocol      // of the round in which all candidates meet
	Final  Protocol      // of the round of the finalists
	Few    int           // finalists
}

// DefaultSearch returns the search of paths for a GPU or a CPU device.
func DefaultSearch(cpu bool, impls []string, budget time.Duration) Search {
	s := Search{
		Impls: impls, Budget: budget, Hang: 10 * time.Second, Quick: DefaultProtocol(cpu), Final: DefaultProtocol(cpu), Few: 6,
	}
	s.Quick.Samples, s.Quick.SampleTime, s.Quick.WallTime = 3, s.Quick.SampleTime/4, -1
	s.Final.WallTime = -1
	return s
}

// A Trial is the result of a candidate. Result.Timing is the timing of the final round. A candidate
// that did not get there has QuickNS only.
type Trial struct {
	Result
	Configuration Candidate
	Table         bool    // the built-in table takes it
	QuickNS       float64 // median of the quick round; 0: not reached
	Stats         vk.KernelStats
}

// NS returns the best known device time of a call, 0 if the trial failed.
func (t *Trial) NS() float64 {
	if len(t.Timing.DeviceNS) > 0 {
		return Summarize(t.Timing.DeviceNS).Median
	}
	return t.QuickNS
}

// Final reports whether the trial was a finalist and right to the end.
func (t *Trial) Final() bool { return t.Status == StatusOK && len(t.Timing.DeviceNS) > 0 }

// Tuned is the outcome of a search: finalists, the best first, then the others
// by their quick times, then those that failed.
type Tuned struct {
	Of      Tunable
	Trials  []Trial
	Untried int // candidates for which there was no time
}

// Winners returns the best finalist of each path, the best first.
func (t *Tuned) Winners() []*Trial {
	var list []*Trial
	for i := range t.Trials {
		x := &t.Trials[i]
		if x.Final() && !slices.ContainsFunc(list, func(w *Trial) bool { return w.Impl == x.Impl }) {
			list = append(list, x)
		}
	}
	return list
}

// A LostError names the candidate that lost the device. It wraps vk.ErrDeviceLost or trial.ErrHung.
// After vk.ErrDeviceLost the search may be repeated on the device opened anew, with the candidate
// in Search.Skip.
type LostError struct {
	Config Candidate
	Err    error
}

func (e *LostError) Error() string { return fmt.Sprintf("%v: %v", e.Config, e.Err) }

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// Tune looks for the fastest configuration of each path for a problem:
//
//  1. Every candidate, the table's choice first, is compiled, run once and compared with the reference, until
//     3/5 of the budget is spent. One that does not compile, is wrong or hangs is noted and dropped.
//  2. All that are right are timed in a quick round, in turns.
//  3. The variants of the best of each path go through the same.
//  4. The best few, at least two of each path and the table's, are timed well, in turns.
//
// The error wraps vk.ErrUnsupported if no path has a candidate. A LostError says that a candidate
// lost the device. The results so far are returned with it.
func Tune(ctx context.Context, d *vk.Device, of Tunable, s Search, progress Progress) (Tuned, error) {
	run := newTuning(d, of, s, progress)
	defer run.r.close()
	err := run.tune(ctx)
	return run.outcome(), err
}

// tuning is one search.
type tuning struct {
	Search
	d        *vk.Device
	of       Tunable
	r        *opRun
	record   func(c Candidate) func(*vk.Cmd, int) error // returns what records a call of c
	tables   []Candidate                                // what the table takes for each path
	trials   []*Trial
	targets  map[*Trial]Target // of those that are right
	untried  int
	progress Progress
}

func newTuning(d *vk.Device, of Tunable, s Search, progress Progress) *tuning {
	r := newOpRun(d, Case{Op: of.Op, Pass: of.Pass})
	record := func(c Candidate) func(*vk.Cmd, int) error { return r.call(of.With(c), "auto") }
	return &tuning{Search: s, d: d, of: of, r: r, record: record, targets: make(map[*Trial]Target), progress: progress}
}

// Phases of a search, of which each is as much progress as the others: candidates and then variants
// are tried and timed quickly, then come the finals.
const (
	trying = 0
	finals = 4
	phases = 5
)

// phase returns the progress of a phase.
func (t *tuning) phase(phase int) Progress { return t.progress.Part(phase, phases, "") }

func (t *tuning) tune(ctx context.Context) error {
	start := time.Now()
	list, err := t.candidates()
	if err != nil {
		return err
	}
	t.phase(trying)(0, 1, "reference")
	if err := t.r.prepare(ctx); err != nil {
		return err
	}
	deadline := start.Add(t.Budget * 3 / 5)
	for phase := trying; phase < finals && len(list) > 0; phase += 2 {
		tried, err := t.try(ctx, list, deadline, phase)
		if err == nil {
			err = t.r.addSets(ctx, t.Final.sets(t.r.subject.bytes))
		}
		if err != nil {
			return err
		}
		// The leaders take part again: the clock may have changed since their first times.
		if err := t.quick(ctx, append(tried, t.best(1)...), phase+1); err != nil {
			return err
		}
		list, deadline = t.variants(), start.Add(max(t.Budget, time.Since(start)+t.Budget/5))
	}
	return t.final(ctx)
}

// variants returns the untried variants of the best candidates of each path.
func (t *tuning) variants() (list []Candidate) {
	for _, best := range t.best(2) {
		for _, v := range t.of.Variants(t.d.Caps(), best.Configuration) {
			known := slices.ContainsFunc(t.trials, func(x *Trial) bool { return x.Configuration == v })
			if !known && !slices.Contains(t.Skip, v) && !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
	return list
}

// candidates returns what to try. The paths take turns, so that each has its share of the budget.
func (t *tuning) candidates() ([]Candidate, error) {
	var lists [][]Candidate
	var reason error
	for _, impl := range t.Impls {
		list, err := t.of.Candidates(t.d.Caps(), impl)
		if err == nil {
			lists, t.tables = append(lists, list), append(t.tables, list[0])
		}
		reason = cmp.Or(reason, err)
	}
	if len(lists) == 0 {
		return nil, cmp.Or(reason, fmt.Errorf("bench: nothing to tune: %w", vk.ErrUnsupported))
	}
	var all []Candidate
	for i := 0; len(lists) > 0; i++ {
		lists = slices.DeleteFunc(lists, func(list []Candidate) bool { return i >= len(list) })
		for _, list := range lists {
			if !slices.Contains(t.Skip, list[i]) {
				all = append(all, list[i])
			}
		}
	}
	return all, nil
}

// try compiles and checks configurations until the deadline, and returns those that are right. It
// tries one at least, and always the table's choice.
func (t *tuning) try(ctx context.Context, list []Candidate, deadline time.Time, phase int) (right []*Trial, err error) {
	for i, c := range list {
		table := slices.Contains(t.tables, c)
		if i > 0 && !table && time.Now().After(deadline) {
			t.untried += len(list) - i
			break
		}
		t.phase(phase)(i, len(list), "trying "+c.String())
		path, choice := t.of.Path(c), c.String()
		x := &Trial{Configuration: c, Table: table, Result: t.r.subject.unsupported(path, "")}
		x.Choice, x.Config = choice, strings.Join(strings.Fields(strings.TrimPrefix(choice, path+" ")), "-")
		t.trials = append(t.trials, x)
		if err := t.check(ctx, x); err != nil {
			return nil, err
		}
		if x.Status == StatusOK {
			right = append(right, x)
		}
	}
	return right, nil
}

// check compiles a candidate, runs it once and compares the outputs. An error
// means that the search cannot go on.
func (t *tuning) check(ctx context.Context, x *Trial) error {
	record := t.record(x.Configuration)
	err := t.compile(record, x)
	if err == nil {
		var target Target
		limited, cancel := context.WithTimeout(ctx, t.Hang)
		target, err = t.r.check(limited, record, &x.Result)
		cancel()
		if err == nil && x.Status == StatusOK {
			target.Name = x.Choice
			t.targets[x] = target
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, vk.ErrDeviceLost):
		x.Status, x.Reason = StatusFailed, err.Error()
		return &LostError{x.Configuration, err}
	case errors.Is(err, context.DeadlineExceeded):
		x.Status, x.Reason = StatusFailed, fmt.Sprintf("it did not finish within %v", t.Hang)
		return t.recover(ctx, x)
	case errors.Is(err, vk.ErrUnsupported):
		x.Reason = Reason(t.of.Op.Name(), x.Impl, err)
	default:
		x.Status, x.Reason = StatusFailed, err.Error()
	}
	return nil
}

// compile makes the kernels of a call without running them, and notes what the driver says
// about them: the largest numbers, if there are several.
func (t *tuning) compile(record func(*vk.Cmd, int) error, x *Trial) error {
	c, err := t.d.NewCmd("tune compile")
	if err != nil {
		return err
	}
	defer c.Close()
	trace, err := t.d.NewTrace(maxDispatch)
	if err != nil {
		return err
	}
	defer trace.Close()
	c.Trace(trace)
	if err := record(c, 0); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, k := range trace.Dispatches() {
		s := &x.Stats
		if !seen[k.Kernel] {
			s.Created += k.Stats.Created
		}
		seen[k.Kernel] = true
		s.Available = s.Available || k.Stats.Available
		s.Registers = max(s.Registers, k.Stats.Registers)
		s.SpillBytes = max(s.SpillBytes, k.Stats.SpillBytes)
		s.SharedBytes = max(s.SharedBytes, k.Stats.SharedBytes)
		s.CodeBytes = max(s.CodeBytes, k.Stats.CodeBytes)
	}
	return nil
}

// recover waits for the device to finish what a candidate started.
func (t *tuning) recover(ctx context.Context, x *Trial) error {
	if err := trial.Recover(ctx, t.d, recoverTime); err != nil && ctx.Err() == nil {
		return &LostError{x.Configuration, err}
	}
	return ctx.Err()
}

// recoverTime is the time that the device gets to come back from a candidate that took too long.
const recoverTime = time.Minute

// measure times trials in turns. Outputs are checked again in the finals.
func (t *tuning) measure(ctx context.Context, list []*Trial, pr Protocol, phase int, what string) ([]Measured, error) {
	targets := make([]Target, len(list))
	for i, x := range list {
		targets[i] = t.targets[x]
		if phase != finals {
			targets[i].Verify = nil
		}
	}
	step := t.phase(phase).Steps(MeasureSteps(len(list), pr))
	step(what)
	return Measure(ctx, t.d, targets, len(t.r.sets), pr, func() { step(what) })
}

// quick times trials in turns and notes the medians.
func (t *tuning) quick(ctx context.Context, list []*Trial, phase int) error {
	measured, err := t.measure(ctx, list, t.Quick, phase, "quick round")
	for i, m := range measured {
		list[i].QuickNS = max(Summarize(m.Timing.DeviceNS).Median, math.SmallestNonzeroFloat64)
	}
	return err
}

// best returns the n best of each path by their quick times, the best of all
// first.
func (t *tuning) best(n int) []*Trial {
	count := make(map[string]int)
	var list []*Trial
	for _, x := range t.ranked() {
		if count[x.Impl] < n {
			count[x.Impl]++
			list = append(list, x)
		}
	}
	return list
}

// ranked returns the trials that are right and timed by their quick times.
func (t *tuning) ranked() []*Trial {
	list := slices.DeleteFunc(slices.Clone(t.trials), func(x *Trial) bool { return x.Status != StatusOK || x.QuickNS == 0 })
	slices.SortStableFunc(list, func(a, b *Trial) int { return cmp.Compare(a.QuickNS, b.QuickNS) })
	return list
}

// final times the best few long enough for a decision.
func (t *tuning) final(ctx context.Context) error {
	ranked := t.ranked()
	list := slices.Clone(ranked[:min(t.Few, len(ranked))])
	leaders := t.best(2)
	for _, x := range ranked {
		if !slices.Contains(list, x) && (x.Table || slices.Contains(leaders, x)) {
			list = append(list, x)
		}
	}
	measured, err := t.measure(ctx, list, t.Final, finals, "finals")
	for i, m := range measured {
		list[i].Timing = m.Timing
		if m.Err != nil {
			list[i].Status, list[i].Reason, list[i].Timing = StatusFailed, m.Err.Error(), Timing{}
		}
	}
	return err
}

// outcome returns the trials in their order.
func (t *tuning) outcome() Tuned {
	out := Tuned{Of: t.of, Untried: t.untried}
	for _, x := range t.trials {
		out.Trials = append(out.Trials, *x)
	}
	class := func(x *Trial) int {
		switch {
		case x.Final():
			return 0
		case x.Status == StatusOK && x.QuickNS > 0:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(out.Trials, func(a, b Trial) int {
		return cmp.Or(cmp.Compare(class(&a), class(&b)), cmp.Compare(a.NS(), b.NS()))
	})
	return out
}

// A Candidate is a configuration that a search tries, such as an attention.Config. Candidates are
// compared with ==.
type Candidate = table.Config

// A Tunable is a pass of a problem with configurations to choose from.
type Tunable struct {
	table.Space
	Op   Op
	Pass Pass
	With func(c Candidate) Op // returns the Op with c
}

// Keep adds c to the tuning of the device, with the device time of a call.
func (t *Tunable) Keep(to *kit.Tuning, c Candidate, ns float64) error {
	if err := t.Space.Keep(to, c, ns); err != nil {
		return fmt.Errorf("bench: %v: %w", c, err)
	}
	return nil
}

// Sheet returns the trials for people: those that were timed, the best first, then those that
// failed.
func (t *Tuned) Sheet() sheet.Sheet {
	var s sheet.Section
	s.Add("problem", "%s", Title(t.Of.Op, t.Of.Pass))
	s.Add("*", "what the built-in table takes")
	s.Add("time", "device time per call, median; for finalists %s", IntervalWords)
	s.Add("kernel", "registers and spilled bytes per invocation, shared memory per workgroup, as the driver says")
	s.Facts[len(s.Facts)-1].Wide = true
	for i, name := range []string{"configuration", "time", "±", "rate", "registers", "spilled", "shared", "code", "compiled in", "max|Δ|"} {
		s.Columns = append(s.Columns, sheet.Column{Name: name, Number: i > 0, Wide: 4 <= i && i < 9})
	}
	for i := range t.Trials {
		x := &t.Trials[i]
		switch {
		case x.Status == StatusUnsupported:
			s.Note("%s was left out: %s", x.Choice, text.Line(x.Reason))
		case x.Status == StatusFailed:
			s.Note("%s FAILED: %s", x.Choice, text.Line(x.Reason))
		case x.NS() > 0:
			name := x.Choice
			if x.Table {
				name += " *"
			}
			row := []string{name, FormatTime(x.NS()), Summarize(x.Timing.DeviceNS).PlusMinus(), FormatSI(x.Subject.flops/x.NS()*1e9, "FLOP/s"), "-", "-", "-", "-"}
			if s := x.Stats; s.Available {
				row = append(row[:4], fmt.Sprint(s.Registers), fmt.Sprint(s.SpillBytes), fmt.Sprint(s.SharedBytes), FormatBytes(s.CodeBytes))
			}
			s.Rows = append(s.Rows, append(row, FormatTime(float64(x.Stats.Created)), formatError(x.Check.MaxAbs)))
		}
	}
	if t.Untried > 0 {
		s.Note("%d candidates were not tried for lack of time", t.Untried)
	}
	return sheet.Sheet{Sections: []sheet.Section{s}}
}

// Results returns the finalists, for a Report.
func (t *Tuned) Results() []Result {
	var list []Result
	for i := range t.Trials {
		if x := &t.Trials[i]; x.Final() {
			list = append(list, x.Result)
		}
	}
	return list
}
