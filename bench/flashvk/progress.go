package main

import (
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/flashvk/flashvk/internal/text"
)

// A progress is a bar with the remaining time on standard error, if that is a terminal. It is
// drawn after the first step, so that short work shows none.
type progress struct {
	w        io.Writer
	terminal bool
	bar      *progressbar.ProgressBar
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// labelWidth is the width of the label before the bar, so that the bar does not move.
const labelWidth = 40

// label returns what in labelWidth runes.
func label(what string) string {
	what = text.Short(what, labelWidth)
	return what + fmt.Sprintf("%*s", labelWidth-utf8.RuneCountInString(what), "")
}

// step shows that done of total steps are complete, and what comes next.
func (p *progress) step(done, total int, what string) {
	if !p.terminal {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetWidth(16),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionClearOnFinish())
	}
	p.bar.Describe(label(what))
	p.bar.Set(done) // an error says that the terminal is gone; the work goes on
}

// part returns the function that shows the steps of case i of n.
func (p *progress) part(i, n int) func(done, total int, what string) {
	if n == 1 {
		return p.step
	}
	const parts = 1000
	return func(done, total int, what string) {
		p.step(i*parts+done*parts/max(total, 1), n*parts, fmt.Sprintf("case %d of %d: %s", i+1, n, what))
	}
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		p.bar.Clear()
	}
}

// compiling is vk.Options.Compiling: it tells on a terminal which kernels the driver compiles, where
// that takes long, in a kernel's first call on a device. Later calls find it in the cache of
// pipelines. A line stands in place of a progress bar, which is drawn again below it.
func (a *app) compiling(kernel string) (done func()) {
	say := func(format string, args ...any) {
		fmt.Fprintf(a.stderr, "\r\x1b[Kflashvk: %s\n", text.Line(fmt.Sprintf(format, args...)))
	}
	start, said := time.Now(), make(chan struct{})
	timer := time.AfterFunc(a.patience, func() {
		say("the driver compiles %s", kernel)
		close(said)
	})
	return func() {
		if !timer.Stop() {
			<-said
			say("the driver compiled %s in %v", kernel, time.Since(start).Round(time.Second/100))
		}
	}
}
