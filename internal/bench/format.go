package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
)

// A Format is a way to write a report.
type Format = string

const (
	Table    Format = "table"    // for people, on a terminal
	Markdown Format = "markdown" // the same, to be pasted
	Benchfmt Format = "benchfmt" // the Go benchmark format, one line per sample; benchstat reads it
	CSV      Format = "csv"      // one line per result
	JSON     Format = "json"     // everything, samples included
)

// Formats lists every format.
func Formats() []Format { return []Format{Table, Markdown, Benchfmt, CSV, JSON} }

// Write writes r to w in the format f.
func (r Report) Write(w io.Writer, f Format) error {
	switch f {
	case Benchfmt:
		return r.writeBenchfmt(w)
	case CSV:
		return csv.NewWriter(w).WriteAll(r.csvLines())
	case JSON:
		return r.writeJSON(w)
	}
	s := r.Sheet()
	if r.Quiet {
		s.Quiet()
	}
	return WriteSheet(w, s, f, r.Wide)
}

// TerminalWidth is the width of a table that is not wide.
const TerminalWidth = 100

// WriteSheet writes s as Markdown if f says so, else as text, with all columns if wide.
func WriteSheet(w io.Writer, s sheet.Sheet, f Format, wide bool) error {
	if f == Markdown {
		return s.Markdown(w)
	}
	if !wide {
		s.Width = TerminalWidth
	}
	return s.Text(w)
}

// writeBenchfmt writes one line per sample of every result that was timed. Only lines that have a
// wall-clock sample have its values.
func (r Report) writeBenchfmt(w io.Writer) error {
	out := benchfmt.NewWriter(w)
	units := [][3]string{
		{"FLOP/s", "better", "higher"},
		{"B/s", "better", "higher"},
		{"max-abs-error", "better", "lower"},
	}
	if len(r.Results) > 0 {
		for _, a := range r.Results[0].Subject.amounts {
			units = append(units, [3]string{a.Key + "/s", "better", "higher"})
		}
	}
	for _, unit := range units {
		m := &benchfmt.UnitMetadata{OrigUnit: unit[0], Value: unit[2]}
		m.Unit, m.Key = unit[0], unit[1]
		if err := out.Write(m); err != nil {
			return err
		}
	}
	config := r.fileConfig()
	for _, x := range r.Results {
		of := x.Subject
		name, lines, iters := fmt.Sprintf("%s/impl=%s", of.benchmark, x.Impl), len(x.Timing.DeviceNS), x.Timing.Iters
		if x.Config != "" {
			name += "/config=" + x.Config
		}
		if x.Host != nil {
			name, lines, iters = fmt.Sprintf("%sOverhead/impl=%s", strings.TrimSuffix(of.benchmark, "Fwd"), x.Impl), len(x.Host["fresh"]), overheadCalls
		}
		for i := range lines {
			res := &benchfmt.Result{Config: config, Name: benchfmt.Name(name + "/" + of.params), Iters: iters, Values: x.values(i)}
			if err := out.Write(res); err != nil {
				return err
			}
		}
	}
	return nil
}

// values returns what the line of sample i says.
func (x *Result) values(i int) (list []benchfmt.Value) {
	add := func(value float64, unit string) { list = append(list, benchfmt.Value{Value: value, Unit: unit}) }
	if x.Host != nil {
		for _, m := range overheads {
			if i < len(x.Host[m.name]) {
				add(x.Host[m.name][i], m.unit)
			}
		}
		return list
	}
	of, ns := x.Subject, x.Timing.DeviceNS[i]
	add(ns, "ns/op")
	add(of.flops/ns*1e9, "FLOP/s")
	add(of.bytes/ns*1e9, "B/s")
	for _, a := range of.amounts {
		add(a.N/ns*1e9, a.Key+"/s")
	}
	if x.Check.Rows > 0 {
		add(x.Check.MaxAbs, "max-abs-error")
	}
	if i < len(x.Timing.ReplayNS) && i < len(x.Timing.FreshNS) {
		add(x.Timing.ReplayNS[i], "replay-wall-ns/op")
		add(x.Timing.FreshNS[i], "fresh-wall-ns/op")
	}
	return list
}

func (r Report) fileConfig() (config []benchfmt.Config) {
	keys := append([]Key{{"pkg", "github.com/flashvk/flashvk/internal/bench"}, {"goos", runtime.GOOS}, {"goarch", runtime.GOARCH}}, r.environment()...)
	for _, k := range append(keys, Key{"drift", r.Drift.key()}) {
		if value, ok := k.Value.(string); ok && value != "" {
			config = append(config, benchfmt.Config{Key: strings.ReplaceAll(k.Name, "_", "-"), Value: []byte(text.Line(value)), File: true})
		}
	}
	return config
}

