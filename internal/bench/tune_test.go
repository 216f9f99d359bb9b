package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

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
	x := Tunable{Op: o, With: func(c Candidate) Op {
		o.choice = c.(copyChoice)
		return o
	}}
	x.Path = func(Candidate) string { return "copy" }
	x.Candidates = func(_ *vk.Caps, impl string) ([]Candidate, error) {
		if impl != "copy" {
			return nil, fmt.Errorf("copy_of: %s: no such path: %w", impl, vk.ErrUnsupported)
		}
		return []Candidate{copyChoice("table"), copyChoice("spoils"), copyChoice("other"), copyChoice("spoils all")}, nil
	}
	x.Variants = func(_ *vk.Caps, c Candidate) []Candidate { return []Candidate{c.(copyChoice) + "s"} }
	return x
}

func (o tunedCopy) Bind(d *vk.Device, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p Pass) (call.Recording, error) {
	if strings.HasPrefix(string(o.choice), "spoils") {
		t = map[string]vk.Tensor{"x": t["y"], "y": t["x"]}
	}
	return o.copyOp.Bind(d, t, workspace, impl, p)
}

// copySearch is a search of choices of copies on a device.
func copySearch(t *testing.T) (*vk.Device, Tunable, Search, *int) {
	closed := 0
	s := Search{Impls: []string{"none", "copy"}, Budget: time.Minute, Hang: time.Minute, Quick: quick(), Final: quick(), Few: 3}
	s.Quick.WallTime, s.Final.WallTime = -1, -1
	return vktest.Open(t), tunedCopy{copyOp: copyOp{closed: &closed}}.choices(), s, &closed
}

// searched is what a search comes to, with a fault in what the candidate "other" records.
func searched(t *testing.T, d *vk.Device, op Tunable, s Search, fault error) (Tuned, error) {
	last := 0
	run := newTuning(d, op, s, func(done, total int, what string) {
		require.True(t, last <= done && done <= total && what != "", "%d of %d after %d: %q", done, total, last, what)
		last = done
	})
	defer run.r.close()
	inner := run.record
	run.record = func(c Candidate) func(*vk.Cmd, int) error {
		if c == copyChoice("other") && fault != nil {
			return func(*vk.Cmd, int) error { return fault }
		}
		return inner(c)
	}
	err := run.tune(context.Background())
	return run.outcome(), err
}

func tunedText(t *testing.T, tuned Tuned) string {
	var b strings.Builder
	require.NoError(t, WriteSheet(&b, tuned.Sheet(), Table, true))
	return b.String()
}

// TestTune: what is right is timed, the best first; a candidate that is wrong, or writes into what it
// should read, is dropped and harms no other.
func TestTune(t *testing.T) {
	vktest.Sequential(t)
	d, op, s, closed := copySearch(t)
	tuned, err := searched(t, d, op, s, nil)
	require.NoError(t, err)
	require.Equal(t, 1, *closed)
	require.Len(t, tuned.Trials, 6)
	finals := 0
	for i, x := range tuned.Trials {
		wrong := strings.HasPrefix(x.Choice, "copy spoils")
		require.Equal(t, wrong, x.Status == StatusFailed, x.Choice)
		require.Equal(t, wrong, x.QuickNS == 0, x.Choice)
		require.Equal(t, x.Choice == "copy table", x.Table)
		require.True(t, !x.Table || x.Final(), "the table's choice is in the finals")
		require.Equal(t, []string{"copy_of_fwd", "copy"}, []string{x.Kernel, x.Impl})
		require.Equal(t, x.Choice, "copy "+strings.ReplaceAll(x.Config, "-", " "))
		if x.Final() {
			require.Equal(t, i, finals, "finalists are first")
			require.Len(t, x.Timing.DeviceNS, 3)
			require.True(t, i == 0 || x.NS() >= tuned.Trials[i-1].NS(), "the best is the first")
			finals++
		}
	}
	require.GreaterOrEqual(t, finals, 2)
	require.Len(t, tuned.Results(), finals)
	require.Len(t, tuned.Winners(), 1)
	require.Contains(t, tunedText(t, tuned), "copy_of forward, a copy")
}

// TestTuneFaults: a candidate that does not compile or does not come back is dropped and named.
func TestTuneFaults(t *testing.T) {
	vktest.Sequential(t)
	d, op, s, _ := copySearch(t)
	find := func(tuned Tuned, c copyChoice) (x Trial) {
		for _, x := range tuned.Trials {
			if x.Configuration == c {
				return x
			}
		}
		return x
	}
	for _, c := range []struct {
		fault       error
		status      Status
		reason, say string
	}{
		{errors.New("the compiler gave up"), StatusFailed, "the compiler gave up", "copy other FAILED: the compiler gave up\n"},
		{fmt.Errorf("copy_of: copy: too much: %w", vk.ErrUnsupported), StatusUnsupported, "too much", "copy other was left out: too much\n"},
	} {
		tuned, err := searched(t, d, op, s, c.fault)
		require.NoError(t, err)
		require.Len(t, tuned.Winners(), 1)
		x := find(tuned, "other")
		require.Equal(t, []any{c.status, c.reason, false}, []any{x.Status, x.Reason, x.Final()})
		require.Contains(t, tunedText(t, tuned), c.say)
	}
	// The device is lost: the search ends and says where. Without that candidate it goes on.
	tuned, err := searched(t, d, op, s, fmt.Errorf("vk: vkQueueSubmit: %w", vk.ErrDeviceLost))
	var lost *LostError
	require.ErrorAs(t, err, &lost)
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	require.Equal(t, copyChoice("other"), lost.Config)
	require.Equal(t, StatusFailed, find(tuned, "other").Status)
	skip := s
	skip.Skip = []Candidate{copyChoice("other")}
	tuned, err = searched(t, d, op, skip, nil)
	require.NoError(t, err)
	require.Empty(t, find(tuned, "other").Status)
	// All hang, by a limit that nothing keeps. A budget leaves at least one candidate, and counts the others.
	short := s
	short.Budget = 1
	tuned, err = searched(t, d, op, short, nil)
	require.NoError(t, err)
	require.Equal(t, []int{2, 3}, []int{len(tuned.Trials), tuned.Untried})
	short.Hang = time.Nanosecond
	tuned, err = searched(t, d, op, short, nil)
	require.NoError(t, err)
	require.Empty(t, tuned.Winners())
	require.Equal(t, "it did not finish within 1ns", tuned.Trials[0].Reason)

	s.Impls = s.Impls[:1]
	_, err = Tune(context.Background(), d, op, s, nil)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "no such path")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Impls = []string{"copy"}
	_, err = Tune(ctx, d, op, s, nil)
	require.ErrorIs(t, err, context.Canceled)
}
