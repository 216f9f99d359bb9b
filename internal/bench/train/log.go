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
	f io.WriteCloser
	w *csv.Writer
}

var logColumns = []string{"step", "loss", "lr", "tokens_per_s", "seconds"}

// openLog begins the file anew, or, for a training that is continued, keeps its rows up to where
// that begins, which it adds to the result. No other training writes the file until the log is
// closed. A program that is killed meanwhile leaves the file as it was.
func (o *Schedule) openLog(goOn bool, r *Result) (_ *log, err error) {
	if o.CSV == "" {
		return nil, nil
	}
	if info, err := os.Stat(o.CSV); !goOn && err == nil && !info.Mode().IsRegular() {
		return newLog(os.OpenFile(o.CSV, os.O_WRONLY, 0))
	}
	f, err := files.OpenLocked(o.CSV)
	if err != nil {
		return nil, err
	}
	if !goOn {
		if err := f.Truncate(0); err != nil {
			f.Close()
			return nil, err
		}
		return newLog(f, nil)
	}
	defer f.Close() // when the file that replaces it has its name and is locked
	rows, err := readLog(o.CSV)
	if err != nil {
		return nil, err
	}
	r.Rows = slices.DeleteFunc(rows, func(row Row) bool { return row.Step > r.First })
	kept, err := files.Create(o.CSV)
	if err != nil {
		return nil, err
	}
	l, err := newLog(kept, nil)
	for _, row := range r.Rows {
		err = errors.Join(err, l.write(row))
	}
	l.w.Flush()
	if err := errors.Join(err, l.w.Error(), kept.Publish()); err != nil {
		kept.Close()
		return nil, err
	}
	return l, nil
}

// newLog returns a log in a file that was opened, or the error of that.
func newLog(f io.WriteCloser, err error) (*log, error) {
	if err != nil {
		return nil, err
	}
	l := &log{f, csv.NewWriter(f)}
	return l, l.w.Write(logColumns) // to its buffer
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

// means returns the means of the losses over n steps each, with the least and the largest of them; of
// says whose they are.
func means(of string, rows []Row, n int) chart.Series {
	s := chart.Series{Name: of + "loss"}
	if n > 1 {
		s.Name = fmt.Sprintf("%smean of %d, least to most", of, n)
	}
	for part := range slices.Chunk(rows[:len(rows)/n*n], n) {
		mean, low, high := 0.0, part[0].Loss, part[0].Loss
		for _, row := range part {
			mean += row.Loss / float64(n)
			low, high = min(low, row.Loss), max(high, row.Loss)
		}
		s.X, s.Y = append(s.X, float64(part[n-1].Step)), append(s.Y, mean)
		s.Low, s.High = append(s.Low, low), append(s.High, high)
	}
	return s
}

// drawLosses draws means of the losses, each over a hundredth of the steps, and the means of the
// log beside.
func (o *Schedule) drawLosses(title, of string, rows []Row) error {
	n := max(len(rows)/100, 1)
	c := chart.Chart{
		Title: title, Subtitle: fmt.Sprintf("%s, lr %g, seed %d", of, o.LR, o.Seed),
		X: "step", Y: "loss", Plain: true, Series: []chart.Series{means("", rows, n)},
	}
	if o.Beside.Path != "" {
		beside, err := readLog(o.Beside.Path)
		if err != nil {
			return err
		}
		other := means(o.Beside.Name+", ", beside, n)
		other.Peer, other.Low, other.High = true, nil, nil
		c.Series = append(c.Series, other)
	}
	return write(&c, o.Curve)
}

// canDraw returns the error that write would have, before work that would be lost. "" is no
// drawing.
func canDraw(name string) error {
	if name == "" {
		return nil
	}
	probe, err := files.Create(drawingFile(name))
	if err != nil {
		return err
	}
	return probe.Close()
}

// drawingFile returns the file of a drawing, which may be named without its ending; "" of none.
func drawingFile(name string) string {
	if name == "" {
		return ""
	}
	return strings.TrimSuffix(name, ".svg") + ".svg"
}

// write writes a drawing.
func write(c *chart.Chart, name string) error {
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		return err
	}
	return files.Write(drawingFile(name), b.Bytes())
}
