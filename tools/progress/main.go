// Progress shows what go test -json writes, which it reads from its standard input: on
// standard output what go test would write without -json, and on standard error where
// packages are:
//
//	$ go test -json ./... | go run ./tools/progress
//	progress: 14:02:11 attention begins
//	progress: 14:03:11 attention is at TestForward/coopmat2/edge/15x17/causal/float16
//	ok  	github.com/flashvk/flashvk/attention	183.201s
//
// A package that runs has a line a minute. The exit status is 1 if one failed.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	verbose := flag.Bool("v", false, "show the output of tests that pass, as go test -v does")
	flag.Parse()
	s := show{out: os.Stdout, progress: os.Stderr, verbose: *verbose}
	if err := s.read(os.Stdin, time.Tick(5*time.Second)); err != nil {
		fmt.Fprintln(os.Stderr, "progress:", err)
		os.Exit(2)
	}
	if s.failed {
		os.Exit(1)
	}
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// A pkg is a package whose tests run.
type pkg struct {
	name, at string    // its path in the module; the test that began last
	said     time.Time // when it had its last line of progress
	output   []output  // of tests that have not passed, in order
}

type output struct{ test, text string }

// A show is what has been read so far.
type show struct {
	out, progress io.Writer
	verbose       bool
	failed        bool
	running       []*pkg
}

// read shows all events, and says at ticks where packages are. A line that is no event is
// shown as it is.
func (s *show) read(r io.Reader, ticks <-chan time.Time) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 64<<20)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	for {
		select {
		case now := <-ticks:
			for _, p := range s.running {
				if p.at != "" && now.Sub(p.said) >= time.Minute {
					s.say(p, now, "is at "+p.at)
				}
			}
		case line, ok := <-lines:
			if !ok {
				return scanner.Err()
			}
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
				fmt.Fprintln(s.out, line)
				continue
			}
			s.event(&e)
		}
	}
}

func (s *show) event(e *event) {
	if e.Package == "" { // build-output and build-fail
		fmt.Fprint(s.out, e.Output)
		return
	}
	name := strings.TrimPrefix(e.Package, "github.com/flashvk/flashvk/")
	i := slices.IndexFunc(s.running, func(p *pkg) bool { return p.name == name })
	if i < 0 {
		i, s.running = len(s.running), append(s.running, &pkg{name: name})
	}
	p := s.running[i]
	switch e.Action {
	case "run":
		if p.at == "" {
			s.say(p, time.Now(), "begins")
		}
		p.at = e.Test
	case "output":
		s.output(p, e)
	case "pass", "skip", "fail":
		s.failed = s.failed || e.Action == "fail"
		switch {
		case e.Test == "":
			for _, o := range p.output {
				fmt.Fprint(s.out, o.text)
			}
			s.running = slices.Delete(s.running, i, i+1)
		case e.Action != "fail":
			p.output = slices.DeleteFunc(p.output, func(o output) bool { return o.test == e.Test })
		}
	}
}

func (s *show) say(p *pkg, now time.Time, text string) {
	p.said = now
	fmt.Fprintf(s.progress, "progress: %s %s %s\n", now.Format(time.TimeOnly), p.name, text)
}

// output shows what a test writes, or keeps it until that has passed: go test without -v
// shows nothing of it then, and neither the line PASS of a package.
func (s *show) output(p *pkg, e *event) {
	switch {
	case s.verbose:
		fmt.Fprint(s.out, e.Output)
	case strings.HasPrefix(e.Output, "=== "), e.Test == "" && e.Output == "PASS\n":
	default:
		p.output = append(p.output, output{e.Test, e.Output})
	}
}
