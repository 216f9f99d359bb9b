package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/internal/bench/page"
	"github.com/flashvk/flashvk/vk"
)

// outDir is the folder for reports.
type outDir struct{ path string }

// add adds the flag to f, as --report where --out is a size of the kernel.
func (o *outDir) add(f *pflag.FlagSet) {
	name := "out"
	if f.Lookup(name) != nil {
		name = "report"
	}
	f.StringVar(&o.path, name, "", "folder for everything: benchmark lines, CSV, plots, and a report to open in a browser")
}

// prepare makes the folder and sees that it can be written, before work that
// would be lost.
func (o *outDir) prepare() error {
	if o.path == "" {
		return nil
	}
	if err := os.MkdirAll(o.path, 0o777); err != nil {
		return err
	}
	probe, err := os.CreateTemp(o.path, ".probe-")
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// write writes the files of a report on kernels of a title.
func (o *outDir) write(a *app, title string, r bench.Report, caps *vk.Caps) error {
	if o.path == "" {
		return nil
	}
	for _, f := range []struct {
		name   string
		format bench.Format
	}{{"results.benchfmt", bench.Benchfmt}, {"results.csv", bench.CSV}, {"results.json", bench.JSON}, {"report.md", bench.Markdown}} {
		var b bytes.Buffer
		if err := r.Write(&b, f.format); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(o.path, f.name), b.Bytes(), 0o666); err != nil {
			return err
		}
	}
	drawings := r.Charts()
	if _, err := writeDrawings(o.path, drawings); err != nil {
		return err
	}
	var text strings.Builder
	describeDevice(&text, caps)
	p := page.Page{
		Title: strings.ToUpper(title[:1]) + title[1:] + " on " + strings.Join(strings.Fields(caps.Name), " "), Made: time.Now(), Program: bench.ReadBuildInfo().String(),
		Command: commandLine(a.args), Device: text.String(), Sheet: r.Sheet(),
		Files: []string{"results.csv", "results.json", "results.benchfmt", "report.md"},
	}
	for _, d := range drawings {
		p.Charts = append(p.Charts, d.Chart)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		return err
	}
	path := filepath.Join(o.path, "report.html")
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "flashvk: wrote %s\n", path)
	return nil
}

// plainWord is what a shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine returns the command that was typed, as a shell would take it.
func commandLine(args []string) string {
	words := []string{"flashvk"}
	for _, a := range args {
		if !plainWord.MatchString(a) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
