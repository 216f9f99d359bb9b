package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"
	"golang.org/x/perf/benchunit"

	"github.com/flashvk/flashvk/internal/bench/sheet"
)

// Sheet shows r. Changes that are certain and worse by more than some percent are
// marked.
func (r *Report) Sheet(percent float64) sheet.Sheet {
	var s sheet.Section
	s.Add("old", "%s%s", r.Old.Name, r.Old.describe())
	s.Add("new", "%s%s", r.New.Name, r.New.describe())
	for _, key := range []string{"gpu", "driver"} {
		if slices.Contains(r.differing(), key) {
			s.Add(sheet.Warning, "%s differs: this compares %q with %q, not only two programs", key, r.Old.Config[key], r.New.Config[key])
		}
	}
	s.Add("unit", "%s, median ± its 95 %% confidence interval, ∞ below six samples", r.Unit)
	s.Add("change", "of the median; ~ where the samples may come from one distribution (Mann-Whitney U test, p >= 0.05)")
	common, short := shorten(r.names())
	if common != "" {
		s.Add("common", "%s", common)
	}
	s.Columns = []sheet.Column{
		{Name: "benchmark"}, {Name: "old", Number: true}, {Name: "±", Number: true}, {Name: "new", Number: true}, {Name: "±", Number: true},
		{Name: "change", Number: true}, {Name: "p", Number: true}, {Name: "samples", Wide: true},
	}
	var warnings []string
	for i, c := range r.Changes {
		change := c.delta()
		if c.Certain && c.Worse > percent {
			change = "WORSE " + change
		}
		s.Rows = append(s.Rows, []string{
			short[i], r.format(c.Old.Center), interval(c.Old), r.format(c.New.Center), interval(c.New),
			change, fmt.Sprintf("%.3f", c.P), fmt.Sprintf("%d, %d", c.N[0], c.N[1]),
		})
		for _, w := range c.Warnings {
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	if mean, ok := r.Geomean(); ok {
		s.Note("geometric mean of new by old: %.3f (%+.2f%%)", mean, 100*(mean-1))
	}
	for _, w := range warnings {
		s.Note("some changes: %s", w)
	}
	for _, x := range []struct {
		list []string
		file *File
	}{{r.OnlyOld, r.Old}, {r.OnlyNew, r.New}} {
		for _, name := range x.list {
			s.Note("only in %s: %s", x.file.Name, name)
		}
	}
	return sheet.Sheet{Sections: []sheet.Section{s}}
}

// describe returns what the file says of where it was made.
func (f *File) describe() string {
	text := ""
	for _, key := range []string{"gpu", "driver", "commit"} {
		if v := f.Config[key]; v != "" {
			text += ", " + key + " " + v
		}
	}
	return text
}

func (r *Report) names() []string {
	names := make([]string, len(r.Changes))
	for i, c := range r.Changes {
		names[i] = c.Name
	}
	return names
}

// format writes a value of the unit with a prefix, as in 1.234ms.
func (r *Report) format(x float64) string {
	text := benchunit.Scale(x, benchunit.ClassOf(r.Unit))
	if r.Unit == "sec/op" || strings.Contains(r.Unit, "-sec/") {
		text += "s"
	}
	return text
}

// interval returns how far the ends of the interval are from the median.
func interval(s benchmath.Summary) string {
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) || s.Center == 0 {
		return "∞"
	}
	return fmt.Sprintf("%.0f%%", 100*max(s.Hi-s.Center, s.Center-s.Lo)/math.Abs(s.Center))
}

// delta returns the change, or ~ if it is not certain.
func (c *Change) delta() string {
	if !c.Certain {
		return "~"
	}
	return fmt.Sprintf("%+.2f%%", c.Percent)
}

// shorten takes the parts that all names have out of them. Parts stand between
// slashes; the first one stays.
func shorten(names []string) (common string, short []string) {
	parts := make([][]string, len(names))
	for i, n := range names {
		parts[i] = strings.Split(n, "/")
	}
	everywhere := func(part string) bool {
		return !slices.ContainsFunc(parts, func(p []string) bool { return !slices.Contains(p[1:], part) })
	}
	var shared []string
	if len(names) > 1 {
		for _, part := range parts[0][1:] {
			if everywhere(part) && !slices.Contains(shared, part) {
				shared = append(shared, part)
			}
		}
	}
	for _, p := range parts {
		kept := slices.DeleteFunc(slices.Clone(p[1:]), func(part string) bool { return slices.Contains(shared, part) })
		short = append(short, strings.Join(append(p[:1:1], kept...), "/"))
	}
	return strings.Join(shared, "/"), short
}
