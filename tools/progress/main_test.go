package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

// lines of two packages that run side by side, of which one fails.
const lines = `{"ImportPath":"x","Action":"build-output","Output":"# x\n"}
{"Action":"start","Package":"github.com/flashvk/flashvk/a"}
{"Action":"start","Package":"github.com/flashvk/flashvk/b/c"}
{"Action":"run","Package":"github.com/flashvk/flashvk/a","Test":"TestA"}
{"Action":"output","Package":"github.com/flashvk/flashvk/a","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"run","Package":"github.com/flashvk/flashvk/b/c","Test":"TestB"}
{"Action":"output","Package":"github.com/flashvk/flashvk/a","Test":"TestA","Output":"    a_test.go:3: hidden\n"}
{"Action":"output","Package":"github.com/flashvk/flashvk/b/c","Test":"TestB","Output":"    b_test.go:4: bad\n"}
{"Action":"pass","Package":"github.com/flashvk/flashvk/a","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"github.com/flashvk/flashvk/a","Output":"PASS\n"}
{"Action":"output","Package":"github.com/flashvk/flashvk/a","Output":"ok  \tgithub.com/flashvk/flashvk/a\t0.014s\n"}
{"Action":"pass","Package":"github.com/flashvk/flashvk/a","Elapsed":0.014}
{"Action":"output","Package":"github.com/flashvk/flashvk/b/c","Test":"TestB","Output":"--- FAIL: TestB (0.00s)\n"}
{"Action":"fail","Package":"github.com/flashvk/flashvk/b/c","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"github.com/flashvk/flashvk/b/c","Output":"FAIL\n"}
{"Action":"output","Package":"github.com/flashvk/flashvk/b/c","Output":"FAIL\tgithub.com/flashvk/flashvk/b/c\t0.020s\n"}
{"Action":"fail","Package":"github.com/flashvk/flashvk/b/c","Elapsed":0.02}
not an event
`

// TestRead wants go test's own lines on one side, and on the other where packages begin.
func TestRead(t *testing.T) {
	var out, progress bytes.Buffer
	s := show{out: &out, progress: &progress}
	if err := s.read(strings.NewReader(lines), nil); err != nil {
		t.Fatal(err)
	}
	const want = "# x\nok  \tgithub.com/flashvk/flashvk/a\t0.014s\n" +
		"    b_test.go:4: bad\n--- FAIL: TestB (0.00s)\nFAIL\nFAIL\tgithub.com/flashvk/flashvk/b/c\t0.020s\nnot an event\n"
	if out.String() != want || !s.failed || len(s.running) != 0 {
		t.Errorf("failed: %v, %d run\n%s\nwant\n%s", s.failed, len(s.running), out.String(), want)
	}
	said := strings.Split(strings.TrimSpace(progress.String()), "\n")
	if len(said) != 2 || !strings.HasSuffix(said[0], " a begins") || !strings.HasSuffix(said[1], " b/c begins") {
		t.Errorf("progress is %q", said)
	}

	verbose := show{out: &out, progress: &progress, verbose: true}
	passing := strings.SplitAfterN(lines, "\n", 6)
	out.Reset()
	if err := verbose.read(strings.NewReader(strings.Join(passing[:5], "")), nil); err != nil || verbose.failed {
		t.Fatal(err, verbose.failed)
	}
	if out.String() != "# x\n=== RUN   TestA\n" {
		t.Errorf("with -v: %q", out.String())
	}
}

// TestTicks wants a line of a package that has had none for a minute.
func TestTicks(t *testing.T) {
	var progress bytes.Buffer
	start := time.Now()
	p := &pkg{name: "a", at: "TestA/x", said: start}
	s := show{out: &bytes.Buffer{}, progress: &progress, running: []*pkg{p, {name: "b"}}}
	ticks := make(chan time.Time)
	r, w := io.Pipe()
	done := make(chan error)
	go func() { done <- s.read(r, ticks) }()
	for _, seconds := range []int{59, 61, 62} {
		ticks <- start.Add(time.Duration(seconds) * time.Second)
	}
	w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(progress.String(), "a is at TestA/x\n"); n != 1 || strings.Count(progress.String(), "\n") != 1 {
		t.Errorf("progress is %q", progress.String())
	}
}
