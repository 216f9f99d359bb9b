package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// tinySearch is a search for tests.
func tinySearch(impls ...string) Search {
	s := Search{Impls: impls, Budget: 300 * time.Millisecond, Hang: time.Minute, Quick: quick(), Final: quick(), Few: 3}
	s.Quick.WallTime, s.Final.WallTime = -1, -1
	return s
}

func tinyProblem() attention.Problem {
	return attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 40, SeqKV: 50, HeadDim: 8, DType: dtype.Float16, Causal: true}
}

// tunableOf returns the choices of the forward pass of a problem of attention.
func tunableOf(t *testing.T, p attention.Problem) Tunable {
	t.Helper()
	list, err := opOf(t, p).Tunables(nil, Forward)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}

// attentionSpace has the configurations of the forward pass of attention.
func attentionSpace() *table.Space[attention.Problem, attention.Config] {
	return table.SpaceOf[attention.Problem, attention.Config]("attention", kit.Forward)
}

// scalarCandidates returns the candidates of path scalar.
func scalarCandidates(t *testing.T, caps *vk.Caps, p attention.Problem) []attention.Config {
	t.Helper()
	list, err := attentionSpace().Candidates(caps, p, "scalar")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestTune says that what is right is timed, in the order of its times, and
// that the winner of each path is known.
func TestTune(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	p := tinyProblem()
	last := -1
	impls := []string{"scalar"}
	if attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: attention.CoopMat2}) == nil {
		impls = append(impls, "coopmat2")
	}
	tuned, err := Tune(context.Background(), d, tunableOf(t, p), tinySearch(impls...), func(done, total int, what string) {
		if done < last || done > total || what == "" {
			t.Errorf("step %d of %d after %d: %q", done, total, last, what)
		}
		last = done
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != atEnd {
		t.Errorf("progress ended at %d", last)
	}
	winners := tuned.Winners()
	if len(winners) != len(impls) {
		t.Fatalf("%d winners of %d paths", len(winners), len(impls))
	}
	finals, tables := 0, 0
	for i := range tuned.Trials {
		x := &tuned.Trials[i]
		if x.Status == StatusOK && (x.Check.MaxAbs == 0 || x.Check.MaxAbs > x.Check.Limit) {
			t.Errorf("%v: %+v", x.Choice, x.Check)
		}
		if x.Status == StatusOK && x.QuickNS == 0 {
			t.Errorf("%v is right but was not timed", x.Choice)
		}
		if x.Stats.Created == 0 {
			t.Errorf("%v: nothing is known about its kernel", x.Choice)
		}
		if x.Final() {
			finals++
			if len(x.Timing.DeviceNS) != 3 || i >= finals {
				t.Errorf("trial %d, %v: %+v", i, x.Choice, x.Timing)
			}
			if i > 0 && x.NS() < tuned.Trials[i-1].NS() {
				t.Errorf("%v is faster than %v before it", x.Choice, tuned.Trials[i-1].Choice)
			}
		}
		if x.Table {
			tables++
			if !x.Final() {
				t.Errorf("%v is the table's and not in the finals", x.Choice)
			}
		}
	}
	if finals < 2 || tables != len(impls) || len(tuned.Results()) != finals {
		t.Errorf("%d finalists, %d of the table, %d results", finals, tables, len(tuned.Results()))
	}

	// The kernels are there already: their numbers are, too.
	again, err := Tune(context.Background(), d, tunableOf(t, p), tinySearch("scalar"), nil)
	if err != nil || len(again.Trials) == 0 || again.Trials[0].Stats.Created == 0 {
		t.Errorf("again: %v, %+v", err, again.Trials)
	}
	p = tinyProblem()
	p.HeadDim = 16
	if _, err := Tune(context.Background(), d, tunableOf(t, p), tinySearch(), nil); !errors.Is(err, vk.ErrUnsupported) {
		t.Errorf("no path: %v", err)
	}
}

// TestTuneFaults says that a candidate that is wrong, does not compile or does
// not come back is dropped and named, and the others go on.
func TestTuneFaults(t *testing.T) {
	vktest.Sequential(t)
	d, p := vktest.Open(t), tinyProblem()
	list := scalarCandidates(t, d.Caps(), p)
	broken := errors.New("the compiler gave up")
	search := func(s Search, fault func(i int, record func(*vk.Cmd, int) error) func(*vk.Cmd, int) error) (Tuned, error) {
		run := newTuning(d, tunableOf(t, p), s, nil)
		defer run.r.close()
		inner := run.record
		run.record = func(c Candidate) func(*vk.Cmd, int) error {
			return fault(slices.Index(list, c.(attention.Config)), inner(c))
		}
		err := run.tune(context.Background())
		return run.outcome(), err
	}
	find := func(tuned Tuned, c Candidate) *Trial {
		for i := range tuned.Trials {
			if tuned.Trials[i].Configuration == c {
				return &tuned.Trials[i]
			}
		}
		return &Trial{}
	}
	s := tinySearch("scalar")
	s.Budget = 2 * time.Second
	tuned, err := search(s, func(i int, record func(*vk.Cmd, int) error) func(*vk.Cmd, int) error {
		switch i {
		case 0:
			return func(*vk.Cmd, int) error { return broken }
		case 1:
			return func(*vk.Cmd, int) error { return nil }
		case 2:
			return func(*vk.Cmd, int) error { return fmt.Errorf("attention: scalar: too much: %w", vk.ErrUnsupported) }
		}
		return record
	})
	if err != nil || len(tuned.Winners()) != 1 {
		t.Fatalf("%v, winners %v", err, tuned.Winners())
	}
	for i, want := range []struct {
		status Status
		reason string
	}{{StatusFailed, "the compiler gave up"}, {StatusFailed, "NaN"}, {StatusUnsupported, "too much"}, {StatusOK, ""}} {
		if x := find(tuned, list[i]); x.Status != want.status || !strings.Contains(x.Reason, want.reason) || x.Final() && want.status != StatusOK {
			t.Errorf("candidate %d: %s %q, want %s %q", i, x.Status, x.Reason, want.status, want.reason)
		}
	}
	var text bytes.Buffer
	if err := WriteSheet(&text, tuned.Sheet(), Table, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{list[0].String() + " FAILED: the compiler gave up\n", list[2].String() + " was left out: too much\n", "FLOP/s", "max|Δ|"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}

	// All hang, by a limit that nothing keeps.
	s.Hang, s.Budget = time.Nanosecond, 10*time.Millisecond
	same := func(_ int, record func(*vk.Cmd, int) error) func(*vk.Cmd, int) error { return record }
	tuned, err = search(s, same)
	if err != nil || len(tuned.Winners()) != 0 || tuned.Trials[0].Reason != "it did not finish within 1ns" {
		t.Errorf("a hang: %v, %+v", err, tuned.Trials)
	}

	// The device is lost: the search ends and says where.
	s.Hang = time.Minute
	tuned, err = search(s, func(i int, record func(*vk.Cmd, int) error) func(*vk.Cmd, int) error {
		if i == 0 {
			return func(*vk.Cmd, int) error { return fmt.Errorf("vk: vkQueueSubmit: %w", vk.ErrDeviceLost) }
		}
		return record
	})
	var lost *LostError
	if !errors.As(err, &lost) || lost.Config != list[0] || !errors.Is(err, vk.ErrDeviceLost) || find(tuned, list[0]).Status != StatusFailed {
		t.Errorf("a lost device: %v", err)
	}
	s.Skip = []Candidate{list[0]}
	tuned, err = search(s, same)
	if err != nil || find(tuned, list[0]).Status != "" {
		t.Errorf("without the candidate: %v, %+v", err, find(tuned, list[0]))
	}
}

// TestTuneBudget says that at least one candidate is tried, and that the rest is
// counted.
func TestTuneBudget(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	s := tinySearch("scalar")
	s.Budget = 1
	tuned, err := Tune(context.Background(), d, tunableOf(t, tinyProblem()), s, nil)
	all := scalarCandidates(t, d.Caps(), tinyProblem())
	variants := attentionSpace().Variants(d.Caps(), tinyProblem(), all[0])
	if want := len(all) + len(variants) - 2; err != nil || tuned.Untried != want || len(tuned.Trials) != 2 || len(tuned.Winners()) != 1 {
		t.Errorf("%v, %d untried, want %d; %d trials", err, tuned.Untried, want, len(tuned.Trials))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Tune(ctx, d, tunableOf(t, tinyProblem()), s, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestTableRows says that sizes of one problem become rows by how much they
// fill the device, the fullest first, and causal rows before those for all.
func TestTableRows(t *testing.T) {
	caps := &vk.Caps{ComputeUnits: 100, SubgroupSize: 32}
	config := func(rows int) attention.Config {
		return attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: rows, BlockN: 16, Depth: 8, ValueRows: 8}
	}
	tuned := func(headDim, seq, rows int, causal bool) Tuned {
		p := attention.Problem{Batch: 1, NumHeads: 10, NumKVHeads: 10, SeqQ: seq, SeqKV: seq, HeadDim: headDim, Causal: causal}
		won := Trial{Configuration: config(rows), Result: Result{Impl: "scalar", Status: StatusOK, Timing: Timing{DeviceNS: []float64{1}}}}
		return Tuned{Of: tunableOf(t, p), Trials: []Trial{won}}
	}
	got := TableRows(caps, []Tuned{tuned(128, 512, 16, false), tuned(64, 512, 16, false), tuned(64, 4096, 32, false), tuned(64, 512, 32, true)})
	for i, want := range []string{
		`{Shape: shape{headDim: 64, causal: true}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, Depth: 8, ValueRows: 8, BlockN: 16}}, // float32`,
		`{Shape: shape{headDim: 64}, Fill: 12.8, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, Depth: 8, ValueRows: 8, BlockN: 16}}, // float32`,
		`{Shape: shape{headDim: 64}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, Depth: 8, ValueRows: 8, BlockN: 16}}, // float32`,
		`{Shape: shape{headDim: 128}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, Depth: 8, ValueRows: 8, BlockN: 16}}, // float32`,
	} {
		if i >= len(got) || got[i] != want {
			t.Errorf("row %d of\n%s\nwant %s", i, strings.Join(got, "\n"), want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d rows", len(got))
	}
}

// A copyChoice is a configuration of tunedCopy.
type copyChoice string

func (c copyChoice) String() string { return "copy " + string(c) }

// A tunedCopy is a copyOp with configurations of which some write into their input.
type tunedCopy struct {
	copyOp
	choice copyChoice
}

// choices returns the configurations.
func (o tunedCopy) choices() Tunable {
	return &Choices[int, copyChoice]{
		Of:     o,
		PathOf: func(copyChoice) string { return "copy" },
		List: func(_ *vk.Caps, impl string) ([]copyChoice, error) {
			if impl != "copy" {
				return nil, fmt.Errorf("copy_of: %s: no such path: %w", impl, vk.ErrUnsupported)
			}
			return []copyChoice{"table", "spoils", "other", "spoils all"}, nil
		},
		Vary: func(_ *vk.Caps, c copyChoice) []copyChoice { return []copyChoice{c + "s"} },
		Use: func(c copyChoice) Op {
			o.choice = c
			return o
		},
		Source: func(_ *vk.Caps, c copyChoice, fill float64) string { return fmt.Sprintf("{%v, %v}", c, fill) },
		FillOf: func(*vk.Caps, copyChoice) float64 { return 2 },
	}
}

func (o tunedCopy) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p Pass) error {
	if strings.HasPrefix(string(o.choice), "spoils") {
		t = map[string]vk.Tensor{"x": t["y"], "y": t["x"]}
	}
	return o.copyOp.Record(c, t, workspace, impl, p)
}

// TestTuneOp says that an Op runs the configurations that it has, and that those that write
// into what they should read are dropped, and harm no other.
func TestTuneOp(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	closed := 0
	op := tunedCopy{copyOp: copyOp{closed: &closed}}.choices()
	s := tinySearch("none", "copy")
	s.Budget = time.Minute
	tuned, err := Tune(context.Background(), d, op, s, nil)
	if err != nil || len(tuned.Trials) < 5 || closed != 1 {
		t.Fatalf("%v, %d trials, closed %d times", err, len(tuned.Trials), closed)
	}
	for _, x := range tuned.Trials {
		wrong, table := strings.HasPrefix(x.Choice, "copy spoils"), x.Choice == "copy table"
		if (x.Status == StatusFailed) != wrong || x.Table != table || x.Kernel != "copy_of_fwd" || x.Impl != "copy" || "copy "+strings.ReplaceAll(x.Config, "-", " ") != x.Choice {
			t.Errorf("%+v", x)
		}
	}
	var text bytes.Buffer
	if err := WriteSheet(&text, tuned.Sheet(), Table, true); err != nil || !strings.Contains(text.String(), "copy_of forward, a copy") {
		t.Errorf("%v, %s", err, &text)
	}
	best := tuned.Winners()[0]
	want := []string{fmt.Sprintf("{%s, 2}", best.Choice), fmt.Sprintf("{%s, 0}", best.Choice)}
	if got := TableRows(d.Caps(), []Tuned{tuned, tuned}); !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	if _, err := Tune(context.Background(), d, op, tinySearch("none"), nil); !errors.Is(err, vk.ErrUnsupported) || !strings.Contains(err.Error(), "no such path") {
		t.Errorf("no path: %v", err)
	}
}
