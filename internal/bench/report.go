package bench

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"golang.org/x/perf/benchmath"
	"golang.org/x/perf/benchunit"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/vk"
)

// A Report is everything that one run measured.
type Report struct {
	Env     Environment
	Suite   *Suite // that the problems are of; nil if they are not
	Results []Result
	More    []sheet.Section // after the table of results
	Drift   Drift           // of the clock, over the run
	Memory  vk.Memory       // of the device, over the run
	Copy    float64         // bytes a second of a copy in the same run; 0: not measured
	Made    time.Time
	Quiet   bool // tables and warnings alone
	Wide    bool // a table as wide as it gets, with all columns; else TerminalWidth
}

// An Environment says where and with what a report was made.
type Environment struct {
	Device     string // name of the device
	DeviceType string // discrete GPU, CPU, …
	Driver     string // name and version
	CPU        bool   // the device is a CPU: its times say nothing about a GPU
	Version    string // of flashvk
	Commit     string // "" if unknown
}

// CPUWarning stands beside every time that was taken on a CPU device.
const CPUWarning = "this is a CPU device, not a GPU: its results are right, its times say nothing about any GPU"

// A Status says how far a result got.
type Status string

const (
	StatusOK          Status = "ok"          // correct and timed
	StatusFailed      Status = "failed"      // wrong, and therefore not timed
	StatusUnsupported Status = "unsupported" // the device or the path cannot do it
	StatusNoAnswer    Status = "no answer"   // a peer gave no times
)

// A Result is one implementation on one problem.
type Result struct {
	Kernel  string // what was computed: attention_fwd, attention_bwd, attention_fwd_bwd, or the like
	Impl    string // as asked for: auto, coopmat2, …; of a peer: NAME:IMPLEMENTATION
	Peer    bool   // it is a peer's, not ours: nothing of it is a failure
	Choice  string // what ran: path and configuration; of a peer what it says of itself
	Config  string // the configuration, if it was asked for: a part of the benchmark's name
	Subject *Subject
	Status  Status
	Reason  string               // why it failed or is not supported, or what is wrong with a peer's output, one line
	Check   Check                // zero if unsupported
	Timing  Timing               // zero unless Status is StatusOK
	Host    map[string][]float64 // samples of each of overheads, each the mean of many, and kernels; nil: see Overheads
	Facts   []Fact               // what no other kernel has; those of other results of a report begin alike
}

// A Fact is a number of a result that no other kernel has.
type Fact struct {
	Name, Key string // of the column in tables, and in CSV and JSON
	N         float64
	Text      string // in tables
}

// facts returns the most that a result has.
func (r Report) facts() (list []Fact) {
	for _, x := range r.Results {
		if len(x.Facts) > len(list) {
			list = x.Facts
		}
	}
	return list
}

// fact returns a Fact, NaN if x lacks it.
func (r Result) fact(i int) Fact {
	if i < len(r.Facts) {
		return r.Facts[i]
	}
	return Fact{N: math.NaN(), Text: "-"}
}

// A Check compares a result with the float64 reference. It has the output that is worst relative
// to its limit.
type Check struct {
	Rows, OfRows int     // what was compared, and how many there are: see Counted
	Counted      string  // rows of O, or of dQ, of attention; elements of all outputs of other kernels
	MaxAbs       float64 // max|Δ| over the compared elements, without LSE
	MeanAbs      float64 // mean|Δ|
	Limit        float64 // the largest MaxAbs that passes
	LSEMaxAbs    float64 // max|Δ| over the compared LSE, equal infinities left out
	LSELimit     float64
}

// A Timing holds the samples of one result, in nanoseconds per call. See the
// package documentation for how they are made.
type Timing struct {
	Warmup   int // calls before the first sample
	Iters    int // calls per device sample
	Sets     int // sets of buffers that the calls rotate through
	DeviceNS []float64
	ReplayNS []float64 // wall clock of submitting a recorded call and waiting for it
	FreshNS  []float64 // the same, recording included
}

// A Summary describes a set of samples.
type Summary struct {
	N                int
	Median, Min, Max float64
	// Lo and Hi are the 95 % confidence interval of the median, -Inf and +Inf if
	// there are too few samples for one (fewer than six).
	Lo, Hi float64
}

