package train

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
)

// A log is the CSV file of a training; nil is none.
type log struct {
	f *os.File
	w *csv.Writer
}

// logColumns are those of the file.
var logColumns = []string{"step", "loss", "lr", "tokens_per_s", "seconds"}

// openLog begins the file anew, or, for a training that is continued, keeps its rows up to where
// that begins, which it adds to the result. A program that is killed meanwhile leaves the file as
// it was.
func openLog(o *Options, r *Result) (*log, error) {
	if o.CSV == "" {
		return nil, nil
	}
	if o.Load == "" {
		f, err := os.Create(o.CSV)
		if err != nil {
			return nil, err
		}
		l := &log{f, csv.NewWriter(f)}
		if err := l.w.Write(logColumns); err != nil { // to its buffer
			f.Close()
			return nil, err
		}
		return l, nil
	}
	rows, err := readLog(o.CSV)
	if err != nil {
		return nil, err
	}
	r.Rows = slices.DeleteFunc(rows, func(row Row) bool { return row.Step > r.First })
	var kept bytes.Buffer
	l := &log{w: csv.NewWriter(&kept)}
	err = l.w.Write(logColumns)
	for _, row := range r.Rows {
		err = errors.Join(err, l.write(row))
	}
	l.w.Flush()
	if err := errors.Join(err, files.Write(o.CSV, kept.Bytes())); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(o.CSV, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	return &log{f, csv.NewWriter(f)}, nil
}

// readLog reads the rows of a file, none if there is no file. A line that was not finished when
// the program was killed ends it.
func readLog(path string) (rows []Row, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // it may have no end
		return nil, fmt.Errorf("%s: is %s, not a regular file", path, files.Kind(info.Mode()))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	if len(whole) == 0 && !strings.HasPrefix(strings.Join(logColumns, ","), string(text)) {
		return nil, fmt.Errorf("%s: it is no log of a training", path)
	}
	in := csv.NewReader(bytes.NewReader(whole))
	for i := 0; ; i++ {
		cells, err := in.Read()
		switch {
		case err == io.EOF:
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		case i == 0 && !slices.Equal(cells, logColumns):
			return nil, fmt.Errorf("%s: columns %v are not %v: it is no log of a training", path, cells, logColumns)
		case i == 0:
			continue
		}
		var row Row
		if row.Step, err = strconv.Atoi(cells[0]); err != nil {
			return nil, fmt.Errorf("%s: line %d: step %q is not a number", path, i+1, cells[0])
		}
		for j, to := range []*float64{&row.Loss, &row.LR, &row.TokensRate, &row.Seconds} {
			if *to, err = strconv.ParseFloat(cells[j+1], 64); err != nil {
				return nil, fmt.Errorf("%s: line %d: %s %q is not a number", path, i+1, logColumns[j+1], cells[j+1])
			}
		}
		rows = append(rows, row)
	}
}

// write appends a row, which is in the file when it returns.
func (l *log) write(row Row) error {
	if l == nil {
		return nil
	}
	number := func(x float64, digits int) string { return strconv.FormatFloat(x, 'g', digits, 64) }
	if err := l.w.Write([]string{strconv.Itoa(row.Step), number(row.Loss, -1), number(row.LR, -1), number(row.TokensRate, 6), number(row.Seconds, 6)}); err != nil {
		return err
	}
	l.w.Flush()
	return l.w.Error()
}

func (l *log) close() error {
	if l == nil {
		return nil
	}
	return l.f.Close()
}

// means returns the means of the losses over n steps each; of says whose they are.
func means(of string, rows []Row, n int) chart.Series {
	s := chart.Series{Name: fmt.Sprintf("%smean of %d", of, n)}
	for i := 0; i+n <= len(rows); i += n {
		mean := 0.0
		for _, row := range rows[i : i+n] {
			mean += row.Loss / float64(n)
		}
		s.X, s.Y = append(s.X, float64(rows[i+n-1].Step)), append(s.Y, mean)
	}
	return s
}

// drawLosses draws the losses, and their means over so many steps that 100 are left, also of the
// log that stands beside.
func drawLosses(o *Options, rows []Row) error {
	n := max(len(rows)/100, 1)
	each := chart.Series{Name: "loss"}
	for _, row := range rows {
		if len(rows) <= 2000 || len(each.X) == 0 || row.Step%(len(rows)/1000) == 0 {
			each.X, each.Y = append(each.X, float64(row.Step)), append(each.Y, row.Loss)
		}
	}
	c := chart.Chart{
		Title:    "Loss of a neural process on tasks of Gaussian processes",
		Subtitle: fmt.Sprintf("%v; %v; %v, lr %g, seed %d", o.Config, o.Shape, o.DType, o.LR, o.Seed),
		X:        "step", Y: "loss", Plain: true, Series: []chart.Series{each},
	}
	if n > 1 {
		c.Series = append(c.Series, means("", rows, n))
	}
	if o.Beside.Path != "" {
		beside, err := readLog(o.Beside.Path)
		if err != nil {
			return err
		}
		c.Series = append(c.Series, means(o.Beside.Name+", ", beside, n))
	}
	return write(&c, o.Curve)
}

// endings are those of the files of a drawing.
var endings = []string{".png", ".svg"}

// canDraw returns the error that write would have, before work that would be lost. "" is no
// drawing.
func canDraw(name string) error {
	for _, ending := range endings {
		if name == "" {
			return nil
		}
		probe, err := files.Create(name + ending)
		if err != nil {
			return err
		}
		if err := probe.Close(); err != nil {
			return err
		}
	}
	return nil
}

// write writes a drawing as NAME.png and NAME.svg.
func write(c *chart.Chart, name string) error {
	for i, draw := range []func(io.Writer) error{c.PNG, c.SVG} {
		var b bytes.Buffer
		if err := draw(&b); err != nil {
			return err
		}
		if err := files.Write(name+endings[i], b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
