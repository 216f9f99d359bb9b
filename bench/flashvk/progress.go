package main

import (
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// A progress is a bar on standard error, if that is a terminal. It is drawn
// for the first step, so that short work shows none.
type progress struct {
	w        io.Writer
	terminal bool
	bar      *progressbar.ProgressBar
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// step shows that done of total steps are behind and what comes next.
func (p *progress) step(done, total int, what string) {
	if !p.terminal {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionClearOnFinish())
	}
	p.bar.Describe(what)
	p.bar.Set(done) // an error says that the terminal is gone, which ends nothing
}

// part returns the function that shows the steps of part i of n, which is named.
func (p *progress) part(i, n int, name string) func(done, total int, what string) {
	const parts = 1000
	return func(done, total int, what string) {
		p.step(i*parts+done*parts/max(total, 1), n*parts, name+": "+what)
	}
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		p.bar.Clear()
	}
}
