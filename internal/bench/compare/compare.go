// Package compare compares two files of benchmark lines: medians, their
// confidence intervals, and whether they differ significantly, as benchstat
// does.
//
// A benchmark has become worse by a percentage if that is how far its median
// moved and the Mann-Whitney U test finds that the samples do not come from one
// distribution (p < 0.05). That takes four samples of each at least.
package compare

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
	"golang.org/x/perf/benchunit"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/files"
)

// A File has the samples of one unit.
type File struct {
	Name   string
	Config map[string]string // file keys, such as gpu; the last value of each
	Better int               // +1: larger values are, -1: smaller ones
	Order  []string          // names of benchmarks as they came
	values map[string][]float64
}

// Read reads the samples of a unit, such as sec/op.
func Read(r io.Reader, name, unit string) (*File, error) {
	f := &File{Name: name, Config: map[string]string{}, values: map[string][]float64{}}
	in := benchfmt.NewReader(files.Results(r), name)
	lines := 0
	for in.Scan() {
		if err, wrong := in.Result().(*benchfmt.SyntaxError); wrong {
			return nil, err
		}
		x, ok := in.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		lines++
		for _, c := range x.Config {
			f.Config[c.Key] = string(c.Value)
		}
		v, ok := x.Value(unit)
		if !ok {
			continue
		}
		if !(v >= 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%s: %s of %s is %g, which is negative or not finite", name, unit, x.Name, v)
		}
		key := x.Name.String()
		if f.values[key] == nil {
			f.Order = append(f.Order, key)
		}
		f.values[key] = append(f.values[key], v)
	}
	f.Better = in.Units().GetBetter(unit)
	if f.Better == 0 && strings.Contains(unit, "-sec/") {
		f.Better = -1 // a time of ours, beside the device's
	}
	switch err := in.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s: a line has more than %d bytes: it is no file of benchmark lines", name, bufio.MaxScanTokenSize)
	case err != nil:
		return nil, err
	case lines == 0:
		return nil, fmt.Errorf("%s: there is no benchmark line", name)
	case len(f.Order) == 0:
		return nil, fmt.Errorf("%s: no benchmark line has the unit %s", name, unit)
	case f.Better == 0:
		return nil, fmt.Errorf("%s: it does not say which %s is better: a line like \"Unit %s better=lower\" is missing", name, unit, unit)
	}
	return f, nil
}

// A Change is a benchmark that is in both files.
type Change struct {
	Name     string
	Old, New benchmath.Summary
	benchmath.Comparison
	Percent float64 // by which the new median is larger than the old
	Worse   float64 // by which it is worse, in percent; negative: better
	Certain bool    // the difference is significant
}

// A Report is the outcome.
type Report struct {
	Unit             string
	Old, New         *File
	Changes          []Change
	OnlyOld, OnlyNew []string
}

// Compare compares what both files have, in the order of the old one.
func Compare(before, after *File, unit string) (*Report, error) {
	r := &Report{Unit: unit, Old: before, New: after}
	if before.Better != after.Better {
		return nil, fmt.Errorf("%s and %s do not agree on which %s is better", before.Name, after.Name, unit)
	}
	const confidence = 0.95
	for _, name := range before.Order {
		if after.values[name] == nil {
			r.OnlyOld = append(r.OnlyOld, name)
			continue
		}
		a := benchmath.NewSample(slices.Clone(before.values[name]), &benchmath.DefaultThresholds)
		b := benchmath.NewSample(slices.Clone(after.values[name]), &benchmath.DefaultThresholds)
		c := Change{
			Name: name, Comparison: benchmath.AssumeNothing.Compare(a, b),
			Old: benchmath.AssumeNothing.Summary(a, confidence), New: benchmath.AssumeNothing.Summary(b, confidence),
		}
		c.Certain = c.P < c.Alpha
		c.Percent = 100 * (c.New.Center/c.Old.Center - 1)
		c.Worse = -float64(before.Better) * c.Percent
		r.Changes = append(r.Changes, c)
	}
	for _, name := range after.Order {
		if before.values[name] == nil {
			r.OnlyNew = append(r.OnlyNew, name)
		}
	}
	if len(r.Changes) == 0 {
		return nil, errors.New("no benchmark is in both " + before.Name + " and " + after.Name)
	}
	return r, nil
}

// Worse returns the changes that are certain and worse by more than some
// percent, the worst first.
func (r *Report) Worse(percent float64) []Change {
	list := slices.DeleteFunc(slices.Clone(r.Changes), func(c Change) bool { return !c.Certain || !(c.Worse > percent) })
	slices.SortStableFunc(list, func(a, b Change) int { return cmp.Compare(b.Worse, a.Worse) })
	return list
}

// Sheet shows r. Changes that are certain and worse by more than some percent are
// marked.
func (r *Report) Sheet(percent float64) sheet.Sheet {
	var s sheet.Section
	for i, f := range []*File{r.Old, r.New} {
		text := f.Name
		for _, key := range []string{"gpu", "driver", "commit"} {
			if v := f.Config[key]; v != "" {
				text += ", " + key + " " + v
			}
		}
		s.Add([]string{"old", "new"}[i], "%s", text)
	}
	for _, key := range []string{"gpu", "driver"} {
		if a, b := r.Old.Config[key], r.New.Config[key]; a != b && a != "" && b != "" {
			s.Add(sheet.Warning, "%s differs: this compares %q with %q, not only two programs", key, a, b)
		}
	}
	s.Add("unit", "%s, median ± its 95 %% confidence interval, ∞ below six samples", r.Unit)
	s.Add("change", "of the median; ~ where the samples may come from one distribution (Mann-Whitney U test, p >= 0.05)")
	value := func(x float64) string {
		text := benchunit.Scale(x, benchunit.ClassOf(r.Unit))
		if r.Unit == "sec/op" || strings.Contains(r.Unit, "-sec/") {
			text += "s"
		}
		return text
	}
	sum := 0.0
	s.Columns = sheet.Columns([]string{"benchmark", "old", "±", "new", "±", "change", "p", "samples"}, "benchmark", "samples")
	s.Columns[7].Wide = true
	for _, c := range r.Changes {
		change := c.FormatDelta(c.Old.Center, c.New.Center)
		if c.Certain && c.Worse > percent {
			change = "WORSE " + change
		}
		s.Rows = append(s.Rows, []string{
			c.Name, value(c.Old.Center), c.Old.PctRangeString(), value(c.New.Center), c.New.PctRangeString(),
			change, fmt.Sprintf("%.3f", c.P), fmt.Sprintf("%d, %d", c.N1, c.N2),
		})
		sum += math.Log(c.New.Center / c.Old.Center)
		for _, w := range c.Warnings {
			if text := "some changes: " + w.Error(); !slices.Contains(s.Notes, text) {
				s.Notes = append(s.Notes, text)
			}
		}
	}
	if mean := math.Exp(sum / float64(len(r.Changes))); mean > 0 && !math.IsInf(mean, 0) {
		s.Note("geometric mean of new by old: %.3f (%+.2f%%)", mean, 100*(mean-1))
	}
	for _, name := range r.OnlyOld {
		s.Note("only in %s: %s", r.Old.Name, name)
	}
	for _, name := range r.OnlyNew {
		s.Note("only in %s: %s", r.New.Name, name)
	}
	return sheet.Sheet{Sections: []sheet.Section{s}}
}
