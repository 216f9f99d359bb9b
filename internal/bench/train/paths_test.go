package train

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/pipelines/tnp"
)

// TestPaths: no file is written over another one of the training, whatever the paths are called.
func TestPaths(t *testing.T) {
	file := inFolder(t)
	require.NoError(t, os.WriteFile(file("there"), nil, 0o600))
	require.NoError(t, os.Symlink("there", file("link")))
	require.NoError(t, os.Symlink(".", file("folder")))
	for want, change := range map[string]func(o *Options){
		"save and weights are the same file, a":      func(o *Options) { o.Save, o.Weights = "a", "./a" },
		"save and csv are the same file, a":          func(o *Options) { o.Save, o.CSV = "a", "a" },
		"csv and curve are the same file, a.svg":     func(o *Options) { o.CSV, o.Curve = "a.svg", "a" },
		"weights and best are the same file, a":      func(o *Options) { o.Weights, o.Best = "a", "a" },
		"curve and picture are the same file, a.svg": func(o *Options) { o.Curve, o.Picture = "a", "a" },
		"csv and load are the same file, a":          func(o *Options) { o.CSV, o.Load = "a", "a" },
		"csv and start are the same file, a":         func(o *Options) { o.CSV, o.Start = "a", "a" },
		"csv and beside are the same file, a":        func(o *Options) { o.CSV, o.Curve, o.Beside.Path = "a", "b", "a" },
		"weights and load are the same file, a":      func(o *Options) { o.Weights, o.Load = "a", "a" },
		"save and data are the same file, a":         func(o *Options) { o.Save, o.tasks = "a", &tasks{path: "a"} },
		"save and csv are the same file, " + file("link"): func(o *Options) {
			o.Save, o.CSV = file("link"), file("there")
		},
		"save and weights are the same file, " + file("new"): func(o *Options) {
			o.Save, o.Weights = file("new"), file("folder/new")
		},
		"": func(o *Options) {
			o.Save, o.Load, o.Weights, o.CSV, o.Curve = "a", "a", "b", os.DevNull, "a"
		},
		" ": func(o *Options) { o.Save, o.Start, o.Weights = "a", "b", "b" },
	} {
		o := options(t, 2)
		change(o)
		if err := o.Validate(); len(want) > 1 {
			require.EqualError(t, err, "train: "+want)
		} else {
			require.NoError(t, err)
		}
	}
}

// TestLoadWeights: weights alone are no training to continue.
func TestLoadWeights(t *testing.T) {
	file := inFolder(t)
	o := options(t, 1)
	w, err := tnp.Init(o.Config, 1)
	require.NoError(t, err)
	require.NoError(t, tnp.Save(file("weights"), w, o.Config))
	o.Load = file("weights")
	for _, seed := range []bool{false, true} {
		require.EqualError(t, o.ReadFile(seed, 0), file("weights")+" has weights, but not the state of a training, which only a file of --save has; --start begins with weights")
	}
	o.Load, o.Start = "", o.Load
	require.NoError(t, o.ReadFile(false, 0))
}

// TestLogKept: a training that is continued replaces its log whole, so that a kill loses no row.
func TestLogKept(t *testing.T) {
	o := options(t, 9)
	o.CSV, o.Load = inFolder(t)("log"), "state"
	const head = "step,loss,lr,tokens_per_s,seconds\n"
	require.NoError(t, os.WriteFile(o.CSV, []byte(head+"1,1,1,1,1\n2,2,2,2,2\n3,3,3,3,3\n"), 0o600))
	before, err := os.Open(o.CSV)
	require.NoError(t, err)
	defer before.Close()
	r := &Result{First: 2}
	l, err := openLog(t.Context(), o, r)
	require.NoError(t, err)
	require.NoError(t, l.write(Row{Step: 3, Loss: 4, LR: 4, TokensRate: 4, Seconds: 4}))
	for _, load := range []string{"", "state"} {
		_, err := openLog(t.Context(), &Options{CSV: o.CSV, Load: load}, &Result{})
		require.EqualError(t, err, o.CSV+": another process is writing it: name another file, or wait")
	}
	require.NoError(t, l.close())
	require.Len(t, r.Rows, 2)
	require.Equal(t, head+"1,1,1,1,1\n2,2,2,2,2\n3,4,4,4,4\n", read(t, o.CSV))
	text, err := io.ReadAll(before)
	require.NoError(t, err)
	require.Equal(t, head+"1,1,1,1,1\n2,2,2,2,2\n3,3,3,3,3\n", string(text), "the file of before is not written to")
}

// TestLogPipe: a training that is interrupted waits neither for a reader of its log nor for one that
// takes nothing.
func TestLogPipe(t *testing.T) {
	o := &Options{CSV: inFolder(t)("pipe")}
	require.NoError(t, syscall.Mkfifo(o.CSV, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := openLog(ctx, o, &Result{})
	require.ErrorIs(t, err, context.Canceled)

	reader, err := os.OpenFile(o.CSV, os.O_RDWR, 0)
	require.NoError(t, err)
	defer reader.Close()
	ctx, cancel = context.WithCancel(t.Context())
	l, err := openLog(ctx, o, &Result{})
	require.NoError(t, err)
	defer l.close()
	require.NoError(t, reader.SetWriteDeadline(time.Now()))
	for ; err == nil; _, err = reader.Write(make([]byte, 1<<10)) { // fills it
		require.NoError(t, reader.SetWriteDeadline(time.Now().Add(time.Millisecond)))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	cancel()
	require.NoError(t, l.write(Row{Step: 1}))
}
