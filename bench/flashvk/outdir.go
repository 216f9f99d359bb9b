package main

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/page"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// outDir is the folder for reports.
type outDir struct{ path string }

// add adds the flag to f. It is --report where --out is a size of the kernel.
func (o *outDir) add(f *pflag.FlagSet) {
	name := "out"
	if f.Lookup(name) != nil {
		name = "report"
	}
	f.StringVar(&o.path, name, "", "folder for everything: benchmark lines, CSV, plots, and a report to open in a browser")
}

// prepare makes the folder and checks that it can be written, before the work starts.
func (o *outDir) prepare() error {
	if o.path == "" {
		return nil
	}
	if err := os.MkdirAll(o.path, 0o777); err != nil {
		return err
	}
	probe, err := files.Create(filepath.Join(o.path, contents))
	if err != nil {
		return err
	}
	return probe.Close()
}

// contents is a file in the folder that lists the files of reports, a name per line.
const contents = ".flashvk-report"

// A reporter is a report that a folder may have: a bench.Report or a train.Report.
type reporter interface {
	Write(w io.Writer, f bench.Format) error
	Sheet() sheet.Sheet
	Charts() []bench.Drawing
}

// write writes the files of a report under a title, and removes those of an earlier report. Each
// file is whole at any moment.
func (o *outDir) write(a *app, title string, r reporter, caps *vk.Caps) error {
	if o.path == "" {
		return nil
	}
	list, err := reportFiles(a, title, r, caps)
	if err != nil {
		return err
	}
	err = files.Exclusively(filepath.Join(o.path, contents), func() error { return replaceReport(o.path, list) })
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "flashvk: wrote %s\n", filepath.Join(o.path, "report.html"))
	return nil
}

// An outFile is a file of a report.
type outFile struct {
	name string
	data []byte
}

// reportFiles returns the files of a report. The last one is the one to open.
func reportFiles(a *app, title string, r reporter, caps *vk.Caps) (list []outFile, err error) {
	add := func(name string, write func(io.Writer) error) {
		var b bytes.Buffer
		err = errors.Join(err, write(&b))
		list = append(list, outFile{name, b.Bytes()})
	}
	p := page.Page{
		Title: strings.ToUpper(title[:1]) + title[1:] + " on " + text.Line(caps.Name), Made: time.Now(), Program: bench.ReadBuildInfo().String(),
		Command: commandLine(a.args), Sheet: r.Sheet(),
		Files: []string{"results.csv", "results.json", "results.benchfmt", "report.md"},
	}
	var device strings.Builder
	describeDevice(&device, caps)
	p.Device = device.String()
	for i, f := range []bench.Format{bench.CSV, bench.JSON, bench.Benchfmt, bench.Markdown} {
		add(p.Files[i], func(w io.Writer) error { return r.Write(w, f) })
	}
	for _, d := range r.Charts() {
		add(d.Name+".svg", d.SVG)
		p.Drawings = append(p.Drawings, template.HTML(list[len(list)-1].data))
	}
	add("report.html", p.Write)
	return list, err
}

// replaceReport writes files into a folder and removes those of earlier reports. The folder lists
// them at any moment, also if this is interrupted.
func replaceReport(dir string, list []outFile) error {
	old, err := os.ReadFile(filepath.Join(dir, contents))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var names, stale []string
	for _, f := range list {
		names = append(names, f.name)
	}
	for _, name := range strings.Fields(string(old)) {
		if filepath.Base(name) == name && !slices.Contains(names, name) {
			stale = append(stale, name)
		}
	}
	note := func(names []string) outFile { return outFile{contents, []byte(strings.Join(names, "\n") + "\n")} }
	for _, f := range append([]outFile{note(append(names, stale...))}, list...) {
		if err := files.Write(filepath.Join(dir, f.name), f.data); err != nil {
			return err
		}
	}
	if len(stale) == 0 {
		return nil // the report is the last file that takes room
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return files.Write(filepath.Join(dir, contents), note(names).data)
}

// plainWord matches words that a shell needs no quotes for.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine returns the command as it would be typed in a shell.
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
