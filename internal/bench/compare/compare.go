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
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"

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
		switch x := in.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, x
		case *benchfmt.Result:
			lines++
			for _, c := range x.Config {
				if c.File {
					f.Config[c.Key] = string(c.Value)
				}
			}
			v, ok := x.Value(unit)
			if !ok {
				continue
			}
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, fmt.Errorf("%s: %s of %s is not finite", name, unit, x.Name)
			}
			if v < 0 {
				return nil, fmt.Errorf("%s: %s of %s is negative", name, unit, x.Name)
			}
			key := x.Name.String()
			if f.values[key] == nil {
				f.Order = append(f.Order, key)
			}
			f.values[key] = append(f.values[key], v)
		}
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
	}
	f.Better = in.Units().GetBetter(unit)
	if f.Better == 0 && strings.Contains(unit, "-sec/") {
		f.Better = -1 // a time of ours, beside the device's
	}
	if f.Better == 0 {
		return nil, fmt.Errorf("%s: it does not say which %s is better: a line like \"Unit %s better=lower\" is missing", name, unit, unit)
	}
	return f, nil
}

// A Change is a benchmark that is in both files.
type Change struct {
	Name     string
	Old, New benchmath.Summary
	N        [2]int
	P        float64
	Percent  float64 // by which the new median is larger than the old
	Worse    float64 // by which it is worse, in percent; negative: better
	Certain  bool    // the difference is significant
	Warnings []string
}

// A Report is the outcome.
type Report struct {
	Unit             string
	Old, New         *File
	Changes          []Change
	OnlyOld, OnlyNew []string
}

const confidence = 0.95

// Compare compares what both files have, in the order of the old one.
func Compare(before, after *File, unit string) (*Report, error) {
	r := &Report{Unit: unit, Old: before, New: after}
	if before.Better != after.Better {
		return nil, fmt.Errorf("%s and %s do not agree on which %s is better", before.Name, after.Name, unit)
	}
	for _, name := range before.Order {
		if after.values[name] == nil {
			r.OnlyOld = append(r.OnlyOld, name)
			continue
		}
		r.Changes = append(r.Changes, change(name, before.values[name], after.values[name], before.Better))
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

func change(name string, before, after []float64, better int) Change {
	a := benchmath.NewSample(slices.Clone(before), &benchmath.DefaultThresholds)
	b := benchmath.NewSample(slices.Clone(after), &benchmath.DefaultThresholds)
	test := benchmath.AssumeNothing.Compare(a, b)
	c := Change{
		Name: name, N: [2]int{len(before), len(after)}, P: test.P, Certain: test.P < test.Alpha,
		Old: benchmath.AssumeNothing.Summary(a, confidence), New: benchmath.AssumeNothing.Summary(b, confidence),
	}
	c.Percent = 100 * (c.New.Center/c.Old.Center - 1)
	c.Worse = -float64(better) * c.Percent
	for _, w := range test.Warnings {
		c.Warnings = append(c.Warnings, w.Error())
	}
	return c
}

// Worse returns the changes that are certain and worse by more than some
// percent, the worst first.
func (r *Report) Worse(percent float64) []Change {
	list := slices.DeleteFunc(slices.Clone(r.Changes), func(c Change) bool { return !c.Certain || !(c.Worse > percent) })
	slices.SortStableFunc(list, func(a, b Change) int {
		switch {
		case a.Worse > b.Worse:
			return -1
		case a.Worse < b.Worse:
			return 1
		}
		return 0
	})
	return list
}

// Geomean returns the geometric mean of new by old medians, and false if one of
// them is not positive.
func (r *Report) Geomean() (float64, bool) {
	sum := 0.0
	for _, c := range r.Changes {
		if !(c.Old.Center > 0 && c.New.Center > 0) {
			return 0, false
		}
		sum += math.Log(c.New.Center / c.Old.Center)
	}
	return math.Exp(sum / float64(len(r.Changes))), true
}

// differing returns the file keys whose values differ, in order.
func (r *Report) differing() []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(r.Old.Config)) {
		if value, ok := r.New.Config[key]; ok && value != r.Old.Config[key] {
			keys = append(keys, key)
		}
	}
	return keys
}
