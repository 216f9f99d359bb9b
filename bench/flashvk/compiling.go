package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/flashvk/flashvk/internal/text"
)

// compileNotes tell on a terminal which kernels the driver compiles, where that takes long: in a
// kernel's first call on a device. Later calls find it in the cache of pipelines.
type compileNotes struct {
	w     io.Writer
	after time.Duration // 0: nothing is said
	mu    *sync.Mutex
}

func newCompileNotes(w io.Writer) compileNotes {
	n := compileNotes{w: w, mu: new(sync.Mutex)}
	if newProgress(w).terminal {
		n.after = 300 * time.Millisecond
	}
	return n
}

// say writes a line in place of a progress bar, which is drawn again below it. After close it
// writes nothing.
func (n *compileNotes) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.w != nil {
		fmt.Fprintf(n.w, "\r\x1b[Kflashvk: %s\n", text.Line(fmt.Sprintf(format, args...)))
	}
}

func (n *compileNotes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w = nil
}

// compiling is vk.Options.Compiling.
func (a *app) compiling(kernel string) (done func()) {
	n := &a.notes
	if n.after == 0 {
		return nil
	}
	start, said := time.Now(), make(chan struct{})
	timer := time.AfterFunc(n.after, func() {
		n.say("the driver compiles %s", kernel)
		close(said)
	})
	return func() {
		if !timer.Stop() {
			<-said
			n.say("the driver compiled %s in %v", kernel, time.Since(start).Round(time.Second/100))
		}
	}
}