// columns returns the fields of x in their order. A value that does not exist for this result, or
// is not finite, is nil.
func (r Report) columns(x Result) []Key {
	of := x.Subject
	list := []Key{
		{"kernel", x.Kernel}, {"impl", x.Impl}, {"peer", x.Peer}, {"choice", x.Choice},
		{"status", string(x.Status)}, {"reason", x.Reason},
	}
	list = append(append(list, of.keys...), Key{"flops", of.flops}, Key{"bytes", of.bytes})
	number := func(name string, have bool, v float64) {
		if have && !math.IsNaN(v) && !math.IsInf(v, 0) {
			list = append(list, Key{name, v})
		} else {
			list = append(list, Key{name, nil})
		}
	}
	checked, timed := x.Check.Rows > 0, x.Status == StatusOK
	number("checked_rows", checked, float64(x.Check.Rows))
	number("of_rows", checked, float64(x.Check.OfRows))
	number("max_abs_error", checked, x.Check.MaxAbs)
	number("mean_abs_error", checked, x.Check.MeanAbs)
	number("error_limit", checked, x.Check.Limit)
	number("lse_max_abs_error", checked, x.Check.LSEMaxAbs)
	number("lse_error_limit", checked, x.Check.LSELimit)
	number("flop_per_s", timed, x.FLOPRate())
	number("byte_per_s", timed, x.ByteRate())
	for _, a := range of.amounts {
		number(a.Key+"_per_s", timed, x.rate(a.N))
	}
	if len(of.amounts) > 0 {
		number("copy_byte_per_s", r.Copy > 0, r.Copy)
		number("share_of_copy", timed && r.Copy > 0, r.CopyShare(x))
	}
	number("samples", timed, float64(len(x.Timing.DeviceNS)))
	number("warmup_calls", timed, float64(x.Timing.Warmup))
	number("iters_per_sample", timed, float64(x.Timing.Iters))
	number("buffer_sets", timed, float64(x.Timing.Sets))
	for _, s := range []struct {
		name    string
		samples []float64
	}{{"device", x.Timing.DeviceNS}, {"replay_wall", x.Timing.ReplayNS}, {"fresh_wall", x.Timing.FreshNS}} {
		sum := Summarize(s.samples)
		number(s.name+"_ns", sum.N > 0, sum.Median)
		number(s.name+"_ns_lo", sum.N > 0, sum.Lo)
		number(s.name+"_ns_hi", sum.N > 0, sum.Hi)
		number(s.name+"_ns_min", sum.N > 0, sum.Min)
		number(s.name+"_ns_max", sum.N > 0, sum.Max)
	}
	for i, f := range r.facts() {
		number(f.Key, true, x.fact(i).N)
	}
	return list
}

// environment returns the fields of a report that all results share.
func (r Report) environment() []Key {
	return []Key{
		{"gpu", r.Env.Device}, {"gpu_type", r.Env.DeviceType}, {"driver", r.Env.Driver}, {"cpu_device", r.Env.CPU},
		{"version", r.Env.Version}, {"commit", r.Env.Commit}, {"suite", r.Suite.name()},
	}
}

// csvLines returns the names, then the values of each result.
func (r Report) csvLines() (lines [][]string) {
	for i, x := range r.Results {
		list := append(r.environment(), r.columns(x)...)
		names, values := make([]string, len(list)), make([]string, len(list))
		for j, c := range list {
			names[j], values[j] = c.Name, csvValue(c.Value)
		}
		if i == 0 {
			lines = append(lines, names)
		}
		lines = append(lines, values)
	}
	return lines
}

func csvValue(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		return text.Line(v)
	}
	return fmt.Sprint(v)
}

// writeJSON writes a document: the environment, and under results a list with
// an object per result, which also holds the samples.
func (r Report) writeJSON(w io.Writer) error {
	object := make(map[string]any)
	for _, c := range r.environment() {
		object[c.Name] = c.Value
	}
	results := make([]map[string]any, len(r.Results))
	for i, x := range r.Results {
		results[i] = make(map[string]any)
		for _, c := range r.columns(x) {
			results[i][c.Name] = c.Value
		}
		none := []float64{} // JSON holds [] of no samples, not null
		results[i]["device_ns_samples"] = append(none, x.Timing.DeviceNS...)
		results[i]["replay_wall_ns_samples"] = append(none, x.Timing.ReplayNS...)
		results[i]["fresh_wall_ns_samples"] = append(none, x.Timing.FreshNS...)
	}
	object["results"] = results
	if r.Drift.Ticks > 0 {
		object["drift"] = map[string]any{"ticks": r.Drift.Ticks, "change": r.Drift.Change, "range": r.Drift.Range, "over_ns": float64(r.Drift.Over)}
	}
	return WriteDocument(w, "bench", r.Made, object)
}

// Schema is the version of all JSON that the program writes for others to read. It grows when a
// key changes its meaning or goes; keys may be added without.
const Schema = 2

// WriteDocument writes JSON: an object with the fields of x and, all sorted,
//
//	schema   Schema
//	kind     what it is: bench, devices
//	made     the time, in UTC, as RFC 3339 has it
//	program  name, version and commit of the program
//
// Names of fields are written in snake_case.
func WriteDocument(w io.Writer, kind string, made time.Time, x map[string]any) error {
	raw, err := json.Marshal(x)
	if err != nil {
		return err
	}
	in := json.NewDecoder(bytes.NewReader(raw))
	in.UseNumber()
	var body any
	if err := in.Decode(&body); err != nil {
		return err
	}
	object := snake(body).(map[string]any)
	maps.Copy(object, map[string]any{"schema": Schema, "kind": kind, "made": made.UTC().Format(time.RFC3339), "program": ReadBuildInfo().String()})
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "\t")
	return out.Encode(object)
}

// snake returns a value of JSON with keys in snake_case.
func snake(x any) any {
	switch x := x.(type) {
	case []any:
		for i := range x {
			x[i] = snake(x[i])
		}
	case map[string]any:
		object := map[string]any{}
		for key, value := range x {
			object[text.Snake(key)] = snake(value)
		}
		return object
	}
	return x
}