// Summarize returns the summary of samples, the zero Summary if there are
// none.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	const confidence = 0.95
	sorted := slices.Sorted(slices.Values(samples))
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(sorted, &benchmath.DefaultThresholds), confidence)
	sum := Summary{N: len(sorted), Median: s.Center, Min: sorted[0], Max: sorted[len(sorted)-1], Lo: s.Lo, Hi: s.Hi}
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) {
		sum.Lo, sum.Hi = math.Inf(-1), math.Inf(1)
	}
	return sum
}

// Spread returns how far Lo and Hi are from the median, as a fraction of it: +Inf without an
// interval.
func (s Summary) Spread() float64 {
	if s.Median == 0 {
		return 0
	}
	return max(s.Hi-s.Median, s.Median-s.Lo) / s.Median
}

// IntervalWords explain a column of PlusMinus.
const IntervalWords = "± its 95 % confidence interval, below six samples their range as min–max in % of it"

// PlusMinus writes how certain the median is, as IntervalWords say: 3 %, or 97–105 %, or ∞ for
// a single sample.
func (s Summary) PlusMinus() string {
	switch {
	case s.N == 0 || s.Median == 0:
		return "-"
	case 0 < s.Spread() && s.Spread() < 0.0095:
		return fmt.Sprintf("%.1f%%", 100*s.Spread())
	case !math.IsInf(s.Spread(), 0):
		return fmt.Sprintf("%.0f%%", 100*s.Spread())
	case s.N == 1:
		return "∞"
	}
	return fmt.Sprintf("%.0f–%.0f%%", 100*s.Min/s.Median, 100*s.Max/s.Median)
}

// NS returns the median device time, 0 if r was not timed.
func (r Result) NS() float64 { return Summarize(r.Timing.DeviceNS).Median }

// FLOPRate returns the operations per second, by Op.Cost, at the median device time.
func (r Result) FLOPRate() float64 { return r.rate(r.Subject.flops) }

// ByteRate returns the least traffic per second likewise.
func (r Result) ByteRate() float64 { return r.rate(r.Subject.bytes) }

// CopyShare returns the share of a copy's rate that x reaches, by the first Amount of bytes; 0 if
// it is not known.
func (r Report) CopyShare(x Result) float64 {
	for _, a := range x.Subject.amounts {
		if a.Unit == "B" && r.Copy > 0 {
			return x.rate(a.N) / r.Copy
		}
	}
	return 0
}

func (r Result) rate(amount float64) float64 {
	ns := r.NS()
	if ns == 0 {
		return 0
	}
	return amount / ns * 1e9
}

// BuildInfo describes the running program, as the Go tool recorded it.
type BuildInfo struct {
	Version  string // of the module; (devel) for a build from a checkout
	Commit   string // "" if unknown; ends in +dirty if the checkout had changes
	Go       string
	Platform string // GOOS/GOARCH
}

// ReadBuildInfo returns the build information of the running program.
func ReadBuildInfo() BuildInfo {
	b := BuildInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if b.Commit != "" {
		b.Commit += dirty
	}
	return b
}

// String returns the line that flashvk version prints.
func (b BuildInfo) String() string {
	commit := b.Commit
	if commit == "" {
		commit = "unknown"
	}
	return fmt.Sprintf("flashvk %s commit %s %s %s", b.Version, commit, b.Go, b.Platform)
}

// FormatTime returns ns nanoseconds with four digits, as in 1.234 ms.
func FormatTime(ns float64) string {
	if ns >= 999.95e9 {
		return fmt.Sprintf("%.0f s", ns/1e9)
	}
	return FormatSI(ns/1e9, "s")
}

// FormatSI returns x with four digits and a decimal prefix, as in 440.1 TFLOP/s.
func FormatSI(x float64, unit string) string {
	if x == 0 {
		return "0 " + unit
	}
	scale := benchunit.CommonScale([]float64{x}, benchunit.Decimal)
	return fmt.Sprintf("%.*f %s%s", scale.Prec, x/scale.Factor, scale.Prefix, unit)
}

// FormatBytes returns n bytes with a binary prefix, as in 48 KiB.
func FormatBytes(n uint64) string {
	prefixes := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	x, i := float64(n), 0
	for ; i < len(prefixes)-1 && x >= 1024; i++ {
		x /= 1024
	}
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) + " " + prefixes[i]
}

// A Suite is a list of problems whose results make one table.
type Suite struct {
	Name  string
	About string // what it repeats
	Small bool   // its cases are smaller ones of the same kind, which a CPU device computes in a short time
}

// name returns the name for machines, "" for no suite.
func (s *Suite) name() string {
	switch {
	case s == nil:
		return ""
	case s.Small:
		return s.Name + "-small"
	}
	return s.Name
}
